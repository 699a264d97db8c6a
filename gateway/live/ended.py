"""EndedCalls: what is known of calls only when they have ended: latencies by tenant, and refusals by reason.

It is one more meter of the telemetry, beside those of metrics and usage, and is asked once a call. Latencies are kept
for 15 to 20 minutes, refusals for 60 to 70 seconds.

Each process counts the calls of its own clients. The leader, which makes the live document, asks all of them for what
has changed since it asked last (`changes`, `EndedEverywhere`), and only while there is a viewer.
"""

import time
from collections.abc import Callable, Collection, Iterator, Mapping
from math import inf
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

OWN: Final = ""  # this process, among those that tell
NO_POOL: Final = ""  # of calls whose key was refused, before a pool was known
KEY_REFUSED: Final = frozenset({401, 403, 429})  # 429: too many wrong keys came from its address
Of = tuple[str, str]  # a pool and one of its tenants
Quantiles = tuple[float, ...]
Latencies = tuple[Quantiles | None, Quantiles | None]  # TTFT and TPOT, in seconds


class EndedRow(NamedTuple):
    """The counts of one tenant's recently ended calls in one pool. `ttft` and `tpot` are numbers of calls by latency
    bucket, `refused` by reason.
    """

    pool: str
    tenant: str
    ttft: dict[int, int]
    tpot: dict[int, int]
    refused: dict[str, int]


class EndedChanges(NamedTuple):
    """The changes in one process's counts of ended calls after the position `since`, a number that grows with each
    change. `upto` is the position for the next query. `refused` counts all refusals by pool and reason; `passed_on`
    counts all calls that went on to another pool, by pool, alias and reason. `rows` has the tenants whose counts have
    changed.
    """

    since: int
    upto: int
    refused: dict[str, dict[str, int]]
    passed_on: dict[str, dict[str, dict[str, int]]]
    rows: list[EndedRow]


class _EndedOfTenant:
    """One tenant in one pool. Mutable."""

    __slots__ = ("changed_at", "refused", "tpot", "ttft")

    def __init__(self) -> None:
        self.ttft: RecentCounts[int] = RecentCounts(LATENCY_PARTS)
        self.tpot: RecentCounts[int] = RecentCounts(LATENCY_PARTS)
        self.refused: RecentCounts[str] = RecentCounts(REFUSAL_PARTS)
        self.changed_at = 0

    @property
    def is_empty(self) -> bool:
        return not (self.ttft.counts or self.tpot.counts or self.refused.counts)


class EndedCalls:
    """Statistics of the calls that ended in this process: per pool and tenant, how many of the last 15 minutes had a
    latency in each bucket of a histogram, and how many of the last minute were refused, by reason. Mutable; used on one
    loop.
    """

    def __init__(self, pool_of: Callable[[str], str | None], *, clock: Callable[[], float] = time.monotonic) -> None:
        """`pool_of` returns the pool of a model, and `clock` seconds."""
        self.clock = clock
        self._pool_of = pool_of
        self._rows: dict[Of, _EndedOfTenant] = {}
        self._refused: dict[str, RecentCounts[str]] = {}  # by pool
        self._passed_on: dict[str, RecentCounts[tuple[str, str]]] = {}  # by pool
        # A process that takes the place of another of its name goes on from a higher number.
        self._changes = time.time_ns() // 1000
        self._whole_from = self._changes  # who was told less lacks a row that is gone, or asks for another process
        self._part = -1  # of refusals, in which all rows were last expired

    def ended(self, trace: CallTrace) -> None:
        """A call has ended. A call without a pool is not counted, unless its key was refused."""
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
        now, ended_s = self.clock(), time.perf_counter()
        if outcome == REFUSED:
            why = str(trace.reason or "")
            row.refused.count(why, int(now / REFUSAL_PART_S))
            self._count(self._refused, pool, why)
        if first_s is not None and usage is not None:
            part = int(now / LATENCY_PART_S)
            row.ttft.count(bucket_of(first_s - trace.started_s), part)
            if usage.output_tokens > 1 and outcome == Outcome.COMPLETED:
                row.tpot.count(bucket_of((ended_s - first_s) / (usage.output_tokens - 1)), part)
        self._changed(row)

    def changes(self, since: int) -> EndedChanges:
        """What has changed since then; all that there is where `since` is not a number of this process, or a row has
        left since.
        """
        self._expire()
        since = 0 if since < self._whole_from else since
        rows = [
            EndedRow(*of, row.ttft.counts, row.tpot.counts, row.refused.counts)
            for of, row in self._rows.items()
            if row.changed_at > since
        ]
        refused = {pool: dict(each.counts) for pool, each in self._refused.items()}
        passed_on = {pool: _by_alias(each.counts) for pool, each in self._passed_on.items()}
        return EndedChanges(since, self._changes, refused, passed_on, rows)

    def _count(self, counts: dict[str, RecentCounts[K]], pool: str, what: K) -> None:
        of_pool = counts.get(pool)
        if of_pool is None:
            of_pool = counts[pool] = RecentCounts(REFUSAL_PARTS)
        of_pool.count(what, int(self.clock() / REFUSAL_PART_S))

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
        now = self.clock()
        part = int(now / REFUSAL_PART_S)
        if part == self._part:
            return
        self._part = part
        for refused in self._refused.values():
            refused.expire(part)
        for passed_on in self._passed_on.values():
            passed_on.expire(part)
        latency_part = int(now / LATENCY_PART_S)
        gone = [row.changed_at for row in self._rows.values() if row.is_empty]
        self._whole_from = max([self._whole_from, *gone])
        self._rows = {of: row for of, row in self._rows.items() if not row.is_empty}
        for row in self._rows.values():
            is_shorter = row.ttft.expire(latency_part) | row.tpot.expire(latency_part)
            if is_shorter | row.refused.expire(part):
                self._changed(row)


