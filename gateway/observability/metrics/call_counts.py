"""CallMeter: counts calls by tenant and by model when they have ended; nothing is counted per token.

A tenant's counts are plain numbers; a model's histograms are looked up once and kept. Both are bounded: TenantSeries
selects the tenants with series of their own, and models beyond MODELS_MAX share "other".
"""

import logging
from collections import defaultdict
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from gateway.config.amounts import PICOS
from gateway.observability.metrics.histograms import Histogram, Labels
from gateway.observability.metrics.instruments import (
    ALIAS_CALLS,
    ALIAS_PASSED_ON,
    BACKEND_OVERSTATED,
    TENANT_COST,
    TENANT_REFUSALS,
    TENANT_REQUESTS,
    TENANT_TOKENS,
    TENANT_UNPRICED,
    TENANT_WAITED,
    Family,
    Histograms,
    Values,
)
from gateway.observability.metrics.tenant_series import OTHER, TenantSeries
from gateway.observability.telemetry import CallTrace
from gateway.observability.tracing import genai
from policies.types import Outcome, Reason, Usage

MODELS_MAX: Final = 50  # combinations of operation, model and tier
SERIES_MAX: Final = 500  # of a counter by names: a discovery may name any number of backends over time
SERVED, SHADOW = "served", "shadow"
UNKNOWN_TENANT: Final = "unknown"  # the tenant of a call without a valid key
ANSWERED: Final = "answered"  # by the gateway, or by a backend without the queue
REFUSED: Final = "refused"
DISPATCHED: Final = "dispatched"
INPUT, CACHED, OUTPUT = "input", "cached_input", "output"

log = logging.getLogger(__name__)

_SHED: Final = frozenset(Reason)


@dataclass(slots=True)
class _OfTenant:
    """The counts of one tenant, or of all tenants without series of their own."""

    requests: defaultdict[str, int] = field(default_factory=partial(defaultdict, int))  # by outcome
    refusals: dict[str, int] = field(default_factory=dict)  # by reason
    input: int = 0
    cached: int = 0
    output: int = 0
    costs: dict[str, int] = field(default_factory=dict)  # in picos, by currency
    unpriced: int = 0
    waited_s: float = 0.0


@dataclass(slots=True)
class _OfModel:
    """The series of one model in one tier."""

    labels: tuple[str, str, str]
    first_token: Histogram
    per_token: Histogram
    durations: dict[str, Histogram] = field(default_factory=dict)


