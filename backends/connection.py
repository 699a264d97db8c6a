"""One socket to a backend and the exchange it carries: bytes in, pieces of the body to a callback.

Between the socket and the callback there is no stream object, no future and no task switch: a token
costs one `data_received`, and the chunks of one read go out as one piece. httptools (llhttp) finds the
framing: chunks, content-length, 1xx, trailers; a body without either ends with the connection.
"""

import asyncio
import socket
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType
from typing import Final, Protocol, Self, cast

import httptools

HEAD_BYTES_MAX = 64 * 1024
HELD_BYTES_MAX = 256 * 1024  # body that arrived before anybody asked for it; then reading pauses
# A backend whose machine vanished sends nothing, not even a FIN: probes find out within half a minute.
KEEPALIVE_PROBES: Final = {"TCP_KEEPIDLE": 15, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 3}
_FRAMING: Final = frozenset({"content-length", "transfer-encoding"})


class UpstreamError(Exception):
    """The backend did not do its part."""


class ConnectFailed(UpstreamError):  # noqa: N818 - a state, as its callers speak of it
    """No connection: refused, timed out, unknown name, TLS. Nothing of the request was sent."""


class UpstreamProtocolError(UpstreamError):
    """The backend sent something that is not HTTP, or over a limit."""


class UpstreamSilent(UpstreamError):  # noqa: N818
    """Not a byte of the response for longer than is allowed."""


class UpstreamClosed(UpstreamError):  # noqa: N818
    """The connection ended before the response did.

    `bytes_received` counts head and body up to where the body was asked for; 0 means not a byte came.
    """

    def __init__(self, message: str, *, head_received: bool, bytes_received: int) -> None:
        super().__init__(message)
        self.head_received = head_received
        self.bytes_received = bytes_received


class ConnectionOwner(Protocol):
    """Whom a connection tells what became of it."""

    def give_back(self, connection: "Connection") -> None:
        """Its exchange ended cleanly: it may carry another."""
        ...

    def lost(self, connection: "Connection") -> None:
        """It is closed."""
        ...


