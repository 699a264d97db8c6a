"""A call that generates tokens, from its lease on: queue, send, relay, settle.

A call that a backend does not take before the first byte (no connection, "the engine is busy") goes back to
the head of its tenant's queue and waits for the next backend. From the first byte on it belongs to that backend,
and ends in exactly one outcome.
"""

import asyncio
import time
from collections.abc import Mapping

from aiohttp import web

from backends.health import Evidence
from backends.pool import BackendPool
from backends.sse import StreamMeter
from backends.upstream import ConnectFailed, Exchange, Upstream, UpstreamClosed, UpstreamError, UpstreamSilent
from gateway import openai
from gateway.dispatcher import Lease, Rejected, Withdrawn
from gateway.headers import upstream_headers
from gateway.intake import Call, Intake, Refused
from gateway.openai import Endpoint
from gateway.relay import RelayResult, relay_body, relay_stream
from gateway.server import SERVER, to_response
from gateway.telemetry import CallTrace, Telemetry
from policies.types import Outcome, Usage

BUSY_HOLD_S = 0.25  # a backend that is busy gets nothing for as long as a few of its steps may take
UNREACHABLE_HOLD_S = 0.5  # until the health poll that the failure sets off has had its say
RESENDS_MAX = 1  # of a call whose connection broke before the answer: it may be what breaks the backend
ANSWER_BYTES_MAX = 256 << 20
ERROR_BYTES_MAX = 1 << 20
BUSY_MARK = b"currently busy"
NO_USAGE = Usage(0, 0, 0)
CLIENT_LEFT_STATUS = 499  # nginx's, for the log: nobody receives it


class NotTaken(Exception):  # noqa: N818 - a state, not an error
    """The backend did not take the call; nothing of an answer has passed."""

    def __init__(self, evidence: Evidence, hold_s: float) -> None:
        super().__init__(evidence)
        self.evidence = evidence
        self.hold_s = hold_s


class Generation:
    """Answers calls that generate tokens."""

    def __init__(
        self,
        *,
        intake: Intake,
        backends: BackendPool,
        upstreams: Mapping[str, Upstream],
        telemetry: Telemetry,
    ) -> None:
        self._intake = intake
        self._backends = backends
        self._upstreams = upstreams
        self._telemetry = telemetry
        self._fingerprints: dict[str, bytes] = {}  # by backend, see StreamMeter
        self._in_flight: set[str] = set()
        self.stopping = False  # the gateway cuts its exchanges itself: no evidence about backends

    async def answer(self, request: web.BaseRequest, endpoint: Endpoint) -> web.StreamResponse:
        trace = CallTrace(endpoint, request_id=self._intake.name(request, self._in_flight))
        self._in_flight.add(trace.request_id)
        try:
            response = await self._answer(request, endpoint, trace)
        except Refused as refused:
            trace.reason = refused.reason
            response = _own(refused.answer, trace)
        except Rejected as rejected:
            trace.reason = rejected.reason
            response = _own(openai.refused(rejected.reason, rejected.retry_after_s), trace)
        except UpstreamError as error:
            trace.reason = str(error)
            fault = openai.BACKEND_TIMEOUT if isinstance(error, UpstreamSilent) else openai.BACKEND_FAILED
            response = _own(openai.failed(fault), trace)
        except asyncio.CancelledError:  # the client left
            trace.status, trace.outcome = CLIENT_LEFT_STATUS, trace.outcome or Outcome.CLIENT_GONE
            raise
        except Exception:  # a bug of ours: the server answers it
            trace.status = openai.INTERNAL.status
            raise
        else:
            trace.status = response.status
        finally:
            self._in_flight.discard(trace.request_id)
            self._telemetry.ended(trace)
        return response

    async def _answer(self, request: web.BaseRequest, endpoint: Endpoint, trace: CallTrace) -> web.StreamResponse:
        call = await self._intake.take(request, endpoint, trace)
        trace.request, trace.queued_s = call.request, time.perf_counter()
        lease = call.dispatcher.lease(call.request, call.tenant)
        try:
            async with lease:
                result = await self._send_until_taken(request, call, lease, trace)
                lease.outcome = result.outcome
        finally:
            if lease.backend_id:  # else it ended in the queue
                trace.outcome = lease.outcome
        return result.response

    async def _send_until_taken(
        self, request: web.BaseRequest, call: Call, lease: Lease, trace: CallTrace
    ) -> RelayResult:
        """Send the call to the backend of its lease, and to the next one while it is not taken."""
        resends = 0
        while True:
            trace.backend_id, trace.dispatched_s = lease.backend_id, time.perf_counter()
            try:
                return await lease.unless_withdrawn(self._send(request, call, lease, trace))
            except Withdrawn:
                await lease.returned(0.0)
            except NotTaken as refusal:
                self._report(lease.backend_id, refusal.evidence, call)
                if refusal.evidence is Evidence.BROKEN:
                    resends += 1
                    if resends > RESENDS_MAX:
                        raise UpstreamError("the backend broke the connection before it answered") from None
                await lease.returned(refusal.hold_s)
            except UpstreamError:
                self._report(lease.backend_id, Evidence.BROKEN, call)
                raise

    async def _send(self, request: web.BaseRequest, call: Call, lease: Lease, trace: CallTrace) -> RelayResult:
        backend_id = lease.backend_id
        headers = upstream_headers(
            request.headers,
            request_id=trace.request_id,
            credentials=self._backends.spec(backend_id).headers,
        )
        try:
            exchange = await self._upstreams[backend_id].open(
                "POST", trace.endpoint, headers.items(), call.parsed.upstream_body
            )
        except ConnectFailed:
            raise NotTaken(Evidence.UNREACHABLE, UNREACHABLE_HOLD_S) from None
        except UpstreamClosed as error:
            if error.bytes_received:
                raise
            raise NotTaken(Evidence.BROKEN, UNREACHABLE_HOLD_S) from None
        async with exchange:
            if exchange.status == 503:
                await _raise_if_busy(exchange)
            result = await self._relay(request, exchange, call, lease, trace)
        if result.outcome is not Outcome.CLIENT_GONE:
            self._report(backend_id, _evidence(exchange, result), call)
        return result

    async def _relay(
        self, request: web.BaseRequest, exchange: Exchange, call: Call, lease: Lease, trace: CallTrace
    ) -> RelayResult:
        own_headers = [("x-request-id", trace.request_id), *SERVER.items()]
        is_stream = any(name == "content-type" and "text/event-stream" in value for name, value in exchange.headers)
        settle = _Settlement(self._intake, call, lease, trace)
        if not is_stream:
            result = await relay_body(exchange, headers=own_headers, bytes_max=ANSWER_BYTES_MAX)
            if result.usage is not None:
                settle.tokens(result.usage)
            elif exchange.status == 200:  # a server that counts nothing: what the prompt was charged stands
                trace.estimated = True
            else:
                settle.tokens(NO_USAGE)
            return result
        if lease.may_be_withdrawn:  # a backend sends its head long before its first token
            await exchange.begun()
            lease.answering()
        meter = StreamMeter(
            client_wants_usage=call.parsed.client_wants_usage,
            client_wants_continuous=call.parsed.client_wants_continuous_usage,
            choices=call.parsed.choices,
            prompts=call.parsed.prompts,
            fingerprint=self._fingerprints.get(lease.backend_id),
        )
        lease.passed = lambda: settle.true(meter.usage) if meter.usage else None
        result = await relay_stream(request, exchange, meter, settle.tokens, headers=own_headers)
        trace.estimated, trace.reason = meter.tokens_estimated, result.failure
        if meter.fingerprint is not None:
            self._fingerprints[lease.backend_id] = meter.fingerprint
        return result

    def _report(self, backend_id: str, evidence: Evidence, call: Call) -> None:
        if not self.stopping:
            self._backends.report(backend_id, evidence, call.dispatcher.now())


