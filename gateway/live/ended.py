"""EndedCalls: what is known of calls only when they have ended: latencies by tenant, and refusals by reason.

It is one more meter of the telemetry, beside those of metrics and usage, and is asked once a call. Latencies are kept
for 15 to 20 minutes, refusals for 60 to 70 seconds.

Each process counts the calls of its own clients. The leader, which makes the live document, asks the others for what
has changed since it asked last (`changes`, `EndedElsewhere`), and only while there is a viewer.
"""

import time
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Final, NamedTuple

from gateway.live.recent_counts import K, RecentCounts, bucket_of, quantiles, summed
from gateway.observability.metrics.call_counts import REFUSED, outcome_of
from gateway.observability.telemetry import CallTrace
from policies.types import Outcome

LATENCY_PART_S: Final = 300.0
LATENCY_PARTS: Final = 4  # the present one, and those of the 15 minutes before
REFUSAL_PART_S: Final = 10.0
REFUSAL_PARTS: Final = 7  # the present one, and those of the minute before
ROWS_MAX: Final = 5000  # tenants, of all pools together: some megabytes. Of any further one nothing is kept.
QUANTILES: Final = (0.5, 0.99)
SHOWN_S: Final = 5.0  # quantiles of a quarter of an hour are computed again after so long

NO_POOL: Final = ""  # of calls whose key was refused, before a pool was known
KEY_REFUSED: Final = frozenset({401, 403, 429})  # 429: too many wrong keys came from its address
Of = tuple[str, str]  # a pool and one of its tenants
Quantiles = tuple[float, ...]
Latencies = tuple[Quantiles | None, Quantiles | None]  # TTFT and TPOT, in seconds


class EndedRow(NamedTuple):
    """The counts of one tenant's calls in one pool that ended lately. `ttft` and `tpot` are counts by bucket, `refused`
    are counts by reason.
    """

    pool: str
    tenant: str
    ttft: dict[int, int]
    tpot: dict[int, int]
    refused: dict[str, int]


class EndedChanges(NamedTuple):
    """The changes in one process's counts of ended calls since the position `since`. `refused` has all refusals by pool
    and reason. `passed_on` has all calls that went on to another pool, by pool, alias and reason. `rows` are those of
    tenants that have changed. The next query asks for what changes after `upto`.
    """

    since: int
    upto: int
    refused: dict[str, dict[str, int]]
    passed_on: dict[str, dict[str, dict[str, int]]]
    rows: list[EndedRow]


class _EndedOfTenant:
    """One tenant in one pool. Mutable."""

    __slots__ = ("changed_at", "has_more", "refused", "shown", "shown_at", "tpot", "ttft")

    def __init__(self) -> None:
        self.ttft: RecentCounts[int] = RecentCounts(LATENCY_PARTS)
        self.tpot: RecentCounts[int] = RecentCounts(LATENCY_PARTS)
        self.refused: RecentCounts[str] = RecentCounts(REFUSAL_PARTS)
        self.changed_at = 0
        self.shown: Latencies | None = None  # None: to be computed
        self.shown_at = 0.0
        self.has_more = False  # calls that ended since

    @property
    def is_empty(self) -> bool:
        return not (self.ttft.counts or self.tpot.counts or self.refused.counts)


