"""The client side of HTTP: aiohttp's low-level server, with our table of paths and our answers to bad HTTP.

Paths are an allow-list: what is not in the table does not exist here, whatever the backend has at it.
aiohttp's own error pages repeat what was sent and are not JSON; all of them are replaced.
"""

import asyncio
import logging
import re
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping

from aiohttp import HttpVersion10, HttpVersion11, StreamReader, hdrs, web
from aiohttp.abc import AbstractStreamWriter
from aiohttp.http_exceptions import BadHttpMessage, BadHttpMethod, HttpProcessingError, LineTooLong
from aiohttp.http_parser import RawRequestMessage
from aiohttp.streams import EMPTY_PAYLOAD
from aiohttp.web_protocol import RequestHandler

from gateway.api import errors
from gateway.api.endpoints import PROBES, Endpoint, PathTable, api_of
from gateway.api.errors import Answer, Problem
from gateway.http.cors import Cors
from gateway.http.early_answer import EarlyAnswers
from gateway.http.ending import END_BYTES, Ending, may_leave_something
from gateway.http.names import RequestNames
from gateway.http.stall import StallingConnection
from gateway.http.whole_response import WholeResponse
from gateway.intake.starts import Refusal, Start, Starts
from policies.types import Reason

# Answers a request at an endpoint; the second argument is the id in its path, "" where that has none.
Handler = Callable[[web.BaseRequest, str], Awaitable[web.StreamResponse]]

KEEPALIVE_S = 30.0  # aiohttp's timer for idle connections and for slow request heads, one and the same
HEADERS_MAX = 128
TOO_MANY_HEADERS = "Too many headers"  # how aiohttp says so: it has no type of its own
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
SERVER: dict[str, str] = {hdrs.SERVER: "fairlead"}
REQUEST_ID_HEADER = "x-request-id"
REQUEST_ID = web.RequestKey("request_id", str)  # of a request whose handler failed, as it is in the log
ENDING = web.RequestKey("ending", Ending)

_HOST = re.compile(r"[A-Za-z0-9._~%!$&'()*+,;=:\[\]-]*")  # RFC 3986, 3.2.2 and 3.2.3

log = logging.getLogger(__name__)


