"""Server-sent events: cutting a byte stream into events, and the interface of all meters.

A meter is sans-IO: bytes in, bytes out. Only whole events leave it, so a relay that stops in the middle never leaves
half an event behind. The output is the input without the usage that only the gateway has asked for. SSE framing:
https://html.spec.whatwg.org/multipage/server-sent-events.html, without a lone CR as line end, which no server sends.
"""

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

import orjson

from policies.types import Usage

_EVENT_END: Final = re.compile(rb"\n\r?\n")
_DATA: Final = b"data: "
_LF: Final = 0x0A
EVENT_BYTES_MAX = 16 * 1024 * 1024
TOKENS_PER_BYTE = 1 / 4


class EventTooLongError(ValueError):
    """An error: the backend sent more than EVENT_BYTES_MAX bytes without ending an event."""


EventEnd = tuple[bytes, bytes | None]
"""How the events of a stream end while nothing but their text and their token counts changes: the format of the bytes
after the text, of the numbers of prompt, total and output tokens; and the bytes that take their place for a client that
did not ask for usage in chunks, None for one that did. A plain tuple: it is unpacked for every token.
"""

IdsEnd = tuple[bytes, bytes, bytes | None]
"""The same of events with token ids and without usage: the bytes before the ids, those after them, and what takes the
place of all three for a client that did not ask for ids; None for one that did.
"""


@dataclass(slots=True)
class StreamMemo:
    """A record of what the latest streams of one backend looked like, so that the meter of the next stream recognises
    its events by their last bytes. Mutable, one per backend.

    `fingerprint` is the last `system_fingerprint`, as JSON, for events that the gateway itself writes. `like` is how
    the events of its last stream end (EventEnd), `ids_like` how those of its last stream with token ids end. `ids_at`
    has the paths whose streams report token ids and do not report reasoning.
    """

    fingerprint: bytes | None = None
    like: EventEnd | None = None
    ids_like: IdsEnd | None = None
    ids_at: set[str] = field(default_factory=set)


@dataclass(slots=True)  # not frozen: that would triple the cost of making one, and every stream makes one
class StreamCall:
    """What the meter of a stream needs to know of its call.

    `prompts` is the number of prompts, `choices` the number of sequences in the answer (n times `prompts`).
    `keeps_usage`: the client asked for the last event with the total usage; `keeps_chunk_usage`: the client asked for
    usage in every chunk. Usage that only the gateway asked for is removed. `nulls_usage`: the backend writes
    `"usage":null` where there is none, but only because usage was asked for. Where the server does not count tokens,
    `tokens_per_byte` estimates them for a piece of text with several tokens, and `on_text` gets every piece of text.
    `on_id` gets the id of the answer, once.
    """

    keeps_usage: bool = False
    keeps_chunk_usage: bool = False
    choices: int = 1
    prompts: int = 1
    nulls_usage: bool = False
    tokens_per_byte: float = TOKENS_PER_BYTE
    memo: StreamMemo = field(default_factory=StreamMemo)
    on_text: Callable[[str], None] | None = None
    on_id: Callable[[str], None] | None = None


class StreamMeter(Protocol):
    """The interface of meters. A meter takes the bytes of one stream, counts its usage so far, and returns the bytes
    that the client may see.

    `done`: the answer is complete. `error`: the stream itself says that the answer is not complete. `aborted`: the
    answer is not complete, because the backend stopped. `rejected`: nothing was generated, because the call was wrong;
    this is no evidence against the backend. A stream that ends with neither `done` nor `error` has to be ended with
    `cut`.
    """

    @property
    def output_tokens(self) -> int:
        """The output tokens of all choices so far."""
        ...

    @property
    def pieces(self) -> int:
        """The number of text pieces that the server did not count, each of at least one token."""
        ...

    @property
    def done(self) -> bool: ...

    @property
    def error(self) -> bool: ...

    @property
    def aborted(self) -> bool: ...

    @property
    def rejected(self) -> bool: ...

    @property
    def usage(self) -> Usage | None:
        """The cumulative usage of all choices together; None before the first report."""
        ...

    @property
    def tokens_estimated(self) -> bool:
        """Whether output_tokens is the meter's own count, for lack of usage, and prompt_tokens may be 0."""
        ...

    def feed(self, data: bytes) -> bytes:
        """Take bytes of the body; return bytes for the client, whole events only. Raises EventTooLongError."""
        ...

    def finish(self) -> bytes:
        """End the body, complete or not, and return the bytes that were held back. Half an event is dropped."""
        ...

    def cut(self, message: str, error: Mapping[str, Any] = {}) -> bytes:
        """Return the event by which this API says that an answer stops early. `error` overrides members of its error
        object, whose defaults are those of a failed backend.
        """
        ...