class EndedCalls:
    """The latencies and refusals of the calls of one process that ended lately. Mutable; used on one loop."""

    def __init__(self, pool_of: Callable[[str], str | None], *, clock: Callable[[], float] = time.monotonic) -> None:
        """`pool_of` returns the pool of a model; `clock` seconds."""
        self._pool_of = pool_of
        self._clock = clock
        self._rows: dict[Of, _EndedOfTenant] = {}
        self._refused: dict[str, RecentCounts[str]] = {}  # by pool
        self._passed_on: dict[str, RecentCounts[tuple[str, str]]] = {}  # by pool
        # A process that takes the place of another of its name goes on from a higher number.
        self._changes = self._begun = time.time_ns() // 1000
        self._part = -1  # of refusals, in which all rows were last expired

    def ended(self, trace: CallTrace) -> None:
        """A call has ended. One that found no pool is not counted, except where its key was refused."""
        if trace.tenant_id is None and trace.status in KEY_REFUSED:
            self._count(self._refused, NO_POOL, str(trace.status))
        if trace.tier_id is None or trace.tenant_id is None:
            return
        for model, reason in trace.passed_on:
            if (passed := self._pool_of(model)) is not None:
                self._count(self._passed_on, passed, (trace.alias or "", str(reason)))
        outcome, first_s, usage = outcome_of(trace), trace.first_token_s if trace.stream else None, trace.usage
        if outcome != REFUSED and (first_s is None or usage is None):
            return
        pool = self._pool_of(trace.model or "")
        row = None if pool is None else self._row((pool, trace.tenant_id))
        if pool is None or row is None:
            return
        now, ended_s = self._clock(), time.perf_counter()
        if outcome == REFUSED:
            why = str(trace.reason or "")
            row.refused.count(why, int(now / REFUSAL_PART_S))
            self._count(self._refused, pool, why)
        if first_s is not None and usage is not None:
            part = int(now / LATENCY_PART_S)
            row.ttft.count(bucket_of(first_s - trace.started_s), part)
            if usage.output_tokens > 1 and outcome == Outcome.COMPLETED:
                row.tpot.count(bucket_of((ended_s - first_s) / (usage.output_tokens - 1)), part)
            row.has_more = True
        self._changed(row)

    # -- what EndedElsewhere shows, of this process ---------------------------------------------------------

    def refused(self, pool: str) -> Mapping[str, int]:
        self._expire()
        found = self._refused.get(pool)
        return {} if found is None else dict(found.counts)

    def passed_on(self, pool: str) -> dict[str, dict[str, int]]:
        self._expire()
        of_aliases: dict[str, dict[str, int]] = {}
        if (found := self._passed_on.get(pool)) is not None:
            for (alias, reason), count in found.counts.items():
                of_aliases.setdefault(alias, {})[reason] = count
        return of_aliases

    def refused_of(self, pool: str, tenant_id: str) -> Mapping[str, int]:
        row = self._rows.get((pool, tenant_id))
        return {} if row is None else dict(row.refused.counts)

    def refused_tenants(self, pool: str) -> Collection[str]:
        return {tenant for (of_pool, tenant), row in self._rows.items() if of_pool == pool and row.refused.counts}

    def latencies(self, pool: str, tenant_id: str) -> Latencies:
        row = self._rows.get((pool, tenant_id))
        if row is None:
            return None, None
        now = self._clock()
        if row.shown is None or (row.has_more and now - row.shown_at >= SHOWN_S):
            row.shown = _shown(row.ttft.counts), _shown(row.tpot.counts)
            row.shown_at, row.has_more = now, False
        return row.shown

    # -- for the leader --------------------------------------------------------------------------------------

    def row(self, pool: str, tenant_id: str) -> EndedRow:
        """What is counted of this tenant."""
        row = self._rows.get((pool, tenant_id)) or _EndedOfTenant()
        return EndedRow(pool, tenant_id, row.ttft.counts, row.tpot.counts, row.refused.counts)

    def changes(self, since: int) -> EndedChanges:
        """What has changed since then; all that there is where `since` is not a number of this process."""
        self._expire()
        if since < self._begun:
            since = 0
        rows = [self.row(*of) for of, row in self._rows.items() if row.changed_at > since]
        refused = {pool: dict(each.counts) for pool, each in self._refused.items()}
        passed_on = {pool: self.passed_on(pool) for pool in self._passed_on}
        return EndedChanges(since, self._changes, refused, passed_on, rows)

    def _count(self, counts: dict[str, RecentCounts[K]], pool: str, what: K) -> None:
        of_pool = counts.get(pool)
        if of_pool is None:
            of_pool = counts[pool] = RecentCounts(REFUSAL_PARTS)
        of_pool.count(what, int(self._clock() / REFUSAL_PART_S))

    def _row(self, of: Of) -> _EndedOfTenant | None:
        row = self._rows.get(of)
        if row is None:
            self._expire()
            if len(self._rows) >= ROWS_MAX:
                return None
            row = self._rows[of] = _EndedOfTenant()
        return row

    def _changed(self, row: _EndedOfTenant) -> None:
        self._changes += 1
        row.changed_at = self._changes

    def _expire(self) -> None:
        """Drop what is too old, once in a part. A row that was empty then already goes."""
        now = self._clock()
        part = int(now / REFUSAL_PART_S)
        if part == self._part:
            return
        self._part = part
        for refused in self._refused.values():
            refused.expire(part)
        for passed_on in self._passed_on.values():
            passed_on.expire(part)
        latency_part = int(now / LATENCY_PART_S)
        self._rows = {of: row for of, row in self._rows.items() if not row.is_empty}
        for row in self._rows.values():
            is_shorter = row.ttft.expire(latency_part) | row.tpot.expire(latency_part)
            if is_shorter | row.refused.expire(part):
                row.shown = None
                self._changed(row)


