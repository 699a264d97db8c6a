"""Redis election: the key of the leader, the list of members, and the last checkpoint, in one Redis or Valkey server.

It has two connections of its own: a checkpoint that is written must not delay a renewal.
"""

import secrets
from collections.abc import Callable
from importlib import resources
from typing import Any, Final

from redis.asyncio import Connection, Redis
from redis.exceptions import RedisError

from gateway.cluster.election_store import ABANDONED_S, MEMBER_S, StoreCall, StoreView, Witnesses
from gateway.cluster.promise import LEASE_S
from gateway.cluster.wire import VERSION
from gateway.store.base import StoreUnavailable
from gateway.store.redis_store import TIMEOUT_S, close, connections

SECRET_BYTES: Final = 32


class RedisElection:
    """The election store in one Redis or Valkey server (see `ElectionStore`). Made and used on one loop."""

    def __init__(
        self, url: str, *, prefix: str = "fairlead", timeout_s: float = TIMEOUT_S, options: dict[str, Any] | None = None
    ) -> None:
        """The arguments are those of RedisStore."""
        self._name = f"{{{prefix}}}:cluster-".__add__
        given = options or {}
        elects = {"redis_connect_func": self._connected, **given}
        self._redis = Redis(connection_pool=connections(url, timeout_s=timeout_s, options=elects))
        self._besides = Redis(connection_pool=connections(url, timeout_s=timeout_s, options=given))
        script = resources.files("gateway.store").joinpath("data", "elect.lua").read_text(encoding="utf-8")
        self._script = self._redis.register_script(script)
        self.version = VERSION
        """The version of this member's protocol, which precedes its address in the list."""
        self._on_connected: Callable[[], None] | None = None
        self._secret: str | None = None  # of all members, where only the server knows one

    def join(self, version: int, on_connected: Callable[[], None]) -> None:
        """Call for a member with this version of the protocol. `on_connected` is called with every new connection,
        which may lead to a server that knows less.
        """
        self.version, self._on_connected = version, on_connected

    async def call(self, call: StoreCall) -> StoreView:
        """Make one call. Raises StoreUnavailable within the timeout."""
        keys = [self._name(name) for name in ("leader", "epochs", "members", "reports", "witnesses")]
        address = f"{self.version} {call.address}"
        lives_ms = int(LEASE_S * 1000), int(MEMBER_S * 1000)
        reports = call.number, call.free_epoch, int(call.has_ended)
        witnesses = call.witnesses.epoch, "\n".join(sorted(call.witnesses.names)), int(ABANDONED_S * 1000)
        args = [call.ask.value, call.member, address, call.epoch, *lives_ms, *reports, *witnesses]
        try:
            leader, epoch, counter, kept, *members = await self._script(keys=keys, args=args)
        except (RedisError, OSError) as error:
            raise _unavailable(error) from error
        listed, strangers, silent_s = {}, set(), {}
        for encoded, entry, silent_ms in zip(members[::3], members[1::3], members[2::3], strict=True):
            name = encoded.decode()
            version, _, listed[name] = entry.decode().rpartition(" ")
            silent_s[name] = silent_ms / 1000
            if version != str(self.version):
                strangers.add(name)
        of_epoch, _, names = kept.decode().split("\n", 2) if kept else ("0", "", "")
        agreed = Witnesses(int(of_epoch), frozenset(names.split("\n") if names else ()))
        return StoreView(leader.decode() or None, epoch, listed, counter, frozenset(strangers), silent_s, agreed)

    async def put_checkpoint(self, body: bytes) -> None:
        """Store this checkpoint in place of the previous one, and the members' secret. Raises StoreUnavailable. The
        server may have lost both.
        """
        kept: dict[str, bytes | str] = {self._name("checkpoint"): body}
        if self._secret is not None:
            kept[self._name("secret")] = self._secret
        try:
            async with self._besides.pipeline(transaction=False) as pipeline:
                for key, value in kept.items():
                    pipeline.set(key, value)
                await pipeline.execute()
        except (RedisError, OSError) as error:
            raise _unavailable(error) from error

    async def checkpoint(self) -> bytes | None:
        """The checkpoint that was stored last. Raises StoreUnavailable."""
        try:
            body: Any = await self._besides.get(self._name("checkpoint"))
        except (RedisError, OSError) as error:
            raise _unavailable(error) from error
        return None if body is None else bytes(body)

    async def shared_secret(self) -> bytes:
        """The secret of all processes that use this server and prefix, made by the first that asks. Raises
        StoreUnavailable.
        """
        key = self._name("secret")
        try:
            await self._besides.set(key, secrets.token_hex(SECRET_BYTES), nx=True)
            found: Any = await self._besides.get(key)
        except (RedisError, OSError) as error:
            raise _unavailable(error) from error
        if found is None:
            raise StoreUnavailable("Redis: it has forgotten what it was just told")
        self._secret = found.decode()
        return bytes.fromhex(self._secret)

    async def close(self) -> None:
        for redis in (self._redis, self._besides):
            await close(redis)

    async def _connected(self, connection: Connection) -> None:
        await connection.on_connect()
        if self._on_connected is not None:
            self._on_connected()


def _unavailable(error: Exception) -> StoreUnavailable:
    return StoreUnavailable(f"Redis: {error or type(error).__name__}")
