"""Telemetry: the facts of each call, gathered while it runs (CallTrace) and reported once, when it has ended.

The request path only stores times and numbers in a CallTrace. The access log, the trace log, the tracer and the meters
get it at the end, off the path of the tokens.
"""

import time
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from gateway.config.amounts import to_text
from gateway.observability.access_log import AccessLog, AccessRecord
from gateway.observability.trace_log import TraceLog, trace_record
from gateway.observability.tracing.sampling import TRACEPARENT, TRACESTATE, read_traceparent
from policies.slo.attainment import met_targets
from policies.types import Cause, Outcome, RateLimits, Reason, Request, Timing, Usage

if TYPE_CHECKING:  # spans are loaded only where calls are traced
    from gateway.observability.metrics.instruments import Family
    from gateway.observability.tracing.spans import CallSpans


@dataclass(slots=True)
class CallTrace:
    """The facts of one call for logs, traces and metrics, gathered while it runs. Times are of time.perf_counter, in
    seconds, except `arrived_at`: Unix time.

    `client` is the address of the client, also behind trusted proxies. `model` is the model that serves the call, and
    `alias` the alias that the client used, if any. `is_resumable`: whether, as judged when the stream began, another
    backend could continue it; None: no stream has begun. `pauses` has the cause and the seconds of each interruption
    that is over. `counted` names counters, each with its label values; the call adds one to each of them when it ends.
    `answer_id` is set if the API can fetch answers later. `cors` are the CORS headers of the response. `usage_max` is
    the most usage that the call's parameters allow; None: not known. `overstated`: a backend reported more, and
    `usage_max` is charged. `passed_on` has the models of the alias that did not serve the call, each with the reason.
    `rate_limits` returns the present state of the tenant's limits; None: it has no limits. `spans` is set for a call
    that OpenTelemetry samples. For any other call, `traceparent` is the header for the backend; None: the client's own
    header is passed on.
    """

    endpoint: str
    arrived_at: float = field(default_factory=time.time)
    started_s: float = field(default_factory=lambda: time.perf_counter())  # noqa: PLW0108 - a test may exchange it
    request_id: str = ""
    client: str | None = None
    tenant_id: str | None = None
    key_id: str = ""
    tier_id: str | None = None
    model: str | None = None
    alias: str | None = None
    is_shadow: bool = False  # a copy, which no tenant is charged for
    stream: bool = False
    request: Request | None = None
    queued_s: float | None = None
    dispatched_s: float | None = None
    first_token_s: float | None = None
    ended_s: float = 0.0
    backend_id: str | None = None
    expected_tokens: int = 0  # of the prompt, that this backend has computed before, as far as is known
    answer_id: str | None = None
    is_resumable: bool | None = None
    interruption: tuple[Cause, float] | None = None  # that is not over: its cause and time
    pauses: tuple[tuple[Cause, float], ...] = ()
    counted: tuple[tuple["Family", tuple[str, ...]], ...] = ()
    status: int = 0
    reason: str | None = None
    usage: Usage | None = None
    passed_on: tuple[tuple[str, Reason], ...] = ()
    usage_max: Usage | None = None
    overstated: bool = False
    timing: Timing | None = None
    reserved: tuple[int, int] = (0, 0)  # tokens and picos of its tenant's and key's budgets, until it has ended
    cost: int | None = None  # in picos of `currency` (config/amounts.py)
    currency: str | None = None
    is_unpriced: bool = False  # there are prices, but none of its model
    estimated: bool = False
    outcome: Outcome | None = None
    cors: Mapping[str, str] | None = None
    rate_limits: Callable[[], RateLimits] | None = None
    spans: "CallSpans | None" = None
    traceparent: str | None = None

    def passed(self, usage: Usage) -> None:
        """Update the usage; the first output token sets `first_token_s`."""
        if self.first_token_s is None and usage.output_tokens:
            self.first_token_s = time.perf_counter()
        self.usage = usage

    def believed(self, usage: Usage) -> Usage:
        """The usage that a backend reported, limited to what the call can use."""
        most = self.usage_max
        if most is None:
            return usage
        prompt_tokens, cached_tokens, output_tokens = usage
        if cached_tokens <= prompt_tokens <= most.prompt_tokens and output_tokens <= most.output_tokens:
            return usage
        self.overstated = True
        return usage.within(most)

    def timed(self, timing: Timing) -> Timing:
        """Set the timing of the answer, and return it, limited to the tokens that the call can use."""
        if self.overstated and self.usage_max is not None:
            timing = timing.within(self.usage_max.output_tokens)
        self.timing = timing
        return timing

    def interrupted(self, cause: Cause) -> None:
        """The stream's client gets no data from now on, until `continued`. Of several interruptions in a row the first
        counts.
        """
        if self.interruption is None:
            self.interruption = cause, time.perf_counter()

    def continued(self) -> None:
        """The stream's client is about to get the next bytes. No effect without an interruption."""
        if self.interruption is not None:
            cause, since_s = self.interruption
            self.pauses += ((cause, time.perf_counter() - since_s),)
            self.interruption = None

    def over(self, outcome: Outcome) -> None:
        """Set the outcome of a dispatched call. A failure before the first output token costs nothing."""
        self.outcome = outcome
        if outcome is Outcome.BACKEND_FAILED and self.usage is not None and not self.usage.output_tokens:
            self.usage = None

    @property
    def trace_id(self) -> str | None:
        """The id of the call's trace (W3C Trace Context), in hexadecimal digits; None: the call has no own trace."""
        header = self.traceparent if self.spans is None else self.spans.traceparent
        return None if header is None else header.split("-")[1]

    @property
    def is_routed(self) -> bool:
        """Whether the call's pool was found. Until then, `model` is the client's text."""
        return self.tier_id is not None

    def propagate(self, headers: MutableMapping[str, str]) -> None:
        """Set the trace context headers of the request to a backend."""
        if self.spans is not None:
            headers[TRACEPARENT] = self.spans.traceparent
        elif self.traceparent is not None:
            headers[TRACEPARENT] = self.traceparent
            headers.pop(TRACESTATE, None)  # the client's traceparent was invalid, or this trace is not sampled
        elif TRACEPARENT not in headers or read_traceparent(headers[TRACEPARENT]) is None:
            if TRACEPARENT in headers:
                del headers[TRACEPARENT]
            if TRACESTATE in headers:
                del headers[TRACESTATE]  # meaningless without a traceparent (W3C Trace Context, 3.3)


