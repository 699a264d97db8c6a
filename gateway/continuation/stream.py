"""ResumableStream: what is kept of one call's stream over all backends that answer it."""

import re
from typing import Final, NamedTuple

from backends.meters.token_ids import ID_BYTES, ResumableMeter, TokenIds
from gateway.continuation.exclusions import Exclusion
from policies.types import NO_USAGE, Usage

# None of them is found inside a text, where quotes are escaped.
_IDS: Final = re.compile(rb'"prompt_token_ids"\s*:\s*\[')
_REASONING: Final = re.compile(rb'"reasoning\w*"\s*:(?!\s*null)')
"""Of a delta, and of the usage of every chat where a parser of it is on."""
_TOKEN_NAME: Final = re.compile(rb'"token_id:\d+"')
"""Of a completion of a server whose log probabilities name tokens by their ids."""


class ContinuationSettings(NamedTuple):
    """`silence_s`: how long a backend may send nothing after the first token. `token_bytes_max`: of the ids of one
    stream. `wait_s_max`: how long a stream is offered to backends that answer with errors, and how long a call that may
    be what ends engines waits to be apart from others.
    """

    enabled: bool
    silence_s: float
    token_bytes_max: int
    wait_s_max: float


class ResumableStream:
    """One stream, which may be continued where `exclusion` is None. Mutable.

    `usage` is that of all backends so far, as the client sees it; `last` is the last event with tokens.
    """

    __slots__ = ("exclusion", "ids", "last", "usage")

    def __init__(self, exclusion: Exclusion | None, token_bytes_max: int) -> None:
        self.exclusion = exclusion
        self.ids = TokenIds(token_bytes_max)
        self.usage: Usage = NO_USAGE
        self.last = b""

    @property
    def is_begun(self) -> bool:
        """Whether the client has been sent a part of it, from which it can be continued."""
        return bool(self.last)

    def began(self, first: bytes, output_tokens_max: int) -> None:
        """Its first event with data is here: it tells whether the backend reports token ids, how many the prompt has,
        and whether reasoning is parsed. The answer has so many tokens at most.
        """
        if self.exclusion is not None:
            return
        if _IDS.search(first) is None:
            self.exclusion = Exclusion.BACKEND
        elif _REASONING.search(first) is not None:
            self.exclusion = Exclusion.REASONING
        elif _TOKEN_NAME.search(first) is not None:
            self.exclusion = Exclusion.NAMES
        elif len(first) + ID_BYTES * output_tokens_max > self.ids.bytes_max:
            self.exclusion = Exclusion.BYTES
            self.ids.drop()

    def passed(self, meter: ResumableMeter) -> None:
        """What this meter has counted was sent to the client."""
        self.usage, self.last = meter.usage or self.usage, meter.last or self.last

    def may_continue(self) -> bool:
        """Whether another backend could continue it now."""
        if self.exclusion is None and self.ids.is_full:  # there are more than it was asked for
            self.exclusion = Exclusion.BYTES
        is_readable = _REASONING.search(self.last) is None
        return self.exclusion is None and self.is_begun and bool(self.ids.prompt) and is_readable
