"""The composition root of a replica: one of several gateways that share a Redis, which elects the one that leads.

Each has a whole copy of the state (gateway/store/mirrored.py) and every part of a gateway (gateway/member_app.py).
"""

import asyncio
import hmac
import logging
import secrets
import socket
import ssl
from contextlib import suppress
from typing import Final
from urllib.parse import urlsplit

from gateway.config import Config
from gateway.config.cluster import ClusterTls
from gateway.config.tls import server_context
from gateway.member_app import MemberGateway
from gateway.shared_order.place import MemberPlace
from gateway.state.assembly import make_elections
from gateway.store.base import Store, StoreUnavailable
from gateway.store.redis_election import SECRET_BYTES, RedisElection

SECRET_S_MAX: Final = 1.0  # a start waits so long to be told the secret of all
RETRY_S: Final = 1.0
PURPOSE: Final = b"fairlead: what replicas prove to each other that they know"
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
        elections.on_connected = self.order.reconnected

    async def start(self) -> str:
        if not self._place.secret:
            await self._learn_secret()
        return await super().start()

    async def stop(self) -> None:
        await super().stop()
        await self._elections.close()

    async def _assembled(self) -> None:
        await self._port.start()
        self.order.start()
        await super()._assembled()

    async def _learn_secret(self) -> None:
        """No secret is configured: take the one that the store has for all."""
        try:
            async with asyncio.timeout(SECRET_S_MAX):
                self._place.secret = await self._elections.shared_secret()
        except (TimeoutError, StoreUnavailable) as error:
            log.warning("the secret of the cluster is not known yet: %s", error)
            self._place.secret = secrets.token_bytes(SECRET_BYTES)
            self._in_background(self._learn_secret_later())

    async def _learn_secret_later(self) -> None:
        while True:
            await asyncio.sleep(RETRY_S)
            with suppress(StoreUnavailable):
                self._place.secret = await self._elections.shared_secret()
                return


def make_replica(config: Config, store: Store) -> ReplicaGateway:
    """A replica of this configuration. Raises ValueError where a file of the section cannot be read."""
    return ReplicaGateway(place_of(config), config, store, make_elections(config.state))


def place_of(config: Config) -> MemberPlace:
    """Where a replica listens, what it is called, and what it proves that it knows; b"" where only Redis knows a
    secret. Raises ValueError.
    """
    cluster, redis = config.cluster, config.state.redis
    assert redis is not None, "the configuration is checked"
    url = urlsplit(redis.url)
    near = local_address(url.hostname, url.port or REDIS_PORT)
    host = near if cluster.host is None else cluster.host
    advertise = cluster.advertise or ""
    if not advertise and host in ANY_ADDRESS and cluster.port:
        advertise = f"{near}:{cluster.port}"
    shared = config.auth.secret_bytes()
    derived = b"" if shared is None else hmac.digest(shared, PURPOSE, "sha256")
    tls = cluster.tls
    return MemberPlace(
        # A process that is started anew is another member: names of requests contain it, and are never used again.
        name=f"{cluster.name or socket.gethostname()}-{secrets.token_hex(SUFFIX_BYTES)}",
        secret=cluster.secret() or derived,
        listen=(host, cluster.port),
        advertise=advertise,
        server_tls=None if tls is None else _accepting(tls),
        client_tls=None if tls is None else _connecting(tls),
    )


def _accepting(tls: ClusterTls) -> ssl.SSLContext:
    """Raises ValueError where its files cannot be read."""
    context = server_context(tls)
    context.verify_mode = ssl.CERT_REQUIRED
    _trust(context, tls)
    return context


def _connecting(tls: ClusterTls) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False  # replicas are known by address; each proves that the CA of the cluster knows it
    context.load_cert_chain(tls.cert_file, tls.key_file)
    _trust(context, tls)
    return context


def _trust(context: ssl.SSLContext, tls: ClusterTls) -> None:
    try:
        context.load_verify_locations(tls.ca_file)
    except (OSError, ssl.SSLError) as error:
        raise ValueError(f"the file {tls.ca_file} is not one of CA certificates: {error}") from error


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
