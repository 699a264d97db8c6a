"""Tracing: OpenTelemetry spans of sampled calls, made when a call has ended.

Off unless an endpoint is configured. The sampling decision is made when a call arrives (sampling.py). A sampled call
records its events (spans.py); when it has ended, the SDK's tracer makes its spans, with the ids that its backends were
sent. A call that is not sampled costs nothing here.
"""

import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from random import Random
from typing import Final

from opentelemetry.sdk.resources import SERVICE_NAME, SERVICE_VERSION, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SpanExporter
from opentelemetry.sdk.trace.id_generator import IdGenerator
from opentelemetry.sdk.trace.sampling import ALWAYS_ON
from opentelemetry.trace import (
    NonRecordingSpan,
    SpanContext,
    SpanKind,
    Status,
    StatusCode,
    TraceFlags,
    TraceState,
    set_span_in_context,
)

from gateway.config.telemetry import TracingSettings
from gateway.observability.telemetry import CallTrace
from gateway.observability.tracing import genai
from gateway.observability.tracing.sampling import SAMPLED, TRACESTATE, TRACESTATE_CHARS_MAX, Sampling
from gateway.observability.tracing.shipping import SpanShipper
from gateway.observability.tracing.spans import FIRST_TOKEN, LIFT, REQUEUE, SHED, CallSpans, Queued, Sent
from policies.types import Outcome, Reason

SERVICE: Final = "fairlead"
WAIT_REASON: Final = "fairlead.queue.wait_reason"
SENT_AT_ONCE: Final = "none"
REFUSALS: Final = frozenset(Reason)

Value = str | int | float | bool
Attributes = dict[str, Value]


class NextIds(IdGenerator):
    """A generator of OpenTelemetry ids, which returns the ids that Tracing has set in it. A span has its id before it
    is made, because the backend got the id with the request.
    """

    trace_id = 0
    span_id = 0

    def generate_trace_id(self) -> int:
        return self.trace_id

    def generate_span_id(self) -> int:
        return self.span_id


class Tracing:
    """The tracer that makes the OpenTelemetry spans of sampled calls. Mutable. Its `shipper` sends the spans."""

    def __init__(self, sampling: Sampling, exporter: SpanExporter, *, version: str) -> None:
        self._sampling = sampling
        self.shipper = SpanShipper(exporter)
        own = Resource.create({SERVICE_NAME: SERVICE, SERVICE_VERSION: version})
        self._ids = NextIds()
        provider = TracerProvider(resource=own, sampler=ALWAYS_ON, id_generator=self._ids, shutdown_on_exit=False)
        provider.add_span_processor(self.shipper)
        self._tracer = provider.get_tracer(SERVICE, version)

    def begin(self, trace: CallTrace, method: str, headers: Mapping[str, str]) -> None:
        """Decide whether to sample the call, and set the header for its backend in its trace."""
        decision = self._sampling.decide(headers)
        if decision.is_sampled:
            state = headers.get(TRACESTATE) if decision.parent is not None else None
            trace.spans = CallSpans(decision, method, state, self._sampling, self._sampling.span_id())
        else:
            trace.traceparent = decision.traceparent

    def ended(self, trace: CallTrace, spans: CallSpans) -> None:
        """Make the spans of a call that ends now."""
        now_s = time.perf_counter()
        self._make(server_plan(trace, spans, now_s), trace, spans)
        for queued in spans.queue:
            self._make(queue_plan(queued, trace, spans, now_s), trace, spans)
        for sent in spans.sends:
            self._make(client_plan(sent, trace, spans, now_s), trace, spans)

    def _make(self, plan: "_Plan", trace: CallTrace, spans: CallSpans) -> None:
        self._ids.trace_id, self._ids.span_id = spans.decision.trace_id, plan.span_id
        parent = None if plan.parent_id is None else _context(plan.parent_id, spans)
        context = None if parent is None else set_span_in_context(NonRecordingSpan(parent))
        start_ns = _unix_ns(plan.started_s, trace)
        span = self._tracer.start_span(plan.name, context, plan.kind, plan.attributes, start_time=start_ns)
        for name, at_s, attributes in plan.events:
            span.add_event(name, attributes, timestamp=_unix_ns(at_s, trace))
        if plan.is_error:
            span.set_status(Status(StatusCode.ERROR))
        span.end(_unix_ns(plan.ended_s, trace))


@dataclass(slots=True)
class _Plan:
    """One span to make. Times are of time.perf_counter, in seconds."""

    name: str
    kind: SpanKind
    span_id: int
    parent_id: int | None
    started_s: float
    ended_s: float
    attributes: Attributes = field(default_factory=dict)
    events: list[tuple[str, float, Attributes]] = field(default_factory=list)
    is_error: bool = False


def server_plan(trace: CallTrace, spans: CallSpans, now_s: float) -> _Plan:
    """The plan of the SERVER span: the whole call."""
    parent = spans.decision.parent
    known: dict[str, Value | None] = {
        genai.HTTP_REQUEST_METHOD: spans.method,
        genai.HTTP_ROUTE: trace.endpoint,
        genai.HTTP_RESPONSE_STATUS_CODE: trace.status or None,
        genai.ERROR_TYPE: str(trace.status) if trace.status >= 500 else None,
        genai.REQUEST_MODEL: trace.model if trace.is_routed else None,
        "fairlead.request_id": trace.request_id,
        "fairlead.tenant": trace.tenant_id,
        "fairlead.tier": trace.tier_id,
        "fairlead.outcome": trace.outcome,
        "fairlead.reason": trace.reason,
        "fairlead.stream": trace.stream,
    }
    return _Plan(
        f"{spans.method} {trace.endpoint}",
        SpanKind.SERVER,
        spans.span_id,
        parent.span_id if parent else None,
        trace.started_s,
        now_s,
        {name: value for name, value in known.items() if value is not None},
        is_error=trace.status >= 500,
    )


