"""Measures of the VTC paper's figures, on the records of a run."""

from collections.abc import Sequence

from gateway.simulate.report.tally import LINEAR
from tests.evidence.vtc_pool import PRICES, Run
from tests.simulation.fairness_metric import (
    accumulated_difference,
    accumulated_service,
    mean_ttft_s,
    service_difference,
    tenants_by_requests,
    throughput,
)

WARM_UP_S = 30.0
GRID_S = 30.0


def average(run: Run, price: str = "linear") -> float:
    return service_difference(run.records, price=PRICES[price]).average


def maximum(run: Run, price: str = "linear") -> float:
    return service_difference(run.records, price=PRICES[price]).maximum


def variance(run: Run, price: str = "linear") -> float:
    return service_difference(run.records, price=PRICES[price]).variance


def throughput_of(run: Run, price: str = "linear") -> float:
    """Return prompt and output tokens per second of the whole run."""
    return throughput(run.records, run.wall_s)


def preemptions(run: Run) -> float:
    return run.preemptions


def accepted(run: Run) -> float:
    return sum(record.rejected is None for record in run.records)


def service(run: Run, tenant: str, start_s: float = 0.0, end_s: float = 600.0) -> float:
    """Return a tenant's weighted tokens per second between two times."""
    since, until = accumulated_service(run.records, [start_s, end_s], price=LINEAR)[tenant]
    return (until - since) / (end_s - start_s)


def service_ratio(run: Run, one: str, other: str, start_s: float = 0.0, end_s: float = 600.0) -> float:
    return service(run, one, start_s, end_s) / service(run, other, start_s, end_s)


def gap(run: Run, since_s: float = WARM_UP_S, looked_at_from_s: float = 0.0, end_s: float = 600.0) -> float:
    """Return the greatest difference of two tenants' service since a time, on a grid of 30 s."""
    times = [since_s + GRID_S * number for number in range(round((end_s - since_s) / GRID_S) + 1)]
    differences = accumulated_difference(run.records, times)
    return max(value for value, time in zip(differences, times, strict=True) if time >= looked_at_from_s)


def last_gap(run: Run, end_s: float = 600.0) -> float:
    """Return the accumulated difference at the end."""
    return accumulated_difference(run.records, [WARM_UP_S, end_s])[-1]


def straightness(run: Run, end_s: float = 600.0) -> float:
    """Return twice the gap at half time over the last gap: 1 if the gap grows linearly."""
    half, whole = accumulated_difference(run.records, [WARM_UP_S, (WARM_UP_S + end_s) / 2, end_s])[1:]
    return 2 * half / whole


def ttft_s(run: Run, tenant: str) -> float:
    return mean_ttft_s(run.records)[tenant]


def ttft_s_by_rank(run: Run, rank: int) -> float:
    """Return the mean TTFT, in seconds, of the tenant with the most requests (rank 1), the second most, ..."""
    return ttft_s(run, tenants_by_requests(run.records)[rank - 1])


def ttft_s_p99(run: Run, tenant: str) -> float:
    return quantile([r.first_token_latency_s for r in run.records if r.tenant_id == tenant and r.served], 0.99)


def quantile(values: Sequence[float | None], ratio: float) -> float:
    ordered = sorted(value for value in values if value is not None)
    return ordered[min(int(ratio * len(ordered)), len(ordered) - 1)]
