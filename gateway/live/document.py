"""LiveDocument: makes the document with everything that the live page shows now (schema.py).

The document is made from the latest samples of the schedulers (record.py), the calls that ended lately (ended.py) and
the backends' polls. It takes some ten microseconds per tenant, so it is made in slices, with turns of the event loop
between them. Values over a long window are computed anew only when that window has moved.
"""

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from math import inf
from typing import Any, Final

from msgspec.structs import replace

from backends.pool import BackendPool
from gateway.live.bottleneck import BackendsSeen
from gateway.live.ended import NO_POOL, EndedEverywhere
from gateway.live.gaps import LiveGaps, rounded
from gateway.live.record import LiveRecord, PoolRecord
from gateway.live.schema import (
    ASKS,
    DRAINING,
    LIMIT,
    ClusterView,
    LivePageBackend,
    LivePageDocument,
    LivePageGateway,
    LivePageGroup,
    LivePagePool,
    LivePageSession,
    LivePageSessions,
    LivePageTenant,
    LivePageTier,
    LivePageWorkingSet,
)
from gateway.live.shares import ShareParts, WindowShares, shares_of
from gateway.live.windows import (
    CACHED_TOKENS,
    NOTHING,
    OUTPUT_TOKENS,
    PROMPT_TOKENS,
    SERVICE,
    SLO_MET,
    SLO_REQUESTS,
    Amounts,
)
from gateway.observability.metrics.scheduler_metrics import TierGap
from gateway.tasks import in_turns
from policies.types import Group, SessionState, SessionsView, SessionView, Snapshot, Tenant, TenantView, Tier, Wait

