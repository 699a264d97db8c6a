"""RequestEnd: proves that a request ended exactly at the end of a read, so that its connection can be kept.

Two kinds of requests leave something in aiohttp's parser. With a chunked body, the last field of the trailer becomes a
header of the next request. With an offer to upgrade (RFC 9110, 7.8), the rest of the same read is lost, and what
follows is parsed as a request. Both are harmless where there is no trailer, and where nothing follows the request in
its read. Almost all clients send nothing more until they have their answer, so RequestEnd proves that from the bytes.
A connection for which it cannot is closed after the response.
"""

from typing import Final

from aiohttp import StreamReader, hdrs
from aiohttp.http_parser import RawRequestMessage

HEAD_END: Final = b"\r\n\r\n"
# No trailer ends with this: "0" is no field. No other request ends with it: its head would contain that line.
LAST_CHUNK: Final = b"\r\n0\r\n\r\n"
END_BYTES: Final = len(LAST_CHUNK)
ENDS_OF_CHUNKED: Final = 2  # of its head, and of its body
# The one offer that aiohttp ignores while the connection goes on. For others it switches its parser.
PASSED_OVER: Final = "h2c"


def may_leave_something(message: RawRequestMessage) -> bool:
    """Whether a request may leave something in the parser: it is chunked, or offers an upgrade."""
    return bool(message.chunked or message.upgrade)


class RequestEnd:
    """The end of one such request. Mutable: it is given every read, from the one in which its head ended."""

    __slots__ = ("_ends", "_is_whole", "_offers", "_payload", "_room", "is_known", "message")

    def __init__(self, message: RawRequestMessage, payload: StreamReader, before: bytes | None, data: bytes) -> None:
        """`data` is the read that completed the head; `before` the last bytes of earlier reads, None where the parser
        may still have held some of them.
        """
        self.message = message
        self.is_known = False  # it has ended, and the parser holds nothing of it or after it
        self._payload = payload
        self._offers = bool(message.upgrade)
        self._is_whole = False
        self._ends = 0  # occurrences of HEAD_END: ends of heads or of chunked bodies
        self._room = -1  # bytes of its body that are still to come; below 0 it never becomes known
        if message.upgrade and before is not None and data:
            begun = _with(before, data)
            head_end = begun.find(HEAD_END)
            if head_end >= 0 and message.headers.get(hdrs.UPGRADE, "").lower() == PASSED_OVER:
                self._ends = begun.count(HEAD_END)
                # The first HEAD_END ends its head or stands before it, so no more than `behind` bytes follow its head.
                behind = len(begun) - head_end - len(HEAD_END)
                self._room = int(message.headers.get(hdrs.CONTENT_LENGTH, "0")) - behind

    def coming(self, before: bytes, data: bytes) -> None:
        """Count a later read, before it is parsed."""
        if not self._is_whole and self._offers:
            self._room -= len(data)
            self._ends += _with(before, data).count(HEAD_END)

    def parsed(self, newest: object, end: bytes) -> None:
        """Update `is_known` after a read was parsed. `newest` is the newest request that waits, None where none does;
        `end` the last bytes of all that was read.
        """
        if self._is_whole or not self._payload.is_eof():
            return
        self._is_whole = True
        is_last = newest is None or newest is self.message
        self.is_known = is_last and (self._ends_with_its_chunks(end) if self.message.chunked else self._room == 0)

    def _ends_with_its_chunks(self, end: bytes) -> bool:
        """Whether the last bytes are those of the body. After an offer to upgrade, bytes that are not parsed could look
        like an end, so there the number of ends must be exact.
        """
        return end == LAST_CHUNK and (not self._offers or self._ends == ENDS_OF_CHUNKED)


def _with(before: bytes, data: bytes) -> bytes:
    """The read, preceded by as many earlier bytes as a HEAD_END that ends in it may need."""
    return before[1 - len(HEAD_END) :] + data
