"""Long JSON: a reader of JSON objects in slices. It gives the same value as a parser, without holding the interpreter
for long.

orjson holds the interpreter lock until it is done: for 15 MB, 25 to 33 ms if they are one text, mostly page faults, and
a second if they are small objects. Here orjson gets at most a slice at a time: as many whole elements of a list, or
members of an object, as a slice holds, or a part of a text. Only elements longer than a slice are opened. orjson checks
every slice, so that exactly valid JSON (RFC 8259) is read.

Values are counted before anything is parsed: a number of 7 bytes takes 40 as an object in a list, so a body of too many
would take several times its size before its refusal.
"""

import re
from bisect import bisect_right
from collections.abc import Generator
from itertools import accumulate
from typing import Any, Final

import orjson

from backends.meters import long
from gateway.api.bodies import NESTING_MAX, invalid_json
from gateway.api.errors import BODY_TOO_COMPLEX, BadRequest, ProblemError

SLICE_BYTES: Final = 32 * 1024  # of 10,000 empty objects, the slowest there are: 6 to 12 ms on a busy machine
SCALAR_BYTES_MAX: Final = 64 * 1024
# Measured with orjson: 110 to 220 ns for an object or list, 100 ns for a string, 16 to 70 ns for a number. Numbers
# count less than in proportion, because prompts of token ids are nothing but numbers.
NUMBERS_TO_A_VALUE: Final = 10
# Levels that the way to a long text has, twice: messages, message, content, part, text. Each costs the search of a
# slice, which elements that are each a little longer than a slice and deep would have repeated at every level.
DESCENTS_PER_SLICE: Final = 10

_BRACKETS: Final = re.compile(rb"[{}\[\]]")
_SCALAR: Final = re.compile(rb"[^\s,\]}]*")
_WHITE: Final = b" \t\n\r"
_OPENING: Final = b"{["
_DEPTHS: Final = {0x7B: 1, 0x5B: 1, 0x7D: -1, 0x5D: -1}
_INNER_BYTES: Final = bytes(range(0x80, 0xC0))  # of UTF-8: they begin no character
_ESCAPE_BYTES_MAX: Final = 12  # of a surrogate pair, the longest that may not be cut

Steps = Generator[None, None, Any]


class _InvalidError(Exception):
    """An error: the body is not JSON, `characters` behind this byte."""

    def __init__(self, at: int, characters: int = 0) -> None:
        super().__init__()
        self.at, self.characters = at, characters


def read_object(body: bytes | bytearray, values_max: int) -> Steps:
    """Return the object, with a stop after each slice. Raises BadRequest; another ProblemError over
    `values_max`.
    """
    yield from _check_values(body, values_max)
    try:
        return (yield from _Reader(body).read())
    except _InvalidError as error:
        characters = error.characters
        for start in range(0, error.at, SLICE_BYTES):
            part = bytes(body[start : min(start + SLICE_BYTES, error.at)])
            characters += len(part.translate(None, _INNER_BYTES))
            yield
    raise invalid_json(characters)


def _check_values(body: bytes | bytearray, values_max: int) -> Steps:
    room = values_max * NUMBERS_TO_A_VALUE
    for outside, quotes in long.slices(body, 0, len(body)):
        values = (quotes + 1) // 2 + outside.count(b"{") + outside.count(b"[")
        # After every comma is a value: a number, or one that has been counted as more than that.
        room -= NUMBERS_TO_A_VALUE * values + outside.count(b",")
        if room < 0:
            raise ProblemError(BODY_TOO_COMPLEX)
        yield


