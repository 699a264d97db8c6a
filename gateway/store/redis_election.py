"""Redis election: the key of the leader, the list of members, and the last checkpoint, in one Redis or Valkey server.

The election store has two connections of its own, so that the writing of a checkpoint delays no renewal.
"""

import secrets
from collections.abc import Callable
from typing import Any, Final

from gateway.cluster.election_store import ABANDONED_S, MEMBER_S, StoreCall, StoreView, Witnesses
from gateway.cluster.promise import LEASE_S
from gateway.cluster.wire import VERSION
from gateway.store.base import StoreUnavailable
from gateway.store.redis_store import TIMEOUT_S, RedisServer

SECRET_BYTES: Final = 32
KEYS: Final = [f"cluster-{name}" for name in ("leader", "epochs", "members", "reports", "witnesses")]
CHECKPOINT, SECRET = "cluster-checkpoint", "cluster-secret"


class RedisElection:
    """The ElectionStore in a Redis or Valkey server, by which replicas elect a leader. Made and used on one loop."""

    def __init__(
        self, url: str, *, prefix: str = "fairlead", timeout_s: float = TIMEOUT_S, options: dict[str, Any] | None = None
    ) -> None:
        """The arguments are those of RedisStore."""
        self._server = RedisServer(url, prefix, timeout_s=timeout_s, options=options, scripts=["elect"])
        self._besides = RedisServer(url, prefix, timeout_s=timeout_s, options=options)
        self.version = VERSION
        """The version of this member's protocol, which precedes its address in the list."""
        self._secret: str | None = None  # of all members, where only the server knows one

    def join(self, version: int, on_connected: Callable[[], None]) -> None:
        """Make calls for a member with this version of the protocol. `on_connected` is called with every new
        connection, which may lead to a server that knows less.
        """
        self.version, self._server.on_connected = version, on_connected

    async def call(self, call: StoreCall) -> StoreView:
        """Make one call. Raises StoreUnavailable within the timeout."""
        address = f"{self.version} {call.address}"
        lives_ms = int(LEASE_S * 1000), int(MEMBER_S * 1000)
        reports = call.number, call.free_epoch, int(call.has_ended)
        witnesses = call.witnesses.epoch, "\n".join(sorted(call.witnesses.names)), int(ABANDONED_S * 1000)
        args = [call.ask.value, call.member, address, call.epoch, *lives_ms, *reports, *witnesses]
        leader, epoch, counter, kept, *members = await self._server.call("elect", KEYS, args)
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
        """Store this checkpoint in place of the previous one. Store the members' secret again, too, because the server
        may have lost it. Raises StoreUnavailable.
        """
        await self._besides.put({CHECKPOINT: body, **({} if self._secret is None else {SECRET: self._secret})})

    async def checkpoint(self) -> bytes | None:
        """The checkpoint that was stored last. Raises StoreUnavailable."""
        body: bytes | None = await self._besides.ask("GET", CHECKPOINT)
        return body

    async def shared_secret(self) -> bytes:
        """The secret of all processes that use this server and prefix, made by the first process that asks. Raises
        StoreUnavailable.
        """
        await self._besides.ask("SET", SECRET, secrets.token_hex(SECRET_BYTES), "NX")
        found = await self._besides.ask("GET", SECRET)
        if found is None:
            raise StoreUnavailable("Redis: it has forgotten what it was just told")
        self._secret = found.decode()
        return bytes.fromhex(self._secret)

    async def close(self) -> None:
        for server in (self._server, self._besides):
            await server.close()
