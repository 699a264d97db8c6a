"""Run: the simulation of one policy on one trace, with the production Scheduler, simulated engines and a virtual clock.

Only the surroundings of the Scheduler are simulated: `TriedPolicy.make_scheduler` is the gateway's own function. Two
runs with equal arguments give equal findings.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import fsum
from types import MappingProxyType

from backends.engine.batching import BATCHING, CHUNK_TOKENS_MAX
from backends.engine.coefficients import StepCoefficients
from backends.engine.engine import Engine
from backends.engine.kv_memory import BlockMemory, KvMemory, OracleMemory
from backends.simulation.requests import Arrival
from backends.simulation.world import KnownSteps, World
from gateway.observability.metrics.service_gap import GapBound
from gateway.simulate.exposure import RunExposure
from gateway.simulate.observer import Observer
from gateway.simulate.report.findings import NO_GROUP, Curves, Figures, Findings, GroupFindings, Points, TenantFindings
from gateway.simulate.report.series import LatencyHistogram, Series, Timeline
from gateway.simulate.report.tally import Tally, TenantTally
from gateway.simulate.trace.arrivals import Demand
from policies.accounts.cost import Price
from policies.scheduler_protocol import ViewedSchedulerProtocol
from policies.types import Group, Tenant

TENANTS_DRAWN = 8  # the tenants with the highest and the lowest demand; all others share one line
REST = "all others"


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedFleet:
    """The specification of the engines of a simulated pool. `engine` is the name of their kind, which only reports
    show. All are equal, but the step times of each are multiplied by its number in `paces` (empty: by 1).
    """

    engine: str
    coefficients: StepCoefficients
    engines: int
    batching: str
    block_tokens: int
    requests_running_max: int
    kv_tokens_max: int | None = None
    paces: Sequence[float] = ()

    @property
    def kv_tokens(self) -> int:
        return self.kv_tokens_max or self.coefficients.kv_tokens_max

    @property
    def reserves_by_oracle(self) -> bool:
        """Whether engines reserve by the true output length, as in the VTC paper, whose engine shared no prefixes."""
        return self.batching == "separate-prefill"

    @property
    def request_tokens_max(self) -> int:
        """The prompt and output tokens of the largest request that an engine can run."""
        if self.reserves_by_oracle:
            return self.kv_tokens - OracleMemory(kv_tokens_max=self.kv_tokens).tenant_tokens - 1
        return self.kv_tokens // self.block_tokens * self.block_tokens

    def make(self) -> dict[str, Engine]:
        """Make new, empty engines."""
        paces = self.paces or [1.0] * self.engines
        return {f"engine-{number}": self._engine(pace) for number, pace in enumerate(paces, start=1)}

    def _engine(self, pace: float) -> Engine:
        coefficients = self.coefficients.scaled(pace)
        return Engine(
            coefficients,
            kv_tokens_max=self.kv_tokens,
            block_tokens=self.block_tokens,
            requests_running_max=self.requests_running_max,
            batching=BATCHING[self.batching](coefficients, self.kv_tokens, CHUNK_TOKENS_MAX),
            memory=self._memory(),
        )

    def _memory(self) -> KvMemory:
        if self.reserves_by_oracle:
            return OracleMemory(kv_tokens_max=self.kv_tokens)
        return BlockMemory(blocks_max=self.kv_tokens // self.block_tokens, block_tokens=self.block_tokens)


@dataclass(frozen=True, slots=True, kw_only=True)
class TriedPolicy:
    """A policy to simulate, with its price of service. `make_scheduler` makes the gateway's own Scheduler with this
    policy. `promise` is the policy's bound on the difference in service between two tenants; None: it has no bound.
    """

    label: str
    make_scheduler: Callable[[], ViewedSchedulerProtocol]
    price: Price
    price_text: str
    promise: GapBound | None


def simulate(
    policy: TriedPolicy,
    arrivals: Iterable[Arrival],
    *,
    fleet: SimulatedFleet,
    tenant_of: Callable[[str], Tenant],
    groups: Mapping[str, Group] = MappingProxyType({}),
) -> Findings:
    """Run the arrivals under the policy until the last request has ended. Raises ValueError without arrivals. `groups`
    has the tenants' groups, by id.
    """
    timeline = Timeline()
    engines = fleet.make()
    exposure = RunExposure(policy.price, kv_tokens=fleet.engines * fleet.kv_tokens, engines=fleet.engines)
    observer = Observer(
        policy.make_scheduler(),
        engines=engines,
        tenant_of=tenant_of,
        exposure=exposure,
        timeline=timeline,
        groups=groups,
    )
    steps = KnownSteps(learnt=True)  # as a gateway does from the moment it starts
    world = World(observer, engines, requests_running_max=fleet.requests_running_max, steps=steps)
    demand, tally = Demand(), Tally(policy.price, timeline)
    worth = policy.price.service
    for record in world.run(demand.counted(arrivals, lambda prompt, output: worth(prompt, 0, output))):
        tally.add(record, now=world.now)
    loudest_first = demand.loudest_first()
    if not loudest_first:
        raise ValueError("the trace has no call that can be simulated")
    quietest = demand.quietest()
    tenants = {
        tenant_id: _tenant(tally.tenants[tenant_id], tenant_of(tenant_id), asked_service)
        for tenant_id, asked_service in loudest_first.items()
    }
    return Findings(
        policy=policy.label,
        figures=_figures(policy, tally, observer, exposure, engines.values()),
        tenants=tenants,
        curves=_curves(timeline, tally, observer, list(loudest_first), quietest),
        loudest=next(iter(loudest_first)),
        quietest=quietest,
        groups=_grouped(tenants, {each: tenant_of(each).group_id for each in tenants}, groups),
        sessions=observer.session_findings(world.now),
        engine_tpot_s=tally.engine_tpot_s(),
    )


def _grouped(
    tenants: Mapping[str, TenantFindings], group_of: Mapping[str, str | None], groups: Mapping[str, Group]
) -> dict[str, GroupFindings]:
    if not any(group_of.values()):
        return {}
    members: dict[str, list[TenantFindings]] = {}
    for tenant_id, found in tenants.items():
        members.setdefault(group_of[tenant_id] or NO_GROUP, []).append(found)
    whole = fsum(found.service for found in tenants.values()) or 1.0
    findings = {name: _group(each, groups.get(name), whole) for name, each in members.items()}
    return dict(sorted(findings.items(), key=lambda item: -item[1].service))


def _group(tenants: list[TenantFindings], group: Group | None, whole: float) -> GroupFindings:
    service = fsum(each.service for each in tenants)
    return GroupFindings(
        tenants=len(tenants),
        weight=None if group is None else group.weight,
        requests=sum(each.requests for each in tenants),
        served=sum(each.served for each in tenants),
        asked_service=fsum(each.asked_service for each in tenants),
        service=service,
        share=service / whole,
    )


def _figures(
    policy: TriedPolicy, tally: Tally, observer: Observer, exposure: RunExposure, engines: Iterable[Engine]
) -> Figures:
    tenants = tally.tenants.values()
    duration_s = tally.ended_at or 1.0
    refused: Counter[str] = Counter()
    for tenant in tenants:
        refused.update(tenant.refused)
    prompt_tokens = sum(tenant.prompt_tokens for tenant in tenants)
    output_tokens = sum(tenant.output_tokens for tenant in tenants)
    ttft = tally.ttft()
    bound = None if policy.promise is None else exposure.promised(policy.promise)
    gauges = [engine.snapshot() for engine in engines]
    looked_up = sum(gauge.prefix_queries_total for gauge in gauges)
    found = sum(gauge.prefix_hits_total for gauge in gauges)
    return Figures(
        duration_s=tally.ended_at,
        requests=sum(tenant.requests for tenant in tenants),
        served=sum(tenant.served for tenant in tenants),
        refused=dict(sorted(refused.items())),
        throughput_tokens_per_s=(prompt_tokens + output_tokens) / duration_s,
        output_tokens_per_s=output_tokens / duration_s,
        jain=observer.shares.jain,
        jain_windows=observer.shares.windows,
        difference_max=observer.difference_max,
        difference_bound=bound,
        bound_used_ratio=observer.difference_max / bound if bound else None,
        owed_service_per_s=tally.owed(),
        ttft_p50_s=ttft.quantile(0.5),
        ttft_p99_s=ttft.quantile(0.99),
        tpot_s=tally.tpot_s(),
        preemptions=sum(gauge.preemptions_total for gauge in gauges),
        hit_ratio=found / looked_up if looked_up else None,
    )


def _tenant(tally: TenantTally, tenant: Tenant, asked_service: float) -> TenantFindings:
    return TenantFindings(
        requests=tally.requests,
        served=tally.served,
        refused=dict(sorted(tally.refused.items())),
        weight=tenant.weight,
        asked_service=asked_service,
        service=tally.service.total(),
        ttft_p50_s=tally.ttft.quantile(0.5),
        ttft_p99_s=tally.ttft.quantile(0.99),
    )


def _curves(timeline: Timeline, tally: Tally, observer: Observer, loudest_first: list[str], quietest: str) -> Curves:
    drawn, rest = loudest_first, []
    if len(loudest_first) > TENANTS_DRAWN:
        drawn = [*loudest_first[: TENANTS_DRAWN - 1], quietest]
        rest = [name for name in loudest_first if name not in drawn]
    bins = timeline.bin_at(tally.ended_at) + 1
    service = {name: _rates(timeline, [tally.tenants[name].service], bins) for name in drawn}
    ttft = {name: tuple(tally.tenants[name].ttft.cdf()) for name in drawn}
    if rest:
        service[REST] = _rates(timeline, [tally.tenants[name].service for name in rest], bins)
        together = LatencyHistogram()
        for name in rest:
            together.merge(tally.tenants[name].ttft)
        ttft[REST] = tuple(together.cdf())
    return Curves(
        bin_s=timeline.bin_s,
        service=service,
        difference=_points(timeline, observer.difference, bins),
        ttft=ttft,
        running=_points(timeline, observer.running, bins),
        queued=_points(timeline, observer.queued, bins),
        kv_ratio=_points(timeline, observer.kv_ratio, bins),
    )


def _points(timeline: Timeline, series: Series, bins: int) -> Points:
    return tuple((number * timeline.bin_s, series.bins.get(number, 0.0)) for number in range(bins))


def _rates(timeline: Timeline, several: list[Series], bins: int) -> Points:
    """The sum of these series, per second."""
    sums: Mapping[int, float] = {
        number: sum(series.bins.get(number, 0.0) for series in several) for number in range(bins)
    }
    return tuple((number * timeline.bin_s, total / timeline.bin_s) for number, total in sums.items())
