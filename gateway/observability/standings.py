"""What is read off the schedulers: who waits, what runs, who has received what, how even that is.

A look at a thousand tenants takes milliseconds, which no call should wait for, so it is taken in slices with a turn
of the event loop between them; it is taken every second, or less often where that would take more than a hundredth of
the time. Nothing of it is on the path of a call.
"""

import asyncio
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice
from typing import Final

from backends.simulation.bounds import BOUNDS
from gateway.config.scheduling import Scheduling
from gateway.observability import instruments as to
from gateway.observability.histograms import Labels
from gateway.observability.instruments import Family, Values
from gateway.observability.service_gap import WINDOWS_S, Evenness, Promise, ServiceGap, Standing
from gateway.observability.tenant_series import OTHER, TenantSeries
from gateway.scheduling.dispatcher import Dispatcher
from policies.types import BackendView, Snapshot, Tenant, TenantView

SLICE_TENANTS: Final = 100
INTERVAL_S: Final = 1.0
TIME_RATIO_MAX: Final = 0.01  # of the event loop's time, for looking


class Standings:
    """The latest look at all pools. Mutable; `seen` is replaced by the next."""

    def __init__(
        self,
        dispatchers: Callable[[], Mapping[str, Dispatcher]],
        *,
        series: TenantSeries,
        scheduling_of: Callable[[str], Scheduling],
    ) -> None:
        """`scheduling_of` says how a pool is scheduled now."""
        self._dispatchers = dispatchers
        self._series = series
        self._scheduling_of = scheduling_of
        self._gaps: dict[str, tuple[Scheduling, ServiceGap]] = {}
        self._services: dict[tuple[str, str], float] = {}  # by pool and tenant, at the last look
        self._charged: defaultdict[Family, Values] = defaultdict(dict)  # what only grows
        self.seen: Mapping[Family, Values] = {}
        self._looking = asyncio.Lock()
        self._looked_at = float("-inf")

    async def run(self) -> None:
        """Look again and again."""
        while True:
            began = time.process_time()
            await self.look()
            await asyncio.sleep(max(INTERVAL_S, (time.process_time() - began) / TIME_RATIO_MAX))

    async def look(self, age_s_max: float = 0.0) -> None:
        """See how things stand, unless that was done so lately."""
        async with self._looking:
            if time.monotonic() - self._looked_at < age_s_max:
                return
            seen: defaultdict[Family, Values] = defaultdict(dict)
            services: dict[tuple[str, str], float] = {}
            for pool, dispatcher in list(self._dispatchers().items()):
                await self._look_at(pool, dispatcher, seen, services)
            now = time.monotonic()
            self._services = services  # those of tenants that are gone are gone with the old ones
            self._series.looked(now)
            seen[to.TENANTS][()] = self._series.known
            seen[to.TENANT_SERIES][()] = self._series.shown
            self._forget_hidden()
            self.seen, self._looked_at = {**seen, **{each: dict(by) for each, by in self._charged.items()}}, now

    async def _look_at(
        self, pool: str, dispatcher: Dispatcher, seen: Mapping[Family, Values], services: dict[tuple[str, str], float]
    ) -> None:
        snapshot = dispatcher.snapshot(())
        _see_pool(pool, snapshot, seen)
        for backend_id, backend in snapshot.backends.items():
            _see_backend((pool, backend_id), backend, seen)
        standings: dict[str, Standing] = {}
        for tenants in _slices(dispatcher.tenants()):
            views = dispatcher.tenant_views([tenant.id for tenant in tenants])
            for tenant in tenants:
                view = views.get(tenant.id)
                if view is not None:
                    standings[tenant.id] = Standing(tenant.tier_id, tenant.weight, view.service, view.waiting_spell)
                    services[pool, tenant.id] = self._see_tenant(pool, tenant.id, view, seen)
            await asyncio.sleep(0)
        seen[to.POOL_TENANTS_WAITING][(pool,)] = sum(each.waiting_spell > 0 for each in standings.values())
        self._see_gap(pool, snapshot, standings, seen)

    def _see_tenant(self, pool: str, tenant_id: str, view: TenantView, seen: Mapping[Family, Values]) -> float:
        """Returns the most service that it ever had."""
        before = self._services.get((pool, tenant_id), 0.0)
        # It falls where something is given back: what only grows waits for it to come back.
        received = max(0.0, view.service - before)
        labels = (pool, self._series.saw(tenant_id, received))
        if received:
            for family, key in ((to.TENANT_SERVICE, labels), (to.POOL_SERVICE, (pool,))):
                by = self._charged[family]
                by[key] = by.get(key, 0.0) + received
        for family, value in (
            (to.TENANT_QUEUED, view.queued_requests),
            (to.TENANT_IN_FLIGHT, view.in_flight_requests),
            (to.TENANT_IN_FLIGHT_TOKENS, view.in_flight_tokens),
        ):
            by = seen[family]
            by[labels] = by.get(labels, 0) + value
        return before + received

    def _see_gap(
        self, pool: str, snapshot: Snapshot, standings: Mapping[str, Standing], seen: Mapping[Family, Values]
    ) -> None:
        scheduling = self._scheduling_of(pool)
        known = self._gaps.get(pool)
        if known is None or known[0] != scheduling:  # what is promised is promised between changes
            known = self._gaps[pool] = (scheduling, ServiceGap(WINDOWS_S))
        promise = promise_of(scheduling)
        for tier_id, evenness in known[1].observe(snapshot.now, standings).items():
            _see_evenness((pool, tier_id), evenness, seen)
            if promise is not None:
                waiting = [each for each in standings.values() if each.tier_id == tier_id and each.waiting_spell]
                weight_min = min((each.weight for each in waiting), default=1.0)
                seen[to.POOL_GAP_BOUND][pool, tier_id] = promise.gap_max(snapshot.service_in_flight_max, weight_min)

    def _forget_hidden(self) -> None:
        """Drop what only grows of tenants that are gone, or have no series of their own any more."""
        by = self._charged[to.TENANT_SERVICE]
        for labels in [labels for labels in by if labels[1] != OTHER and not self._series.shows(labels[1])]:
            del by[labels]


