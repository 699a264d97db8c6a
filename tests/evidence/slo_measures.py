"""Measures of the FairBatching paper's figures, on the records of a run.

A request counts if all of its tokens were in time: the first by the TTFT target, every other one by the envelope
(backends/simulation/answer_pace.py has both readings of time per output token). A rejected request was not in time.
"""

from collections.abc import Callable, Iterable
from math import inf, prod

from backends.simulation.requests import RequestRecord
from policies.slo.timeliness import ROUNDING_S
from policies.types import SloEnvelope
from tests.evidence.measures import quantile
from tests.evidence.slo_pool import SloOutcome

MS = 1000.0


def effective_per_s(outcome: SloOutcome, tenants: Iterable[str] | None = None) -> float:
    """Return the requests in time, of these tenants or all, per second of the arrivals' duration."""
    return sum(in_time(outcome, record) for record in _of(outcome, tenants)) / outcome.asks_s


def attainment(outcome: SloOutcome, tenants: Iterable[str] | None = None) -> float:
    """Return the part of all requests that was in time."""
    asked = _of(outcome, tenants)
    return sum(in_time(outcome, record) for record in asked) / max(len(asked), 1)


def strict_attainment(outcome: SloOutcome) -> float:
    """Return the same, with the mean time per token since the first one also within the TPOT target."""
    return sum(
        in_time(outcome, each) and (each.tpot_s or 0.0) <= (outcome.envelopes[each.tenant_id].tpot_s or inf)
        for each in outcome.records
    ) / len(outcome.records)


def ttft_ms(outcome: SloOutcome, ratio: float) -> float:
    """Return a quantile of the served requests' TTFT, in ms."""
    return quantile([record.first_token_latency_s for record in outcome.records], ratio) * MS


def tpot_ms(outcome: SloOutcome, ratio: float) -> float:
    """Return a quantile of time per token since the first token came, in ms."""
    return quantile([record.tpot_s for record in outcome.records], ratio) * MS


def tpot_envelope_ms(outcome: SloOutcome, ratio: float) -> float:
    """Return a quantile of time per token since the first token was due, or came if that was later, in ms."""
    return quantile([record.tpot_envelope_s for record in outcome.records], ratio) * MS


def is_inside(envelope: SloEnvelope, *, ttft_s: float | None, tpot_envelope_s: float | None) -> bool:
    """Whether an ended answer met its targets; a target of None is met."""
    if ttft_s is None:
        return False
    if envelope.ttft_s is not None and ttft_s > envelope.ttft_s + ROUNDING_S:
        return False
    return envelope.tpot_s is None or tpot_envelope_s is None or tpot_envelope_s <= envelope.tpot_s + ROUNDING_S


def in_time(outcome: SloOutcome, record: RequestRecord) -> bool:
    return record.served and is_inside(
        outcome.envelopes[record.tenant_id],
        ttft_s=record.first_token_latency_s,
        tpot_envelope_s=record.tpot_envelope_s,
    )


def geometric_mean(values: Iterable[float]) -> float:
    values = list(values)
    return prod(values) ** (1 / len(values))


def ratio_of(measure: Callable[[SloOutcome], float]) -> Callable[[SloOutcome, SloOutcome], float]:
    """Return the ratio of one outcome's measure to another's; infinite over zero."""
    return lambda one, other: measure(one) / measure(other) if measure(other) else inf


def _of(outcome: SloOutcome, tenants: Iterable[str] | None) -> list[RequestRecord]:
    if tenants is None:
        return list(outcome.records)
    names = frozenset(tenants)
    return [record for record in outcome.records if record.tenant_id in names]
