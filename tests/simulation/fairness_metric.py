"""Service-difference metric of the VTC paper, computed from per-request records.

A request's price is spread evenly from its first token to its last. In each of several overlapping windows every tenant
has a service rate and a demand rate. A tenant is owed its distance to the best served tenant, but at most its unserved
demand. The sum of these amounts over all tenants is the window's service difference (Sheng et al., "Fairness in Serving
Large Language Models", OSDI 2024, section 5.1). The formulas reproduce all rows of the paper's tables 2 to 6 from its
logs.

The paper's text gives the case of two tenants; its published code sums over tenants and takes the absolute value of
demand minus service, and so does this file. Demand is priced linearly whatever prices the service, as in the paper;
compare quadratic figures only with each other.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean, pvariance

from backends.simulation.requests import RequestRecord
from gateway.simulate.report.tally import LINEAR, window_gap
from policies.accounts.cost import Price

SPAN_S_MIN = 1e-5  # a shorter answer has no rate; the paper's code gives it no service


@dataclass(frozen=True, slots=True)
class Windows:
    """The windows over which a run is measured. The defaults are the paper's: 19 windows of 60 s in 600 s. Their
    centres divide the time after the warm-up into `steps` parts. An answer that ends before `ends_at_min_s` counts no
    service (an oddity of the paper's code, kept to reproduce its tables).
    """

    duration_s: float = 600.0
    warm_up_s: float = 30.0
    steps: int = 20
    window_s: float = 60.0
    ends_at_min_s: float = 1.0

    def scaled(self, factor: float) -> "Windows":
        """Return the same windows for a run whose time was multiplied by `factor`."""
        return Windows(
            duration_s=self.duration_s * factor,
            warm_up_s=self.warm_up_s * factor,
            steps=self.steps,
            window_s=self.window_s * factor,
            ends_at_min_s=self.ends_at_min_s * factor,
        )

    def spans(self) -> list[tuple[float, float]]:
        """Return start and end of every window, in seconds."""
        step_s = (self.duration_s - self.warm_up_s) / self.steps
        centres = (self.warm_up_s + step_s * number for number in range(1, self.steps))
        return [(centre - self.window_s / 2, centre + self.window_s / 2) for centre in centres]


PAPER_WINDOWS = Windows()


@dataclass(frozen=True, slots=True)
class ServiceDifference:
    """The service difference of a run over all windows, as in the paper's tables 2 to 6. Values are in service per
    second; the variance is in the square of that.
    """

    maximum: float
    average: float
    variance: float


def service_difference(
    records: Iterable[RequestRecord], *, price: Price = LINEAR, windows: Windows = PAPER_WINDOWS
) -> ServiceDifference:
    """Return the service difference of a run. Records that were not served count as neither service nor demand."""
    gaps = window_gaps(records, price=price, windows=windows)
    return ServiceDifference(maximum=max(gaps), average=fmean(gaps), variance=pvariance(gaps))


def window_gaps(
    records: Iterable[RequestRecord], *, price: Price = LINEAR, windows: Windows = PAPER_WINDOWS
) -> list[float]:
    """Return the service difference of every window, in service per second."""
    served = [record for record in records if record.served]
    services = service_rates(served, price=price, windows=windows)
    demands = demand_rates(served, windows=windows)
    return [window_gap(service, demand) for service, demand in zip(services, demands, strict=True)]


def service_rates(records: Iterable[RequestRecord], *, price: Price, windows: Windows) -> list[dict[str, float]]:
    """Return every tenant's service per second in each window."""
    spans = windows.spans()
    rates: list[dict[str, float]] = [defaultdict(float) for _ in spans]
    for record in records:
        answer = _answer_span(record, ends_at_min_s=windows.ends_at_min_s)
        if answer is None:
            continue
        start, end = answer
        rate = price.service(record.prompt_tokens, 0, record.output_tokens) / (end - start)
        for rates_here, (opens, closes) in zip(rates, spans, strict=True):
            overlap_s = min(end, closes) - max(start, opens)
            if overlap_s > 0:
                rates_here[record.tenant_id] += rate * overlap_s / windows.window_s
    return rates


def demand_rates(records: Iterable[RequestRecord], *, windows: Windows) -> list[dict[str, float]]:
    """Return every tenant's demand per second in each window: the linear price of the requests that arrived in it."""
    spans = windows.spans()
    rates: list[dict[str, float]] = [defaultdict(float) for _ in spans]
    for record in records:
        asked = LINEAR.service(record.prompt_tokens, 0, record.output_tokens) / windows.window_s
        for rates_here, (opens, closes) in zip(rates, spans, strict=True):
            if opens <= record.arrived_at < closes:
                rates_here[record.tenant_id] += asked
    return rates


def accumulated_service(
    records: Iterable[RequestRecord], times: Sequence[float], *, price: Price = LINEAR
) -> dict[str, list[float]]:
    """Return every tenant's service from the start of the run to each of `times` (ascending), in weighted tokens."""
    totals: dict[str, list[float]] = {}
    for record in records:
        series = totals.setdefault(record.tenant_id, [0.0] * len(times))
        answer = _answer_span(record)
        if answer is None:
            continue
        start, end = answer
        worth = price.service(record.prompt_tokens, 0, record.output_tokens)
        for number, time in enumerate(times):
            series[number] += worth * min(1.0, max(0.0, (time - start) / (end - start)))
    return totals


def accumulated_difference(records: Iterable[RequestRecord], times: Sequence[float]) -> list[float]:
    """Return the best less the worst tenant's service at each of `times`, counted from the first of them."""
    totals = accumulated_service(records, times)
    since_first = [[value - series[0] for value in series] for series in totals.values()]
    return [max(column) - min(column) for column in zip(*since_first, strict=True)]


def throughput(records: Iterable[RequestRecord], wall_s: float) -> float:
    """Return prompt and output tokens of served requests per second of the whole run, as the paper counts them."""
    return sum(record.prompt_tokens + record.output_tokens for record in records if record.served) / wall_s


def mean_ttft_s(records: Iterable[RequestRecord]) -> dict[str, float]:
    """Return every served tenant's mean time to first token, in seconds."""
    latencies: dict[str, list[float]] = defaultdict(list)
    for record in records:
        if record.first_token_latency_s is not None:
            latencies[record.tenant_id].append(record.first_token_latency_s)
    return {tenant: fmean(values) for tenant, values in latencies.items()}


def tenants_by_requests(records: Iterable[RequestRecord]) -> list[str]:
    """Return the tenants in order of the number of their requests, the largest first."""
    counts: dict[str, int] = defaultdict(int)
    for record in records:
        counts[record.tenant_id] += 1
    return sorted(counts, key=lambda tenant: (-counts[tenant], tenant))


def _answer_span(record: RequestRecord, *, ends_at_min_s: float = 0.0) -> tuple[float, float] | None:
    if record.first_token_latency_s is None or record.total_latency_s is None:
        return None
    start = record.arrived_at + record.first_token_latency_s
    end = record.arrived_at + record.total_latency_s
    return None if end - start < SPAN_S_MIN or end < ends_at_min_s else (start, end)
