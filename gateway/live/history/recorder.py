"""HistoryRecorder: writes the values that this process knows into its rings, every 10 s.

The Scheduler's values (tokens and service so far, waiting requests, backends) come with the samples of the metrics, in
the leading process. Values that are known when a call ends (TTFT, refusals, cost, its wait) are recorded by each
process for its own clients' calls. So each process has rings of its own: a new leader begins with its own rings, and
the records of the old leader stay in its process, as long as that runs (history.py asks all).

A row of a minute is made of the rows of its six tenths. An idle tenant takes no room. Tenants beyond NAMES_MAX count
only in the sums.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Final, NamedTuple

from gateway.config.amounts import PICOS
from gateway.live.history.columns import ENGINE, TOKENS, USE, USE_TOGETHER, RingColumn, Values, coded, spanned
from gateway.live.history.ring import Ring
from gateway.live.recent_counts import LEAST_S, bucket_of, quantiles
from gateway.observability.metrics.call_counts import REFUSED, outcome_of
from gateway.observability.telemetry import CallTrace
from gateway.tasks import in_turns
from policies.types import BackendView, Snapshot, Tenant, TenantView

STEP_S: Final = 10
MINUTE_S: Final = 60
PARTS: Final = MINUTE_S // STEP_S
FINE_BLOCKS: Final = 6  # of ten minutes
COARSE_BLOCKS: Final = 24  # of an hour
NAMES_MAX: Final = 5000  # tenants of a pool: 15 MB at 2 kB each
EVENTS_MAX: Final = 500
CHUNKS_A_SLOT: Final = 3  # NAMES_MAX are 79 chunks in ten minutes, and as many in an hour
LATE_SLOTS_MAX: Final = 6  # looks at thousands of tenants are so far apart
TTFT_QUANTILE: Final = 0.9  # of 10 s there are too few for the 99th percentile, and the median hides who waits
SLICE_ROWS: Final = 50  # about a millisecond: with 5,000 tenants no turn of the loop is longer than 1.2 ms of CPU

POOL, TIER, GROUP, TENANT, BACKEND = "pool", "tier", "group", "tenant", "backend"
KINDS: Final[Mapping[str, tuple[RingColumn, ...]]] = {
    POOL: USE_TOGETHER, TIER: USE_TOGETHER, GROUP: USE_TOGETHER, TENANT: USE, BACKEND: ENGINE,
}  # fmt: skip
Of = tuple[str, str]  # a pool and a kind


class Happened(NamedTuple):
    """An event of this process for the history, such as a backend that became unavailable: `what` happened to the thing
    `name` of this `kind`, at a time in seconds since 1970.
    """

    at: float
    kind: str
    name: str
    what: str


class Rings:
    """The past values of one kind of things in one pool, such as its tenants, in two tables: the last hour in steps of
    10 s, and the last day in minutes.
    """

    def __init__(self, columns: tuple[RingColumn, ...]) -> None:
        self.columns = columns
        self.by_step = {
            STEP_S: Ring(FINE_BLOCKS, len(columns), NAMES_MAX),
            MINUTE_S: Ring(COARSE_BLOCKS, len(columns), NAMES_MAX),
        }

    def minute(self, minute: int, weights: list[float]) -> Iterator[tuple[str, bytes]]:
        """The rows of a minute, made from the rows of its tenths; `weights` are the pool's tokens in each tenth."""
        first = minute * PARTS
        for name, codes in self.by_step[STEP_S].rows(first, first + PARTS - 1):
            parts = [column.values(each) for column, each in zip(self.columns, codes, strict=True)]
            yield name, coded(self.columns, spanned(self.columns, parts, weights))

    def set_back(self, at_s: float) -> None:
        """The clock was set back to this time, in seconds since 1970."""
        for step_s, ring in self.by_step.items():
            ring.set_back(int(at_s / step_s))

    def compress(self) -> None:
        any(ring.compress() for ring in self.by_step.values())


