"""GatewayServer: aiohttp's low-level server with the gateway's table of paths and its responses to malformed HTTP.

Paths are an allowlist: a path that is not in the table is 404, whatever the backend serves there.
aiohttp's own error pages repeat what the client sent and are not JSON, so all of them are replaced.
"""

import asyncio
import logging
import re
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from http import HTTPStatus

from aiohttp import HttpVersion10, HttpVersion11, StreamReader, hdrs, web
from aiohttp.abc import AbstractStreamWriter
from aiohttp.http_exceptions import BadHttpMessage, BadHttpMethod, HttpProcessingError, LineTooLong
from aiohttp.http_parser import RawRequestMessage
from aiohttp.streams import EMPTY_PAYLOAD
from aiohttp.web_protocol import RequestHandler

from gateway.api import errors
from gateway.api.bodies import compact
from gateway.api.endpoints import Endpoint, PathTable, api_of
from gateway.api.errors import Problem, WholeAnswer
from gateway.http.cors import Cors
from gateway.http.request_end import END_BYTES, RequestEnd, may_leave_something
from gateway.http.request_ids import RequestIds
from gateway.http.slow_client import StallingConnection
from gateway.http.whole_response import WholeResponse

# Answers a request at an endpoint; the second argument is the id in its path, "" where that has none.
Handler = Callable[[web.BaseRequest, str], Awaitable[web.StreamResponse]]

KEEPALIVE_S = 30.0  # aiohttp has one timer for idle connections and for slow request heads
HEADERS_MAX = 128
LINE_BYTES_MAX = 32 << 10  # of one header field: four times what aiohttp takes, for tokens that name many groups
HEAD_BYTES_MAX = 64 << 10  # of all header fields together
TOO_MANY_HEADERS = "Too many headers"  # aiohttp's message: that error has no type of its own
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
SERVER: dict[str, str] = {hdrs.SERVER: "fairlead"}
REQUEST_ID_HEADER = "x-request-id"
REQUEST_ID = web.RequestKey("request_id", str)  # set where a handler failed, so that its response has the logged id
ENDING = web.RequestKey("ending", RequestEnd)

_HOST = re.compile(r"[A-Za-z0-9._~%!$&'()*+,;=:\[\]-]*")  # RFC 3986, 3.2.2 and 3.2.3

log = logging.getLogger(__name__)