class GatewayServer(web.Server):
    """Serves a table of paths."""

    def __init__(
        self,
        handlers: Mapping[Endpoint, Handler],
        *,
        starts: Starts,
        names: RequestNames,
        cors: Cors,
        body_bytes_max: int,
        header_bytes_max: int,
    ) -> None:
        super().__init__(
            self._handle,
            request_factory=self._request,
            handler_cancellation=True,
            keepalive_timeout=KEEPALIVE_S,
            access_log=None,
            logger=log,
            max_line_size=header_bytes_max,
            max_field_size=header_bytes_max,
            max_headers=HEADERS_MAX,
            auto_decompress=False,
        )
        self._handlers = handlers
        self._paths = PathTable(handlers)
        # Calls that a handler answers for somebody: these wait for their tenants' turns.
        self._turns = PathTable([endpoint for endpoint in handlers if endpoint not in PROBES])
        self.starts = starts
        self._early_answers = EarlyAnswers(Reason.GATEWAY_BUSY)
        self._names = names
        self._cors = cors
        self._body_bytes_max = body_bytes_max
        self._protocol_options = dict(self._kwargs)
        self.cuts: Counter[str] = Counter()  # connections of clients that took nothing, by reason
        self.closing = False  # answers say `Connection: close` while the gateway shuts down

    def __call__(self) -> RequestHandler:
        return _Connection(self, loop=self._loop, **self._protocol_options)

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        connection = request.protocol
        assert isinstance(connection, _Connection)
        endpoint, path_id = self._paths.exact(request.raw_path), ""
        if endpoint is None:
            endpoint, path_id = self._paths.find(request.path)
        refusal = await self._turn_of(request) if connection.came_behind else None
        if connection.is_malformed:
            response: web.StreamResponse = to_response(errors.answer(errors.MALFORMED_HTTP, api_of(request.path)))
        elif refusal is not None:
            problem = errors.refused(Reason.GATEWAY_BUSY, refusal.waited_s)
            response = to_response(errors.answer(problem, api_of(request.path)))
        elif endpoint is not None and request.method in endpoint.methods:
            response = await self._handlers[endpoint](request, path_id)
        else:
            response = self._turned_away(request, endpoint)
        connection.reading = None
        if not (response.prepared or isinstance(response, WholeResponse)):  # which has all its headers
            self.complete(request, response)
        if not request.content.is_eof():  # refused before its body was here: what comes next may be that, or not
            response.force_close()
        return response

    async def _turn_of(self, request: web.BaseRequest) -> Refusal | None:
        """Return when a request may begin that was not asked about when it came, or why it may not."""
        endpoint = self._turns.find(request.path)[0]
        if self.starts.may_start() or endpoint is None or request.method not in endpoint.methods:
            return None
        start = self._loop.create_future()
        refusal = self.starts.put(start, endpoint, request.headers, request.remote)
        if refusal is None:
            await start
        else:
            request[REQUEST_ID] = refusal.request_id
        return refusal

    def put(self, start: Start, message: RawRequestMessage, remote: str | None) -> bytes | None:
        """Let a request wait until `start` is done; or return its answer, which says that it shall not."""
        endpoint = self._turns.exact(message.path) or self._turns.find(message.url.path)[0]
        if endpoint is None or message.method not in endpoint.methods:
            start.set_result(None)
            return None
        refusal = self.starts.put(start, endpoint, message.headers, remote)
        if refusal is None:
            return None
        self.requests_count += 1
        closes = message.should_close or self.closing
        return self._early_answers.of(endpoint.api, refusal.waited_s, refusal.request_id, closes=closes)

    def _turned_away(self, request: web.BaseRequest, endpoint: Endpoint | None) -> web.Response:
        """What does not reach a handler."""
        if request.method == hdrs.METH_OPTIONS and (preflight := self._cors.preflight(request.headers)) is not None:
            return preflight
        if endpoint is None:
            return self._without_slash(request) or to_response(errors.NOT_FOUND)
        return to_response(errors.method_not_allowed(", ".join(endpoint.methods)))

    def _without_slash(self, request: web.BaseRequest) -> web.Response | None:
        """Where a path would be that has slashes behind, as vLLM's framework says it; None where nothing is there.

        Without a host, which would be the one that the client has named, and not that of a proxy in front.
        """
        endpoint, path_id = self._paths.find(request.path.rstrip("/"))
        if endpoint is None:
            return None
        query = request.rel_url.raw_query_string
        location = endpoint.target(path_id) + (f"?{query}" if query else "")
        return web.Response(status=307, headers={hdrs.LOCATION: location, **SERVER})

    def complete(self, request: web.BaseRequest, response: web.StreamResponse) -> None:
        """Every answer has a name, says who gives it, and tells a page that it may read it."""
        headers = response.headers
        headers.update(SERVER)
        if REQUEST_ID_HEADER not in headers:
            headers[REQUEST_ID_HEADER] = request.get(REQUEST_ID) or self._names.name(request.headers)
        if hdrs.ORIGIN in request.headers:
            for name, value in self._cors.headers(request.headers).items():
                headers.setdefault(name, value)

    def answer_error(self, request: web.BaseRequest, status: int, error: BaseException | None) -> web.Response:
        """In the shape of the API that was called."""
        response = to_response(errors.answer(_problem(status, error), api_of(request.path)))
        self.complete(request, response)
        return response

    def _request(
        self,
        message: RawRequestMessage,
        payload: StreamReader,
        protocol: RequestHandler,
        writer: AbstractStreamWriter,
        task: "asyncio.Task[None]",
    ) -> web.BaseRequest:
        assert isinstance(protocol, _Connection)
        protocol.reading = payload
        protocol.came_behind, protocol.is_let_in = not protocol.is_let_in, False
        malformed = protocol.is_malformed = _is_malformed(message)
        ending = protocol.ending_of(message) if may_leave_something(message) else None
        if self.closing or malformed or (ending is None and may_leave_something(message)):
            version = HttpVersion10 if message.version < HttpVersion11 else HttpVersion11
            message = message._replace(should_close=True, version=version)
        request_type = web.BaseRequest if ending is None else _EndingRequest
        request = request_type(
            message, payload, protocol, writer, task, self._loop, client_max_size=self._body_bytes_max
        )
        if ending is not None:
            request[ENDING] = ending
        return request


