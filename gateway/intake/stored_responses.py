"""StoredResponses: the owner and the backend of each response made through this gateway.

A backend keeps responses in its own memory and returns them to any caller that knows their id. The gateway returns a
response to its owner alone: for any other caller it does not exist. Nor does a response exist that the gateway has
forgotten: it keeps `responses_max`, and forgets the least recently used.
"""

from collections import OrderedDict
from dataclasses import dataclass

RESPONSES_MAX = 100_000
ID_CHARS_MAX = 128


@dataclass(frozen=True, slots=True)
class StoredResponse:
    """`owner` is the caller, by key or trusted proxy, even where the tenant is the model. `context_tokens` are its
    prompt and its output tokens: the context of a response that continues it. `alias` is the name that its client asked
    for, where that is not the model's own.
    """

    owner: str
    backend_id: str
    model: str
    context_tokens: int = 0
    alias: str | None = None


class StoredResponses:
    """The responses made through this gateway, by id. Mutable."""

    def __init__(self, responses_max: int = RESPONSES_MAX) -> None:
        self._responses: OrderedDict[str, StoredResponse] = OrderedDict()
        self._responses_max = responses_max

    def made(self, response_id: str, kept: StoredResponse) -> None:
        """Store or update a response that a backend makes. The first owner and backend of an id keep it."""
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
        """Ask for it where it may have been made, if it is not known here."""

    def known(self, response_id: str) -> StoredResponse | None:
        """The response with this id, whatever tenant owns it."""
        return self._responses.get(response_id)

    def find(self, response_id: str, owner: str) -> StoredResponse | None:
        """The response with this id, None where it is unknown or has another owner."""
        kept = self._responses.get(response_id)
        if kept is None or kept.owner != owner:
            return None
        self._responses.move_to_end(response_id)
        return kept