class _Reader:
    """The reader of one body. Its methods take a position without white space; they return the value and its end."""

    __slots__ = ("_body", "_descents")

    def __init__(self, body: bytes | bytearray) -> None:
        self._body = body
        self._descents = NESTING_MAX + DESCENTS_PER_SLICE * (len(body) // SLICE_BYTES)

    def read(self) -> Steps:
        at = yield from self._skip(0)
        if self._body[at : at + 1] != b"{":
            raise BadRequest("The body must be a JSON object.", code="invalid_json")
        value, at = yield from self._container(at, 1)
        at = yield from self._skip(at)
        if at < len(self._body):
            raise _InvalidError(at)
        return value

    def _value(self, at: int, level: int) -> Steps:
        first = self._body[at : at + 1]
        if first == b'"':
            return (yield from self._text(at))
        if first and first in _OPENING:
            return (yield from self._container(at, level))
        match = _SCALAR.match(self._body[at : at + SCALAR_BYTES_MAX])
        assert match is not None, "it may be empty"
        return self._parse(match.group(), at), at + match.end()

    def _container(self, at: int, level: int) -> Steps:
        """Read a list or an object, the `level`-th from outside."""
        self._descents -= 1
        if self._descents < 0:
            raise ProblemError(BODY_TOO_COMPLEX)
        body, found = self._body, _Found(self._body[at])
        _check_depth(level)
        at = yield from self._skip(at + 1)
        if body[at : at + 1] == found.close:
            return found.value, at + 1
        while True:
            end = self._batch(at, level)
            yield
            if end is not None:
                if not found.add(self._parse(found.open + body[at:end] + found.close, at)):
                    raise _InvalidError(end)  # nothing between two commas
                at = end
            elif found.is_object:
                name, value, at = yield from self._member(at, level)
                found.add({name: value})
            else:
                value, at = yield from self._value(at, level + 1)
                found.add([value])
            at = yield from self._skip(at)
            mark = body[at : at + 1]
            if mark == found.close:
                return found.value, at + 1
            if mark != b",":
                raise _InvalidError(at)
            at = yield from self._skip(at + 1)

    def _member(self, at: int, level: int) -> Steps:
        if self._body[at : at + 1] != b'"':
            raise _InvalidError(at)
        name, at = yield from self._text(at)
        at = yield from self._skip(at)
        if self._body[at : at + 1] != b":":
            raise _InvalidError(at)
        at = yield from self._skip(at + 1)
        value, at = yield from self._value(at, level + 1)
        return name, value, at

    def _text(self, at: int) -> Steps:
        # CPython appends to a text in place while nothing else refers to it. Joined parts would be a copy: 15 MB of
        # fresh memory take 12 ms of page faults in one step.
        body, text, at = self._body, "", at + 1
        while True:
            end = _neutral(bytes(body[at : at + SLICE_BYTES])).find(b'"')
            if end >= 0:
                text += self._parse(b'"' + body[at : at + end] + b'"', at)
                return text, at + end + 1
            if at + SLICE_BYTES >= len(body):
                raise _InvalidError(len(body))
            part, at = self._part(at)
            text += part
            yield

    def _part(self, at: int) -> tuple[str, int]:
        """About one slice of a text, and its end, which is not within an escape, a surrogate pair or a character.
        There, orjson would find the part invalid.
        """
        body, stop = self._body, at + SLICE_BYTES
        while body[stop] in _INNER_BYTES and stop > at + SLICE_BYTES - 4:  # within a character of UTF-8
            stop -= 1
        ends = [stop, *(end for end in range(stop - 1, stop - 1 - _ESCAPE_BYTES_MAX, -1) if body[end] == 0x5C)]
        for end in ends:
            try:
                return orjson.loads(b'"' + body[at:end] + b'"'), end
            except orjson.JSONDecodeError:
                continue
        raise _InvalidError(at)

    def _batch(self, at: int, level: int) -> int | None:
        """The end of the next elements that are whole in a slice, a comma or the end of their list or object, the
        `level`-th from outside. None: the first element is longer.
        """
        parts = _neutral(bytes(self._body[at : at + SLICE_BYTES])).split(b'"')
        outside = b"".join(parts[::2])
        brackets = [match.start() for match in _BRACKETS.finditer(outside)]
        depths = list(accumulate(map(_DEPTHS.__getitem__, map(outside.__getitem__, brackets))))
        closed = depths.index(-1) if -1 in depths else None  # the end of the list or object that they are in
        _check_depth(level + max(depths[:closed], default=0))
        if closed is not None:
            return _position(at, parts, brackets[closed])
        ends = [*brackets, len(outside)]
        for number in range(len(brackets), -1, -1):  # behind so many brackets
            if number and depths[number - 1]:
                continue
            end = outside.rfind(b",", brackets[number - 1] if number else 0, ends[number])
            if end >= 0:
                return _position(at, parts, end)
        return None

    def _skip(self, at: int) -> Steps:
        """The position of the next byte that is not white space."""
        while True:
            part = self._body[at : at + SLICE_BYTES]
            rest = len(part.lstrip(_WHITE))
            at += len(part) - rest
            if rest or not part:
                return at
            yield

    def _parse(self, data: bytes | bytearray, at: int) -> Any:
        try:
            return orjson.loads(data)
        except orjson.JSONDecodeError as error:
            raise _InvalidError(at, max(error.pos - 1, 0)) from None


class _Found:
    """A list or an object while it is read."""

    def __init__(self, bracket: int) -> None:
        self.is_object = bracket == 0x7B
        self.open, self.close = (b"{", b"}") if self.is_object else (b"[", b"]")
        self.value: Any = {} if self.is_object else []

    def add(self, elements: Any) -> bool:
        """Add elements; return False if there are none."""
        if self.is_object:
            self.value.update(elements)
        else:
            self.value.extend(elements)
        return bool(elements)


def _position(at: int, parts: list[bytes], end: int) -> int:
    """The position of `end` in the body; `end` is a position in the even ones of these parts, which begin at `at`."""
    ends = list(accumulate(map(len, parts[::2])))
    number = bisect_right(ends, end)  # of the part that holds `end`
    texts = sum(map(len, parts[1 : 2 * number : 2]))
    return at + end + texts + 2 * number


def _neutral(data: bytes) -> bytes:
    """The bytes without escapes, in the same number: each quote then begins or ends a text. They begin outside an
    escape.
    """
    return data.replace(b"\\\\", b"__").replace(b'\\"', b"__") if b"\\" in data else data


def _check_depth(levels: int) -> None:
    if levels > NESTING_MAX:
        raise BadRequest(f"The body is nested more than {NESTING_MAX} levels deep.", code="invalid_json")