class FirstEvent:
    """A finder of the first event with data in a stream, which comments may precede. `event` is this event, once it has
    come. Until the stream has begun, the relay holds back its bytes. To limit these bytes, a stream also counts as
    begun after EVENT_BYTES_MAX bytes without such an event. Mutable.
    """

    __slots__ = ("_bytes", "_partial", "_scanned", "event")

    def __init__(self) -> None:
        self._bytes = 0
        self._partial = bytearray()
        self._scanned = 0
        self.event = b""

    def has_begun(self, data: bytes) -> bool:
        """Take the next bytes of the stream; return whether the stream has begun."""
        if not self._partial and is_one_event(data) and data.startswith(_DATA) and data[len(_DATA) : -2]:
            self.event = data
            return True
        self._bytes += len(data)
        self._partial += data
        start = 0
        for end in event_ends(self._partial, self._scanned):
            event = bytes(self._partial[start:end])
            if payload(event):
                self.event = event
                return True
            start = end
        del self._partial[:start]
        self._scanned = max(0, len(self._partial) - 2)
        return self._bytes > EVENT_BYTES_MAX


class Uncounted:
    """An estimate of the output tokens of one sequence, where the server does not count them. Each piece of text counts
    as one token, which is mostly right. A slow server may put several tokens into one piece: the estimate is then the
    number of bytes, times the tokens per byte. Mutable.
    """

    __slots__ = ("_bytes", "tokens")

    def __init__(self, tokens: int = 0) -> None:
        self.tokens = tokens
        self._bytes = 0

    def add(self, bytes_: int, tokens_per_byte: float) -> None:
        """Count a piece of text of this many bytes."""
        self._bytes += bytes_
        self.tokens = max(self.tokens + 1, int(self._bytes * tokens_per_byte))


class EventMeter(ABC):
    """The base class of all meters. It cuts a stream into events, and passes each to the method `_event` of the API's
    meter.
    """

    __slots__ = ("_partial", "_scanned", "aborted", "call", "done", "error", "output_tokens", "pieces", "rejected")

    def __init__(self, call: StreamCall) -> None:
        self.call = call
        self._partial = bytearray()
        self._scanned = 0
        self.output_tokens = 0
        self.pieces = 0
        self.done = False
        self.error = False
        self.aborted = False
        self.rejected = False

    def feed(self, data: bytes) -> bytes:
        if not self._partial and data.endswith(b"\n\n") and data.find(b"\n\n") == len(data) - 2:  # one whole event
            return self._event(data)
        return self._split(data)

    def finish(self) -> bytes:
        if not self._partial:
            return b""
        rest = bytes(self._partial)
        self._partial.clear()
        self._scanned = 0
        data = payload(rest)
        if data == b"[DONE]" or json_object(data) is not None:  # complete but for its blank line
            return self._event(rest.rstrip(b"\r\n") + b"\n\n")
        return b""

    @abstractmethod
    def _event(self, event: bytes) -> bytes:
        """Return the bytes that the client sees of one whole event."""

    def _split(self, data: bytes) -> bytes:
        partial = self._partial
        if not partial and data.endswith(b"\n\n") and b"\r" not in data and b"\n\n\n" not in data:  # whole events
            return b"".join([self._event(event + b"\n\n") for event in data[:-2].split(b"\n\n")])
        partial += data
        self._partial = bytearray()  # each of these events begins where one ends
        out, start = [], 0
        for end in event_ends(partial, self._scanned):
            out.append(self._event(bytes(partial[start:end])))
            start = end
        del partial[:start]
        self._partial = partial
        self._scanned = max(0, len(partial) - 2)  # an event end is up to 3 bytes, cut anywhere
        if len(partial) > EVENT_BYTES_MAX:
            raise EventTooLongError(f"an event of more than {EVENT_BYTES_MAX} bytes")
        return b"".join(out)

    def _passed(self, pieces: Iterator[str], uncounted: Uncounted) -> bool:
        """Count the text of one event; return whether it had any text."""
        bytes_, on_text = 0, self.call.on_text
        for piece in pieces:
            bytes_ += len(piece.encode(errors="replace"))
            if on_text is not None:
                on_text(piece)
        if bytes_:
            uncounted.add(bytes_, self.call.tokens_per_byte)
            self.pieces += 1
        return bytes_ > 0


def is_one_event(data: bytes) -> bool:
    """Whether these bytes are exactly one event of one line, given that they begin an event."""
    return data.find(b"\n") == len(data) - 2 and data[-1] == _LF


def payload(event: bytes, *, is_one: bool = False) -> bytes:
    """Return the data lines of an event, joined as the SSE standard defines; empty if it has none. `is_one`: the caller
    knows that the event has only one line.
    """
    if event.startswith(b"data: ") and (is_one or is_one_event(event)):
        return event[6:-2]
    return b"\n".join(line[5:].removeprefix(b" ") for line in event.splitlines() if line.startswith(b"data:"))


def json_object(data: bytes | bytearray) -> dict[str, Any] | None:
    """Parse a JSON object; None for anything else."""
    try:
        message = orjson.loads(data)
    except orjson.JSONDecodeError:
        return None
    return message if type(message) is dict else None


def named_event(name: str, body: Any) -> bytes:
    """Return a server-sent event with this name and this JSON body."""
    return b"event: " + name.encode() + b"\ndata: " + orjson.dumps(body) + b"\n\n"


def event_ends(data: bytes | bytearray, start: int) -> list[int]:
    """The positions where events end: after a line end that a blank line follows."""
    return [end.end() for end in _EVENT_END.finditer(data, start)]