class _EndingRequest(web.BaseRequest):
    """A request whose connection can be kept only if its end is known, which is so when its answer begins."""

    @property
    def keep_alive(self) -> bool:
        return not self._message.should_close and self[ENDING].is_known


class _Connection(StallingConnection):
    """aiohttp's connection, with answers in the API's shape that do not repeat what was sent."""

    __slots__ = ("_end", "_ending", "_server", "came_behind", "is_let_in", "is_malformed", "reading")

    reading: StreamReader | None  # the body of the request that is being answered
    _end: bytes  # of all that was read
    _ending: Ending | None  # of the newest request that may leave something in the parser
    is_let_in: bool  # the oldest request that is not answered yet may begin, or waits for its turn
    came_behind: bool  # the one that is being answered came while another was
    is_malformed: bool  # whether another server might read that request as something else

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.reading, self.is_malformed = None, False
        self._end, self._ending = b"", None
        self.is_let_in = self.came_behind = False
        assert isinstance(self._manager, GatewayServer)
        self._server = self._manager
        super().connection_made(transport)

    def data_received(self, data: bytes) -> None:
        """Parse it, and let a request begin that comes on an idle connection, now or in its tenant's turn."""
        waiter = self._waiter
        if waiter is None or waiter.done():  # a request is being answered
            self._parse(data)
        elif self._messages:  # one waits for its turn
            self._waiter = None
            self._parse(data)
            self._waiter = waiter
        elif self._server.starts.may_start():
            self.is_let_in = True
            self._parse(data)
        else:
            self._waiter = None
            self._parse(data)
            self._waiter = waiter
            if self._messages:
                self._put(waiter)

    def _put(self, waiter: asyncio.Future[None]) -> None:
        """Let the request that is here wait for its turn, or refuse it."""
        message, payload = self._messages[0]
        if not isinstance(message, RawRequestMessage) or not self._may_be_answered_early(message, payload):
            waiter.set_result(None)  # it is asked about when it is handled
            return
        server = self._server
        refusal = server.put(waiter, message, self.peername[0] if self.peername else None)
        if refusal is None:
            self.is_let_in = True
            return
        self._messages.popleft()
        assert self._parser is not None
        assert self.transport is not None
        self._parser.message_consumed()
        self._next_keepalive_close_time = self._loop.time() + KEEPALIVE_S
        self.transport.write(refusal)
        if message.should_close or server.closing:
            self.force_close()

    def _may_be_answered_early(self, message: RawRequestMessage, payload: StreamReader) -> bool:
        """It is whole and alone, its client takes its answers, and no page of another origin asks."""
        return (
            len(self._messages) == 1
            and payload.is_eof()
            and not self._paused
            and hdrs.ORIGIN not in message.headers
            and not may_leave_something(message)
            and not _is_malformed(message)
        )

    def _process_keepalive(self) -> None:
        if self._messages:  # what waits for its turn is not idle
            self._next_keepalive_close_time = self._loop.time() + KEEPALIVE_S
        super()._process_keepalive()

    def _parse(self, data: bytes) -> None:
        was_paused = self._reading_paused
        RequestHandler.data_received(self, data)  # super() would cost more for every read
        newest, payload = self._messages[-1] if self._messages else (None, EMPTY_PAYLOAD)
        # aiohttp queues a complaint about a body behind the request that waits for the rest of that body.
        if newest is not None and not isinstance(newest, RawRequestMessage):
            reading = self._messages[-2][1] if len(self._messages) > 1 else self.reading
            if reading is not None and not reading.is_eof():
                reading.set_exception(web.RequestPayloadError())
                reading.feed_eof()
        elif newest is not None and may_leave_something(newest) and self.ending_of(newest) is None:
            self._ending = Ending(newest, payload, None if was_paused else self._end, data)
        elif self._ending is not None:
            self._ending.coming(self._end, data)
        self._end = data[-END_BYTES:] if len(data) >= END_BYTES else (self._end + data)[-END_BYTES:]
        if self._ending is not None:
            self._ending.parsed(newest, self._end)

    def ending_of(self, message: RawRequestMessage) -> Ending | None:
        """Where this request ends, if that may become known."""
        return self._ending if self._ending is not None and self._ending.message is message else None

    def on_cut(self, reason: str) -> None:
        self._server.cuts[reason] += 1