@dataclass(slots=True)
class _UseSlot:
    """What one tenant, tier, group or pool did in the present slot. Mutable."""

    service: float = 0.0
    tokens: float = 0.0
    wait_s: float = 0.0
    refused: int = 0
    picos: int = 0
    queued: int = 0  # at the last reading
    ttft: dict[int, int] = field(default_factory=dict)  # by bucket

    def add(self, other: "_UseSlot") -> None:
        self.service += other.service
        self.tokens += other.tokens
        self.wait_s = max(self.wait_s, other.wait_s)
        self.refused += other.refused
        self.picos += other.picos
        self.queued += other.queued
        for bucket, count in other.ttft.items():
            self.ttft[bucket] = self.ttft.get(bucket, 0) + count

    def row(self, columns: Sequence[RingColumn], service: float, scale: float) -> bytes:
        """`service` is that of the whole pool; amounts count by `scale`."""
        share = max(0.0, self.service) / service if service > 0 else 0.0
        (ttft_s,) = quantiles(self.ttft, (TTFT_QUANTILE,)) or (0.0,)
        cost = self.picos / PICOS
        amounts = (share, self.tokens * scale, self.wait_s, ttft_s, self.refused * scale, cost * scale, self.queued)
        return coded(columns, amounts[: len(columns)])


@dataclass(slots=True)
class _EngineSlot:
    """Sums of looks at one backend. Mutable."""

    looks: int = 0
    sums: Values = field(default_factory=lambda: [0.0] * len(ENGINE))

    def saw(self, view: BackendView, step_s: float | None) -> None:
        self.looks += 1
        values = (
            float(view.available), view.in_flight_requests, view.requests_limit, view.reserved_tokens,
            view.tokens_limit or 0, step_s or (view.steps.step_s if view.steps is not None else 0.0),
        )  # fmt: skip
        self.sums = [before + value for before, value in zip(self.sums, values, strict=True)]

    def row(self) -> bytes:
        return coded(ENGINE, [each / self.looks for each in self.sums])


class _Uses:
    """What all tenants of one pool did in the present slot. Mutable.

    Names have no end where each call may bring another one: those beyond NAMES_MAX count together, by tier and group.
    """

    def __init__(self, find_tenant: Callable[[str], Tenant | None]) -> None:
        self._find_tenant = find_tenant
        self.by_name: dict[str, _UseSlot] = {}
        self.beyond: dict[tuple[str, str | None] | None, _UseSlot] = {}

    def of(self, name: str) -> _UseSlot:
        found = self.by_name.get(name)
        if found is not None:
            return found
        if len(self.by_name) < NAMES_MAX:
            return self.by_name.setdefault(name, _UseSlot())
        return self.beyond.setdefault(self._part(name), _UseSlot())

    def begin_reading(self) -> None:
        """What is queued is what the last reading says: more than one may come before a slot is written."""
        for use in (*self.by_name.values(), *self.beyond.values()):
            use.queued = 0

    def parts(self) -> Iterator[tuple[tuple[str, str | None] | None, _UseSlot]]:
        """Each use, with the tier and the group in whose sums it counts; None: its tenant is gone."""
        yield from ((self._part(name), use) for name, use in self.by_name.items())
        yield from self.beyond.items()

    def _part(self, name: str) -> tuple[str, str | None] | None:
        tenant = self._find_tenant(name)
        return None if tenant is None else (tenant.tier_id, tenant.group_id)


class _PoolSlot:
    """One pool in the present slot. Mutable."""

    def __init__(self, uses: _Uses) -> None:
        self.uses = uses
        self.engines: dict[str, _EngineSlot] = {}
        self.before: dict[str, tuple[float, int]] = {}  # each tenant's service and tokens at the last reading
        self.seen: dict[str, tuple[float, int]] = {}
        self.is_first = True  # there was no reading of these Schedulers yet
        self.is_up: dict[str, bool] = {}


class _TotalsReading:
    """A reading of all tenants' totals, at the end of a slot: a PoolWatch."""

    def __init__(self, pool: _PoolSlot, now: float) -> None:
        self._pool = pool
        self._now = now
        pool.seen = {}
        pool.uses.begin_reading()

    def saw(self, views: Mapping[str, TenantView]) -> None:
        pool = self._pool
        for tenant_id, view in views.items():
            total = view.service, view.used.prompt_tokens + view.used.output_tokens
            before = pool.before.get(tenant_id)
            # One that did nothing has the pair of before, not one more.
            pool.seen[tenant_id] = total if before != total or before is None else before
            if before is None:
                before = total if pool.is_first else (0.0, 0)
            wait_s = 0.0 if view.oldest_at is None else self._now - view.oldest_at
            if total != before or wait_s > 0.0:
                use = pool.uses.of(tenant_id)
                use.service += total[0] - before[0]
                use.tokens += max(0, total[1] - before[1])
                use.wait_s = max(use.wait_s, wait_s)
                use.queued += view.queued_requests

    def ended(self) -> None:
        self._pool.before, self._pool.seen, self._pool.is_first = self._pool.seen, {}, False


