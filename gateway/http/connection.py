"""ClientConnection: one connection of a client: its requests are parsed, and answered one after the other.

httptools (llhttp) parses, strictly. Input that it accepts, but that another server might read differently, is refused
here. If the end of a message is in doubt, the connection is closed.

Limits of a client:
- A head has HEADERS_MAX fields of HEAD_BYTES_MAX bytes, each line at most LINE_BYTES_MAX.
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
import re
import sys
from collections import Counter
from collections.abc import Callable, Coroutine, Mapping
from functools import partial
from http import HTTPMethod, HTTPStatus
from typing import Any, Final, Protocol, cast

import httptools

from gateway.api import errors
from gateway.api.errors import Problem
from gateway.api.headers import Headers
from gateway.http.request import HEAD, HttpRequest
from gateway.http.response import PIECE_BYTES, WITHOUT_BODY, EventStream, Response, head

HEADERS_MAX: Final = 128
HEAD_BYTES_MAX = 64 << 10
LINE_BYTES_MAX = 32 << 10  # of a target or a field: four times what is usual, for tokens that name many groups
PIPELINED_MAX: Final = 32  # requests of a connection that wait, about
# Of what is parsed at once, except of a body whose length is known. No line of a head that came at once is too long.
PARSED_BYTES_MAX: Final = 4096
# The longest time without a drained write buffer before the connection is cut.
CLIENT_STALL_S_MAX = 60.0
WAITING_BYTES_MAX: Final = 64 * 1024  # the high-water mark of both event loops
STALLED: Final = "client_stalled"
LINGER_S: Final = 10.0  # for a client to close after its last answer; as long as aiohttp waits
LATE_LINGER_S: Final = 0.5  # after a 408: this client has had its time
CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"
# The one offer of another protocol that is passed over while the connection goes on: Java's client makes it.
PASSED_OVER: Final = "h2c"

_HOST: Final = re.compile(r"[A-Za-z0-9._~%!$&'()*+,;=:\[\]-]*")  # RFC 3986, 3.2.2 and 3.2.3
_ORIGIN_FORM: Final = re.compile(r"/[!\"$-~]*")  # RFC 9112, 3.2.1: no fragment
_ABSOLUTE_FORM: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://([^/?#]+)((?:[/?][!\"$-~]*)?)")
# Servers differ in which one they believe where it comes twice.
_SINGLE: Final = frozenset(
    {
        "content-length", "content-location", "content-range", "content-type", "etag", "host", "max-forwards",
        "server", "transfer-encoding", "user-agent",
    }
)  # fmt: skip

# Names as clients write them: to look one up costs less than to make it.
_NAMES: Final = {
    written.encode(): name
    for name in (
        "accept", "accept-encoding", "accept-language", "authorization", "connection", "content-length",
        "content-type", "cookie", "expect", "host", "origin", "referer", "traceparent", "tracestate", "user-agent",
        "transfer-encoding", "x-api-key", "x-forwarded-for", "x-forwarded-proto", "x-real-ip", "x-request-id",
        "x-session-id", "x-stainless-arch", "x-stainless-async", "x-stainless-lang", "x-stainless-os",
        "x-stainless-package-version", "x-stainless-retry-count", "x-stainless-runtime",
        "x-stainless-runtime-version", "x-tenant-id",
    )
    for written in (name, name.title())
}  # fmt: skip
_METHODS: Final = {each.value.encode(): each.value for each in HTTPMethod}

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
    """One client's connection to the data port: it parses requests, runs their handlers and writes their responses.
    `cut_reason` is None until the gateway cuts the connection.
    """

    __slots__ = (
        "_drained", "_fault", "_headers", "_is_closing_soon", "_is_in_head", "_is_lost", "_is_over",
        "_is_reading_paused", "_is_resuming", "_is_write_paused", "_keeps", "_lingering", "_loop", "_offers",
        "_parser", "_receiving", "_remote", "_request", "_rest", "_seen", "_server", "_stall",
        "_target", "_trailers", "_unframed_bytes", "_waiting", "body_bytes_max", "cut_reason", "idle_since", "task",
        "transport",
    )  # fmt: skip

    def __init__(self, server: DataPort, loop: asyncio.AbstractEventLoop) -> None:
        self._server = server
        self._loop = loop
        self.body_bytes_max = server.body_bytes_max
        self.transport: asyncio.Transport
        self._remote: str | None = None
        # Parsing.
        self._parser: httptools.HttpRequestParser | None = None
        self._target = b""
        self._headers = Headers()
        self._trailers = 0  # fields after the body
        self._seen: tuple[bytes, str | None, str] = (b"", None, "")  # the last target and Host, and what was asked for
        self._receiving: HttpRequest | None = None  # whose body is expected
        self._is_in_head = False
        self._is_resuming = False
        self._offers = False  # another protocol, in the request that is received
        self._unframed_bytes = 0  # of heads, trailers and sizes of chunks since the last byte of a body
        self._rest: memoryview | None = None  # that was read, and is parsed when fewer requests wait
        self._fault: Problem | None = None
        self._is_over = False  # nothing more is parsed
        self._is_reading_paused = False
        # Answering.
        self._waiting: list[HttpRequest | Response] = []
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
        self._parser = httptools.HttpRequestParser(self)
        self.idle_since = self._loop.time()
        self._server.made(self)

    def data_received(self, data: bytes) -> None:
        if self._is_over:
            return
        if len(data) <= PARSED_BYTES_MAX and self._rest is None:
            self._parse(data)
        else:
            self._rest = memoryview(data if self._rest is None else bytes(self._rest) + data)
            self._parse_rest()
        if self._request is None and self._waiting:
            self._go_on()
        elif self._receiving is not None or self._waiting or self._is_reading_paused:
            self.mind_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        self._is_lost = self._is_over = True
        self._parser = None  # it refers to this connection
        self._waiting.clear()
        self._rest = self._receiving = self._request = self.idle_since = None
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

    # Called by the parser. feed_data raises what is raised here as HttpParserError.

    def on_message_begin(self) -> None:
        self._target = b""
        self._headers = Headers()
        self._unframed_bytes = self._trailers = 0
        self._is_in_head = True

    def on_url(self, url: bytes) -> None:
        self._target += url
        if self._unframed_bytes and len(self._target) > LINE_BYTES_MAX:
            raise self._at_fault(errors.HEADER_TOO_LARGE)

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._unframed_bytes and len(name) + len(value) > LINE_BYTES_MAX:
            raise self._at_fault(errors.HEADER_TOO_LARGE)
        if not self._is_in_head:
            self._trailers += 1
            if self._trailers > HEADERS_MAX:
                raise self._at_fault(errors.HEADER_TOO_LARGE)
            return
        try:
            key = _NAMES[name]
        except KeyError:
            key = name.decode("latin-1").lower()
        try:
            text = value.decode()
        except UnicodeDecodeError:
            text = value.decode("utf-8", "surrogateescape")
        if text[-1:] <= " ":
            if key == "transfer-encoding" and "\t" in text:  # llhttp takes it for another coding
                raise self._at_fault(errors.MALFORMED_HTTP)
            text = text.rstrip(" \t")
        if key in self._headers:
            self._headers.add(key, text)
        else:
            self._headers[key] = text

    def on_headers_complete(self) -> None:
        self._is_in_head = False
        if self._is_resuming:
            return
        parser, headers, target = self._parser, self._headers, self._target
        assert parser is not None, "it calls"
        if len(headers) > HEADERS_MAX or (headers.again is not None and headers.number > HEADERS_MAX):
            raise self._at_fault(errors.HEADER_TOO_LARGE)
        method, version, host = parser.get_method(), parser.get_http_version(), headers.get("host")
        seen_target, seen_host, found = self._seen
        if seen_target != target or seen_host != host or version != "1.1":
            found = self._find_target(target, method, host, version)
        if "transfer-encoding" in headers or headers.again is not None:
            self._check_framing(headers, version)
        is_passed_over, self._offers = True, parser.should_upgrade()
        if self._offers:
            is_passed_over = method != b"CONNECT" and headers.get("upgrade", "").lower() == PASSED_OVER
        keeps = parser.should_keep_alive() and is_passed_over
        name = _METHODS.get(method) or method.decode()
        self._receiving = request = HttpRequest(self, name, found, headers, is_new=version == "1.1", keeps=keeps)
        self._waiting.append(request)

    def on_body(self, body: bytes) -> None:
        size = len(body)
        self._unframed_bytes = -size  # all of what is parsed now will be added
        if self._receiving is not None:
            self._receiving.arrived(body, size)

    def on_message_complete(self) -> None:
        request = self._receiving
        if request is None:
            return
        if self._offers and request.has_body and not self._is_resuming and request.method != "CONNECT":
            return  # llhttp does not read it: `_resume` does
        if self._trailers:  # dropped (RFC 9112, 7.1.2); a server that does not know trailers takes it for a request
            request.keeps = False
        self._receiving = None
        self._offers = self._is_resuming = False
        request.ended()
        if not request.keeps:
            self._is_over = True

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
        receiving = self._receiving
        is_enough = (
            self._rest is not None
            or len(self._waiting) >= PIPELINED_MAX
            or (receiving is not None and receiving.is_unread)
        )
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

    # Internal: parsing.

    def _parse(self, data: bytes | memoryview) -> None:
        while self._parser is not None and not self._is_over:
            try:
                self._parser.feed_data(data)
            except httptools.HttpParserUpgrade as offer:  # the message is over where its head is
                data = data[offer.args[0] :]
                if self._receiving is not None:
                    self._resume(self._receiving)
                if len(data):
                    continue
            except httptools.HttpParserError:
                if not self._is_over:  # else it is what follows the last request
                    self._break(self._fault or errors.MALFORMED_HTTP)
            else:
                if self._is_in_head or self._receiving is not None:
                    self._unframed_bytes += len(data)
                    if self._unframed_bytes > HEAD_BYTES_MAX:
                        self._break(errors.HEADER_TOO_LARGE)
            return

    def _parse_rest(self) -> None:
        """Parse what was read in pieces, so that few requests wait."""
        rest = self._rest
        while rest is not None and not self._is_over and len(self._waiting) < PIPELINED_MAX:
            size = PARSED_BYTES_MAX
            if (receiving := self._receiving) is not None and receiving.content_length is not None:
                size = max(size, receiving.content_length - receiving.received_bytes)
            self._rest = rest[size:] if size < len(rest) else None
            self._parse(rest[:size])
            rest = self._rest
        if self._is_over:
            self._rest = None

    def _resume(self, request: HttpRequest) -> None:
        """Parse the body of a request with an offer of another protocol, which llhttp takes to be of that protocol."""
        self._is_resuming = True
        self._parser = httptools.HttpRequestParser(self)
        length = request.content_length
        framing = "Transfer-Encoding: chunked" if length is None else f"Content-Length: {length}"
        self._parser.feed_data(f"POST / HTTP/1.1\r\nHost: x\r\n{framing}\r\n\r\n".encode())

    def _find_target(self, target: bytes, method: bytes, host: str | None, version: str) -> str:
        """The path and query that are asked for. Raises ValueError where a server of this Host has no such target."""
        if version not in ("1.1", "1.0") or (host is None and version == "1.1") or not _HOST.fullmatch(host or ""):
            raise self._at_fault(errors.MALFORMED_HTTP)
        found = _path_and_query(target.decode("latin-1"), method, host or "")
        if found is None:
            raise self._at_fault(errors.MALFORMED_HTTP)
        if found.startswith("/"):  # whatever the method
            self._seen = (target, host, found)
        return found

    def _check_framing(self, headers: Headers, version: str) -> None:
        """Raises ValueError for a transfer coding other than chunked, or any in HTTP/1.0 (RFC 9112, 6.1), and for a
        field twice of which there may be one.
        """
        coding = headers.get("transfer-encoding")
        is_known = coding is None or (coding.lower() == "chunked" and version == "1.1")
        if not is_known or not _SINGLE.isdisjoint(headers.again or ()):
            raise self._at_fault(errors.MALFORMED_HTTP)

    def _at_fault(self, problem: Problem) -> ValueError:
        self._fault = problem
        return ValueError(problem.message)

    def _break(self, problem: Problem) -> None:
        """What was read is no request, or no body of one: parse no more."""
        self._is_over = True
        request, self._receiving = self._receiving, None
        if request is not None:
            request.broke()
        else:
            self._waiting.append(self._server.refuse(problem, self._target.decode("latin-1")))

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
            if self._rest is not None and len(waiting) <= PIPELINED_MAX // 2:
                self._parse_rest()
        if self._is_reading_paused or waiting or self._receiving is not None:
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
        is_whole = self._receiving is None
        self._is_over = True
        self._waiting.clear()
        self._rest = self._receiving = None
        self.mind_reading()
        if self.transport.is_closing():
            return
        if self.transport.can_write_eof():
            self.transport.write_eof()
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


def _path_and_query(target: str, method: bytes, host: str) -> str | None:
    """The path and query of a target; None where it is none that a server of this Host takes: another authority, where
    servers differ in which of them they believe (RFC 9112, 3.2.2), or a fragment.
    """
    if _ORIGIN_FORM.fullmatch(target):
        return target
    if method == b"CONNECT" or (target == "*" and method == b"OPTIONS"):
        return target if target.isascii() and target.isprintable() else None
    found = _ABSOLUTE_FORM.fullmatch(target)
    if found is None or found[1].lower() != host.lower():
        return None
    path = found[2]
    return path if path.startswith("/") else f"/{path}"
