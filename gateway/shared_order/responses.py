"""Stored responses of all processes of one order: a client may ask for one at any of them.

A response that is made is told to all through the leader, which every follower reaches. One that is not known, because
the process has restarted or was not told, is asked for at all others.
"""

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from contextlib import suppress
from typing import Any, Final

import msgspec

from gateway.intake.stored_responses import ID_CHARS_MAX, StoredResponse, StoredResponses
from gateway.shared_order.order import SharedOrder
from gateway.shared_order.services import Peers, Service
from gateway.store.base import StoreFull, StoreUnavailable

_pack: Final = msgspec.msgpack.Encoder().encode
_KEPT: Final = msgspec.msgpack.Decoder(StoredResponse)
_MADE: Final = msgspec.msgpack.Decoder(tuple[str, StoredResponse])


class SharedResponses(StoredResponses):
    """The stored responses of all processes, as this one knows them."""

    def __init__(self, order: SharedOrder, peers: Peers, start: Callable[[Coroutine[Any, Any, None]], None]) -> None:
        """`start` runs a coroutine in the background."""
        super().__init__()
        self._order, self._peers, self._start = order, peers, start
        self.services: Mapping[str, Service] = {
            "made": self._hear,
            "kept": self._known_here,
            "response": self._known_anywhere,
        }
        """What the other processes ask this one."""

    async def fetch(self, response_id: str) -> None:
        if self.known(response_id) is None and len(response_id) <= ID_CHARS_MAX:
            with suppress(StoreUnavailable, StoreFull):  # then it is not found
                body = await self._ask(response_id.encode())
                if body:
                    super().made(response_id, _KEPT.decode(body))

    def made(self, response_id: str, kept: StoredResponse) -> None:
        super().made(response_id, kept)
        self._tell(_pack((response_id, kept)))

    def _tell(self, body: bytes) -> None:
        if self._order.leader is None:
            self._start(self._tell_one(None, body))
        for name in self._order.followers():
            self._start(self._tell_one(name, body))

    async def _tell_one(self, member: str | None, body: bytes) -> None:
        """Tell a follower, or the leader (None)."""
        with suppress(StoreUnavailable, StoreFull):  # it has ended, or will not find this response
            await (self._peers.ask_leader("made", body) if member is None else self._peers.ask(member, "made", body))

    async def _ask(self, body: bytes) -> bytes:
        if self._order.leader is not None:
            return await self._known_anywhere(body)
        return await self._peers.ask_leader("response", body)

    async def _hear(self, body: bytes) -> bytes:
        """A response was made elsewhere; the leader tells it to all."""
        super().made(*_MADE.decode(body))
        if self._order.leader is not None:
            self._tell(body)
        return b""

    async def _known_here(self, body: bytes) -> bytes:
        """The response of this id; b"": it is not known."""
        kept = self.known(body.decode())
        return b"" if kept is None else _pack(kept)

    async def _known_anywhere(self, body: bytes) -> bytes:
        """The response of this id, at the leader: of all processes."""
        found = await self._known_here(body)
        names = [] if found else self._order.followers()
        answers = await asyncio.gather(*(self._peers.ask(name, "kept", body) for name in names), return_exceptions=True)
        return next((each for each in answers if isinstance(each, bytes) and each), found)