class HistoryRecorder:
    """The recorder of one process's history, the past values of its pools, tiers, groups, tenants and backends (named
    in HistoryPool). Every 10 s, it writes values into Rings. It gets the samples of pools that the metrics take, and
    each call that ended. Made on the loop.
    """

    def __init__(
        self,
        pool_of: Callable[[str], str | None],
        *,
        find_tenant: Callable[[str], Tenant | None],
        pace_of: Callable[[str], float | None],
        leader: Callable[[], str | None],
        clock: Callable[[], float],
    ) -> None:
        """`pool_of` returns the pool of a model, `pace_of` the measured seconds of a backend's step; `leader` is the
        name of the process that leads; `clock` is in seconds since 1970.
        """
        self._pool_of = pool_of
        self._find_tenant = find_tenant
        self._pace_of = pace_of
        self._leader_of = leader
        self._clock = clock
        self.rings: dict[Of, Rings] = {}
        self.events: deque[Happened] = deque(maxlen=EVENTS_MAX)
        self._pools: dict[str, _PoolSlot] = {}
        self._begun_at = clock()  # of the present slot, as far as this process was there
        self._slot = int(self._begun_at / STEP_S)
        self._is_early = False  # a look since the last end of looks came before the end of the slot
        self._leader: str | None = None

    def ended(self, trace: CallTrace) -> None:
        """A call has ended: it counts in the present slot."""
        pool_id = None if trace.tier_id is None else self._pool_of(trace.model or "")
        if pool_id is None or trace.tenant_id is None:
            return
        use = self._pool(pool_id).uses.of(trace.tenant_id)
        if outcome_of(trace) == REFUSED:
            use.refused += 1
        if trace.first_token_s is not None and trace.stream:
            bucket = bucket_of(max(LEAST_S, trace.first_token_s - trace.started_s))
            use.ttft[bucket] = use.ttft.get(bucket, 0) + 1
        if trace.queued_s is not None and trace.dispatched_s is not None:
            use.wait_s = max(use.wait_s, trace.dispatched_s - trace.queued_s)
        use.picos += trace.cost or 0

    # -- LookWatch -------------------------------------------------------------------------------------------

    def look(self, pool: str, snapshot: Snapshot) -> _TotalsReading | None:
        """Record a sample of a pool: backends count in every sample, tenants in the first one after a slot's end."""
        known = self._pool(pool)
        for backend_id, view in snapshot.backends.items():
            if (was := known.is_up.get(backend_id)) is not None and was != view.available:
                self._happened(BACKEND, backend_id, "available" if view.available else "not_available")
            known.is_up[backend_id] = view.available
            known.engines.setdefault(backend_id, _EngineSlot()).saw(view, self._pace_of(backend_id))
        known.is_up = {each: up for each, up in known.is_up.items() if each in snapshot.backends}
        is_over = int(self._clock() / STEP_S) != self._slot
        self._is_early = self._is_early or not is_over
        return _TotalsReading(known, snapshot.now) if is_over or known.is_first else None

    def replaced(self) -> None:
        """The Schedulers were replaced by new ones, which count from zero."""
        for name, pool in list(self._pools.items()):  # a reading that goes on is of the old ones
            self._pools[name] = _PoolSlot(pool.uses)

    async def looked(self) -> None:
        """All pools were sampled: write the slot, if it is over, with turns of the event loop."""
        leader = self._leader_of()
        if leader != self._leader:
            if self._leader is not None and leader is not None:
                self._happened("leader", leader, "leads")
            self._leader = leader or self._leader
        now = self._clock()
        slot, before = int(now / STEP_S), self._slot
        is_early, self._is_early = self._is_early, False
        if slot <= before or is_early:
            self._go_on(now, slot)
            return
        # Of a longer time, because looks came late, the mean: in all of its slots, or in the last where they are many.
        elapsed_s, self._begun_at, self._slot = now - self._begun_at, now, slot
        over = range(before if slot - before <= LATE_SLOTS_MAX else slot - 1, slot)
        scale = 1.0 / len(over) if over.start == before else STEP_S / elapsed_s
        taken = {name: (pool.uses, pool.engines) for name, pool in self._pools.items()}
        for pool in self._pools.values():
            pool.uses, pool.engines = _Uses(self._find_tenant), {}
        for name, (uses, engines) in taken.items():
            await self._write(name, over, uses, engines, scale)
            for minute in sorted({before // PARTS, (slot - 1) // PARTS}):
                if minute < slot // PARTS:
                    await self._write_minute(name, minute)
        for rings in list(self.rings.values()):
            for _ in range(CHUNKS_A_SLOT * len(over)):
                rings.compress()
                await asyncio.sleep(0)

    def _go_on(self, now: float, slot: int) -> None:
        """No slot is over. Where the clock was set back, an earlier slot goes on, with what the later one had."""
        if slot < self._slot:
            for rings in self.rings.values():
                rings.set_back(now)
        self._begun_at, self._slot = min(self._begun_at, now), min(self._slot, slot)

    async def _write(
        self, pool: str, over: range, uses: _Uses, engines: Mapping[str, _EngineSlot], scale: float
    ) -> None:
        whole, tiers, groups = _UseSlot(), dict[str, _UseSlot](), dict[str, _UseSlot]()
        async for some_uses in in_turns(uses.parts(), SLICE_ROWS):
            for part, use in some_uses:
                whole.add(use)
                if part is not None:
                    tier_id, group_id = part
                    tiers.setdefault(tier_id, _UseSlot()).add(use)
                    if group_id is not None:
                        groups.setdefault(group_id, _UseSlot()).add(use)
        sums: list[tuple[str, Iterable[tuple[str, _UseSlot]]]] = [
            (POOL, [(pool, whole)]), (TIER, tiers.items()), (GROUP, groups.items()),
            (TENANT, sorted(uses.by_name.items(), key=itemgetter(0))),  # in the same order, as far as they are the same
        ]  # fmt: skip
        for kind, of_kind in sums:
            ring = self._rings(pool, kind).by_step[STEP_S]
            rows: list[tuple[str, bytes]] = []
            async for some in in_turns(of_kind, SLICE_ROWS):
                rows += ((name, use.row(KINDS[kind], whole.service, scale)) for name, use in some)
            for slot in over:
                async for those in in_turns(rows, SLICE_ROWS):
                    ring.put(slot, those)
                ring.recorded(slot)
        ring = self._rings(pool, BACKEND).by_step[STEP_S]
        for slot in over:
            ring.put(slot, [(name, engine.row()) for name, engine in engines.items()])
            ring.recorded(slot)

    async def _write_minute(self, pool: str, minute: int) -> None:
        ring, first, last = self._rings(pool, POOL).by_step[STEP_S], minute * PARTS, minute * PARTS + PARTS - 1
        recorded = ring.is_recorded(first, last)
        served = ring.read(pool, first, last)
        tokens = [0.0] * PARTS if served is None else TOKENS.values(served[USE.index(TOKENS)])
        for kind in KINDS:
            rings = self._rings(pool, kind)
            weights = [float(each) for each in recorded] if kind == BACKEND else tokens
            async for some in in_turns(rings.minute(minute, weights), SLICE_ROWS):
                rings.by_step[MINUTE_S].put(minute, some)
            rings.by_step[MINUTE_S].recorded(minute)

    def _happened(self, kind: str, name: str, what: str) -> None:
        self.events.append(Happened(self._clock(), kind, name, what))

    def _pool(self, pool: str) -> _PoolSlot:
        found = self._pools.get(pool)
        if found is None:
            found = self._pools[pool] = _PoolSlot(_Uses(self._find_tenant))
        return found

    def _rings(self, pool: str, kind: str) -> Rings:
        found = self.rings.get((pool, kind))
        if found is None:
            found = self.rings[pool, kind] = Rings(KINDS[kind])
        return found
