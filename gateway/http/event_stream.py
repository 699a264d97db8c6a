"""Event streams: the head of a stream (begin_stream), and its connection kept open while the call waits (Heartbeat) or
while the stream waits to be continued (beating).

Load balancers cut connections that are silent for a minute, and a call may wait longer than that for a backend or for
its first token. A heartbeat sends the head of the stream early, then a comment at intervals, which clients ignore
(https://html.spec.whatwg.org/multipage/server-sent-events.html). The cost is the status: it is 200 from then on, so a
later failure is an error event in the format of the called API, and client libraries do not retry it.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Any, Final

from backends.meters import ANSWERS, AnswerKind
from backends.meters.events import StreamCall, json_object
from gateway.http.request import HttpRequest
from gateway.http.response import EventStream, Response
from gateway.tasks import cancel

COMMENT: Final = b": waiting\n\n"
ERROR_BYTES_MAX: Final = 64 << 10  # of a backend's error that is parsed for its message
STREAMED: Final = frozenset(AnswerKind) - {AnswerKind.POOLING, AnswerKind.NONE}  # the APIs that have streams


class Heartbeat:
    """A sender of comments (`: waiting`) to the client of a waiting stream, so that no load balancer closes the silent
    connection. It sends nothing after `stop`.
    """

    __slots__ = ("_answer", "_every_s", "_headers", "_loop", "_request", "_stream", "_timer")

    def __init__(
        self, request: HttpRequest, answer: AnswerKind, headers: Callable[[], dict[str, str]], *, every_s: float
    ) -> None:
        """The head, with the fields that `headers` then returns, and the first comment are sent after `every_s`
        seconds. `answer` is the API whose format error events have.
        """
        self._request = request
        self._answer = answer
        self._headers = headers
        self._every_s = every_s
        self._stream: EventStream | None = None
        self._loop = asyncio.get_running_loop()
        self._timer = self._loop.call_later(every_s, self._beat)

    def stop(self) -> EventStream | None:
        """Stop, and return the stream whose head was sent; None where no head was sent. Idempotent."""
        self._timer.cancel()
        return self._stream

    def failed(self, message: str, error: Mapping[str, Any]) -> EventStream | None:
        """End the stream with an error event and return it, if its head was sent; else None. `error` is the error
        object of the API.
        """
        return self._ended(ANSWERS[self._answer].meter(StreamCall()).cut(message, error))

    def answered(self, response: Response | EventStream) -> Response | EventStream:
        """The response for the handler to return: this one or, if a head was sent, the stream that now carries it."""
        if isinstance(response, EventStream):
            return response
        body = response.body
        if response.status < 400:  # a backend that did not stream its answer
            lines = b"".join(b"data: %b\n" % line for line in bytes(body).splitlines())
            return self._ended(lines + b"\n") or response
        document = (json_object(bytes(body)) if len(body) <= ERROR_BYTES_MAX else None) or {}
        error = document.get("error", document)  # some servers have its members at the top
        if not isinstance(error, dict):
            error = {}
        message = error.get("message")
        if type(message) is not str:
            message = f"The backend refused it with status {response.status}."
        return self.failed(message, error or {"code": response.status}) or response

    def _ended(self, event: bytes) -> EventStream | None:
        stream = self.stop()
        if stream is not None:
            with suppress(ConnectionError):  # the client has just disconnected
                stream.write(event)
        return stream

    def _beat(self) -> None:
        try:
            if self._stream is None:
                fields = {"content-type": "text/event-stream; charset=utf-8", "cache-control": "no-cache"}
                self._stream = self._request.connection.begin_stream(self._request, 200, fields | self._headers())
            self._stream.write(COMMENT)
        except ConnectionError:  # the client has disconnected, and the handler of its call is cancelled
            return
        self._timer = self._loop.call_later(self._every_s, self._beat)


def begin_stream(request: HttpRequest, status: int, headers: Mapping[str, str]) -> EventStream:
    """The stream of the response. Its head is sent now, with these headers, unless a heartbeat or an earlier backend's
    part of the answer has sent it. Raises ConnectionError.
    """
    if request.open_stream is not None:
        return request.open_stream
    if request.heartbeat is not None and (begun := request.heartbeat.stop()) is not None:
        return begun
    return request.connection.begin_stream(request, status, headers)


@asynccontextmanager
async def beating(request: HttpRequest, every_s: float | None) -> AsyncIterator[None]:
    """Send a comment each `every_s` seconds while the block runs, if a part of the stream was sent; None: never."""
    stream = request.open_stream
    if stream is None or every_s is None:
        yield
        return
    beats = asyncio.ensure_future(_beats(stream, every_s))
    try:
        yield
    finally:
        await cancel(beats)


async def _beats(stream: EventStream, every_s: float) -> None:
    with suppress(ConnectionError):  # the client has disconnected, and the handler of its call is cancelled
        while True:
            await asyncio.sleep(every_s)
            stream.write(COMMENT)


def end_open_stream(
    request: HttpRequest, answer: AnswerKind, message: str, error: Mapping[str, Any]
) -> EventStream | None:
    """End the stream of the request with an error event and return it, if its head was sent; else None. `error` is the
    error object of the API.
    """
    heartbeat = request.heartbeat
    if heartbeat is not None and (begun := heartbeat.failed(message, error)) is not None:
        return begun
    stream = request.open_stream
    if stream is not None:
        with suppress(ConnectionError):
            stream.write(ANSWERS[answer].meter(StreamCall()).cut(message, error))
    return stream
