"""SchedulerMetrics: metrics that are read from the schedulers: queues, backends, each tenant's service, the service
gap.

A look (a sample of all pools) takes milliseconds for a thousand tenants, for which no call should wait. So it is taken
in slices with a turn of the event loop between them, every second, or less often if looks would use more than
TIME_RATIO_MAX of the time. No look is on the path of a call.
"""

import asyncio
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Final, NamedTuple, Protocol

from gateway.config.scheduling import Scheduling
from gateway.observability.limit_log import LimitLog, binds
from gateway.observability.metrics import instruments as to
from gateway.observability.metrics.histograms import HistogramFamily, Labels
from gateway.observability.metrics.instruments import Family, Values
from gateway.observability.metrics.service_gap import (
    WINDOWS_S,
    Evenness,
    ServiceGap,
    TenantService,
    gap_bound_of,
)
from gateway.observability.metrics.tenant_series import OTHER, TenantSeries
from gateway.scheduling.dispatcher import Dispatcher
from gateway.tasks import in_turns
from policies.types import Attainment, BackendView, Cause, SessionsView, SizeSource, Snapshot, TenantView

SLICE_TENANTS: Final = 100
INTERVAL_S: Final = 1.0
TIME_RATIO_MAX: Final = 0.01  # of the event loop's time, for looks
NOTHING: Final = Attainment()
BY_TENANT: Final = (to.TENANT_SERVICE, *to.TENANT_SLO)  # the counters with a tenant label

Of = tuple[str, str]  # a pool and one of its tenants


class TierGap(NamedTuple):
    """The service gap of one tier: the largest difference in service over weight between two waiting tenants. `bound`
    is the largest gap that the policy guarantees; None: it guarantees none. `jain_index` is Jain's fairness index;
    None: no tenant received service.
    """

    gap: float
    bound: float | None
    jain_index: float | None


class PoolWatch(Protocol):
    """An observer of the tenants of one pool in one sample for the metrics: it gets all of them, some at a time."""

    def saw(self, views: Mapping[str, TenantView]) -> None:
        """Some of the pool's tenants were seen."""
        ...

    def ended(self) -> None:
        """All of the pool's tenants were seen."""
        ...


class LookWatch(Protocol):
    """An observer of all pools: for each pool that is sampled for the metrics, it may give a PoolWatch."""

    def look(self, pool: str, snapshot: Snapshot) -> PoolWatch | None:
        """A look at this pool begins. Returns an observer for its tenants, or None if they are not of interest."""
        ...

    async def looked(self) -> None:
        """The look at all pools is over. If the Schedulers run elsewhere, it had no pools."""
        return

    def replaced(self) -> None:
        """The Schedulers are new ones, which count from zero."""
        ...


@dataclass(slots=True)
class _Look:
    """The result of one look at all pools. `services` has the most service that each tenant has ever had."""

    seen: defaultdict[Family, Values] = field(default_factory=lambda: defaultdict(dict))
    services: dict[Of, float] = field(default_factory=dict)
    attained: dict[Of, Attainment] = field(default_factory=dict)