class _Settlement:
    """What a call has used, told to its lease, its trace and, once, to the estimate of prompts."""

    __slots__ = ("_call", "_intake", "_learnt", "_lease", "_trace")

    def __init__(self, intake: Intake, call: Call, lease: Lease, trace: CallTrace) -> None:
        self._intake = intake
        self._call = call
        self._lease = lease
        self._trace = trace
        self._learnt = False

    def tokens(self, reported: Usage) -> float:
        """Cumulative usage; returns how many output tokens there are when it has to be told again."""
        usage = self.true(reported)
        if not self._learnt and reported.prompt_tokens:
            self._learnt = True
            self._intake.learn(self._call, usage.prompt_tokens)
        self._trace.passed(usage)
        tell_at = self._lease.tokens(usage)
        if not usage.output_tokens:
            return 1.0  # the first token's time is of interest
        # Of several prompts each is reported with its own first token: until then their sum is too small.
        return tell_at if self._call.parsed.prompts == 1 else usage.output_tokens + 1

    def true(self, usage: Usage) -> Usage:
        """The usage, with our estimate of the prompt where the server counts none."""
        if usage.prompt_tokens or not usage.output_tokens:
            return usage
        return Usage(self._call.request.prompt_tokens, 0, usage.output_tokens)


async def _raise_if_busy(exchange: Exchange) -> None:
    """A 503 of vLLM when its queue is full; any other 503 before the first byte is a failure of the backend."""
    body = await exchange.read(ERROR_BYTES_MAX)
    if BUSY_MARK in body:
        raise NotTaken(Evidence.BUSY, BUSY_HOLD_S)
    raise NotTaken(Evidence.BROKEN, BUSY_HOLD_S)


def _evidence(exchange: Exchange, result: RelayResult) -> Evidence:
    if result.outcome is Outcome.BACKEND_FAILED or exchange.status >= 500:
        return Evidence.BROKEN
    return Evidence.SERVED


def _own(answer: openai.Answer, trace: CallTrace) -> web.Response:
    trace.status = answer.status
    return to_response(answer, **{"x-request-id": trace.request_id})
