"""ResumableStream: the state of one call's stream over all backends that answer it."""

import re
from collections.abc import Callable
from typing import Final, NamedTuple

from backends.meters.token_ids import ID_BYTES, ResumableMeter, TokenIds
from gateway.continuation.exclusions import Exclusion
from gateway.continuation.held_bytes import HeldBytes
from policies.types import NO_USAGE, Usage

# None of them is found inside a text, where quotes are escaped.
_IDS: Final = re.compile(rb'"prompt_token_ids"\s*:\s*\[')
_REASONING: Final = re.compile(rb'"reasoning\w*"\s*:(?!\s*null)')
"""The field of a delta that has reasoning, and of the usage of every chat where a reasoning parser is on."""
_TOKEN_NAME: Final = re.compile(rb'"token_id:\d+"')
"""The token names of a completion, at a server whose log probabilities name tokens by their ids."""


# Of the ids of one stream: of a million tokens at up to 7 bytes each. One that may need more is not continued.
TOKEN_BYTES_MAX: Final = 8 << 20


class ContinuationSettings(NamedTuple):
    """The settings for continuing streams at another backend. `silence_s`: seconds without data after which a backend
    has failed, once it has sent a token. `wait_s_max`: seconds for which a stream is offered to backends that answer
    with errors. A call that may make engines fail also waits at most so long until it can run apart from others.
    `held`: the memory of the token ids of all streams.
    """

    enabled: bool
    silence_s: float
    wait_s_max: float
    held: HeldBytes


class ResumableStream:
    """The stream of one call, over all backends that answer the call. Mutable. It may be continued at another backend
    while `exclusion` is None. `usage` is the usage at all backends so far, as the client sees it; `last` is the last
    event with tokens. `bytes_max` is the most memory that its token ids can need, in bytes. `on_given_up` is called if
    they are dropped to save memory.
    """

    __slots__ = ("bytes_max", "exclusion", "ids", "last", "on_given_up", "usage")

    def __init__(self, exclusion: Exclusion | None, token_bytes_max: int = TOKEN_BYTES_MAX) -> None:
        self.exclusion = exclusion
        self.ids = TokenIds(token_bytes_max)
        self.usage: Usage = NO_USAGE
        self.last = b""
        self.bytes_max = 0
        self.on_given_up: Callable[[], None] = _nothing

    @property
    def is_begun(self) -> bool:
        """Whether the client has been sent a part of the stream, from which it can be continued."""
        return bool(self.last)

    def began(self, first: bytes, output_tokens_max: int) -> None:
        """Read the stream's first event with data, for an answer of at most `output_tokens_max` tokens. It shows
        whether the backend reports token ids, how many the prompt has, and whether reasoning is parsed.
        """
        if self.exclusion is not None:
            return
        if _IDS.search(first) is None:
            self.exclusion = Exclusion.BACKEND
        elif _REASONING.search(first) is not None:
            self.exclusion = Exclusion.REASONING
        elif _TOKEN_NAME.search(first) is not None:
            self.exclusion = Exclusion.NAMES
        else:
            self.bytes_max = len(first) + ID_BYTES * output_tokens_max
            if self.bytes_max > self.ids.bytes_max:
                self.exclusion = Exclusion.BYTES
                self.ids.drop()

    def give_up(self) -> None:
        """Drop the ids, because others need the memory. The stream goes on, and cannot be continued any more."""
        self.exclusion = Exclusion.MEMORY
        self.ids.drop()
        self.on_given_up()

    def left(self) -> None:
        """No backend is answering the stream now."""
        self.on_given_up = _nothing

    def passed(self, meter: ResumableMeter) -> None:
        """Take over the output that this meter has counted: it was sent to the client."""
        self.usage, self.last = meter.usage or self.usage, meter.last or self.last

    def may_continue(self) -> bool:
        """Whether another backend could continue the stream now."""
        if self.exclusion is None and self.ids.is_full:  # there are more than it was asked for
            self.exclusion = Exclusion.BYTES
        is_readable = _REASONING.search(self.last) is None
        return self.exclusion is None and self.is_begun and bool(self.ids.prompt) and is_readable


def _nothing() -> None:
    pass


EXCLUDED: Final = {each: ResumableStream(each) for each in Exclusion}