class SchedulerMetrics:
    """The metrics that are read from the Schedulers of all pools, by a sample (`look`) about once a second. Mutable."""

    def __init__(
        self,
        dispatchers: Mapping[str, Dispatcher],
        *,
        led: Callable[[], bool],
        series: TenantSeries,
        session_wait: HistogramFamily,
        scheduling_of: Callable[[str], Scheduling],
        watches: Sequence[LookWatch] = (),
    ) -> None:
        """`led`: whether the Schedulers of these dispatchers run in this process; if not, another process reports their
        metrics. `scheduling_of` returns the present scheduling of a pool. `watches` get the results of the looks.
        """
        self._watches = watches
        self._dispatchers, self._led = dispatchers, led
        self._series, self._session_wait = series, session_wait
        self._scheduling_of = scheduling_of
        self._limits = LimitLog()
        self._gaps: dict[str, tuple[Scheduling, ServiceGap]] = {}
        self._last = _Look()
        self._generation = 0  # of Schedulers
        self._charged: defaultdict[Family, Values] = defaultdict(dict)  # the counters
        self.seen: Mapping[Family, Values] = {}
        self.gaps: dict[str, Mapping[str, TierGap]] = {}
        """The service gaps of the tiers in which tenants have waited side by side, by pool and tier."""
        self._looking = asyncio.Lock()
        self._looked_at = float("-inf")

    def replaced(self) -> None:
        """The Schedulers are new ones, which count from zero."""
        self._last = _Look()
        self._generation += 1
        for watch in self._watches:
            watch.replaced()

    async def run(self) -> None:
        """Look at all pools repeatedly, until cancelled."""
        while True:
            began = time.process_time()
            await self.look()
            await asyncio.sleep(max(INTERVAL_S, (time.process_time() - began) / TIME_RATIO_MAX))

    async def look(self, age_s_max: float = 0.0) -> None:
        """Look at all pools, unless the latest look is younger than `age_s_max` seconds."""
        async with self._looking:
            if time.monotonic() - self._looked_at < age_s_max:
                return
            look, generation = _Look(), self._generation
            for pool, dispatcher in list(self._dispatchers.items()):
                if self._led():
                    await self._look_at(pool, dispatcher, look)
                else:
                    await self._look_at_tenants(dispatcher)
            for watch in self._watches:
                await watch.looked()
            now = time.monotonic()
            # The old look goes, and with it what it has of removed tenants; one at other Schedulers says nothing.
            self._last = look if generation == self._generation else _Look()
            self._series.looked(now)
            look.seen[to.TENANTS][()] = self._series.known
            look.seen[to.TENANT_SERIES][()] = self._series.shown
            self._forget_hidden()
            self.seen, self._looked_at = {**look.seen, **{each: dict(by) for each, by in self._charged.items()}}, now

    async def _look_at(self, pool: str, dispatcher: Dispatcher, look: _Look) -> None:
        snapshot, seen = dispatcher.snapshot(()), look.seen
        _see_pool(pool, snapshot, seen)
        if snapshot.sessions is not None:
            _see_sessions(pool, snapshot.sessions, seen)
            waits = self._session_wait.of(pool)
            waits.counts[:], waits.sum = snapshot.sessions.wait_counts, snapshot.sessions.wait_s
        for backend_id, backend in snapshot.backends.items():
            _see_backend((pool, backend_id), backend, seen)
            _see_limit((pool, backend_id), backend, snapshot, seen)
            self._limits.see(pool, backend_id, backend, queued_requests=snapshot.queued_requests, now=snapshot.now)
            _see_steps((pool, backend_id), backend, seen)
        found = (each.look(pool, snapshot) for each in self._watches)
        watching = [each for each in found if each is not None]
        standings: dict[str, TenantService] = {}
        async for tenants in in_turns(list(dispatcher.tenants()), SLICE_TENANTS):
            views = dispatcher.tenant_views([tenant.id for tenant in tenants])
            for tenant in tenants:
                view = views.get(tenant.id)
                if view is not None:
                    standings[tenant.id] = TenantService(
                        tenant.tier_id, tenant.weight, view.service, view.waiting_spell, tenant.group_id
                    )
                    self._see_tenant((pool, tenant.id), view, look)
            for watch in watching:
                watch.saw(views)
        seen[to.POOL_TENANTS_WAITING][(pool,)] = sum(each.waiting_spell > 0 for each in standings.values())
        for watch in watching:
            watch.ended()
        self.gaps[pool] = await self._see_gaps(pool, snapshot, standings)
        for tier_id, gap in self.gaps[pool].items():
            _see_gap((pool, tier_id), gap, seen)

    async def _look_at_tenants(self, dispatcher: Dispatcher) -> None:
        """Choose the tenants with series by the calls that this process counts, while another one leads."""
        async for tenants in in_turns(list(dispatcher.tenants()), SLICE_TENANTS):
            for tenant in tenants:
                self._series.saw(tenant.id)

    def _see_tenant(self, of: Of, view: TenantView, look: _Look) -> None:
        pool, tenant_id = of
        before = self._last.services.get(of, 0.0)
        # A refund lowers the service. A counter must not fall, so it stays until the service has passed its maximum.
        received = max(0.0, view.service - before)
        look.services[of] = before + received
        labels = (pool, self._series.saw(tenant_id, received))
        if received:
            self._charge(to.TENANT_SERVICE, labels, received)
            self._charge(to.POOL_SERVICE, (pool,), received)
        if view.attainment.requests or view.attainment.refused:
            look.attained[of] = view.attainment
            self._see_attained(labels, self._last.attained.get(of, NOTHING), view.attainment)
        for family, value in (
            (to.TENANT_QUEUED, view.queued_requests),
            (to.TENANT_IN_FLIGHT, view.in_flight_requests),
            (to.TENANT_IN_FLIGHT_TOKENS, view.in_flight_tokens),
        ):
            by = look.seen[family]
            by[labels] = by.get(labels, 0) + value

    def _see_attained(self, labels: Labels, before: Attainment, now: Attainment) -> None:
        """Add the increase of a tenant's counts, because a label such as "other" stands for varying tenants."""
        if now == before:
            return
        for (family, key, count), (_, _, counted) in zip(
            to.TENANT_SLO.rows(labels, now), to.TENANT_SLO.rows(labels, before), strict=True
        ):
            self._charge(family, key, max(0, count - counted))

    def _charge(self, family: Family, labels: Labels, amount: float) -> None:
        by = self._charged[family]
        by[labels] = by.get(labels, 0) + amount

    async def _see_gaps(
        self, pool: str, snapshot: Snapshot, standings: Mapping[str, TenantService]
    ) -> dict[str, TierGap]:
        """The gap of each tier in which tenants have waited side by side."""
        scheduling = self._scheduling_of(pool)
        known = self._gaps.get(pool)
        if known is None or known[0] != scheduling:  # the bound holds only between changes
            known = self._gaps[pool] = (scheduling, ServiceGap(WINDOWS_S))
        promise = gap_bound_of(scheduling)
        gaps: dict[str, TierGap] = {}
        found: dict[str, Evenness] = {}
        for _ in known[1].observing(snapshot.now, standings, found):
            await asyncio.sleep(0)
        for tier_id, evenness in found.items():
            bound = None
            if promise is not None and promise.is_lasting:
                await asyncio.sleep(0)
                waiting = [each for each in standings.values() if each.tier_id == tier_id and each.waiting_spell]
                weight_min = min((each.weight for each in waiting), default=1.0)
                bound = promise.gap_max(snapshot.service_in_flight_max, weight_min)
            gaps[tier_id] = TierGap(evenness.gap, bound, evenness.jain_index)
        return gaps

    def _forget_hidden(self) -> None:
        """Drop the counters of tenants that were removed, or have lost their series."""
        for by in (self._charged[family] for family in BY_TENANT):
            for labels in [labels for labels in by if labels[1] != OTHER and not self._series.shows(labels[1])]:
                del by[labels]


