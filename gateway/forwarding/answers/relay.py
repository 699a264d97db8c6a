"""Relays a backend's response to the client, and counts its tokens as they pass.

Streams: the client's connection writes the head and the end; the body goes from the backend's `data_received` through
the meter to the client's transport in the same callback, without a task switch. Back-pressure: when the
client's transport is over its high-water mark, reading from the backend pauses until it has drained, so
a stream holds at most that mark and one read.

A stream that the backend does not finish ends with its API's error event and the proper end of the message, never as if
it were complete. A stream that another backend may continue stays open instead.

The disconnect of a client is the cancellation of the handler or a closing transport; either aborts the exchange. A
client that reads nothing is disconnected, with the same effect (gateway/http/connection.py).

The end of a message is written after the call is settled and its slot released, so a client that is slow to read
the last bytes holds no slot.
"""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from backends.meters.events import EventTooLongError, StreamMeter
from backends.meters.token_ids import ResumableMeter
from backends.upstream import HttpExchange, UpstreamError, UpstreamProtocolError
from gateway.api.headers import nominated_by
from gateway.forwarding.answers.long_answers import is_whole_json
from gateway.forwarding.answers.unread_bytes import UnreadAnswer, UnreadBytes
from gateway.http.connection import WAITING_BYTES_MAX
from gateway.http.event_stream import begin_stream
from gateway.http.request import HttpRequest
from gateway.http.response import EventStream, Response
from policies.slo.timeliness import Timeliness
from policies.types import Outcome, Reason, Usage

CLIENT_BUFFER_BYTES_MAX = WAITING_BYTES_MAX  # over it, the transport says when it has drained

_PASSED_HEADERS = frozenset({"cache-control", "content-encoding", "content-language", "content-type", "retry-after"})

OnUsage = Callable[[Usage], float]
"""Hears the cumulative usage; returns how many output tokens there have to be before it wants to hear again. It
always hears of the first report and of the last."""


class CallCancelled(UpstreamError):  # noqa: N818 - a decision, not an error
    """An error: an operator has cancelled a call whose stream has begun. `error` is the API's error object."""

    def __init__(self, message: str, error: Mapping[str, Any]) -> None:
        super().__init__(Reason.CANCELLED)
        self.message = message
        self.error = error


@dataclass(slots=True)
class RelayResult:
    """The result of relaying one backend's answer to the client: what the handler returns, and how the call ended.

    `failure` is the backend's error, for the log; `rejected`: the backend rejected the call in its stream; `slowed`:
    reading from the backend was paused, because the client read slowly; `interrupted`: the backend failed, and the
    client's stream is still open. A handler that is cancelled because the client disconnected gets no result.
    """

    response: Response | EventStream
    outcome: Outcome
    failure: str | None = None
    slowed: bool = False
    rejected: bool = False
    interrupted: bool = False


class Resumes(NamedTuple):
    """The means to continue a stream at another backend: the meter that gathers its token ids, and a function that
    returns whether the stream may be continued now.
    """

    meter: ResumableMeter
    may_continue: Callable[[], bool]


class StreamReports(NamedTuple):
    """The receivers of reports about one stream while it is relayed. `on_usage` gets the usage so far; `timeliness`
    gets the times at which tokens pass, for the latency targets. `on_unread` is called if the client disconnects while
    reading from the backend is paused, with the length of the pause in seconds: the backend worked on meanwhile.
    """

    on_usage: OnUsage
    on_unread: Callable[[float], None] | None = None
    timeliness: Timeliness | None = None


def passed_headers(headers: Mapping[str, str]) -> dict[str, str]:
    """The headers of a backend's response that the client gets: no hop-by-hop, cookie, server, date or length headers,
    and none that its Connection header names.
    """
    passed = {}
    for name in headers:
        if name in _PASSED_HEADERS or name.startswith("x-"):
            passed[name] = headers[name]
    if (connection := headers.get("connection")) is not None:
        for name in nominated_by((connection,)):
            passed.pop(name, None)
    return passed