def _shown(counts: Mapping[int, int]) -> Quantiles | None:
    found = quantiles(counts, QUANTILES)
    return None if found is None else tuple([round(each, 4) for each in found])


class EndedElsewhere:
    """The calls that ended lately in all processes of a gateway. It reads the counts of this process, and keeps those
    that the other processes send. Mutable.
    """

    def __init__(self, own: EndedCalls) -> None:
        self._own = own
        self._upto: dict[str, int] = {}  # by member
        self._rows: dict[str, dict[Of, EndedRow]] = {}
        self._refused: dict[str, dict[str, dict[str, int]]] = {}
        self._passed_on: dict[str, dict[str, dict[str, dict[str, int]]]] = {}

    def since(self, member: str) -> int:
        """From where on this member is to be asked."""
        return self._upto.get(member, 0)

    def told(self, member: str, changes: EndedChanges) -> None:
        """What has changed at this member."""
        rows = self._rows.setdefault(member, {})
        if not changes.since:  # all that it has: it may be another process of that name
            rows.clear()
        for row in changes.rows:
            of = row.pool, row.tenant
            if row.ttft or row.tpot or row.refused:
                rows[of] = row
            else:
                rows.pop(of, None)
        self._upto[member], self._refused[member] = changes.upto, changes.refused
        self._passed_on[member] = changes.passed_on

    def retain(self, members: list[str]) -> None:
        """Forget all other members: what their clients got is not known any more."""
        for member in self._upto.keys() - set(members):
            del self._upto[member], self._rows[member], self._refused[member], self._passed_on[member]

    def refused(self, pool: str) -> Mapping[str, int]:
        """How many calls of this pool were refused in the last minute, by reason."""
        return summed([self._own.refused(pool), *(each.get(pool, {}) for each in self._refused.values())])

    def passed_on(self, pool: str) -> Mapping[str, Mapping[str, int]]:
        """How many calls went on from this pool to another in the last minute, by alias and reason."""
        members = [self._own.passed_on(pool), *(each.get(pool, {}) for each in self._passed_on.values())]
        return {alias: summed(each.get(alias, {}) for each in members) for alias in set().union(*members)}

    def refused_of(self, pool: str, tenant_id: str) -> Mapping[str, int]:
        """How many calls of this tenant were refused in the last minute, by reason."""
        own = self._own.refused_of(pool, tenant_id)
        return summed([own, *(row.refused for row in self._of(pool, tenant_id))]) if self._rows else own

    def refused_tenants(self, pool: str) -> Collection[str]:
        """The tenants of which any call was refused."""
        told = (row for rows in self._rows.values() for row in rows.values())
        return {*self._own.refused_tenants(pool), *(row.tenant for row in told if row.pool == pool and row.refused)}

    def latencies(self, pool: str, tenant_id: str) -> Latencies:
        """The tenant's median and 99th percentile of the last 15 minutes."""
        rows = list(self._of(pool, tenant_id)) if self._rows else []
        if not rows:
            return self._own.latencies(pool, tenant_id)
        rows.append(self._own.row(pool, tenant_id))
        ttft, tpot = summed(row.ttft for row in rows), summed(row.tpot for row in rows)
        return _shown(ttft), _shown(tpot)

    def _of(self, pool: str, tenant_id: str) -> Iterator[EndedRow]:
        for rows in self._rows.values():
            row = rows.get((pool, tenant_id))
            if row is not None:
                yield row
