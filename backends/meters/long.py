"""Members of a long JSON answer, found by a search from its end instead of a parse.

Parsing 60 MB of log probabilities takes a second, in which no other request is served, and ten times as much memory.
Only one short member of the top level is needed, and servers write their usage after the text. Two facts of JSON (RFC
8259) are enough to find it exactly:

- A quote that no backslash precedes begins or ends a string. So `"usage"` without one is a string of its own, and
  begins outside of all strings.
- Outside of strings every bracket counts. So a name is on the top level where one more bracket is closed after it than
  is opened.

The functions are generators that stop after each slice, so that other tasks run in between. For an answer that is not
JSON the result is arbitrary.
"""

import json
import re
from collections.abc import Generator, Iterator
from typing import Any, Final

import orjson

LONG_BYTES: Final = 128 * 1024
"""The size from which an answer is searched. Parsing less takes at most 9 ms here, even of the smallest values."""
SLICE_BYTES: Final = 64 * 1024  # splits in at most 2.5 ms, with a quote in every second byte
SEARCH_BYTES: Final = 1024 * 1024
VALUE_BYTES_MAX: Final = 64 * 1024

Steps = Generator[None, None, Any]

_COLON: Final = re.compile(rb"\s*:\s*")
_STRING: Final = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"', re.DOTALL)
_DECODER: Final = json.JSONDecoder()


def member(body: bytes | bytearray, name: str) -> Steps:
    """Return this member of the top level, the last one if there are several. None if it is absent or longer than
    VALUE_BYTES_MAX.
    """
    at = yield from member_at(body, name)
    if at is None:
        return None
    text = bytes(body[at : at + VALUE_BYTES_MAX]).decode(errors="replace")
    try:
        return _DECODER.raw_decode(text)[0]
    except (ValueError, RecursionError):
        return None


def member_at(body: bytes | bytearray, name: str, *, level: int = 1) -> Steps:
    """Return the position of the value of this member, the last one if there are several; None if it is absent. Level 1
    is the top; a member of level 2 belongs to any object there.
    """
    quoted = b'"' + name.encode() + b'"'
    end, depth = len(body), 0  # brackets closed less brackets opened from `end` on
    limit = end
    while (at := (yield from _last(body, quoted, limit))) >= 0:
        limit = at
        if at and body[at - 1] == 0x5C:  # an escaped quote, inside a string
            continue
        opened, _ = yield from _opened(body, at, end)
        depth, end = depth - opened, at
        colon = _COLON.match(body, at + len(quoted)) if depth == level else None
        if colon is not None:
            return colon.end()
    return None


def with_text(body: bytes | bytearray, at: int | None, text: str) -> bytes | None:
    """Return the body with `text` in place of the string that begins at `at`. All other bytes stay unchanged. None if
    no string begins there.
    """
    found = None if at is None else _STRING.match(body, at)
    if found is None:
        return None
    whole = memoryview(body)
    return b"".join((whole[: found.start()], orjson.dumps(text), whole[found.end() :]))


def at_once(steps: Steps) -> Any:
    """Return the result of these steps without a stop, for a short body or in a thread."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return end.value


def is_whole(body: bytes | bytearray) -> Steps:
    """Return whether all brackets and strings of this JSON are closed."""
    opened, inside = yield from _opened(body, 0, len(body))
    return not opened and not inside


def _last(body: bytes | bytearray, wanted: bytes, limit: int) -> Steps:
    """Return the last position of `wanted` before `limit`; -1 if there is none."""
    while limit > 0:
        start = max(0, limit - SEARCH_BYTES)
        at = body.rfind(wanted, start, limit)
        if at >= 0 or not start:
            return at
        limit = start + len(wanted) - 1  # it may cross the boundary
        yield
    return -1


def _opened(body: bytes | bytearray, start: int, end: int) -> Steps:
    """Return the brackets opened less those closed outside of strings, and whether this part ends inside a string. The
    part must begin outside a string.
    """
    opened, inside = 0, 0
    for outside, quotes in slices(body, start, end):
        opened += sum(map(outside.count, (b"{", b"["))) - sum(map(outside.count, (b"}", b"]")))
        inside ^= quotes & 1
        yield
    return opened, bool(inside)


def slices(body: bytes | bytearray, start: int, end: int) -> Iterator[tuple[bytes, int]]:
    """Yield the bytes outside of strings, slice by slice, and the number of quotes that begin or end a string. The part
    must begin outside a string.
    """
    inside = 0
    while start < end:
        stop = min(start + SLICE_BYTES, end)
        part = bytes(body[start:stop])
        # Two backslashes stand for one; only an odd last one escapes a quote.
        if (len(part) - len(part.rstrip(b"\\"))) % 2 and stop < end:  # do not cut an escape in two
            stop += 1
            part = bytes(body[start:stop])
        parts = part.replace(b"\\\\", b"").replace(b'\\"', b"").split(b'"')
        yield b"".join(parts[inside::2]), len(parts) - 1
        inside ^= (len(parts) - 1) & 1
        start = stop