async def read_whole(
    exchange: HttpExchange, bytes_max: int, unread: UnreadBytes, tenant_id: str
) -> tuple[bytes | bytearray, UnreadAnswer | None]:
    """The body of a response that is not streamed, and its account in `unread` if it did not arrive in one read. Raises
    UpstreamError if the body is, or seems, incomplete.

    Reading pauses while the tenant is over its limit in `unread`.
    """
    if (body := exchange.at_once()) is not None:
        if not exchange.is_framed:
            await _check_end(exchange, body)
        return body, None
    answer = unread.arriving(tenant_id, exchange)
    try:
        gathered = await exchange.read(bytes_max, answer.grew)
        await _check_end(exchange, gathered)
    except BaseException:
        answer.release()
        raise
    answer.arrived()
    return gathered, answer


async def _check_end(exchange: HttpExchange, body: bytes | bytearray) -> None:
    """Raise UpstreamProtocolError for incomplete JSON, where only the end of the connection marks the end of a body."""
    if not exchange.is_framed and "json" in exchange.headers.get("content-type", "") and not await is_whole_json(body):
        raise UpstreamProtocolError("half a body, of which only the end of the connection was the end")


def relay_body(
    exchange: HttpExchange, body: bytes | bytearray, unread: UnreadAnswer | None, *, headers: dict[str, str]
) -> Response:
    """The response for a body that has been read: status, content type and body as the backend sent them.

    `headers` are added, and override the backend's.
    """
    return Response(exchange.status, passed_headers(exchange.headers) | headers, body, unread)


async def relay_stream(
    request: HttpRequest,
    exchange: HttpExchange,
    meter: StreamMeter,
    reports: StreamReports,
    *,
    headers: dict[str, str],
    resumes: Resumes | None = None,
) -> RelayResult:
    """Relay an event stream to its end, and count its tokens.

    `headers` are added, and override the backend's. `resumes`: the stream may be continued; its meter is `meter`. The
    exchange is released on every path.
    """
    response: Response | EventStream = Response(exchange.status)
    try:
        response = stream = begin_stream(request, exchange.status, passed_headers(exchange.headers) | headers)
        headers = exchange.headers = {}  # nothing reads them while the stream goes on
        if resumes is not None:
            request.open_stream = stream
        relay = _StreamRelay(request, exchange, meter, reports, resumes)
        failure = await relay.run()
    except ConnectionError:  # of the client's side
        return RelayResult(response, Outcome.CLIENT_DISCONNECTED)
    finally:
        exchange.release()
    if relay.is_disconnected:
        return RelayResult(response, Outcome.CLIENT_DISCONNECTED)
    outcome = Outcome.COMPLETED if failure is None else Outcome.BACKEND_FAILED
    return RelayResult(response, outcome, failure, relay.slowed, meter.rejected, relay.is_interrupted)


