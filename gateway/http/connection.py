"""ClientConnection: one connection of a client: its requests (request_reader.py) are answered one after the other.

Limits of a client:
- A connection without a complete head is closed after a time (server.py).
- Reading pauses while PIPELINED_MAX requests wait, or a body for its handler (request.py). Requests wait while the
  client does not read the answers before them.
- A client that reads nothing is disconnected. A transport reports when its buffer exceeds the high-water mark, and when
  it is down at the low-water mark again; between the two the gateway allows CLIENT_STALL_S_MAX. Long bodies are written
  in pieces, each after the client has read the one before, so a client that reads 300 kB a minute stays.

When a client disconnects, or closes only its own half of the connection, its handler is cancelled.
"""

import asyncio
import logging
import sys
from collections import Counter
from collections.abc import Callable, Coroutine, Mapping
from functools import partial
from http import HTTPStatus
from typing import Any, Final, Protocol, cast

from gateway.api.errors import Problem
from gateway.http.request import HEAD, HttpRequest
from gateway.http.request_reader import PIPELINED_MAX, RequestReader
from gateway.http.response import PIECE_BYTES, WITHOUT_BODY, EventStream, Response, head

# The longest time without a drained write buffer before the connection is cut.
CLIENT_STALL_S_MAX = 60.0
WAITING_BYTES_MAX: Final = 64 * 1024  # the high-water mark of both event loops
STALLED: Final = "client_stalled"
LINGER_S: Final = 10.0  # for a client to close after its last answer; as long as aiohttp waits
LATE_LINGER_S: Final = 0.5  # after a 408: this client has had its time
CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"

log = logging.getLogger(__name__)


# Answers a request.
Handler = Callable[[HttpRequest], Coroutine[Any, Any, Response | EventStream]]


class DataPort(Protocol):
    """The interface of the data port's server, for ClientConnection: it finds handlers and makes error responses."""

    body_bytes_max: int
    closing: bool
    """Answers say `Connection: close`."""
    cuts: Counter[str]
    """The connections that were cut, by reason."""

    def route(self, request: HttpRequest) -> "Handler | None":
        """The handler of a request, which gets the id in its path; None where it has no handler."""
        ...

    def turned_away(self, request: HttpRequest) -> Response:
        """The response to a request without a handler."""
        ...

    def complete(self, request: HttpRequest, response: Response) -> None:
        """Add the headers that every response has."""
        ...

    def refuse(self, problem: Problem, target: str) -> Response:
        """The response to a request that could not be parsed; `target` is its target, as far as known."""
        ...

    def failed(self, request: HttpRequest) -> Response:
        """The response to a request whose handler failed."""
        ...

    def made(self, connection: "ClientConnection") -> None:
        """A connection has been made."""
        ...

    def lost(self, connection: "ClientConnection") -> None:
        """The connection is over, and its handler has ended."""
        ...


