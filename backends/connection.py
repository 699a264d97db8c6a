"""One socket to a backend and the exchange it carries: bytes in, pieces of the body out to a callback.

There is no stream object, future or task switch between the socket and the callback: a token costs one `data_received`,
and the chunks of one read go out as one piece. httptools (llhttp) finds the framing: chunks, content-length, 1xx,
trailers. A body without framing ends with the connection.
"""

import asyncio
import socket
import sys
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import islice
from math import inf
from types import TracebackType
from typing import Final, Protocol, Self, cast

import httptools

HEAD_BYTES_MAX = 64 * 1024
HELD_BYTES_MAX = 256 * 1024  # of a body that is not read yet; above this, reading pauses
# A machine that vanished sends nothing, not even a FIN: probes detect it within half a minute.
KEEPALIVE_PROBES: Final = {"TCP_KEEPIDLE": 15, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 3}
TURN_BYTES_MAX: Final = 1 << 20
"""Bytes of a gathered body that are read before other sockets have their turn. libuv reads a socket 32 times while it
has bytes, 8 MB of them in one turn of the loop: 11 to 15 ms of CPU, most of it page faults of fresh memory.
"""
_FRAMING: Final = frozenset({"content-length", "transfer-encoding"})
# Names as servers write them: to look one up costs less than to make it.
_NAMES: Final = {
    written.encode(): name
    for name in (
        "cache-control", "connection", "content-length", "content-type", "date", "server", "transfer-encoding",
        "x-request-id",
    )
    for written in (name, name.title())
}  # fmt: skip


class UpstreamError(Exception):
    """An error: an exchange with the backend failed."""


class ConnectFailed(UpstreamError):  # noqa: N818 - named as a state
    """An error: no connection (refused, timed out, unknown name, TLS). No part of the request was sent."""


class UpstreamProtocolError(UpstreamError):
    """An error: the backend sent something that is not HTTP, or that exceeds a limit."""


class UpstreamSilent(UpstreamError):  # noqa: N818
    """An error: the backend sent no byte of its response for longer than `silence_s_max`."""


class UpstreamAway(UpstreamError):  # noqa: N818
    """An error: the backend sends no byte of its response and does not answer polls either. Another backend can serve
    the request instead.
    """


class UpstreamClosed(UpstreamError):  # noqa: N818
    """An error: the connection ended before the response did. `bytes_received` counts the bytes of the response's head,
    and of its body until the gateway began to read the body; 0: no byte came.
    """

    def __init__(self, message: str, *, bytes_received: int) -> None:
        super().__init__(message)
        self.bytes_received = bytes_received


class ConnectionOwner(Protocol):
    """The owner of a connection, which gets it back when an exchange on it ends, or when it closes."""

    def give_back(self, connection: "Connection") -> None:
        """Take back a connection whose exchange ended cleanly, so that it can carry another exchange."""
        ...

    def lost(self, connection: "Connection") -> None:
        """Drop a connection that has closed."""
        ...