class _StreamRelay:
    """The callback between the two sockets of one stream."""

    __slots__ = (
        "_chunked",
        "_connection",
        "_exchange",
        "_is_draining",
        "_meter",
        "_on_unread",
        "_on_usage",
        "_paused_at",
        "_report_at",
        "_reported",
        "_resumes",
        "_room",
        "_time",
        "_timeliness",
        "_transport",
        "_write",
        "is_disconnected",
        "is_interrupted",
        "slowed",
    )  # fmt: skip

    def __init__(
        self,
        request: HttpRequest,
        exchange: HttpExchange,
        meter: StreamMeter,
        reports: StreamReports,
        resumes: Resumes | None = None,
    ) -> None:
        self._connection = request.connection
        self._transport = request.connection.transport
        self._write = self._transport.write
        self._chunked = request.is_new
        self._exchange = exchange
        self._meter = meter
        self._on_usage, self._on_unread, self._timeliness = reports
        self._time = asyncio.get_running_loop().time
        self._report_at = 0.0  # output tokens at which on_usage is called next
        self._reported: Usage | None = None
        self._room = CLIENT_BUFFER_BYTES_MAX  # bytes that may be written before the client's buffer is looked at
        self._is_draining = False
        self._paused_at = 0.0  # meaningful while `_is_draining`
        self._resumes = resumes
        self.is_disconnected = False
        self.is_interrupted = False
        self.slowed = False

    async def run(self) -> str | None:
        """Relay to the end. Returns what the backend did wrong, if anything."""
        reason, left, cancelled = "the stream ended without saying so", True, None
        try:
            await self._exchange.stream(self._on_body)
            left = False
        except (UpstreamError, EventTooLongError) as error:
            reason, left = str(error), self.is_disconnected
            cancelled = error if isinstance(error, CallCancelled) else None
        finally:
            if left or self.is_disconnected:  # else it is reported at the end
                self._report()
            if self._is_draining and left and self._on_unread is not None:
                self._on_unread(self._time() - self._paused_at)
        return None if self.is_disconnected else self._end(reason, cancelled)

    def _end(self, reason: str, cancelled: CallCancelled | None) -> str | None:
        """Write what the meter held back, and an error event where the stream is incomplete. Return what failed."""
        meter, resumes = self._meter, self._resumes
        rest = meter.finish()
        if rest:
            self._write_last(rest)
        if self._timeliness is not None:
            self._timeliness.passed(meter.output_tokens, self._time())
        self._report()
        if meter.done:  # the answer is whole, whatever became of the connection
            return None
        if meter.rejected:
            return "refused by the backend in its stream"
        if meter.error:
            return "the backend stopped in mid-stream" if meter.aborted else "an error event of the backend"
        if resumes is not None and cancelled is None and resumes.may_continue():
            self.is_interrupted = True
            return resumes.meter.interrupted or reason
        if cancelled is not None:
            self._write_last(meter.cut(cancelled.message, cancelled.error))
        else:
            self._write_last(meter.cut("The connection to the backend was lost before the answer was complete."))
        return reason

    def _on_body(self, data: bytes) -> None:
        """Pass on what one read of the body brought. Called for every token, from memory that the kernel's work has
        pushed out of the nearest caches: an object that is not touched, and a call that is not made, are what counts.
        """
        meter, write = self._meter, self._write
        out = meter.feed(data)
        if out:
            size = len(out)
            try:
                write(b"%x\r\n%b\r\n" % (size, out) if self._chunked else out)
            except RuntimeError:  # uvloop's, of a transport that is closed
                self._client_disconnected()
            self._room -= size
            if self._room < 0:
                self._mind_the_buffer()
        tokens = meter.output_tokens
        if self._timeliness is not None:
            self._timeliness.passed(tokens, self._time())
        if tokens >= self._report_at:
            self._report()

    def _report(self) -> None:
        usage = self._meter.usage
        if usage is not None and usage != self._reported:
            self._reported = usage
            self._report_at = self._on_usage(usage)

    def _write_last(self, data: bytes) -> None:
        """Write what comes after the backend's last byte: nothing is left to pause."""
        try:
            self._write(b"%x\r\n%b\r\n" % (len(data), data) if self._chunked else data)
        except RuntimeError:
            self._client_disconnected()

    def _mind_the_buffer(self) -> None:
        """Pause reading from the backend until the client's write buffer has drained."""
        if self._transport.is_closing():
            self._client_disconnected()
            return
        buffered = self._transport.get_write_buffer_size()
        self._room = CLIENT_BUFFER_BYTES_MAX - buffered
        if self._room < 0 and not self._is_draining:
            self._exchange.pause()
            self.slowed = self._is_draining = True
            self._paused_at = self._time()
            self._connection.when_drained(self._drained)

    def _drained(self) -> None:
        if self._transport.is_closing():
            self._client_disconnected()
        else:
            self._is_draining = False
            self._exchange.resume()

    def _client_disconnected(self) -> None:
        self.is_disconnected = True
        self._exchange.release()