def received(request: web.BaseRequest) -> bytes | None:
    """The whole body if it is here, as most come with their head. Raises as `receive`."""
    if not request.content.is_eof():
        return None
    body = request.content.read_nowait()
    if len(body) > request.client_max_size:
        raise web.HTTPRequestEntityTooLarge(request.client_max_size)
    return body


async def receive(request: web.BaseRequest) -> bytes:
    """The whole body. Raises HTTPRequestEntityTooLarge, at once where its length is declared, and RequestPayloadError.

    Expect: 100-continue (RFC 9110, 10.1.1) is aiohttp's application's to answer, which is not used here.
    """
    if (request.content_length or 0) > request.client_max_size:
        raise web.HTTPRequestEntityTooLarge(request.client_max_size)
    expects = request.version >= HttpVersion11 and request.headers.get(hdrs.EXPECT, "").lower() == "100-continue"
    if expects and not request.content.is_eof():
        await request.writer.write(CONTINUE)
        request.writer.output_size = 0  # it is no part of the response
    # Not request.read(), by which the request would keep it for as long as the call takes.
    body, content = bytearray(), request.content
    while not content.at_eof():
        body += await content.readany()
        if len(body) > request.client_max_size:
            raise web.HTTPRequestEntityTooLarge(request.client_max_size)
    return bytes(body)


def _is_malformed(message: RawRequestMessage) -> bool:
    """What aiohttp lets pass: a version it cannot speak, a coding of the body other than chunked (or in HTTP/1.0,
    RFC 9112, 6.1), a Host that is none (3.2).
    """
    coding = message.headers.get(hdrs.TRANSFER_ENCODING)
    return (
        message.version not in (HttpVersion11, HttpVersion10)
        or not (coding is None or (coding.lower() == "chunked" and message.version == HttpVersion11))
        or not _HOST.fullmatch(message.headers.get(hdrs.HOST, ""))
    )


def _problem(status: int, error: BaseException | None) -> Problem:
    if isinstance(error, LineTooLong) or (isinstance(error, BadHttpMessage) and TOO_MANY_HEADERS in error.message):
        return errors.HEADER_TOO_LARGE
    if status >= 500 and not isinstance(error, BadHttpMethod | HttpProcessingError):
        return errors.INTERNAL
    return errors.MALFORMED_HTTP


def to_response(answer: Answer, **headers: str) -> web.Response:
    """A whole JSON response of our own."""
    sent: dict[str, str] = {hdrs.CONTENT_TYPE: "application/json", **SERVER, **answer.headers, **headers}
    return web.Response(status=answer.status, body=answer.body, headers=sent)
