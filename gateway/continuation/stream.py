"""ResumableStream: what is kept of one call's stream over all backends that answer it."""

from typing import Final, NamedTuple

from backends.meters.token_ids import ResumableMeter, TokenIds
from gateway.continuation.exclusions import Exclusion
from policies.types import NO_USAGE, Usage

LOST_MAX: Final = 3
"""A stream that has lost so many backends after tokens is not continued at another one: it may be what breaks them."""
_IDS: Final = b'"prompt_token_ids":['
_REASONING: Final = b'"reasoning'  # of a delta, and of the usage of every chat where a parser of it is on
_TOKEN_NAME: Final = b'"token_id:'  # of a server whose log probabilities name tokens by their ids


class ContinuationSettings(NamedTuple):
    """`silence_s`: how long a backend may send nothing after the first token. `token_bytes_max`: of the ids of one
    stream.
    """

    enabled: bool
    silence_s: float
    token_bytes_max: int


class ResumableStream:
    """One stream, which may be continued where `exclusion` is None. Mutable.

    `usage` is that of all backends so far, as the client sees it; `last` is the last event with tokens.
    """

    __slots__ = ("_lost", "_lost_tokens", "exclusion", "ids", "last", "usage")

    def __init__(self, exclusion: Exclusion | None, token_bytes_max: int) -> None:
        self.exclusion = exclusion
        self.ids = TokenIds(token_bytes_max)
        self.usage: Usage = NO_USAGE
        self.last = b""
        self._lost = 0
        self._lost_tokens = -1

    @property
    def is_begun(self) -> bool:
        """Whether the client has been sent a part of it, from which it can be continued."""
        return bool(self.last)

    def began(self, first: bytes) -> None:
        """Its first bytes are here: they tell whether the backend reports token ids, and parses reasoning."""
        if self.exclusion is None and _IDS not in first:
            self.exclusion = Exclusion.BACKEND
        elif self.exclusion is None and _REASONING in first:
            self.exclusion = Exclusion.REASONING

    def passed(self, meter: ResumableMeter) -> None:
        """What this meter has counted was sent to the client."""
        self.usage, self.last = meter.usage or self.usage, meter.last or self.last

    def may_continue(self) -> bool:
        """Whether another backend could continue it now."""
        if self.exclusion is None and self.ids.is_full:
            self.exclusion = Exclusion.BYTES
        is_readable = _REASONING not in self.last and _TOKEN_NAME not in self.last
        return self.exclusion is None and self.is_begun and bool(self.ids.prompt) and is_readable

    def lost(self) -> bool:
        """Its backend has failed. Returns whether it may be continued at another one, as often as it has failed."""
        self._lost += 1
        has_more, self._lost_tokens = len(self.ids.output) > self._lost_tokens, len(self.ids.output)
        return has_more and self._lost <= LOST_MAX