SLICE_TENANTS: Final = 100
CLOCKS_AGREE_S: Final = 1.0  # times are shown to the second
SHORT, LONG = 0, -1  # windows by number
IDLE: Final = TenantView(0, 0, 0, 0, 0.0, 0.0, 0.0)
FOR_BACKENDS: Final = (Wait.NO_ROOM, Wait.BACKENDS_HELD, Wait.NO_BACKEND)
"""Reasons to wait that lie in the backends."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sources:
    """The parts of a gateway that LiveDocument reads, besides the LiveRecord, each time that it makes the live document
    (the data of the live page). `gaps` are service gaps by pool and tier. `pace_of` gives the measured seconds per
    token of one sequence at a backend; None: not known.
    """

    gateway: Callable[[], LivePageGateway]
    cluster: Callable[[], ClusterView]
    policy_of: Callable[[str], str]
    tiers: Mapping[str, Tier]
    groups: Mapping[str, Group]
    find_tenant: Callable[[str], Tenant | None]
    backends: BackendPool
    gaps: Mapping[str, Mapping[str, TierGap]]
    pace_of: Callable[[str], float | None]
    ended: EndedEverywhere
    wall_clock: Callable[[], float]


@dataclass(slots=True)
class _Lately:
    """What is kept of one pool for documents to come."""

    backends: BackendsSeen = field(default_factory=BackendsSeen)
    gaps: LiveGaps = field(default_factory=LiveGaps)
    ahead_s: float = -inf
    """By how much the wall clock is ahead of the loop's, which is the pool's. It is kept while it is right: a time that
    stays is the same in each document, and is not sent again.
    """

    def compare_clocks(self, wall_clock: float, now: float) -> None:
        if abs(wall_clock - now - self.ahead_s) > CLOCKS_AGREE_S:
            self.ahead_s = wall_clock - now


@dataclass(slots=True)
class _Queues:
    """The requests of some tenants, and how many of these tenants wait for more than their own limits."""

    queued: int = 0
    in_flight: int = 0
    waiting_tenants: int = 0

    def add(self, view: TenantView) -> None:
        self.queued += view.queued_requests
        self.in_flight += view.in_flight_requests
        self.waiting_tenants += view.waiting_spell > 0


@dataclass(slots=True)
class _Sums:
    """Sums over the tenants of one pool. Mutable."""

    tiers: dict[str, _Queues]
    groups: dict[str, _Queues] = field(default_factory=dict)
    tokens: float = 0.0
    oldest_at: float | None = None
    waits_for_backends: bool = False

    def add(self, tenant: Tenant, view: TenantView, lately: Amounts) -> None:
        self.tiers.setdefault(tenant.tier_id, _Queues()).add(view)  # it may be newer than the looks
        if tenant.group_id is not None:
            self.groups.setdefault(tenant.group_id, _Queues()).add(view)
        self.tokens += lately[PROMPT_TOKENS] + lately[OUTPUT_TOKENS]
        self.waits_for_backends |= view.waits in FOR_BACKENDS
        if view.oldest_at is not None and (self.oldest_at is None or view.oldest_at < self.oldest_at):
            self.oldest_at = view.oldest_at


class LiveDocument:
    """The maker of the live document, the data of the live page. Mutable: it keeps what the next document needs, such
    as tenants' shares of service and recent samples of backends.
    """

    def __init__(self, record: LiveRecord, sources: Sources) -> None:
        self._record = record
        self._from = sources
        self._shares_of: dict[str, list[tuple[int, WindowShares]]] = {}  # by pool; with the reading that they are of
        self._lately: dict[str, _Lately] = {}  # by pool

    async def make(self) -> LivePageDocument:
        """The document as of the latest samples."""
        pools = {}
        for pool, record in list(self._record.pools.items()):
            if record.snapshot is not None:
                pools[pool] = await self._pool(pool, record, record.snapshot)
        self._shares_of = {pool: each for pool, each in self._shares_of.items() if pool in pools}
        self._lately = {pool: each for pool, each in self._lately.items() if pool in pools}
        return LivePageDocument(
            at=round(self._from.wall_clock(), 1),
            gateway=self._from.gateway(),
            cluster=self._from.cluster(),
            keys_refused=sum(self._from.ended.refused(NO_POOL).values()),
            pools=pools,
        )

    async def _pool(self, pool: str, record: PoolRecord, snapshot: Snapshot) -> LivePagePool:
        ended = self._from.ended
        tiers = {tier_id: self._from.tiers.get(tier_id, Tier(tier_id)) for tier_id in snapshot.attainment}
        shares = await self._shares(pool, record, {tier_id: each.weight for tier_id, each in tiers.items()})
        of_tiers, of_groups = [each.tiers for each in shares], [each.groups for each in shares]
        sums = _Sums({tier_id: _Queues() for tier_id in tiers})
        kept = self._lately.setdefault(pool, _Lately())
        kept.compare_clocks(self._from.wall_clock(), asyncio.get_running_loop().time())
        tenants = await self._tenants(pool, record, snapshot.now, [each.tenants for each in shares], sums)
        waiting = {tier_id: each.waiting_tenants for tier_id, each in sums.tiers.items()}
        kept.gaps.saw(self._from.gaps.get(pool, {}), waiting, snapshot.now)
        backends = self._backends(snapshot, kept.ahead_s)
        kept.backends.saw(backends, waits=sums.waits_for_backends, now=snapshot.now)
        compared = kept.backends.compared()
        return LivePagePool(
            policy=self._from.policy_of(pool),
            queued=sum(each.queued for each in sums.tiers.values()),  # as oldest_wait_s: looks at tenants come later
            in_flight=snapshot.in_flight_requests,
            oldest_wait_s=_age(sums.oldest_at, snapshot.now),
            tokens_per_s=round(max(0.0, sums.tokens / (record.windows[SHORT].covered_s or inf)), 1),
            refused=dict(ended.refused(pool)),
            passed_on={alias: dict(reasons) for alias, reasons in ended.passed_on(pool).items()},
            tiers={
                tier_id: LivePageTier(
                    **_member(tier_id, tier.weight, sums.tiers[tier_id], of_tiers),
                    **kept.gaps.shown(tier_id, snapshot.now),
                    attainment=snapshot.attainment[tier_id],
                )
                for tier_id, tier in tiers.items()
            },
            groups={
                group_id: LivePageGroup(tier=group.tier_id, **_member(group_id, group.weight, queues, of_groups))
                for group_id, queues in sums.groups.items()
                if (group := self._from.groups.get(group_id)) is not None
            },
            bottleneck=kept.backends.bottleneck(compared),
            sessions=None if snapshot.sessions is None else _sessions(snapshot.sessions),
            backends={each: replace(shown, **compared[each]) for each, shown in backends.items()},
            tenants=tenants,
        )

    async def _tenants(
        self, pool: str, record: PoolRecord, now: float, parts: Sequence[ShareParts], sums: _Sums
    ) -> dict[str, LivePageTenant]:
        """The tenants that have anything to show, which are added to `sums`; with turns of the event loop."""
        ahead_s = self._lately[pool].ahead_s
        rows, ended, short, long = {}, self._from.ended, record.windows[SHORT], record.windows[LONG]
        members, per_s = chain(record.tenants.items(), self._refused_only(pool, record)), 1 / (short.covered_s or inf)
        async for some in in_turns(members, SLICE_TENANTS):
            for tenant_id, (tenant, view) in some:
                refused = ended.refused_of(pool, tenant_id)
                is_served = view.queued_requests or view.in_flight_requests or tenant_id in long.amounts
                if not is_served and not refused:
                    continue
                lately, longer = short.amounts.get(tenant_id, NOTHING), long.amounts.get(tenant_id, NOTHING)
                sums.add(tenant, view, lately)
                ttft_s, tpot_s = ended.latencies(pool, tenant_id)
                rows[tenant_id] = LivePageTenant(
                    tier=tenant.tier_id,
                    group=tenant.group_id,
                    weight=tenant.weight,
                    queued=view.queued_requests,
                    in_flight=view.in_flight_requests,
                    oldest_wait_s=_age(view.oldest_at, now),
                    share=tuple([each.got.get(tenant_id, 0.0) for each in parts]),
                    due=tuple([each.due.get(tenant_id, 0.0) for each in parts]),
                    backlogged=tuple([each.asks.get(tenant_id, 0.0) is None for each in parts]),
                    by_weight=tuple([each.by_weight.get(tenant_id, 0.0) for each in parts]),
                    due_by=tuple([_due_by(tenant_id, view, each) for each in parts]),
                    service_per_s=round(max(0.0, lately[SERVICE] * per_s), 1),
                    output_tokens_per_s=round(max(0.0, lately[OUTPUT_TOKENS] * per_s), 1),
                    ttft_s=ttft_s,
                    tpot_s=tpot_s,
                    cached_ratio=_ratio(longer[CACHED_TOKENS], longer[PROMPT_TOKENS]),
                    attainment_ratio=_ratio(longer[SLO_MET], longer[SLO_REQUESTS]),
                    refused=sum(refused.values()),
                    refused_by=dict(refused),
                    waits=view.waits,
                    sessions=[_session(each, ahead_s) for each in view.sessions],
                    session_states=dict(view.session_states),
                )
        return rows

    def _refused_only(self, pool: str, record: PoolRecord) -> Iterator[tuple[str, tuple[Tenant, TenantView]]]:
        """Tenants whose calls were all refused before the scheduler was told of any."""
        for tenant_id in self._from.ended.refused_tenants(pool):
            if tenant_id not in record.tenants and (tenant := self._from.find_tenant(tenant_id)) is not None:
                yield tenant_id, (tenant, IDLE)

    async def _shares(self, pool: str, record: PoolRecord, tier_weights: Mapping[str, float]) -> list[WindowShares]:
        """The shares of every window; those of a window that was not read since are as they were."""
        known = self._shares_of.get(pool, [])
        group_weights = {group_id: each.weight for group_id, each in self._from.groups.items()}
        found = []
        for number, window in enumerate(record.windows):
            if number < len(known) and known[number][0] == window.readings:
                found.append(known[number])
            else:
                found.append((window.readings, shares_of(window, record.tenants, tier_weights, group_weights)))
                await asyncio.sleep(0)
        self._shares_of[pool] = found
        return [shares for _, shares in found]

    def _backends(self, snapshot: Snapshot, ahead_s: float) -> dict[str, LivePageBackend]:
        """The backends of a pool, without what compares them."""
        backends, shown = self._from.backends, {}
        known = backends.states()
        for backend_id, view in snapshot.backends.items():
            is_known = backend_id in known
            live = backends[backend_id] if is_known else None
            is_draining = live is not None and live.draining
            lost_at = None if live is None else live.unavailable_at
            shown[backend_id] = LivePageBackend(
                available=view.available,
                draining=is_draining,
                unavailable_since=None if lost_at is None else round(lost_at + ahead_s, 1),
                trouble=None if live is None else live.last_error or None,
                in_flight=view.in_flight_requests,
                requests_limit=view.requests_limit,
                size=view.size,
                tokens=view.reserved_tokens,
                tokens_limit=view.tokens_limit,
                queued_there=backends.load(backend_id).requests_waiting or 0 if is_known else 0,
                external_requests=view.external_requests,
                external_tokens=view.external_tokens,
                step_s=None if view.steps is None else rounded(view.steps.step_s, 5),
                step_measured_s=rounded(self._from.pace_of(backend_id), 5),
                bound_by=DRAINING if is_draining else view.bound_by,
                reserves={tier_id: each.sequences for tier_id, each in view.reserves.items() if each.sequences},
                working_set=_working_set(snapshot.sessions, backend_id),
            )
        return shown


def _sessions(view: SessionsView) -> LivePageSessions:
    states = view.states
    return LivePageSessions(
        holding=view.is_holding,
        running=states[SessionState.RUNNING],
        idle=states[SessionState.IDLE],
        held=states[SessionState.HELD],
        paused=states[SessionState.PAUSED],
        demand_tokens=view.demand_tokens,
        recomputed_ratio=_ratio(view.recomputed_tokens, view.expected_tokens),
    )


def _session(view: SessionView, ahead_s: float) -> LivePageSession:
    return LivePageSession(
        id=view.id,
        state=view.state,
        context_tokens=view.context_tokens,
        turns=view.turns,
        pauses=view.pauses,
        backend=view.backend_id or None,
        parent=view.parent_id,
        since_at=round(view.since_at + ahead_s, 1),
        until_at=None if view.until_at is None else round(view.until_at + ahead_s, 1),
        needs_tokens=view.needs_tokens,
    )


def _working_set(sessions: SessionsView | None, backend_id: str) -> LivePageWorkingSet | None:
    found = None if sessions is None else sessions.backends.get(backend_id)
    if found is None:
        return None
    return LivePageWorkingSet(
        tokens=found.tokens,
        tokens_max=found.tokens_max,
        pool_tokens=found.pool_tokens,
        eta=round(found.eta, 3),
        busy_ratio=round(found.busy_ratio, 3),
        recomputed_ratio=round(found.recomputed_ratio, 3),
    )


def _member(name: str, weight: float, queues: _Queues, windows: Sequence[ShareParts]) -> dict[str, Any]:
    """What a tier and a group have in common."""
    return {
        "weight": weight,
        "queued": queues.queued,
        "in_flight": queues.in_flight,
        "share": tuple([each.got.get(name, 0.0) for each in windows]),
        "due": tuple([each.due.get(name, 0.0) for each in windows]),
        "by_weight": tuple([each.by_weight.get(name, 0.0) for each in windows]),
        "asks": tuple([each.asks.get(name, 0.0) for each in windows]),
        "due_by": tuple([each.due_by(name) for each in windows]),
    }


def _due_by(tenant_id: str, view: TenantView, shares: ShareParts) -> str:
    """Why the tenant is due its share; one that waits for its own limit alone would ask for more."""
    due_by = shares.due_by(tenant_id)
    return LIMIT if due_by == ASKS and view.waits in (Wait.KEY_LIMIT, Wait.TENANT_LIMIT) else due_by


def _age(at: float | None, now: float) -> float | None:
    return None if at is None else round(max(0.0, now - at), 1)


def _ratio(part: float, whole: float) -> float | None:
    return round(part / whole, 3) if whole > 0 else None