class GatewayServer(web.Server):
    """Serves a table of paths. The handler of a request is cancelled when its client disconnects."""

    def __init__(
        self,
        handlers: Mapping[Endpoint, Handler],
        *,
        names: RequestIds,
        cors: Cors,
        body_bytes_max: int,
    ) -> None:
        super().__init__(
            self._handle,
            request_factory=self._request,
            handler_cancellation=True,
            keepalive_timeout=KEEPALIVE_S,
            access_log=None,
            logger=log,
            max_line_size=LINE_BYTES_MAX,
            max_field_size=LINE_BYTES_MAX,
            max_headers=HEADERS_MAX,
            auto_decompress=False,
        )
        self._handlers = handlers
        self._paths = PathTable(handlers)
        self._names = names
        self._cors = cors
        self._body_bytes_max = body_bytes_max
        self._protocol_options = dict(self._kwargs)
        self.cuts: Counter[str] = Counter()  # connections cut because the client read nothing, by reason
        self.closing = False  # answers say `Connection: close` while the gateway shuts down

    def __call__(self) -> RequestHandler:
        return _Connection(self, loop=self._loop, **self._protocol_options)

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        connection = request.protocol
        assert isinstance(connection, _Connection)
        endpoint, path_id = self._paths.exact(request.raw_path), ""
        if endpoint is None:
            endpoint, path_id = self._paths.find(request.path)
        if connection.fault is not None:
            response: web.StreamResponse = to_response(errors.write_answer(connection.fault, api_of(request.path)))
        elif endpoint is not None and request.method in endpoint.methods:
            response = await self._handlers[endpoint](request, path_id)
        else:
            response = self._turned_away(request, endpoint)
        connection.reading = None
        if not (response.prepared or isinstance(response, WholeResponse)):  # both have all their headers
            self.complete(request, response)
        if not request.content.is_eof():  # rejected before its body arrived: the next bytes may be that body, or not
            response.force_close()
            if response.status == HTTPStatus.REQUEST_TIMEOUT:
                connection.stop_lingering()
        return response

    def _turned_away(self, request: web.BaseRequest, endpoint: Endpoint | None) -> web.Response:
        """The response to a request without a handler: a CORS preflight, a redirect, 404 or 405."""
        if request.method == hdrs.METH_OPTIONS and (preflight := self._cors.preflight(request.headers)) is not None:
            return preflight
        if endpoint is None:
            return self._without_slash(request) or to_response(errors.NOT_FOUND)
        return to_response(errors.method_not_allowed(", ".join(endpoint.methods)))

    def _without_slash(self, request: web.BaseRequest) -> web.Response | None:
        """A redirect from a path with trailing slashes to the endpoint without them, as vLLM's framework sends; None
        where there is no such endpoint.

        The location has no host: the gateway knows the client's Host header, not the host of a proxy in front of it.
        """
        endpoint, path_id = self._paths.find(request.path.rstrip("/"))
        if endpoint is None:
            return None
        query = request.rel_url.raw_query_string
        location = endpoint.target(path_id) + (f"?{query}" if query else "")
        return web.Response(status=307, headers={hdrs.LOCATION: location, **SERVER})

    def complete(self, request: web.BaseRequest, response: web.StreamResponse) -> None:
        """Add the headers that every response has: server, request id, and CORS for an allowed origin."""
        headers = response.headers
        headers.update(SERVER)
        if REQUEST_ID_HEADER not in headers:
            headers[REQUEST_ID_HEADER] = request.get(REQUEST_ID) or self._names.name(request.headers)
        if hdrs.ORIGIN in request.headers:
            for name, value in self._cors.headers(request.headers).items():
                headers.setdefault(name, value)

    def answer_error(self, request: web.BaseRequest, status: int, error: BaseException | None) -> web.Response:
        """The response to an error of aiohttp or of a handler, in the format of the called API."""
        response = to_response(errors.write_answer(_problem(status, error), api_of(request.path)))
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
        fault = protocol.fault = _fault(message)
        ending = protocol.ending_of(message) if may_leave_something(message) else None
        if self.closing or fault is not None or (ending is None and may_leave_something(message)):
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
    """A request whose connection is kept only if its end is known when its response begins."""

    @property
    def keep_alive(self) -> bool:
        return not self._message.should_close and self[ENDING].is_known


class _Connection(StallingConnection):
    """aiohttp's connection, with error responses in the API's format, and with the end of each request tracked."""

    __slots__ = ("_end", "_ending", "fault", "reading")

    reading: StreamReader | None  # the body of the request that is being answered
    _end: bytes  # the last bytes of all that was read
    _ending: RequestEnd | None  # of the newest request that may leave something in the parser
    fault: Problem | None  # of that request: its head is too large, or another server might parse it differently

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.reading, self.fault = None, None
        self._end, self._ending = b"", None
        super().connection_made(transport)

    def data_received(self, data: bytes) -> None:
        was_paused = self._reading_paused
        RequestHandler.data_received(self, data)  # super() would cost more for every read
        newest, payload = self._messages[-1] if self._messages else (None, EMPTY_PAYLOAD)
        # aiohttp queues the error about a body behind the request that waits for the rest of that body.
        if newest is not None and not isinstance(newest, RawRequestMessage):
            reading = self._messages[-2][1] if len(self._messages) > 1 else self.reading
            if reading is not None and not reading.is_eof():
                reading.set_exception(web.RequestPayloadError())
                reading.feed_eof()
        elif newest is not None and may_leave_something(newest) and self.ending_of(newest) is None:
            self._ending = RequestEnd(newest, payload, None if was_paused else self._end, data)
        elif self._ending is not None:
            self._ending.coming(self._end, data)
        self._end = data[-END_BYTES:] if len(data) >= END_BYTES else (self._end + data)[-END_BYTES:]
        if self._ending is not None:
            self._ending.parsed(newest, self._end)

    def ending_of(self, message: RawRequestMessage) -> RequestEnd | None:
        """The RequestEnd of this request, None where it has none."""
        return self._ending if self._ending is not None and self._ending.message is message else None

    def stop_lingering(self) -> None:
        """Close after the response without waiting for the rest of the body: this client has had its time."""
        self._lingering_time = 0.0

    def on_cut(self, reason: str) -> None:
        assert isinstance(self._manager, GatewayServer)
        self._manager.cuts[reason] += 1


