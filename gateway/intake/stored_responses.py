"""Whose is this response, and which backend keeps it?

A server keeps responses in its own memory and gives them to whoever knows their id. Here an id is worth something
only to whom it was made for: anybody else is told that there is no such response, and so is everybody about a response
that this gateway has forgotten. The newest `responses_max` are remembered.
"""

from collections import OrderedDict
from dataclasses import dataclass

RESPONSES_MAX = 100_000
ID_CHARS_MAX = 128


@dataclass(frozen=True, slots=True)
class StoredResponse:
    """`owner` is who called, by key or by a trusted proxy's word, whatever tenant that counts as. `context_tokens` are
    its prompt and its output: what comes before a response that goes on from it.
    """

    owner: str
    backend_id: str
    model: str
    context_tokens: int = 0


class StoredResponses:
    """The responses made through this gateway, by id. Mutable."""

    def __init__(self, responses_max: int = RESPONSES_MAX) -> None:
        self._responses: OrderedDict[str, StoredResponse] = OrderedDict()
        self._responses_max = responses_max

    def made(self, response_id: str, kept: StoredResponse) -> None:
        """A backend has made this response, or has made more of it. Who was seen with an id first is who has it."""
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

    def find(self, response_id: str, owner: str) -> StoredResponse | None:
        """The owner's own response of this id, None for any other."""
        kept = self._responses.get(response_id)
        if kept is None or kept.owner != owner:
            return None
        self._responses.move_to_end(response_id)
        return kept