class Tracer(Protocol):
    """The interface of Tracing (tracing/tracing.py): it follows sampled calls from their arrival to their end."""

    def begin(self, trace: CallTrace, method: str, headers: Mapping[str, str]) -> None:
        """A call has arrived."""
        ...

    def ended(self, trace: CallTrace, spans: "CallSpans") -> None:
        """A sampled call has ended."""
        ...


class CallObserver(Protocol):
    """The interface of an observer that gets each ended call, such as a counter."""

    def ended(self, trace: CallTrace) -> None:
        """A call has ended."""
        ...


class Telemetry:
    """The reporter of ended calls to logs, tracer and meters (counters). The trace log gets only admitted calls."""

    def __init__(
        self,
        access_log: AccessLog | None,
        trace_log: TraceLog | None = None,
        *,
        tracer: Tracer | None = None,
        meters: Sequence[CallObserver] = (),
        shadow_meters: Sequence[CallObserver] = (),
    ) -> None:
        """`shadow_meters` count copies of calls; the other meters do not get these."""
        self._access_log = access_log
        self._trace_log = trace_log
        self.tracer = tracer
        self._meters = tuple(meters)
        self._shadow_meters = tuple(shadow_meters)

    def ended(self, trace: CallTrace) -> None:
        trace.ended_s = time.perf_counter()
        if trace.is_shadow:
            self._shadow_ended(trace)
            return
        for meter in self._meters:
            meter.ended(trace)
        if self.tracer is not None and trace.spans is not None:
            self.tracer.ended(trace, trace.spans)
        if self._access_log is not None:
            self._access_log.write(_record(trace))
        if self._trace_log is not None and trace.request is not None:
            self._trace_log.write(
                trace_record(
                    trace.request,
                    trace.usage,
                    endpoint=trace.endpoint,
                    arrived_at=trace.arrived_at,
                    outcome=trace.outcome or trace.reason,
                )
            )

    def _shadow_ended(self, trace: CallTrace) -> None:
        for meter in self._shadow_meters:
            meter.ended(trace)
        if self._access_log is not None:
            self._access_log.write(_record(trace))


def _record(trace: CallTrace) -> AccessRecord:
    usage, timing = trace.usage, trace.timing
    envelope = trace.request.envelope if trace.request is not None else None
    result = met_targets(envelope, timing) if envelope and timing and timing.tokens else None
    return {  # a literal: half of what a call with as many arguments costs
        "ts": trace.arrived_at,
        "request_id": trace.request_id,
        "client": trace.client,
        "tenant": trace.tenant_id,
        "model": trace.model,
        "alias": trace.alias,
        "shadow": trace.is_shadow,
        "endpoint": trace.endpoint,
        "status": trace.status,
        "reason": trace.reason,
        "backend": trace.backend_id,
        "stream": trace.stream,
        "queue_ms": _ms(trace.queued_s, trace.dispatched_s),
        "ttft_ms": _ms(trace.started_s, trace.first_token_s),
        "duration_ms": int((trace.ended_s - trace.started_s) * 1e6) / 1000,
        "prompt_tokens": usage.prompt_tokens if usage else None,
        "cached_tokens": usage.cached_tokens if usage else None,
        "output_tokens": usage.output_tokens if usage else None,
        "cost": None if trace.cost is None else to_text(trace.cost),
        "currency": trace.currency,
        "ttft_met": result.ttft if result else None,
        "tpot_met": result.tpot if result else None,
        "envelope_met": result.all if result else None,
        "tokens_in_time": timing.tokens_in_time if result and timing else None,
        "estimated": trace.estimated,
        "overstated": trace.overstated,
        "outcome": trace.outcome,
    }


def _ms(start_s: float | None, end_s: float | None) -> float | None:
    return None if start_s is None or end_s is None else int((end_s - start_s) * 1e6) / 1000