class CallMeter:
    """The counter of ended calls, and of their latencies, for the metrics. Mutable."""

    def __init__(self, histograms: Histograms, tenants_max: int) -> None:
        self._to = histograms
        self._tenants: dict[str, _OfTenant] = {}
        self.series = TenantSeries(tenants_max, lambda label: self._tenants.pop(label, None))
        self._models: dict[tuple[str, str, str], _OfModel] = {}
        self._counted: dict[Family, Values] = {}  # by names that are no tenant's

    def ended(self, trace: CallTrace) -> None:
        if trace.request is not None and trace.outcome is None and trace.status < 400:
            return  # it only started a background response, which is counted when it ends
        outcome = outcome_of(trace)
        if trace.overstated:
            self._count_overstated(trace)
        if trace.alias is not None:
            self._count_alias(trace, trace.alias, outcome)
            if trace.is_shadow:
                return
        tenant = self._tenant(trace)
        tenant.requests[outcome] += 1
        if outcome == REFUSED:
            reason = trace.reason or ""
            tenant.refusals[reason] = tenant.refusals.get(reason, 0) + 1
        if trace.queued_s is not None:
            waited_s = (trace.ended_s if trace.dispatched_s is None else trace.dispatched_s) - trace.queued_s
            tenant.waited_s += waited_s
            ended = outcome if trace.dispatched_s is None else DISPATCHED
            self._to.wait.of(trace.tier_id or "", ended).observe(waited_s)
        if trace.pauses or trace.counted:
            self._count_events(trace)
        if trace.usage is not None:
            self._count_usage(tenant, trace, trace.usage)
        if trace.dispatched_s is not None and trace.model is not None:
            self._time(trace, outcome)

    def seen(self) -> dict[Family, Values]:
        """The counts of all calls, by tenant."""
        rows = self._tenants.items()
        kinds = ((INPUT, "input"), (CACHED, "cached"), (OUTPUT, "output"))
        return {
            TENANT_REQUESTS: {(label, each): n for label, row in rows for each, n in row.requests.items()},
            TENANT_REFUSALS: {(label, each): n for label, row in rows for each, n in row.refusals.items()},
            TENANT_TOKENS: {(label, kind): getattr(row, name) for label, row in rows for kind, name in kinds},
            TENANT_COST: {(label, each): n / PICOS for label, row in rows for each, n in row.costs.items()},
            TENANT_UNPRICED: {(label,): row.unpriced for label, row in rows if row.unpriced},
            TENANT_WAITED: {(label,): row.waited_s for label, row in rows},
            **{family: dict(values) for family, values in self._counted.items()},
        }

    def _count(self, family: Family, labels: Labels, kept: int = 0) -> float:
        """Count one more, and return the count. Beyond SERIES_MAX series, all labels but the last `kept` are OTHER."""
        values = self._counted.setdefault(family, {})
        if labels not in values and len(values) >= SERIES_MAX:
            shared = len(labels) - kept
            labels = (OTHER,) * shared + labels[shared:]
        values[labels] = values.get(labels, 0) + 1
        return values[labels]

    def _count_alias(self, trace: CallTrace, alias: str, outcome: str) -> None:
        kind = SHADOW if trace.is_shadow else SERVED
        self._count(ALIAS_CALLS, (alias, trace.model or "", kind, outcome), kept=2)
        for model, reason in trace.passed_on:
            self._count(ALIAS_PASSED_ON, (alias, model, reason), kept=1)

    def _count_events(self, trace: CallTrace) -> None:
        for cause, pause_s in trace.pauses:
            self._to.pause.of(trace.tier_id or "", cause).observe(pause_s)
        for family, labels in trace.counted:
            self._count(family, labels)

    def _count_overstated(self, trace: CallTrace) -> None:
        """Count an overstated usage of a backend, and log the first, the tenth, the hundredth ... call."""
        backend_id = trace.backend_id or ""
        count = self._count(BACKEND_OVERSTATED, (backend_id,))
        if set(str(count)[1:]) <= {"0"} and str(count)[0] == "1":
            log.warning(
                "backend %s reported more usage than call %s can have, which is charged its most, %s (%d calls so far)",
                backend_id,
                trace.request_id,
                trace.usage,
                count,
            )

    def _count_usage(self, tenant: _OfTenant, trace: CallTrace, usage: Usage) -> None:
        tenant.input += usage.prompt_tokens
        tenant.cached += usage.cached_tokens
        tenant.output += usage.output_tokens
        if trace.cost is not None and trace.currency is not None:
            tenant.costs[trace.currency] = tenant.costs.get(trace.currency, 0) + trace.cost
        elif trace.is_unpriced:
            tenant.unpriced += usage.prompt_tokens + usage.output_tokens
        if trace.request is not None:
            self.series.used(trace.request.tenant_id, usage.prompt_tokens + usage.output_tokens)

    def _time(self, trace: CallTrace, outcome: str) -> None:
        key, ended_s = (trace.endpoint, trace.model or "", trace.tier_id or ""), trace.ended_s
        model = self._models[key] if key in self._models else self._new_model(*key)
        error = "" if outcome == Outcome.COMPLETED else outcome
        if error not in model.durations:
            model.durations[error] = self._to.duration.of(*model.labels, error)
        model.durations[error].observe(ended_s - trace.started_s)
        first_s, usage = trace.first_token_s, trace.usage
        if trace.stream and first_s is not None and usage is not None:
            model.first_token.observe(first_s - trace.started_s)
            if usage.output_tokens > 1 and not error:
                model.per_token.observe((ended_s - first_s) / (usage.output_tokens - 1))

    def _tenant(self, trace: CallTrace) -> _OfTenant:
        label = UNKNOWN_TENANT
        if trace.tenant_id is not None:
            label = self.series.label(trace.tenant_id, is_known=trace.request is not None)
        if label not in self._tenants:
            self._tenants[label] = _OfTenant()
        return self._tenants[label]

    def _new_model(self, endpoint: str, model: str, tier_id: str) -> _OfModel:
        name = model if len(self._models) < MODELS_MAX else OTHER
        labels = (genai.operation(endpoint), name, tier_id)
        series = _OfModel(labels, self._to.first_token.of(*labels), self._to.per_token.of(*labels))
        if name != OTHER:
            self._models[endpoint, model, tier_id] = series
        return series


def outcome_of(trace: CallTrace) -> str:
    """The outcome of the call, as one of few label values."""
    if trace.outcome is not None:
        return trace.outcome
    if trace.status < 400:
        return ANSWERED
    # A status of 500 or more comes from the scheduler, with one of its reasons, or from a failed backend.
    return REFUSED if trace.status < 500 or trace.reason in _SHED else Outcome.BACKEND_FAILED
