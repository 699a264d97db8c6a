"""StoredResponses: the owner and the backend of each response made through this gateway.

A backend keeps responses in its own memory and returns them to any caller that knows their id. The gateway returns a
response to its owner alone: for any other caller it does not exist. Nor does a response exist that the gateway has
forgotten: it keeps `responses_max` responses, and forgets the least recently used.

Where several processes share an order, a client may ask for a response at any of them. A new response is announced to
all through the leader, which every follower reaches. If a process does not know a response, because it has restarted or
missed the announcement, it asks all others.
"""

from collections import OrderedDict
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Final

import msgspec

from gateway.others import Others
from gateway.store.base import StoreFull, StoreUnavailable

RESPONSES_MAX = 100_000
ID_CHARS_MAX = 128


@dataclass(frozen=True, slots=True)
class StoredResponse:
    """The gateway's record of a response that a backend stores, for later calls that use its id. `owner` is the caller,
    even if the called model is the tenant (`auth.tenant_from: model`). `context_tokens` counts its prompt and output
    tokens, which are the context of a response that continues it. `alias` is the name that its client asked for, if it
    is not the model's own name.
    """

    owner: str
    backend_id: str
    model: str
    context_tokens: int = 0
    alias: str | None = None


_pack: Final = msgspec.msgpack.Encoder().encode
_KEPT: Final = msgspec.msgpack.Decoder(StoredResponse)
_MADE: Final = msgspec.msgpack.Decoder(tuple[str, StoredResponse])


class StoredResponses:
    """The records of responses that backends store, by response id, as this process knows them. Mutable."""

    def __init__(self, others: Others, responses_max: int = RESPONSES_MAX) -> None:
        self._responses: OrderedDict[str, StoredResponse] = OrderedDict()
        self._responses_max = responses_max
        self._others = others
        others.services |= {"made": self._hear, "kept": self._known_here, "response": self._known_anywhere}

    def made(self, response_id: str, kept: StoredResponse) -> None:
        """Store or update a response that a backend makes, and announce it to the other processes."""
        self.keep(response_id, kept)
        self._tell(response_id, kept)

    def keep(self, response_id: str, kept: StoredResponse) -> None:
        """Store or update a response. The first owner and backend of an id keep it."""
        known = self._responses.get(response_id)
        if known is not None:
            if (known.owner, known.backend_id) == (kept.owner, kept.backend_id):
                self._responses[response_id] = kept
            return
        if len(response_id) > ID_CHARS_MAX:
            return
        if len(self._responses) >= self._responses_max:
            self._responses.popitem(last=False)
        self._responses[response_id] = kept

    async def fetch(self, response_id: str) -> None:
        """If the response is not known here, ask the process that may have made it."""
        if response_id not in self._responses and len(response_id) <= ID_CHARS_MAX:
            with suppress(StoreUnavailable, StoreFull):  # then it is not found
                ask = self._known_anywhere if self._others.is_leading else partial(self._others.ask_leader, "response")
                if body := await ask(response_id.encode()):
                    self.keep(response_id, _KEPT.decode(body))

    def find(self, response_id: str, owner: str) -> StoredResponse | None:
        """The response with this id; None where it is unknown or has another owner."""
        kept = self._responses.get(response_id)
        if kept is None or kept.owner != owner:
            return None
        self._responses.move_to_end(response_id)
        return kept

    def _tell(self, response_id: str, kept: StoredResponse) -> None:
        """Tell the leader, which tells its followers. One that has ended will not find it."""
        for name in self._others.followers() if self._others.is_leading else (None,):
            self._others.tell("made", _pack((response_id, kept)), name)

    async def _hear(self, body: bytes) -> bytes:
        """A response was made elsewhere; the leader tells it to all."""
        response_id, kept = _MADE.decode(body)
        self.keep(response_id, kept)
        if self._others.is_leading:
            self._tell(response_id, kept)
        return b""

    async def _known_here(self, body: bytes) -> bytes:
        """The response of this id; b"": it is not known."""
        kept = self._responses.get(body.decode())
        return b"" if kept is None else _pack(kept)

    async def _known_anywhere(self, body: bytes) -> bytes:
        """The response of this id, at the leader: of all processes."""
        found = await self._known_here(body)
        if not found:
            answers, _ = await self._others.ask_all(self._others.followers(), "kept", body)
            found = next(filter(None, answers), b"")
        return found