def promise_of(scheduling: Scheduling) -> Promise | None:
    """What the policy promises of the pool's gap; None where nothing, where calls wait for one backend each (the
    promise is then of each queue), and where it ends whenever something is given back, which is all the time.
    """
    bound = BOUNDS[scheduling.fairness.policy]
    if bound is None or bound.until_refund or scheduling.has_queues_per_backend:
        return None
    ahead = float(scheduling.fairness.parameters()[bound.ahead]) if bound.ahead else 0.0
    return Promise(bound, ahead, is_capped=scheduling.share_ratio_max < 1)


def _slices(tenants: Iterable[Tenant]) -> Iterator[list[Tenant]]:
    """In parts of SLICE_TENANTS; of those that there are now."""
    rest = iter(list(tenants))
    while part := list(islice(rest, SLICE_TENANTS)):
        yield part


def _see_pool(pool: str, snapshot: Snapshot, seen: Mapping[Family, Values]) -> None:
    seen[to.POOL_QUEUED][(pool,)] = snapshot.queued_requests
    seen[to.POOL_QUEUED_BYTES][(pool,)] = snapshot.queued_bytes
    seen[to.POOL_IN_FLIGHT][(pool,)] = snapshot.in_flight_requests


def _see_backend(labels: Labels, view: BackendView, seen: Mapping[Family, Values]) -> None:
    seen[to.BACKEND_UP][labels] = view.available
    seen[to.BACKEND_IN_FLIGHT][labels] = view.in_flight_requests
    seen[to.BACKEND_FOREIGN][labels] = view.foreign_requests
    seen[to.BACKEND_LIMIT][labels] = view.requests_limit
    seen[to.BACKEND_RESERVED][labels] = view.reserved_tokens
    seen[to.BACKEND_FOREIGN_TOKENS][labels] = view.foreign_tokens
    if view.tokens_limit is not None:
        seen[to.BACKEND_LIMIT_TOKENS][labels] = view.tokens_limit


def _see_evenness(labels: Labels, evenness: Evenness, seen: Mapping[Family, Values]) -> None:
    seen[to.POOL_GAP][labels] = evenness.gap
    if evenness.jain_index is not None:
        seen[to.POOL_JAIN][labels] = evenness.jain_index