class HttpExchange:
    """One HTTP request to a backend and its response. Use `async with`, or call release() on every path. `headers` are
    those of the response, by name in lower case. If a name repeats, its last value counts, except for Connection, where
    all count. `is_framed`: the response states its length or is chunked. Otherwise the end of the connection ends it,
    and a truncated response looks complete.
    """

    __slots__ = ("_connection", "failure", "headers", "is_framed", "status")

    def __init__(self, connection: "Connection") -> None:
        self._connection: Connection | None = connection
        self.failure: Exception | None = None  # what `on_body` raised, even if the message is complete
        self.status = 0
        self.is_framed = False
        self.headers: dict[str, str] = {}

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.release()

    async def read(self, bytes_max: int, on_bytes: Callable[[int], None] | None = None) -> bytes | bytearray:
        """Return the whole body. Raises UpstreamError, as `stream` does; UpstreamProtocolError if it exceeds
        `bytes_max`. If the body has not arrived yet, `on_bytes` gets the size of each piece, and may pause the
        exchange.
        """
        body = self.at_once()
        if body is None:
            return await self._gathered(bytes_max, on_bytes)
        if len(body) > bytes_max:
            raise UpstreamProtocolError(f"a body of more than {bytes_max} bytes")
        return body

    def at_once(self) -> bytes | None:
        """Return the body if all of it has arrived, as a short one usually has; else None, and it can still be read."""
        connection = self._connection
        return connection.take() if connection is not None and connection.is_complete else None

    async def _gathered(self, bytes_max: int, on_bytes: Callable[[int], None] | None) -> bytearray:
        # A growing buffer: joining the pieces of 60 MB at the end would block the loop and need them twice.
        body = bytearray()

        def collect(data: bytes) -> None:
            if len(body) + len(data) > bytes_max:
                raise UpstreamProtocolError(f"a body of more than {bytes_max} bytes")
            body.extend(data)
            if self._connection is not None:
                self._connection.take_turns(len(data))
            if on_bytes is not None:
                on_bytes(len(data))

        await self.stream(collect)
        return body

    async def stream(self, on_body: Callable[[bytes], None]) -> None:
        """Pass every piece of the body to `on_body` as it arrives; return when the message is complete. Raises
        UpstreamClosed if the body is cut, UpstreamSilent if no byte comes for too long, UpstreamProtocolError if the
        body is malformed, and any exception from `on_body`.
        """
        if self._connection is None:
            raise RuntimeError("the exchange has been released")
        await self._connection.drain_to(on_body)
        if self.failure is not None:
            raise self.failure

    async def begun(self, is_begun: Callable[[bytes], bool] = bool) -> None:
        """Wait until the body has begun: `is_begun` gets each piece once, in order, and returns whether it has. Pieces
        that have arrived can still be read. Raises UpstreamError if the body ends earlier.
        """
        if self._connection is not None:
            await self._connection.wait_for_body(is_begun)

    def limit_silence(self, silence_s_max: float) -> None:
        """Fail the response when it sends no byte for this long, if that is less than the owner's limit. The request
        can then be sent to another backend (`Connection.leave`).
        """
        if self._connection is not None:
            self._connection.silence_s_max = silence_s_max

    def pause(self) -> None:
        """Stop reading from the backend: its TCP window fills, and it has to wait."""
        if self._connection is not None:
            self._connection.pause()

    def resume(self) -> None:
        """Read from the backend again."""
        if self._connection is not None:
            self._connection.resume()

    def fail(self, error: BaseException) -> None:
        """Abort the connection and raise this error in the reader of the response, unless the response is complete."""
        if self._connection is not None:
            self._connection.fail(error)

    def release(self) -> None:
        """Return the connection to the pool if the response ended cleanly, else abort it. Idempotent."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.end()


class Connection(asyncio.Protocol):
    """One connection to a backend: its socket, and the exchange that it carries, if any. Both event loops (asyncio's
    and uvloop) set TCP_NODELAY.

    The HTTP parser (httptools) appends pieces of the body to `_pieces`, which costs no Python call; `data_received`
    passes them on. Until a reader of the body is set (`_sink`), they wait there, up to HELD_BYTES_MAX.
    """

    __slots__ = (
        "_bytes_received",
        "_error",
        "_exchange",
        "_framed",
        "_head_received",
        "_heard",
        "_held_bytes_max",
        "_owner",
        "_parser",
        "_paused",
        "_pieces",
        "_reusable",
        "_silent_since",
        "_sink",
        "_turn_bytes",
        "_waiter",
        "answered",
        "idle_since",
        "is_complete",
        "loop",
        "on_body",
        "silence_s_max",
        "transport",
    )  # fmt: skip

    def __init__(self, owner: ConnectionOwner, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.idle_since = 0.0
        self.transport: asyncio.Transport
        self._owner = owner
        self._pieces: deque[bytes] = deque()
        self.on_body = self._pieces.append
        self._parser = httptools.HttpResponseParser(self)
        self._exchange: HttpExchange | None = None
        self._waiter: asyncio.Future[None] | None = None  # for the next event: a head, more of a body, its end
        self.answered: asyncio.Future[None]
        self._error: BaseException | None = None
        self._sink: Callable[[bytes], None] | None = None
        self._bytes_received = 0
        self._head_received = False
        self.is_complete = True
        self._framed = False
        self._reusable = False
        self._paused = False
        self._held_bytes_max = HELD_BYTES_MAX
        self._heard = False  # a byte came since the last `check_silence`
        self._silent_since = 0.0
        self.silence_s_max = inf  # of the present exchange, besides the owner's limit
        self._turn_bytes = 0

    # Called by the exchange.

    def begin(self, request: Sequence[bytes | bytearray]) -> HttpExchange:
        """Start an exchange with this request. It has the head of the response when `answered` is done."""
        self._exchange = exchange = HttpExchange(self)
        self._waiter = self.answered = self.loop.create_future()
        self._error = None
        self._bytes_received = 0
        self._head_received = self.is_complete = self._framed = self._reusable = False
        self._heard = True
        self.silence_s_max = inf
        self.transport.writelines(request)
        return exchange

    async def wait_for_body(self, is_begun: Callable[[bytes], bool]) -> None:
        """Wait until `is_begun`, which gets each piece once, is true. Raises UpstreamError if the body ends earlier.
        Reading does not pause meanwhile: `is_begun` bounds the bytes that it waits for.
        """
        self._held_bytes_max, seen = sys.maxsize, 0
        try:
            while True:
                for piece in islice(self._pieces, seen, None):
                    if is_begun(piece):  # what came before an error is read first
                        return
                seen = len(self._pieces)
                if self._error is not None:
                    raise self._error
                if self.is_complete:
                    raise self._closed("nothing in its body")
                self.resume()
                self._waiter = self.loop.create_future()
                with suppress(UpstreamError):  # raised above, after what came with it
                    await self._waiter
        finally:
            self._held_bytes_max = HELD_BYTES_MAX

    async def drain_to(self, on_body: Callable[[bytes], None]) -> None:
        """Pass the whole body to `on_body`; return when the message is complete. Raises the exchange's error."""
        self._sink = on_body
        self.resume()  # first: on_body may pause again
        if self._pieces:
            on_body(self.take())
        if self._error is not None:
            raise self._error
        if not self.is_complete:
            self._waiter = self.loop.create_future()
            await self._waiter

    def pause(self) -> None:
        if not self._paused and not self.transport.is_closing():
            self._paused = True
            self.transport.pause_reading()

    def resume(self) -> None:
        if self._paused and not self.transport.is_closing():
            self._paused = False
            self.transport.resume_reading()

    def take_turns(self, received: int) -> None:
        """Stop reading until the loop's next turn, after each TURN_BYTES_MAX bytes."""
        self._turn_bytes += received
        if self._turn_bytes >= TURN_BYTES_MAX and not self.transport.is_closing():
            self._turn_bytes = 0
            self.transport.pause_reading()
            self.loop.call_soon(self._read_on)

    def end(self) -> None:
        """End the exchange: return the connection to its owner if it is reusable, else abort it."""
        self._exchange = self._sink = None
        if self._pieces:
            self._pieces.clear()
        if not self.is_complete or not self._reusable or self.transport.is_closing():
            self.fail(self._closed("released"))
            return
        if self._paused:  # by back-pressure: in the pool nothing resumes it
            self.resume()
        self._owner.give_back(self)

    def abort(self) -> None:
        self.transport.abort()

    def check_silence(self, now: float, silence_s_max: float) -> None:
        """Fail a response that sent no byte for `silence_s_max` seconds. Called periodically: a timer for every token
        would cost more than the token.
        """
        if self._heard or self.is_complete or self._paused:
            self._heard, self._silent_since = False, now
        elif now - self._silent_since >= (limit_s := min(silence_s_max, self.silence_s_max)):
            self.fail(UpstreamSilent(f"nothing for {limit_s:g} s"))

    def leave(self, now: float, silence_s: float) -> None:
        """Do the same as `check_silence`, but only for a response that another backend can give: its body has not been
        read, or its silence is limited.
        """
        if self._heard or self.is_complete or self._paused:
            self._heard, self._silent_since = False, now
        elif now - self._silent_since >= silence_s and (self._sink is None or self.silence_s_max < inf):
            self.fail(UpstreamAway("the backend is down"))

    # Called by asyncio.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)
        _probe_when_silent(transport.get_extra_info("socket"))

    def data_received(self, data: bytes) -> None:
        self._heard = True
        parser, sink = self._parser, self._sink
        try:
            parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            if sink is None and self._head_received:  # what came before is read first
                self._wake(None)
            self.fail(UpstreamProtocolError(f"not HTTP: {error}"))
        if sink is None:
            self._wait_for_sink(len(data))
        elif pieces := self._pieces:
            try:
                sink(pieces.popleft() if len(pieces) == 1 else self.take())  # saves one call per token
            except Exception as error:  # noqa: BLE001 - raised again where the body is awaited
                if self._exchange is not None:
                    self._exchange.failure = error
                self.fail(error)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._head_received and not self._framed and exc is None and self._error is None:
            self.is_complete = True  # RFC 9112 6.3: without length or chunks, the close ends the body
            self._wake(None)
        else:
            self.fail(self._closed(str(exc) if exc else "closed by the backend"))
        self._owner.lost(self)

    # Called by the parser, as is `on_body`. feed_data raises what is raised here as HttpParserError.

    def on_message_begin(self) -> None:
        if self.is_complete:
            raise UpstreamProtocolError("a response without a request")

    def on_header(self, name: bytes, value: bytes) -> None:
        exchange = self._exchange
        if self._head_received or exchange is None:
            return  # trailers are not forwarded
        try:
            key = _NAMES[name]
        except KeyError:
            key = name.decode("latin-1").lower()
        if key in _FRAMING:
            self._framed = True
            if key == "transfer-encoding" and value.lower() != b"chunked":
                raise UpstreamProtocolError("a coding of the body that was not asked for")
        elif key == "connection" and key in exchange.headers:  # each line may name headers of this hop
            value = exchange.headers[key].encode() + b"," + value
        exchange.headers[key] = value.decode("utf-8", "replace")

    def on_headers_complete(self) -> None:
        exchange, status = self._exchange, self._parser.get_status_code()
        if exchange is None:
            return
        if not 100 <= status < 600:  # RFC 9110, 15
            raise UpstreamProtocolError(f"status {status}")
        if status < 200:  # 1xx: the real head follows
            exchange.headers.clear()
            self._framed = False
            return
        exchange.status = status
        exchange.is_framed = self._framed = self._framed or status in (204, 304)
        self._head_received = True  # `_wait_for_sink` wakes whoever waits for it

    def on_message_complete(self) -> None:
        if self._head_received:
            self.is_complete = True
            self._reusable = self._parser.should_keep_alive()
            if self._sink is not None:  # else `_wait_for_sink` does
                self._wake(None)

    # Internal.

    def _read_on(self) -> None:
        if not self._paused and not self.transport.is_closing():
            self.transport.resume_reading()

    def take(self) -> bytes:
        """Return the part of the body that has arrived. A small body arrives whole, with its head."""
        pieces = self._pieces
        if len(pieces) == 1:
            return pieces.popleft()
        # Not `clear`, for which a deque takes a second block of memory, and keeps both.
        return b"".join([pieces.popleft() for _ in range(len(pieces))])

    def _wait_for_sink(self, received: int) -> None:
        self._bytes_received += received
        if not self._head_received and self._bytes_received > HEAD_BYTES_MAX:
            self.fail(UpstreamProtocolError(f"a response head of more than {HEAD_BYTES_MAX} bytes"))
        elif self._bytes_received > self._held_bytes_max:
            self.pause()
        if self._pieces or self._head_received:
            self._wake(None)

    def fail(self, error: BaseException) -> None:
        """Close the connection, and fail the exchange unless it is complete."""
        self._reusable = False
        if not self.is_complete and self._error is None:
            self._error = error
            self._wake(error)
        self.abort()

    def _wake(self, error: BaseException | None) -> None:
        waiter = self._waiter
        if waiter is None or waiter.done():
            return
        if error is None:
            waiter.set_result(None)
        else:
            waiter.set_exception(error)

    def _closed(self, reason: str) -> UpstreamClosed:
        return UpstreamClosed(reason, bytes_received=self._bytes_received)


def _probe_when_silent(sock: socket.socket | None) -> None:
    if sock is None:
        return
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in KEEPALIVE_PROBES.items():
        if hasattr(socket, name):
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
