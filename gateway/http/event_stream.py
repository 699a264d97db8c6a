"""Heartbeat: keeps the connection of a stream open while its call waits; begin_stream: sends the head of a stream;
beating: keeps the connection of one open that waits to be continued.

Load balancers cut connections that are silent for a minute, and a call may wait longer than that for a backend or for
its first token. A heartbeat sends the head of the stream early, then a comment at intervals, which clients ignore
(https://html.spec.whatwg.org/multipage/server-sent-events.html). The cost is the status: it is 200 from then on, so a
later failure is an error event in the format of the called API, and client libraries do not retry it.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Any, Final

from aiohttp import HttpVersion11, hdrs, web

from backends.meters import ANSWERS, AnswerKind
from backends.meters.events import StreamCall, json_object
from gateway.http.whole_response import WholeResponse

COMMENT: Final = b": waiting\n\n"
ERROR_BYTES_MAX: Final = 64 << 10  # of a backend's error that is parsed for its message
STREAMED: Final = frozenset(AnswerKind) - {AnswerKind.POOLING, AnswerKind.NONE}  # the APIs that have streams


class Heartbeat:
    """Keeps the connection of one waiting stream open. It sends nothing after `stop` or `cancel`."""

    __slots__ = ("_answer", "_beating", "_every_s", "_headers", "_loop", "_request", "_response", "_timer")

    def __init__(
        self, request: web.BaseRequest, answer: AnswerKind, headers: Callable[[], dict[str, str]], *, every_s: float
    ) -> None:
        """The head and the first comment are sent after `every_s`, with what `headers` returns then. `answer` is the
        API whose format error events have.
        """
        self._request = request
        self._answer = answer
        self._headers = headers
        self._every_s = every_s
        self._response: web.StreamResponse | None = None
        self._beating: asyncio.Task[None] | None = None
        self._loop = asyncio.get_running_loop()
        self._timer = self._loop.call_later(every_s, self._beat)

    async def stop(self) -> web.StreamResponse | None:
        """Stop, and return the response whose head was sent; None where no head was sent."""
        self._timer.cancel()
        if self._beating is not None:
            await self._beating
            self._timer.cancel()
        return self._response

    def cancel(self) -> None:
        """Stop at once: the call has ended."""
        self._timer.cancel()
        if self._beating is not None:
            self._beating.cancel()

    async def failed(self, message: str, error: Mapping[str, Any]) -> web.StreamResponse | None:
        """End the stream with an error event, if its head was sent, and return it; else None. `error` is the error
        object of the API.
        """
        return await self._ended(ANSWERS[self._answer].meter(StreamCall()).cut(message, error))

    async def answered(self, response: web.StreamResponse) -> web.StreamResponse:
        """The response for the handler to return: this one, or, if a head was sent, the stream that now carries it."""
        if response is self._response:
            return response
        body = response.body if isinstance(response, WholeResponse) else b""
        if response.status < 400:  # a backend that did not stream its answer
            lines = b"".join(b"data: %b\n" % line for line in bytes(body).splitlines())
            return await self._ended(lines + b"\n") or response
        document = (json_object(bytes(body)) if len(body) <= ERROR_BYTES_MAX else None) or {}
        error = document.get("error", document)  # some servers have its members at the top
        if not isinstance(error, dict):
            error = {}
        message = error.get("message")
        if type(message) is not str:
            message = f"The backend refused it with status {response.status}."
        return await self.failed(message, error or {"code": response.status}) or response

    async def _ended(self, event: bytes) -> web.StreamResponse | None:
        response = await self.stop()
        if response is not None:
            with suppress(ConnectionError):  # the client has just disconnected
                await response.write(event)
        return response

    def _beat(self) -> None:
        self._beating = asyncio.ensure_future(self._send())

    async def _send(self) -> None:
        try:
            if self._response is None:
                fields = {hdrs.CONTENT_TYPE: "text/event-stream; charset=utf-8", hdrs.CACHE_CONTROL: "no-cache"}
                response = _make_response(self._request, 200, fields | self._headers())
                await response.prepare(self._request)
                self._response = response
            await self._response.write(COMMENT)
        except ConnectionError:  # the client has disconnected, and the handler of its call is cancelled
            return
        self._timer = self._loop.call_later(self._every_s, self._beat)


HEARTBEAT: Final = web.RequestKey("heartbeat", Heartbeat)
OPEN_STREAM: Final = web.RequestKey("open_stream", web.StreamResponse)
"""The response to a call whose stream stays open when its backend fails, once its head was sent."""


async def begin_stream(request: web.BaseRequest, status: int, headers: Mapping[str, str]) -> web.StreamResponse:
    """The response to stream into. Its head is sent now, with these headers, or was sent earlier: by a heartbeat, or
    with the part of the answer that another backend gave. Raises ConnectionError.
    """
    open_stream: web.StreamResponse | None = request.get(OPEN_STREAM)
    if open_stream is not None:
        return open_stream
    heartbeat: Heartbeat | None = request.get(HEARTBEAT)
    if heartbeat is not None and (begun := await heartbeat.stop()) is not None:
        return begun
    response = _make_response(request, status, headers)
    await response.prepare(request)
    return response


@asynccontextmanager
async def beating(request: web.BaseRequest, every_s: float | None) -> AsyncIterator[None]:
    """Send a comment each `every_s` seconds while the block runs, where a part of the stream was sent; None: never."""
    response: web.StreamResponse | None = request.get(OPEN_STREAM)
    if response is None or every_s is None:
        yield
        return
    beats = asyncio.ensure_future(_beats(response, every_s))
    try:
        yield
    finally:
        beats.cancel()
        await asyncio.gather(beats, return_exceptions=True)


async def _beats(response: web.StreamResponse, every_s: float) -> None:
    with suppress(ConnectionError):  # the client has disconnected, and the handler of its call is cancelled
        while True:
            await asyncio.sleep(every_s)
            await response.write(COMMENT)


async def end_open_stream(
    request: web.BaseRequest, answer: AnswerKind, message: str, error: Mapping[str, Any]
) -> web.StreamResponse | None:
    """End the stream of the request with an error event, where its head was sent, and return it; else None. `error` is
    the error object of the API.
    """
    heartbeat: Heartbeat | None = request.get(HEARTBEAT)
    if heartbeat is not None and (begun := await heartbeat.failed(message, error)) is not None:
        return begun
    response: web.StreamResponse | None = request.get(OPEN_STREAM)
    if response is not None:
        with suppress(ConnectionError):
            await response.write(ANSWERS[answer].meter(StreamCall()).cut(message, error))
    return response


def _make_response(request: web.BaseRequest, status: int, headers: Mapping[str, str]) -> web.StreamResponse:
    response = web.StreamResponse(status=status, headers=headers)
    if request.version >= HttpVersion11:
        response.enable_chunked_encoding()
    else:
        response.force_close()  # in HTTP/1.0 the end of the connection ends the body
    return response