class HttpExchange:
    """One request and its response. Use `async with`, or call release() on every path.

    `headers` are by name in lower case; of a name that comes twice the last one counts. `is_framed` says whether the
    response tells where it ends. Where it does not, the end of the connection ends it, and a response that was cut
    looks like a whole one.
    """

    __slots__ = ("_connection", "failure", "headers", "is_framed", "status")

    def __init__(self, connection: "Connection") -> None:
        self._connection: Connection | None = connection
        self.failure: Exception | None = None  # what `on_body` raised, also where the message is complete
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
        """The whole body. Raises UpstreamClosed, or UpstreamProtocolError when it is over `bytes_max`.

        `on_bytes` is told how much came, piece by piece, of one that does not come at once; it may pause the exchange.
        """
        body = self.at_once()
        if body is None:
            return await self._gathered(bytes_max, on_bytes)
        if len(body) > bytes_max:
            raise UpstreamProtocolError(f"a body of more than {bytes_max} bytes")
        return body

    def at_once(self) -> bytes | None:
        """The body, if all of it is here, as one of less than HELD_BYTES_MAX may be; else it is still to be read."""
        return self._connection.whole_body() if self._connection is not None else None

    async def _gathered(self, bytes_max: int, on_bytes: Callable[[int], None] | None) -> bytearray:
        # One that grows: to join the pieces of 60 MB at the end would hold up the loop, and be there twice.
        body = bytearray()

        def collect(data: bytes) -> None:
            if len(body) + len(data) > bytes_max:
                raise UpstreamProtocolError(f"a body of more than {bytes_max} bytes")
            body.extend(data)
            if on_bytes is not None:
                on_bytes(len(data))

        await self.stream(collect)
        return body

    async def stream(self, on_body: Callable[[bytes], None]) -> None:
        """Hand every piece of the body to `on_body` as it arrives; return when the message is complete.

        Raises UpstreamClosed when it is cut, UpstreamProtocolError when it is malformed, and what
        `on_body` raised.
        """
        if self._connection is None:
            raise RuntimeError("the exchange has been released")
        await self._connection.drain_to(on_body)
        if self.failure is not None:
            raise self.failure

    async def begun(self) -> None:
        """Wait until something of the body is there, or it is complete. Raises UpstreamError where it failed before."""
        if self._connection is not None:
            await self._connection.wait_for_body()

    def pause(self) -> None:
        """Stop reading from the backend: its TCP window fills, then it waits."""
        if self._connection is not None:
            self._connection.pause()

    def resume(self) -> None:
        if self._connection is not None:
            self._connection.resume()

    def release(self) -> None:
        """Give the connection up: to the pool if the response ended cleanly, else abort it. Idempotent."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.end()


class Connection(asyncio.Protocol):
    """One socket and the exchange it carries, if any. Both event loops set TCP_NODELAY.

    httptools appends pieces of the body to `_pieces`, which costs no Python call; `data_received` hands
    them on. While nobody has asked for the body (`_sink` is None) they wait there, within a limit.
    """

    __slots__ = (
        "_bytes_received",
        "_complete",
        "_error",
        "_exchange",
        "_framed",
        "_head_received",
        "_heard",
        "_owner",
        "_parse",
        "_parser",
        "_paused",
        "_pieces",
        "_reusable",
        "_silent_since",
        "_sink",
        "_waiter",
        "idle_since",
        "loop",
        "lost",
        "on_body",
        "transport",
    )  # fmt: skip

    def __init__(self, owner: ConnectionOwner, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.idle_since = 0.0
        self.lost: asyncio.Future[None] = loop.create_future()
        self.transport: asyncio.Transport
        self._owner = owner
        self._pieces: deque[bytes] = deque()
        self.on_body = self._pieces.append
        self._parser = httptools.HttpResponseParser(self)
        self._parse = self._parser.feed_data
        self._exchange: HttpExchange | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._error: BaseException | None = None
        self._sink: Callable[[bytes], None] | None = None
        self._bytes_received = 0
        self._head_received = False
        self._complete = True
        self._framed = False
        self._reusable = False
        self._paused = False
        self._heard = False  # anything, since `check_silence` last asked
        self._silent_since = 0.0

    # The exchange's side.

    def begin(self) -> HttpExchange:
        self._exchange = exchange = HttpExchange(self)
        self._waiter = self.loop.create_future()
        self._error = None
        self._bytes_received = 0
        self._head_received = self._complete = self._framed = self._reusable = False
        self._heard = True
        return exchange

    async def wait(self) -> None:
        """Until the next thing happens: the head is there, the message is complete, or it failed."""
        waiter = self._waiter
        assert waiter is not None
        try:
            await waiter
        finally:
            if self._waiter is waiter:  # else it was given back at its last byte, and carries the next exchange
                self._waiter = None

    async def wait_for_body(self) -> None:
        if not self._pieces and not self._complete and self._error is None:
            self._waiter = self.loop.create_future()
            with suppress(UpstreamError):  # what came before it is read first
                await self.wait()
        if self._error is not None and not self._pieces:
            raise self._error

    def whole_body(self) -> bytes | None:
        """The body, if all of it is here: a small one comes with the head."""
        return self._take() if self._complete else None

    async def drain_to(self, on_body: Callable[[bytes], None]) -> None:
        self._sink = on_body
        self.resume()  # before anything is handed on: on_body may pause again
        if self._pieces:
            on_body(self._take())
        if self._error is not None:
            raise self._error
        if not self._complete:
            self._waiter = self.loop.create_future()
            await self.wait()

    def pause(self) -> None:
        if not self._paused and not self.is_closing():
            self._paused = True
            self.transport.pause_reading()

    def resume(self) -> None:
        if self._paused and not self.is_closing():
            self._paused = False
            self.transport.resume_reading()

    def end(self) -> None:
        self._exchange = self._sink = None
        self._pieces.clear()
        if not self._complete or not self._reusable or self.is_closing():
            self._fail(self._closed("released"))
            return
        self.resume()  # back-pressure may have paused it: in the pool it would stay so
        self._owner.give_back(self)

    def abort(self) -> None:
        self.transport.abort()

    def is_closing(self) -> bool:
        return self.transport.is_closing()

    def check_silence(self, now: float, silence_s_max: float) -> None:
        """Give up a response of which nothing has come for so long. To be asked now and then: a timer for every
        token would cost more than the token.
        """
        if self._heard or self._complete or self._paused:
            self._heard, self._silent_since = False, now
        elif now - self._silent_since >= silence_s_max:
            self._fail(UpstreamSilent(f"nothing for {silence_s_max:g} s"))

    # asyncio's side.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)
        _probe_when_silent(transport.get_extra_info("socket"))

    def data_received(self, data: bytes) -> None:
        self._heard = True
        parse, sink = self._parse, self._sink  # as locals: a method call on a slot is a slow look-up in 3.11
        try:
            parse(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            self._fail(UpstreamProtocolError(f"not HTTP: {error}"))
        if sink is None:
            self._wait_for_sink(len(data))
        elif pieces := self._pieces:
            try:
                sink(pieces.popleft() if len(pieces) == 1 else self._take())  # spares one call a token
            except Exception as error:  # noqa: BLE001 - it is raised where the body is awaited
                if self._exchange is not None:
                    self._exchange.failure = error
                self._fail(error)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._head_received and not self._framed and exc is None and self._error is None:
            self._complete = True  # RFC 9112 6.3: neither length nor chunks, so the close is the end
            self._wake(None)
        else:
            self._fail(self._closed(str(exc) if exc else "closed by the backend"))
        self._owner.lost(self)
        self.lost.set_result(None)

    # The parser's side, with `on_body`. What is raised here comes out of feed_data as HttpParserError.

    def on_message_begin(self) -> None:
        if self._complete:
            raise UpstreamProtocolError("a response without a request")

    def on_header(self, name: bytes, value: bytes) -> None:
        exchange = self._exchange
        if self._head_received or exchange is None:
            return  # trailers are not forwarded
        key = name.decode("latin-1").lower()
        if key in _FRAMING:
            self._framed = True
            if key == "transfer-encoding" and value.lower() != b"chunked":
                raise UpstreamProtocolError("a coding of the body that was not asked for")
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
        self._head_received = True
        self._wake(None)

    def on_message_complete(self) -> None:
        if self._head_received:
            self._complete = True
            self._reusable = self._parser.should_keep_alive()
            self._wake(None)

    # Inside.

    def _take(self) -> bytes:
        pieces = self._pieces
        if len(pieces) == 1:
            return pieces.popleft()
        data = b"".join(pieces)
        pieces.clear()
        return data

    def _wait_for_sink(self, received: int) -> None:
        self._bytes_received += received
        if not self._head_received and self._bytes_received > HEAD_BYTES_MAX:
            self._fail(UpstreamProtocolError(f"a response head of more than {HEAD_BYTES_MAX} bytes"))
        elif self._bytes_received > HELD_BYTES_MAX:
            self.pause()
        if self._pieces:
            self._wake(None)

    def _fail(self, error: BaseException) -> None:
        """Give the connection up, and the exchange too unless it was complete."""
        self._reusable = False
        if not self._complete and self._error is None:
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
        return UpstreamClosed(reason, head_received=self._head_received, bytes_received=self._bytes_received)


def _probe_when_silent(sock: socket.socket | None) -> None:
    if sock is None:
        return
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in KEEPALIVE_PROBES.items():
        if hasattr(socket, name):
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
