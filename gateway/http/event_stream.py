"""The head of an event stream: with its first event, or before that where a call waits for long.

Load balancers cut connections that are silent for a minute, and a call may wait longer than that for a backend or for
its first token. A heartbeat sends the head of such a stream, and a comment now and then, which clients pass over
(https://html.spec.whatwg.org/multipage/server-sent-events.html). The price is the status: what goes wrong after the
head is told in an event of the API that was called, and no client library tries again by itself.
"""

import asyncio
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, Final

from aiohttp import HttpVersion11, hdrs, web

from backends.meters import ANSWERS, AnswerKind
from backends.meters.events import StreamCall, json_object
from gateway.http.whole_response import WholeResponse

COMMENT: Final = b": waiting\n\n"
ERROR_BYTES_MAX: Final = 64 << 10  # of a backend's error that is read for what it says
STREAMED: Final = frozenset(AnswerKind) - {AnswerKind.POOLING, AnswerKind.NONE}  # the APIs that have streams


class Heartbeat:
    """Keeps the connection of one stream that waits. It sends nothing more once it was stopped."""

    __slots__ = ("_answer", "_beating", "_every_s", "_headers", "_loop", "_request", "_response", "_timer")

    def __init__(
        self, request: web.BaseRequest, answer: AnswerKind, headers: Callable[[], dict[str, str]], *, every_s: float
    ) -> None:
        """The first beat, which is the head, comes after `every_s`, with what `headers` says by then. `answer` is the
        API that errors are told in.
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
        """The response whose head was sent, None where it was not."""
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
        """Tell why there is no answer, if the head was sent; `error` is the error object of the API."""
        return await self._ended(ANSWERS[self._answer].meter(StreamCall()).cut(message, error))

    async def answered(self, response: web.StreamResponse) -> web.StreamResponse:
        """What to return for this response: itself, or the stream in which it was told, if the head was sent."""
        if response is self._response:
            return response
        body = response.body if isinstance(response, WholeResponse) else b""
        if response.status < 400:  # an answer all the same, of a server that did not stream it
            lines = b"".join(b"data: %b\n" % line for line in bytes(body).splitlines())
            return await self._ended(lines + b"\n") or response
        said = (json_object(bytes(body)) if len(body) <= ERROR_BYTES_MAX else None) or {}
        error = said.get("error", said)  # some servers have its members at the top
        if not isinstance(error, dict):
            error = {}
        message = error.get("message")
        if type(message) is not str:
            message = f"The backend refused it with status {response.status}."
        return await self.failed(message, error or {"code": response.status}) or response

    async def _ended(self, event: bytes) -> web.StreamResponse | None:
        response = await self.stop()
        if response is not None:
            with suppress(ConnectionError):  # the client has just left
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
        except ConnectionError:  # the client has left: whoever handles its call hears of it
            return
        self._timer = self._loop.call_later(self._every_s, self._beat)


HEARTBEAT: Final = web.RequestKey("heartbeat", Heartbeat)


async def begin_stream(request: web.BaseRequest, status: int, headers: Mapping[str, str]) -> web.StreamResponse:
    """The response to stream into, its head sent: with these headers, or earlier. Raises ConnectionError."""
    heartbeat: Heartbeat | None = request.get(HEARTBEAT)
    if heartbeat is not None and (begun := await heartbeat.stop()) is not None:
        return begun
    response = _make_response(request, status, headers)
    await response.prepare(request)
    return response


def _make_response(request: web.BaseRequest, status: int, headers: Mapping[str, str]) -> web.StreamResponse:
    response = web.StreamResponse(status=status, headers=headers)
    if request.version >= HttpVersion11:
        response.enable_chunked_encoding()
    else:
        response.force_close()  # the close is what ends the body
    return response