def body_at_hand(request: web.BaseRequest) -> bytes | None:
    """The whole body if it has arrived, as most do with their head; else None. Raises HTTPRequestEntityTooLarge."""
    if not request.content.is_eof():
        return None
    body = request.content.read_nowait()
    if len(body) > request.client_max_size:
        raise web.HTTPRequestEntityTooLarge(request.client_max_size)
    return body


async def read_body_bytes(request: web.BaseRequest, expect: Callable[[int], None]) -> bytearray:
    """The whole body. Raises HTTPRequestEntityTooLarge (at once where the length is declared), RequestPayloadError, and
    what `expect` raises, which is told how many bytes the body will have, or has until now, before they are kept.

    It answers Expect: 100-continue (RFC 9110, 10.1.1), which in aiohttp only the application does, and none is used.
    """
    if (request.content_length or 0) > request.client_max_size:
        raise web.HTTPRequestEntityTooLarge(request.client_max_size)
    expect(request.content_length or 0)
    expects = request.version >= HttpVersion11 and request.headers.get(hdrs.EXPECT, "").lower() == "100-continue"
    if expects and not request.content.is_eof():
        await request.writer.write(CONTINUE)
        request.writer.output_size = 0  # the interim response is no part of the response
    # Not request.read(), with which the request would hold the body for the whole call. The buffer is not copied: the
    # page faults of 15 MB of fresh memory take 12 ms.
    body, content = bytearray(), request.content
    while not content.at_eof():
        body += await content.readany()
        expect(len(body))
        if len(body) > request.client_max_size:
            raise web.HTTPRequestEntityTooLarge(request.client_max_size)
    return body


def _fault(message: RawRequestMessage) -> Problem | None:
    """Why a request that aiohttp accepts is refused, None where it is not."""
    if sum(len(name) + len(value) for name, value in message.raw_headers) > HEAD_BYTES_MAX:
        return errors.HEADER_TOO_LARGE
    return errors.MALFORMED_HTTP if _is_malformed(message) else None


def _is_malformed(message: RawRequestMessage) -> bool:
    """Whether the request has a fault that aiohttp accepts: an HTTP version other than 1.0 and 1.1, a transfer coding
    other than chunked or any in HTTP/1.0 (RFC 9112, 6.1), an invalid Host (3.2), a target with a fragment (3.2), or
    one with another authority than the Host (3.2.2: servers differ in which of them they believe).
    """
    coding = message.headers.get(hdrs.TRANSFER_ENCODING)
    return (
        message.version not in (HttpVersion11, HttpVersion10)
        or not (coding is None or (coding.lower() == "chunked" and message.version == HttpVersion11))
        or not _HOST.fullmatch(message.headers.get(hdrs.HOST, ""))
        or "#" in message.path
        or (not message.path.startswith("/") and not _names_host(message.path, message.headers.get(hdrs.HOST, "")))
    )


def _names_host(target: str, host: str) -> bool:
    """Whether a target that is no path has no authority, or that of the Host header."""
    _, is_absolute, rest = target.partition("://")
    return not is_absolute or re.split(r"[/?]", rest, maxsplit=1)[0].lower() == host.lower()


def _problem(status: int, error: BaseException | None) -> Problem:
    if isinstance(error, LineTooLong) or (isinstance(error, BadHttpMessage) and TOO_MANY_HEADERS in error.message):
        return errors.HEADER_TOO_LARGE
    if status >= 500 and not isinstance(error, BadHttpMethod | HttpProcessingError):
        return errors.INTERNAL
    return errors.MALFORMED_HTTP


def to_response(answer: WholeAnswer, **headers: str) -> web.Response:
    """A JSON response that the gateway made. `headers` override those of `answer`."""
    sent: dict[str, str] = {hdrs.CONTENT_TYPE: "application/json", **SERVER, **answer.headers, **headers}
    # aiohttp's connection keeps its last response until the next call.
    return web.Response(status=answer.status, body=compact(answer.body), headers=sent)
