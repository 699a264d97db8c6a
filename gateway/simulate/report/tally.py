"""Tally: sums over requests, added up as each ends; no request is kept after that.

Service is the tenant's view, as in the VTC paper: the price of prompt and output, spread from the first token to the
last. In each window of a minute, a tenant is owed its unserved demand, but at most its distance to the best-served
tenant (Sheng et al., OSDI 2024, section 5.1); `owed` is the mean over windows of the sum over tenants.
"""

from collections import Counter, defaultdict
from collections.abc import Mapping
from statistics import fmean

from backends.simulation.requests import RequestRecord
from gateway.simulate.report.series import LatencyHistogram, Timeline
from policies.accounts.cost import LinearPrice, Price

LINEAR = LinearPrice()  # of what tenants ask for: an output token costs two prompt tokens, as in the paper
OWED_WINDOW_S = 60.0


class TenantTally:
    """The sums over one tenant's requests in a simulated run, such as tokens, service and latencies. Mutable."""

    def __init__(self, timeline: Timeline) -> None:
        self.requests = 0
        self.served = 0
        self.prompt_tokens = 0
        self.output_tokens = 0
        self.refused: Counter[str] = Counter()
        self.ttft = LatencyHistogram()
        self.service = timeline.series()
        self.demand = timeline.series()


class Tally:
    """The sums over each tenant's requests in a simulated run, and the time at which the run ended. Mutable."""

    def __init__(self, price: Price, timeline: Timeline) -> None:
        self._price = price
        self._timeline = timeline
        self.tenants: defaultdict[str, TenantTally] = defaultdict(lambda: TenantTally(timeline))
        self.ended_at = 0.0
        self._writing_s: defaultdict[str, float] = defaultdict(float)  # by engine, from first tokens to last ones
        self._later_tokens: Counter[str] = Counter()  # by engine, those after the first ones

    def add(self, record: RequestRecord, *, now: float) -> None:
        """Add a request that ends now."""
        tenant = self.tenants[record.tenant_id]
        self.ended_at = max(self.ended_at, now)
        tenant.requests += 1
        if record.rejected is not None:
            tenant.refused[record.rejected.value] += 1
            return
        if record.first_token_latency_s is not None and not record.came_before:
            tenant.ttft.add(record.first_token_latency_s)
        if record.first_token_latency_s is None or record.total_latency_s is None:
            return
        tenant.served += 1
        tenant.prompt_tokens += record.prompt_tokens
        tenant.output_tokens += record.output_tokens
        engine = record.backend_id or ""
        self._writing_s[engine] += record.total_latency_s - record.first_token_latency_s
        self._later_tokens[engine] += record.output_tokens - 1
        arrived_at = record.arrived_at
        worth = self._price.service(record.prompt_tokens, 0, record.output_tokens)
        self._timeline.spread(
            tenant.service, arrived_at + record.first_token_latency_s, arrived_at + record.total_latency_s, worth
        )
        asked = LINEAR.service(record.prompt_tokens, 0, record.output_tokens)
        tenant.demand.put(self._timeline.bin_at(arrived_at), asked)

    def ttft(self) -> LatencyHistogram:
        """The TTFT of all tenants together."""
        together = LatencyHistogram()
        for tenant in self.tenants.values():
            together.merge(tenant.ttft)
        return together

    def tpot_s(self) -> float | None:
        """Seconds per output token after the first, as a mean over all tokens of served requests; None without any."""
        tokens = self._later_tokens.total()
        return sum(self._writing_s.values()) / tokens if tokens else None

    def engine_tpot_s(self) -> dict[str, float]:
        """The same of each engine that has written."""
        return {engine: self._writing_s[engine] / tokens for engine, tokens in self._later_tokens.items() if tokens}

    def owed(self) -> float:
        """The service per second that tenants were owed, as a mean over the run's windows."""
        if not self.tenants:
            return 0.0
        bins = max(1, round(OWED_WINDOW_S / self._timeline.bin_s))
        windows = self._timeline.bin_at(self.ended_at) // bins + 1
        service: list[dict[str, float]] = [{} for _ in range(windows)]
        demand: list[dict[str, float]] = [{} for _ in range(windows)]
        for tenant_id, tenant in self.tenants.items():
            for series, rates in ((tenant.service, service), (tenant.demand, demand)):
                for number, amount in series.bins.items():
                    here = rates[number // bins]
                    here[tenant_id] = here.get(tenant_id, 0.0) + amount / (bins * self._timeline.bin_s)
        return fmean(window_gap(got, asked) for got, asked in zip(service, demand, strict=True))


def window_gap(service: Mapping[str, float], demand: Mapping[str, float]) -> float:
    """Return the sum of the amounts that the tenants of one window are owed, from their rates of service and demand."""
    tenants = sorted(service.keys() | demand.keys())
    best = max((service.get(tenant, 0.0) for tenant in tenants), default=0.0)
    return sum(
        min(best - service.get(tenant, 0.0), abs(demand.get(tenant, 0.0) - service.get(tenant, 0.0)))
        for tenant in tenants
    )