def _by_alias(counts: Mapping[tuple[str, str], int]) -> dict[str, dict[str, int]]:
    of_aliases: dict[str, dict[str, int]] = {}
    for (alias, reason), count in counts.items():
        of_aliases.setdefault(alias, {})[reason] = count
    return of_aliases


def _shown(counts: Mapping[int, int]) -> Quantiles | None:
    found = quantiles(counts, QUANTILES)
    return None if found is None else tuple([round(each, 4) for each in found])


class EndedEverywhere:
    """The counts of recently ended calls in all processes of a gateway: each process sends its changes. Mutable."""

    def __init__(self, own: EndedCalls) -> None:
        self._own = own
        self._told: dict[str, EndedChanges] = {}  # by member, what it told last
        self._rows: dict[str, dict[Of, EndedRow]] = {}
        self._latencies: dict[Of, tuple[float, Latencies]] = {}  # and when they were computed
        self._is_old: set[Of] = set()  # of them, those of which more was told since

    def look(self) -> None:
        """Take in what has changed in this process."""
        self.told(OWN, self._own.changes(self.since(OWN)))

    def since(self, member: str) -> int:
        """The position from which this member has to be asked."""
        return self._told[member].upto if member in self._told else 0

    def told(self, member: str, changes: EndedChanges) -> None:
        """Apply the changes that this member has sent."""
        rows = self._rows.setdefault(member, {})
        if not changes.since:  # all that it has: it may be another process of that name
            rows.clear()
            self._forget_latencies()
        for row in changes.rows:
            of = row.pool, row.tenant
            if row.ttft or row.tpot or row.refused:
                rows[of] = row
                self._is_old.add(of)
            else:
                rows.pop(of, None)
                self._latencies.pop(of, None)
                self._is_old.discard(of)
        self._told[member] = changes

    def retain(self, members: Collection[str]) -> None:
        """Forget all but this process and these: what the clients of others got is not known any more."""
        for member in self._told.keys() - {OWN, *members}:
            del self._told[member], self._rows[member]
            self._forget_latencies()

    def refused(self, pool: str) -> Mapping[str, int]:
        """How many calls of this pool were refused in the last minute, by reason."""
        return summed(each.refused.get(pool, {}) for each in self._told.values())

    def passed_on(self, pool: str) -> Mapping[str, Mapping[str, int]]:
        """How many calls went on from this pool to another in the last minute, by alias and reason."""
        members = [each.passed_on.get(pool, {}) for each in self._told.values()]
        return {alias: summed(each.get(alias, {}) for each in members) for alias in set().union(*members)}

    def refused_of(self, pool: str, tenant_id: str) -> Mapping[str, int]:
        """How many calls of this tenant were refused in the last minute, by reason."""
        return summed(row.refused for row in self._of((pool, tenant_id)))

    def refused_tenants(self, pool: str) -> Collection[str]:
        """The tenants that had a call refused in the last minute."""
        told = (row for rows in self._rows.values() for row in rows.values())
        return {row.tenant for row in told if row.pool == pool and row.refused}

    def latencies(self, pool: str, tenant_id: str) -> Latencies:
        """The tenant's median and 99th percentile of the last 15 minutes, as of SHOWN_S ago at the most."""
        of, now = (pool, tenant_id), self._own.clock()
        at, shown = self._latencies.get(of, (-inf, (None, None)))
        if at == -inf or (of in self._is_old and now - at >= SHOWN_S):
            rows = list(self._of(of))
            shown = _shown(summed(row.ttft for row in rows)), _shown(summed(row.tpot for row in rows))
            self._latencies[of] = now, shown
            self._is_old.discard(of)
        return shown

    def _forget_latencies(self) -> None:
        self._latencies.clear()
        self._is_old.clear()

    def _of(self, of: Of) -> Iterator[EndedRow]:
        for rows in self._rows.values():
            row = rows.get(of)
            if row is not None:
                yield row
