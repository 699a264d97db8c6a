"""The composition root of a replica: one of several gateways that share a Redis, which elects the one that leads.

Each has a whole copy of the state (gateway/store/mirrored.py) and every part of a gateway (gateway/member_app.py).
"""

import asyncio
import hmac
import logging
import secrets
import socket
from collections.abc import Sequence
from contextlib import suppress
from typing import Final
from urllib.parse import urlsplit

from gateway.config import Config
from gateway.member_app import MemberGateway
from gateway.shared_order.credentials import derived_credentials, given_credentials
from gateway.shared_order.place import MemberPlace
from gateway.store.assembly import make_elections
from gateway.store.base import Store, StoreUnavailable
from gateway.store.redis_election import SECRET_BYTES, RedisElection

SECRET_S_MAX: Final = 1.0  # a start waits so long to be told the secret of all
RETRY_S: Final = 1.0
PURPOSE: Final = b"fairlead: the secret of a cluster"
SUFFIX_BYTES: Final = 4
REDIS_PORT: Final = 6379
LOCAL: Final = "127.0.0.1"
ANY_ADDRESS: Final = frozenset({"", "0.0.0.0", "::"})

log = logging.getLogger(__name__)


class ReplicaGateway(MemberGateway):
    """One of several gateways that share a Redis, each with its whole copy of the state."""

    def __init__(self, place: MemberPlace, config: Config, store: Store, elections: RedisElection) -> None:
        super().__init__(place, config, store, elections=elections)
        self._elections = elections
        elections.on_connected, elections.version = self.order.reconnected, place.version

    async def start(self) -> str:
        if self._management is not None:
            self._management.make_secret()  # what is read next
        secrets_known = secrets_of(self._config)
        if secrets_known:
            self._knows(secrets_known)
        else:
            await self._learn_secret()
        return await super().start()

    async def stop(self) -> None:
        await super().stop()
        await self._elections.close()

    async def _assembled(self) -> None:
        await self._port.start()
        self.order.start()
        await super()._assembled()

    def _knows(self, known: Sequence[bytes]) -> None:
        """These are the secrets of all; the first one issues certificates, where none are configured."""
        self._place.secret = known[0]
        if self._config.cluster.tls is None:
            self._place.credentials = derived_credentials(known, self._place.name)

    async def _learn_secret(self) -> None:
        """No secret is configured: take the one that the store has for all."""
        try:
            async with asyncio.timeout(SECRET_S_MAX):
                self._knows([await self._elections.shared_secret()])
        except (TimeoutError, StoreUnavailable) as error:
            log.warning("the secret of the cluster is not known yet: %s", error)
            self._knows([secrets.token_bytes(SECRET_BYTES)])
            self._in_background(self._learn_secret_later())

    async def _learn_secret_later(self) -> None:
        while True:
            await asyncio.sleep(RETRY_S)
            with suppress(StoreUnavailable):
                self._knows([await self._elections.shared_secret()])
                return


def make_replica(config: Config, store: Store) -> ReplicaGateway:
    """A replica of this configuration. Raises ValueError where a file of the section cannot be read."""
    return ReplicaGateway(place_of(config), config, store, make_elections(config.state))


def place_of(config: Config) -> MemberPlace:
    """Where a replica listens, what it is called, and its certificate, where one is configured. Raises ValueError."""
    cluster, redis = config.cluster, config.state.redis
    assert redis is not None, "the configuration is checked"
    url = urlsplit(redis.url)
    near = local_address(url.hostname, url.port or REDIS_PORT)
    host = near if cluster.host is None else cluster.host
    advertise = cluster.advertise or ""
    if not advertise and host in ANY_ADDRESS and cluster.port:
        advertise = f"{near}:{cluster.port}"
    return MemberPlace(
        # A process that is started anew is another member: names of requests contain it, and are never used again.
        name=f"{cluster.name or socket.gethostname()}-{secrets.token_hex(SUFFIX_BYTES)}",
        secret=b"",  # until it starts
        listen=(host, cluster.port),
        advertise=advertise,
        credentials=None if cluster.tls is None else given_credentials(cluster.tls),
    )


def secrets_of(config: Config) -> list[bytes]:
    """The secrets that replicas of this configuration know each other by; none where only Redis has one. Raises
    ValueError.
    """
    shared = config.auth.secret_bytes()
    derived = [] if shared is None else [hmac.digest(shared, PURPOSE, "sha256").hex().encode()]
    return config.cluster.secrets() or derived


def local_address(url_host: str | None, port: int) -> str:
    """The address of this machine from which that host is reached."""
    if url_host is None:
        return LOCAL
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(url_host, port, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.connect(address)  # sends nothing
            return str(probe.getsockname()[0])
    except OSError:  # it is not known yet: as others know this machine
        try:
            return socket.gethostbyname(socket.gethostname())
        except OSError:
            return LOCAL