def _see_pool(pool: str, snapshot: Snapshot, seen: Mapping[Family, Values]) -> None:
    seen[to.POOL_QUEUED][(pool,)] = snapshot.queued_requests
    seen[to.POOL_QUEUED_BYTES][(pool,)] = snapshot.queued_bytes
    seen[to.POOL_IN_FLIGHT][(pool,)] = snapshot.in_flight_requests
    seen[to.POOL_SENT_AGAIN][(pool,)] = snapshot.sent_again_tokens
    for cause in Cause:
        seen[to.POOL_INTERRUPTIONS][pool, cause] = snapshot.interruptions.get(cause, 0)
    for tier_id, attained in snapshot.attainment.items():
        for family, labels, count in to.TIER_SLO.rows((pool, tier_id), attained):
            seen[family][labels] = count


def _see_sessions(pool: str, view: SessionsView, seen: Mapping[Family, Values]) -> None:
    seen[to.SESSIONS_HELD][(pool,)] = view.is_holding
    seen[to.SESSION_DEMAND][(pool,)] = view.demand_tokens
    seen[to.SESSION_PAUSES][(pool,)] = view.pauses
    seen[to.EXPECTED_CACHED][(pool,)] = view.expected_tokens
    seen[to.RECOMPUTED][(pool,)] = view.recomputed_tokens
    for state, count in view.states.items():
        seen[to.SESSIONS][pool, state] = count
    for backend_id, each in view.backends.items():
        seen[to.WORKING_SET][pool, backend_id] = each.tokens
        if each.tokens_max is not None:
            seen[to.WORKING_SET_LIMIT][pool, backend_id] = each.tokens_max


