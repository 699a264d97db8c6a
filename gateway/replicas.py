"""Replicas: gateways that share a Redis, which elects their leader.

Each replica has a whole copy of the state (gateway/store/mirrored.py) and all parts of a gateway, and may become the
leader of their order (gateway/shared_order/member_order.py).
"""

import asyncio
import hmac
import logging
import secrets
import socket
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import Final
from urllib.parse import urlsplit

from gateway.admin.management import make_admin_secret
from gateway.app import Gateway, open_gateway
from gateway.config import Config
from gateway.config.state import RedisSection
from gateway.parts import GatewayParts
from gateway.shared_order.credentials import derived_credentials, given_credentials
from gateway.shared_order.member_order import Entrance, MemberOrder
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


class Elected(Entrance):
    """The role of one replica in a shared order (a leader decides for several processes), whether it leads or follows.
    It gets the secret that all replicas share, connects to them, and takes part in the election of the leader by Redis.
    """

    def __init__(self, order: MemberOrder, *, config: Config, elections: RedisElection) -> None:
        self._order, self._config, self._elections = order, config, elections
        elections.join(order.place.version, order.shared.reconnected)

    async def open(self) -> None:
        make_admin_secret(self._config)  # what is read next
        secrets_known = secrets_of(self._config)
        if secrets_known:
            self._knows(secrets_known)
        else:
            await self._learn_secret()

    async def begin(self, parts: GatewayParts) -> None:
        await self._order.port.start()
        self._order.shared.start()

    async def close(self) -> None:
        await self._elections.close()

    def _knows(self, known: Sequence[bytes]) -> None:
        """These are the secrets of all; the first one issues certificates, where none are configured."""
        self._order.place.secret = known[0]
        if self._config.cluster.tls is None:
            self._order.place.credentials = derived_credentials(known, self._order.place.name)

    async def _learn_secret(self) -> None:
        """No secret is configured: take the one that the store has for all."""
        try:
            async with asyncio.timeout(SECRET_S_MAX):
                self._knows([await self._elections.shared_secret()])
        except (TimeoutError, StoreUnavailable) as error:
            log.warning("the secret of the cluster is not known yet: %s", error)
            self._knows([secrets.token_bytes(SECRET_BYTES)])
            self._order.tasks.start(self._learn_secret_later())

    async def _learn_secret_later(self) -> None:
        while True:
            await asyncio.sleep(RETRY_S)
            with suppress(StoreUnavailable):
                self._knows([await self._elections.shared_secret()])
                return


async def open_replica(config: Config, redis: RedisSection, store: Store) -> Gateway:
    """A replica of this configuration, elected by this Redis. Raises the errors of `open_gateway`, and ValueError if a
    file of the cluster section cannot be read.
    """
    elections = make_elections(redis)
    enter = partial(Elected, config=config, elections=elections)
    order = MemberOrder(config, place_of(config, redis), enter, elections=elections)
    return await open_gateway(config, store, order=order)


def place_of(config: Config, redis: RedisSection) -> MemberPlace:
    """A replica's place: its name, where it listens, and its certificate, if one is configured. Raises ValueError."""
    cluster = config.cluster
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
    """The secrets by which replicas of this configuration authenticate each other; empty if they get one from Redis.
    Raises ValueError.
    """
    shared = config.auth.secret_bytes()
    derived = [] if shared is None else [hmac.digest(shared, PURPOSE, "sha256").hex().encode()]
    return config.cluster.secrets() or derived


def local_address(url_host: str | None, port: int) -> str:
    """The address of this machine on the route to that host and port."""
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
