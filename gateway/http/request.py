"""HttpRequest: a call as its handler sees it: the interface between the server and its handlers.

The server (request_reader.py) makes an HttpRequest from bytes. A handler reads the head, then the body, and returns a
response; it does not use sockets. Another server can stand in front of the same handlers if it makes such requests.
"""

import asyncio
from collections.abc import Callable, Mapping
from http import HTTPMethod
from typing import Any, Final, Protocol
from urllib.parse import unquote

from gateway.api.errors import MALFORMED_HTTP, ProblemError, body_too_large
from gateway.api.headers import Headers
from gateway.http.response import EventStream, Response

# Of a body, for its handler. Reading from the client pauses beyond it until the handler has its turn: uvloop reads on
# within a turn, 256 KiB at once.
UNREAD_BYTES_MAX: Final = 64 << 10
EXPECTATION: Final = "100-continue"
HEAD: Final = HTTPMethod.HEAD.value  # to look it up in its enum is a call


class ClientLink(Protocol):
    """The interface of a client's connection, as far as an HttpRequest uses it."""

    transport: asyncio.Transport
    body_bytes_max: int
    cut_reason: str | None
    """Why it was cut; None: it was not."""

    @property
    def remote(self) -> str | None:
        """The address of the client."""
        ...

    def send_continue(self) -> None:
        """Ask for the body (RFC 9110, 10.1.1). Raises ConnectionError."""
        ...

    def mind_reading(self) -> None:
        """Pause reading if received data has to wait for a handler; otherwise resume it."""
        ...

    def begin_stream(self, request: "HttpRequest", status: int, fields: Mapping[str, str]) -> EventStream:
        """Send the head of a stream. Raises ConnectionError where the client has disconnected."""
        ...

    def when_drained(self, callback: Callable[[], None]) -> None:
        """Call `callback` once, in the next turn or later: when the client has read the buffered bytes, or is gone."""
        ...


class StreamKeeper(Protocol):
    """The interface of a Heartbeat (event_stream.py), which keeps the connection of a waiting stream open."""

    def stop(self) -> EventStream | None:
        """Stop, and return the stream whose head was sent; None where no head was sent. Idempotent."""
        ...

    def failed(self, message: str, error: Mapping[str, Any]) -> EventStream | None:
        """End the stream with an error event, if its head was sent, and return it; else None."""
        ...

    def answered(self, response: Response | EventStream) -> Response | EventStream:
        """The response for the handler to return: this one, or, if a head was sent, the stream that now carries it."""
        ...


class HttpRequest:
    """One HTTP request of a client. Mutable: its body arrives while it is handled. `target` is the path with the query,
    as sent. `is_new`: its version is HTTP/1.1, not 1.0. `keeps`: its client may use the connection for further
    requests. `is_whole`: it has arrived completely. `has_begun`: the head of a streamed response was sent. `request_id`
    is set by a handler that fails, so that the error response has the logged id. `path_id` is the id in its path, such
    as a response id; "": there is none. `heartbeat` sends comments to a client whose stream waits. `open_stream` is a
    stream whose head was sent, and which another backend can continue if its backend fails.
    """

    __slots__ = (
        "_is_broken", "_pieces", "_waiter", "connection", "content_length", "has_begun", "headers",
        "heartbeat", "is_new", "is_whole", "keeps", "method", "open_stream", "path_id", "received_bytes", "request_id",
        "target",
        "unread_bytes",
    )  # fmt: skip

    def __init__(
        self,
        connection: ClientLink,
        method: str,
        target: str,
        headers: Headers,
        *,
        is_new: bool,
        keeps: bool,
    ) -> None:
        self.connection = connection
        self.method = method
        self.target = target
        self.headers = headers
        self.is_new = is_new
        self.keeps = keeps
        self.content_length = int(headers["content-length"]) if "content-length" in headers else None
        self.is_whole = False
        self.request_id: str | None = None
        self.path_id = ""
        self.heartbeat: StreamKeeper | None = None
        self.open_stream: EventStream | None = None
        self.has_begun = False
        self.received_bytes = self.unread_bytes = 0  # of its body
        self._pieces: list[bytes] = []
        self._waiter: asyncio.Future[None] | None = None
        self._is_broken = False

    # For handlers.

    @property
    def path(self) -> str:
        """The path, with its escapes decoded."""
        return unquote(self.target.partition("?")[0])

    @property
    def query(self) -> str:
        """The part of the target after "?", as sent."""
        return self.target.partition("?")[2]

    def body_at_hand(self) -> bytes | None:
        """The whole body if it has arrived, as most do with their head; else None. Raises ProblemError."""
        if not self.is_whole:
            return None
        if self.unread_bytes > self.connection.body_bytes_max:
            raise self._too_large()
        pieces = self._pieces
        body = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        self._pieces = []  # the request lives as long as the call
        self.unread_bytes = 0
        return body

    async def read_body(self, expect: Callable[[int], None]) -> bytearray:
        """The whole body. Raises ProblemError (of a declared length at once), and what `expect` raises, which is told
        how many bytes the body will have, or has until now, before they are kept.

        It answers Expect: 100-continue (RFC 9110, 10.1.1).
        """
        bytes_max = self.connection.body_bytes_max
        declared = self.content_length or 0
        if declared > bytes_max:
            raise self._too_large()
        expect(declared)
        if self.is_new and not self.is_whole and self.headers.get("expect", "").lower() == EXPECTATION:
            self.connection.send_continue()
        # The buffer is not copied: the page faults of 15 MB of fresh memory take 12 ms.
        body = bytearray()
        while True:
            for piece in self._pieces:
                body += piece
            self._pieces.clear()
            self.unread_bytes = 0
            expect(len(body))
            if len(body) > bytes_max:
                raise self._too_large()
            if self.is_whole:
                return body
            if self._is_broken:
                raise ProblemError(MALFORMED_HTTP)
            self._waiter = asyncio.get_running_loop().create_future()
            self.connection.mind_reading()
            try:
                await self._waiter
            finally:
                self._waiter = None

    def _too_large(self) -> ProblemError:
        return ProblemError(body_too_large(self.connection.body_bytes_max))

    # For the server.

    @property
    def is_unread(self) -> bool:
        """Whether more of its body has arrived than may wait for its handler."""
        return self.unread_bytes > UNREAD_BYTES_MAX

    @property
    def has_body(self) -> bool:
        """Whether a body follows the head (RFC 9112, 6)."""
        return bool(self.content_length) or "transfer-encoding" in self.headers

    def arrived(self, piece: bytes, size: int) -> None:
        """A piece of the body, of `size` bytes, has arrived."""
        self._pieces.append(piece)
        self.unread_bytes += size
        self.received_bytes += size
        if self._waiter is not None:
            self._wake()

    def ended(self) -> None:
        """The whole body has arrived."""
        self.is_whole = True
        if self._waiter is not None:
            self._wake()

    def broke(self) -> None:
        """The rest of the body cannot be read."""
        self._is_broken = True
        if self._waiter is not None:
            self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