def _see_backend(labels: Labels, view: BackendView, seen: Mapping[Family, Values]) -> None:
    seen[to.BACKEND_UP][labels] = view.available
    seen[to.BACKEND_IN_FLIGHT][labels] = view.in_flight_requests
    seen[to.BACKEND_FOREIGN][labels] = view.external_requests
    seen[to.BACKEND_LIMIT][labels] = view.requests_limit
    seen[to.BACKEND_RESERVED][labels] = view.reserved_tokens
    seen[to.BACKEND_FOREIGN_TOKENS][labels] = view.external_tokens
    if view.tokens_limit is not None:
        seen[to.BACKEND_LIMIT_TOKENS][labels] = view.tokens_limit
    for tier_id, reserve in view.reserves.items():
        seen[to.BACKEND_RESERVE][*labels, tier_id] = reserve.sequences
        seen[to.BACKEND_RESERVE_TOKENS][*labels, tier_id] = reserve.tokens


def _see_limit(labels: Labels, view: BackendView, snapshot: Snapshot, seen: Mapping[Family, Values]) -> None:
    seen[to.BACKEND_SIZED][*labels, view.size] = view.size is not SizeSource.ASSUMED
    if view.sequences_max is not None:
        seen[to.BACKEND_LIMIT_SEQUENCES][labels] = view.sequences_max
        seen[to.BACKEND_LIMIT_BINDS][labels] = binds(view, snapshot.queued_requests)


def _see_steps(labels: Labels, view: BackendView, seen: Mapping[Family, Values]) -> None:
    """The backend's step-time model, and the limit that follows from it, as far as they are known."""
    believed, steps = view.step_time, view.steps
    if believed is not None:
        seen[to.BACKEND_STEP_ERROR][labels] = believed.error_ratio
        seen[to.BACKEND_STEP_SURE][labels] = believed.is_sure
        for name, seconds in asdict(believed.model).items():
            seen[to.BACKEND_COEFFICIENT][*labels, name.removesuffix("_s")] = seconds
    if steps is not None:
        seen[to.BACKEND_STEP][labels] = steps.step_s
        seen[to.BACKEND_PREFILL][labels] = steps.prefill_s
        seen[to.BACKEND_BUDGET][labels] = steps.budget_tokens
        if steps.step_s_max is not None:
            seen[to.BACKEND_LIMIT_STEP][labels] = steps.step_s_max


def _see_gap(labels: Labels, tier: TierGap, seen: Mapping[Family, Values]) -> None:
    seen[to.POOL_GAP][labels] = tier.gap
    if tier.bound is not None:
        seen[to.POOL_GAP_BOUND][labels] = tier.bound
    if tier.jain_index is not None:
        seen[to.POOL_JAIN][labels] = tier.jain_index
