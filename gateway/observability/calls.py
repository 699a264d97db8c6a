"""Counting calls when they have ended: nothing is counted per token.

Children of labelled metrics are looked up once and kept, by tenant and by model. Their number is bounded: tenants by
TenantSeries, models because beyond MODELS_MAX of them the rest is "other".
"""

import time
from dataclasses import dataclass, field
from typing import Final

from prometheus_client import Counter, Histogram

from gateway.observability import genai
from gateway.observability.instruments import CallInstruments
from gateway.observability.telemetry import CallTrace
from gateway.observability.tenant_series import OTHER, TenantSeries
from policies.types import Outcome, Reason, Usage

MODELS_MAX: Final = 200  # combinations of operation, model and tier
NOBODY: Final = "unknown"  # the tenant of a call whose key is none
ANSWERED: Final = "answered"  # by the gateway, or by a backend without the queue
REFUSED: Final = "refused"
DISPATCHED: Final = "dispatched"
INPUT, CACHED, OUTPUT = "input", "cached_input", "output"

_SHED: Final = frozenset(Reason)


@dataclass(slots=True)
class _OfTenant:
    """One tenant's children."""

    input: Counter
    cached: Counter
    output: Counter
    waited: Counter
    requests: dict[str, Counter] = field(default_factory=dict)
    refusals: dict[str, Counter] = field(default_factory=dict)


@dataclass(slots=True)
class _OfModel:
    """The children of one model in one tier."""

    labels: tuple[str, str, str]
    first_token: Histogram
    per_token: Histogram
    durations: dict[str, Histogram] = field(default_factory=dict)


class CallMeter:
    """Counts calls that have ended. Mutable."""

    def __init__(self, instruments: CallInstruments, tenants_max: int) -> None:
        self._to = instruments
        self.series = TenantSeries(tenants_max, self._drop)
        self._tenants: dict[str, _OfTenant] = {}
        self._models: dict[tuple[str, str, str], _OfModel] = {}
        self._waits: dict[tuple[str, str], Histogram] = {}

    def ended(self, trace: CallTrace) -> None:
        if trace.request is not None and trace.outcome is None and trace.status < 400:
            return  # its client was told that it is being made: the response itself has a line of its own
        now_s = time.perf_counter()
        outcome = outcome_of(trace)
        tenant = self._tenant(trace)
        self._count(tenant, trace, outcome)
        if trace.queued_s is not None:
            left_s = now_s if trace.dispatched_s is None else trace.dispatched_s
            tenant.waited.inc(left_s - trace.queued_s)
            ended = DISPATCHED if trace.dispatched_s is not None else outcome
            self._wait(trace.tier_id or "", ended).observe(left_s - trace.queued_s)
        if trace.usage is not None:
            count_tokens(tenant, trace.usage)
        if trace.dispatched_s is not None and trace.model is not None:
            self._time(trace, outcome, now_s)

    def _count(self, tenant: _OfTenant, trace: CallTrace, outcome: str) -> None:
        label = self._label(trace)
        child = tenant.requests.get(outcome)
        if child is None:
            child = tenant.requests[outcome] = self._to.requests.labels(label, outcome)
        child.inc()
        if outcome == REFUSED:
            reason = trace.reason or ""
            child = tenant.refusals.get(reason)
            if child is None:
                child = tenant.refusals[reason] = self._to.refusals.labels(label, reason)
            child.inc()

    def _time(self, trace: CallTrace, outcome: str, now_s: float) -> None:
        model = self._model(trace)
        error = "" if outcome == Outcome.COMPLETED else outcome
        duration = model.durations.get(error)
        if duration is None:
            duration = model.durations[error] = self._to.duration.labels(*model.labels, error)
        duration.observe(now_s - trace.started_s)
        first_s, usage = trace.first_token_s, trace.usage
        if trace.stream and first_s is not None and usage is not None:
            model.first_token.observe(first_s - trace.started_s)
            if usage.output_tokens > 1 and not error:
                model.per_token.observe((now_s - first_s) / (usage.output_tokens - 1))

    def _label(self, trace: CallTrace) -> str:
        if trace.tenant_id is None:
            return NOBODY
        return self.series.label(trace.tenant_id, is_known=trace.request is not None)

    def _tenant(self, trace: CallTrace) -> _OfTenant:
        label = self._label(trace)
        tenant = self._tenants.get(label)
        if tenant is None:
            tokens = self._to.tokens
            tenant = self._tenants[label] = _OfTenant(
                input=tokens.labels(label, INPUT),
                cached=tokens.labels(label, CACHED),
                output=tokens.labels(label, OUTPUT),
                waited=self._to.waited.labels(label),
            )
        return tenant

    def _model(self, trace: CallTrace) -> _OfModel:
        key = (trace.endpoint, trace.model or "", trace.tier_id or "")
        model = self._models.get(key)
        if model is None:
            name = key[1] if len(self._models) < MODELS_MAX else OTHER
            labels = (genai.operation(key[0]), name, key[2])
            model = _OfModel(labels, self._to.first_token.labels(*labels), self._to.per_token.labels(*labels))
            if name != OTHER:
                self._models[key] = model
        return model

    def _wait(self, tier_id: str, outcome: str) -> Histogram:
        wait = self._waits.get((tier_id, outcome))
        if wait is None:
            wait = self._waits[tier_id, outcome] = self._to.wait.labels(tier_id, outcome)
        return wait

    def _drop(self, label: str) -> None:
        """The tenant has no series of its own any more."""
        tenant = self._tenants.pop(label, None)
        if tenant is None:
            return
        for outcome in tenant.requests:
            self._to.requests.remove(label, outcome)
        for reason in tenant.refusals:
            self._to.refusals.remove(label, reason)
        for kind in (INPUT, CACHED, OUTPUT):
            self._to.tokens.remove(label, kind)
        self._to.waited.remove(label)


def outcome_of(trace: CallTrace) -> str:
    """How the call ended, as one of few words."""
    if trace.outcome is not None:
        return trace.outcome
    if trace.status < 400:
        return ANSWERED
    # Of what the gateway answers itself, above 499 there are only the scheduler's reasons.
    return REFUSED if trace.status < 500 or trace.reason in _SHED else Outcome.BACKEND_FAILED


def count_tokens(tenant: _OfTenant, usage: Usage) -> None:
    tenant.input.inc(usage.prompt_tokens)
    if usage.cached_tokens:
        tenant.cached.inc(usage.cached_tokens)
    tenant.output.inc(usage.output_tokens)