class ClientConnection(asyncio.Protocol):
    """One client's connection to the data port: it runs the handlers of the requests that its RequestReader finds, and
    writes their responses. `cut_reason` is None until the gateway cuts the connection.
    """

    __slots__ = (
        "_drained", "_is_closing_soon", "_is_lost", "_is_reading_paused", "_is_write_paused", "_keeps", "_lingering",
        "_loop", "_reader", "_remote", "_request", "_server", "_stall", "_waiting", "body_bytes_max", "cut_reason",
        "idle_since", "task", "transport",
    )  # fmt: skip

    def __init__(self, server: DataPort, loop: asyncio.AbstractEventLoop) -> None:
        self._server = server
        self._loop = loop
        self.body_bytes_max = server.body_bytes_max
        self.transport: asyncio.Transport
        self._remote: str | None = None
        self._reader: RequestReader
        self._is_reading_paused = False
        # Answering.
        self._request: HttpRequest | None = None  # that is answered
        self.task: asyncio.Task[None] | None = None  # of its handler
        self._keeps = True
        self._is_closing_soon = False  # after the answer
        self.idle_since: float | None = None  # it waits for the head of a request; None: it does not
        self._lingering: asyncio.TimerHandle | None = None
        self._is_lost = False
        # Writing.
        self._is_write_paused = False
        self._drained: Callable[[], None] | None = None
        self._stall: asyncio.TimerHandle | None = None
        self.cut_reason: str | None = None

    # Called by asyncio.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)
        self.transport.set_write_buffer_limits(high=WAITING_BYTES_MAX)  # with TLS it would be 512 KiB
        # Not before: it refers to this connection, whose end is not told if it fails at its TLS handshake.
        self._reader = RequestReader(self, self._server.refuse)
        self._waiting = self._reader.waiting
        self.idle_since = self._loop.time()
        self._server.made(self)

    def data_received(self, data: bytes) -> None:
        self._reader.feed(data)
        if self._request is None and self._waiting:
            self._go_on()
        elif self._waiting or self._reader.receiving is not None or self._is_reading_paused:
            self.mind_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        self._is_lost = True
        self._reader.stop()
        self._request = self.idle_since = None
        for timer in (self._stall, self._lingering):
            if timer is not None:
                timer.cancel()
        if self._drained is not None:
            self._loop.call_soon(self._drained)
            self._drained = None
        if self.task is None:
            self._server.lost(self)
        else:
            self.task.add_done_callback(lambda _: self._server.lost(self))
            self.task.cancel()

    def pause_writing(self) -> None:
        self._is_write_paused = True
        self._stall = self._loop.call_later(CLIENT_STALL_S_MAX, self.cut, STALLED)

    def resume_writing(self) -> None:
        self._is_write_paused = False
        if self._stall is not None:
            self._stall.cancel()
            self._stall = None
        if self._drained is not None:
            drained, self._drained = self._drained, None
            drained()
        if self._request is None and self._waiting:
            self._go_on()

    # For handlers and the relay.

    @property
    def remote(self) -> str | None:
        """The address of the client."""
        if self._remote is None and isinstance(peer := self.transport.get_extra_info("peername"), tuple):
            self._remote = str(peer[0])
        return self._remote

    def write(self, data: bytes | memoryview) -> None:
        """Write bytes to the client. Raises ConnectionError where the client has disconnected."""
        if self.transport.is_closing():
            raise ConnectionResetError("the client has disconnected")
        self.transport.write(data)

    def send_continue(self) -> None:
        self.write(CONTINUE)

    def begin_stream(self, request: HttpRequest, status: int, fields: Mapping[str, str]) -> EventStream:
        """Send the head of a stream. Raises ConnectionError where the client has disconnected."""
        self._decide_keeping(request, is_framed=request.is_new)
        request.has_begun = True
        if request.is_new:
            fields = {**fields, "transfer-encoding": "chunked"}
        self.write(head(status, fields, is_new=request.is_new, keeps=self._keeps))
        return EventStream(self.write, status, is_chunked=request.is_new)

    def when_drained(self, callback: Callable[[], None]) -> None:
        """Call `callback` once, in the next turn or later: when the client has read the buffered bytes, or is gone."""
        self._loop.call_soon(self._call_when_drained, callback)  # uvloop writes at the end of a turn

    async def drained(self) -> None:
        """Wait until the client has read the buffered bytes. Raises ConnectionError if the client has disconnected."""
        waiter = self._loop.create_future()
        self.when_drained(partial(_set, waiter))
        await waiter
        if self.transport.is_closing():
            raise ConnectionResetError("the client has disconnected")

    def cut(self, reason: str) -> None:
        """Abort the connection and drop what the client has not read. Idempotent."""
        if self.cut_reason is None:
            self.cut_reason = reason
            self._server.cuts[reason] += 1
            self.transport.abort()

    def mind_reading(self) -> None:
        """Pause reading if received data has to wait for a handler; otherwise resume it."""
        is_enough = self._reader.has_enough
        if is_enough is not self._is_reading_paused and not self.transport.is_closing():
            self._is_reading_paused = is_enough
            if is_enough:
                self.transport.pause_reading()
            else:
                self.transport.resume_reading()

    # For the server.

    def close_soon(self) -> None:
        """Close the connection after the response to the present request."""
        self._is_closing_soon = True
        if self._request is None and self._lingering is None:
            self.transport.close()

    def has_idled_since(self, time: float, unused: float) -> bool:
        """Whether the client has read its last answer, as far as is known, and sent nothing since this time; or has
        sent nothing at all since the time `unused`.
        """
        idle_since, reader = self.idle_since, self._reader
        return (
            idle_since is not None
            and idle_since <= (unused if reader.is_unused else time)
            and not reader.is_in_head
            and not self.transport.is_closing()
            and not self.transport.get_write_buffer_size()
        )

    def has_unread_bytes(self) -> bool:
        """Whether bytes of the client wait in the kernel: a request that its turn of the loop has not reached."""
        from fcntl import ioctl  # noqa: PLC0415 - few gateways are short of descriptors
        from termios import FIONREAD  # noqa: PLC0415

        connection = self.transport.get_extra_info("socket")
        return connection is not None and any(ioctl(connection.fileno(), FIONREAD, bytes(4)))

    # Internal: answering.

    def _go_on(self) -> None:
        """Answer the next request, if one has come, and the client reads the answers before it."""
        waiting = self._waiting
        while self._request is None and waiting and not (self._is_write_paused or self.transport.is_closing()):
            following, self.idle_since = waiting.pop(0), None
            if isinstance(following, Response):
                self._keeps = False
                self.write(following.head(is_new=True, keeps=False) + following.body)
                self._linger()
                return
            self._request = following
            handler = self._server.route(following)
            if handler is None:
                response = self._server.turned_away(following)
                self._send(following, response)
                self._end(following, response.status)
            else:
                self.task = self._loop.create_task(self._run(following, handler))
            if self._reader.rest is not None and len(waiting) <= PIPELINED_MAX // 2:
                self._reader.parse_rest()
        if self._is_reading_paused or waiting or self._reader.receiving is not None:
            self.mind_reading()

    async def _run(self, request: HttpRequest, handler: Handler) -> None:
        """Run the handler, and send what it returns."""
        try:
            try:
                response = await handler(request)
            except Exception as error:
                if isinstance(error, ConnectionError) and self.transport.is_closing():
                    raise  # it is that of its client
                log.exception("a handler failed")
                if request.has_begun:
                    raise ConnectionResetError("the response has begun: it cannot become an error") from None
                request.keeps = False
                response = self._server.failed(request)
            if isinstance(response, EventStream):
                response.end()
            elif len(response.body) > PIECE_BYTES:
                await self._send_in_pieces(request, response)
            else:
                self._send(request, response)
        except ConnectionError:  # the client has just disconnected
            self.transport.abort()
        except BaseException:
            self.transport.abort()
            raise
        else:
            self._end(request, response.status)
        finally:
            self.task = None
        if self._request is None and (self._waiting or self._is_reading_paused):
            self._go_on()

    def _send(self, request: HttpRequest, response: Response) -> None:
        """Send the whole response in one write. Raises ConnectionError where the client has disconnected."""
        self._decide_keeping(request)
        self._server.complete(request, response)
        data = response.head(is_new=request.is_new, keeps=self._keeps)
        self.write(data if request.method == HEAD or response.status in WITHOUT_BODY else data + response.body)

    async def _send_in_pieces(self, request: HttpRequest, response: Response) -> None:
        """Send a long body, each piece after the client has read the one before. So nothing of it is copied, and a
        client that stops reading is detected.
        """
        self._decide_keeping(request)
        self._server.complete(request, response)
        waiting = response.waiting
        if waiting is not None:
            waiting.sending(self.cut)
        whole = memoryview(response.body)
        try:
            self.write(response.head(is_new=request.is_new, keeps=self._keeps))
            for start in range(0, len(whole), PIECE_BYTES):
                self.write(whole[start : start + PIECE_BYTES])
                await self.drained()  # also of a client that reads fast: others have a turn
                if waiting is not None:
                    waiting.moved()
        finally:
            response.body = b""  # freed before its account is released, which lets other answers arrive
            whole.release()
            if waiting is not None:
                waiting.release()
            if self.cut_reason is not None:
                log.warning("an answer was cut (%s): request %s", self.cut_reason, response.fields.get("x-request-id"))

    def _decide_keeping(self, request: HttpRequest, *, is_framed: bool = True) -> None:
        """Whether the connection goes on after the answer, whose head is about to be sent."""
        # An answer before the end of its request: what comes next may be its body, or not.
        self._keeps = request.keeps and not self._server.closing and is_framed and request.is_whole

    def _end(self, request: HttpRequest, status: int) -> None:
        """The answer has been sent."""
        self._request = None
        if not self._keeps or self._is_closing_soon:
            self._linger(LATE_LINGER_S if status == HTTPStatus.REQUEST_TIMEOUT else LINGER_S)
        elif not self._waiting:
            self.idle_since = self._loop.time()

    def _linger(self, linger_s: float = LINGER_S) -> None:
        """Close in stages (RFC 9112, 9.6): say that nothing more is sent, and drop what the client sends until it
        closes, or for so long. Otherwise what is on its way would reset the connection before the answer is read.
        """
        is_whole = self._reader.receiving is None
        self._reader.stop()
        self.mind_reading()
        if self.transport.is_closing():
            return
        if self.transport.can_write_eof():
            try:
                self.transport.write_eof()
            except OSError:  # the client has just reset the connection
                self.transport.abort()
                return
        elif is_whole:  # TLS has no half of a connection, and an answer of HTTP/1.0 may end with it
            self.transport.close()
            return
        self._lingering = self._loop.call_later(linger_s, self._end_lingering, sys.maxsize)

    def _end_lingering(self, unsent_bytes: int) -> None:
        """Close, but not while a slow client reads on: it had these bytes to read the last time."""
        left = self.transport.get_write_buffer_size()
        if 0 < left < unsent_bytes:
            self._lingering = self._loop.call_later(CLIENT_STALL_S_MAX, self._end_lingering, left)
        else:
            self.transport.abort()

    def _call_when_drained(self, callback: Callable[[], None]) -> None:
        if self._is_write_paused and not self._is_lost:
            self._drained = callback
        else:
            callback()


def _set(waiter: "asyncio.Future[None]") -> None:
    if not waiter.done():
        waiter.set_result(None)
