"""Where does a request end that aiohttp's parser is not trusted beyond? At the end of a read, or it is not known.

Two sorts of requests leave something in that parser. The last field of a chunked body's trailer becomes a header of the
request behind it; of what comes in one read behind an offer to upgrade (RFC 9110, 7.8) as much as that read holds is
lost, and the rest is taken for a request. Both are harmless where there is no trailer, and where nothing stands behind
the request in its read. A client that waits for its answer, as almost all do, sends nothing else; so that is proven
from the bytes, and a connection of which it cannot be proven is closed after its answer.
"""

from typing import Final

from aiohttp import StreamReader, hdrs
from aiohttp.http_parser import RawRequestMessage

HEAD_END: Final = b"\r\n\r\n"
# No trailer has this end: "0" is no field. No other request has it either: its head would hold that line.
LAST_CHUNK: Final = b"\r\n0\r\n\r\n"
END_BYTES: Final = len(LAST_CHUNK)
ENDS_OF_CHUNKED: Final = 2  # its head's, and its body's
# The one offer that is passed over while its connection goes on. For others aiohttp switches its parser.
PASSED_OVER: Final = "h2c"


def may_leave_something(message: RawRequestMessage) -> bool:
    """Whether this is a request of such a sort."""
    return bool(message.chunked or message.upgrade)


class RequestEnd:
    """The end of one such request. Mutable: it is told of every read, from the one in which its head ended."""

    __slots__ = ("_ends", "_is_whole", "_offers", "_payload", "_room", "is_known", "message")

    def __init__(self, message: RawRequestMessage, payload: StreamReader, before: bytes | None, data: bytes) -> None:
        """`data` is the read that brought it, `before` the end of what came before, None where the parser may still
        have had some of that.
        """
        self.message = message
        self.is_known = False  # it has ended, and there is nothing of it or behind it in the parser
        self._payload = payload
        self._offers = bool(message.upgrade)
        self._is_whole = False
        self._ends = 0  # of heads, or of bodies of chunks, as far as bytes can tell
        self._room = -1  # bytes that may come and be its body
        if message.upgrade and before is not None and data:
            begun = _with(before, data)
            head_end = begun.find(HEAD_END)
            if head_end >= 0 and message.headers.get(hdrs.UPGRADE, "").lower() == PASSED_OVER:
                self._ends = begun.count(HEAD_END)
                # The first such end is its head's or stands before it: no less than this is behind its head.
                behind = len(begun) - head_end - len(HEAD_END)
                self._room = int(message.headers.get(hdrs.CONTENT_LENGTH, "0")) - behind

    def coming(self, before: bytes, data: bytes) -> None:
        """A read has come behind the one that brought it."""
        if not self._is_whole and self._offers:
            self._room -= len(data)
            self._ends += _with(before, data).count(HEAD_END)

    def parsed(self, newest: object, end: bytes) -> None:
        """A read was parsed, in which this request came or went on. `end` is the end of all that was read, `newest`
        the newest request that waits, None where none does.
        """
        if self._is_whole or not self._payload.is_eof():
            return
        self._is_whole = True
        is_last = newest is None or newest is self.message
        self.is_known = is_last and (self._ends_with_its_chunks(end) if self.message.chunked else self._room == 0)

    def _ends_with_its_chunks(self, end: bytes) -> bool:
        """Behind an offer what follows is not parsed, and could look like such an end: so there is no other."""
        return end == LAST_CHUNK and (not self._offers or self._ends == ENDS_OF_CHUNKED)


def _with(before: bytes, data: bytes) -> bytes:
    """What came, with as much of what came before as an end may have in it that ends here."""
    return before[1 - len(HEAD_END) :] + data