def queue_plan(queued: Queued, trace: CallTrace, spans: CallSpans, now_s: float) -> _Plan:
    """The plan of an INTERNAL span: one wait in the queue."""
    ended_s = now_s if queued.ended_s is None else queued.ended_s
    plan = _Plan("queue", SpanKind.INTERNAL, queued.span_id, spans.span_id, queued.started_s, ended_s)
    plan.attributes[WAIT_REASON] = queued.reason or SENT_AT_ONCE
    if queued.lift_service is not None:
        plan.events.append((LIFT, queued.started_s, {"fairlead.lift.service": queued.lift_service}))
    if queued.ended_s is None and trace.reason in REFUSALS:  # it was rejected in the queue
        plan.events.append((SHED, ended_s, {"fairlead.reason": trace.reason or ""}))
    return plan


def client_plan(sent: Sent, trace: CallTrace, spans: CallSpans, now_s: float) -> _Plan:
    """The plan of a CLIENT span: one dispatch to a backend."""
    operation = genai.operation(trace.endpoint)
    name = f"{operation} {trace.model}" if trace.model else operation
    ended_s = now_s if sent.ended_s is None else sent.ended_s
    plan = _Plan(name, SpanKind.CLIENT, sent.span_id, spans.span_id, sent.started_s, ended_s)
    plan.attributes |= {
        genai.OPERATION_NAME: operation,
        genai.PROVIDER_NAME: sent.provider,
        "fairlead.backend": sent.backend_id,
    }
    if trace.model is not None:
        plan.attributes[genai.REQUEST_MODEL] = trace.model
    if trace.request is not None:
        plan.attributes[genai.REQUEST_MAX_TOKENS] = trace.request.output_tokens_max
        plan.attributes[genai.REQUEST_CHOICE_COUNT] = trace.request.choices
    failure: str | None = sent.came_back
    if failure is not None:
        plan.events.append((REQUEUE, ended_s, {"fairlead.reason": failure}))
    else:
        _add_answer(plan, trace)
        failure = trace.outcome if trace.outcome is Outcome.BACKEND_FAILED else None
    if failure is not None:
        plan.attributes[genai.ERROR_TYPE], plan.is_error = str(failure), True
    return plan


def _add_answer(plan: _Plan, trace: CallTrace) -> None:
    """Add usage and time to first token to the span of the backend that answered."""
    if trace.usage is not None:
        plan.attributes |= {
            genai.USAGE_INPUT_TOKENS: trace.usage.prompt_tokens,
            genai.USAGE_OUTPUT_TOKENS: trace.usage.output_tokens,
            genai.USAGE_CACHE_READ_INPUT_TOKENS: trace.usage.cached_tokens,
            "fairlead.usage.estimated": trace.estimated,
            "fairlead.usage.expected_cached_tokens": trace.expected_tokens,
        }
    if trace.stream and trace.first_token_s is not None:  # known of streams only
        plan.attributes[genai.RESPONSE_TIME_TO_FIRST_CHUNK] = trace.first_token_s - plan.started_s
        plan.events.append((FIRST_TOKEN, trace.first_token_s, {}))


def _context(span_id: int, spans: CallSpans) -> SpanContext:
    parent = spans.decision.parent
    state = spans.tracestate
    known = TraceState.from_header([state]) if state and len(state) <= TRACESTATE_CHARS_MAX else None
    is_remote = parent is not None and span_id == parent.span_id
    return SpanContext(spans.decision.trace_id, span_id, is_remote, TraceFlags(SAMPLED), known)


def _unix_ns(at_s: float, trace: CallTrace) -> int:
    """Unix time, in nanoseconds, of a time of time.perf_counter."""
    return int((trace.arrived_at + at_s - trace.started_s) * 1e9)


def make_tracing(settings: TracingSettings, *, version: str, rng: Random) -> Tracing:
    """Make a Tracing for these settings. Raises ValueError where the protocol's exporter is not installed."""
    # The library logs each retry and failure; the gateway has a counter for lost spans instead.
    logging.getLogger("opentelemetry").setLevel(logging.CRITICAL)
    sampling = Sampling(settings.sampler, settings.sample_ratio, rng)
    return Tracing(sampling, _make_exporter(settings), version=version)


def _make_exporter(settings: TracingSettings) -> SpanExporter:
    # Imported here: the exporters are slow to load, and the one for gRPC may not be installed.
    if settings.protocol == "grpc":
        try:
            from opentelemetry.exporter.otlp.proto.grpc import trace_exporter as grpc  # noqa: PLC0415
        except ImportError:
            raise ValueError("the protocol of traces is grpc: install fairlead[otlp-grpc]") from None
        return grpc.OTLPSpanExporter(endpoint=settings.endpoint, insecure=not settings.endpoint.startswith("https://"))
    from opentelemetry.exporter.otlp.proto.http import trace_exporter as http  # noqa: PLC0415

    return http.OTLPSpanExporter(endpoint=settings.endpoint)
