"""Mirrored usage: usage on this gateway's disk, and in the shared store, which has the usage of all gateways.

Usage that is counted here is written to the shared store with the next sync; the usage of other gateways is read every
USAGE_PULL_S. Both copies keep the larger of two totals, so a write whose outcome is unknown is repeated.
"""

import time
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta

import orjson

from gateway.store.base import (
    Learnt,
    Store,
    Totals,
    UsageKey,
    UsagePlace,
    UsageQuery,
    UsageRow,
    oldest_day,
)
from gateway.store.redis_store import RedisStore

USAGE_PULL_S = 10.0
DAYS_COMPARED = 7  # where the shared store seems to have lost nothing
DAYS_PULLED = 2  # usage of a day still arrives shortly after it has ended
ROWS_UNTOLD_MAX = 200_000
ROWS_COMPARED = 50_000  # at once, of each copy: the shared store reads a whole day for each part
TOLD = "usage the shared store has"

Rows = Sequence[UsageRow]


class MirroredUsage:
    """The copier of usage rows between this gateway's disk and the shared store, in both directions. Mutable; used on
    one loop, one call at a time.
    """

    def __init__(self, shared: RedisStore, own: Store) -> None:
        self._shared = shared
        self._own = own
        self._untold: dict[tuple[str, UsageKey], UsageRow] = {}
        self._compares = False
        self._has_lost = False
        self._told_day = ""
        self._pull_at_s = 0.0

    def used(self, rows: Iterable[UsageRow]) -> None:
        """Queue rows that are on the local disk for the shared store."""
        self._untold |= {(row.writer, row.of): row for row in rows}
        if len(self._untold) > ROWS_UNTOLD_MAX:
            self._untold.clear()
            self.compare(has_lost=False)

    def compare(self, *, has_lost: bool) -> None:
        """Compare both copies day by day at the next sync; all days if the shared store has lost data."""
        self._compares = True
        self._has_lost |= has_lost

    async def sync(self) -> None:
        """Write new usage to the shared store and, every USAGE_PULL_S, read the usage of others. Raises
        StoreUnavailable: rows that were not written stay queued.
        """
        today = self._day(0)
        if self._compares:
            await self._exchange(await self._first_day(), today)
            self._compares = self._has_lost = False
            self._told_day = ""
        if self._untold:
            told = dict(self._untold)
            await self._shared.put_usage(list(told.values()))
            for row_id, row in told.items():
                if self._untold.get(row_id) is row:
                    del self._untold[row_id]
        if not 0 < self._pull_at_s - time.time() <= USAGE_PULL_S:  # a clock that was set back is no reason to wait
            await self._exchange(self._day(DAYS_PULLED - 1), today)
            self._pull_at_s = time.time() + USAGE_PULL_S
        if self._told_day != today:
            await self._told(today)

    async def _first_day(self) -> str:
        """The first day on which the shared store may lack usage of this copy."""
        learnt = await self._own.learnt(TOLD)
        told = {} if learnt is None else orjson.loads(learnt.body)
        if self._has_lost or told.get("epoch") != self._shared.epoch:
            return oldest_day(self._day(0))
        return min(str(told["day"]), self._day(DAYS_COMPARED - 1))

    async def _told(self, today: str) -> None:
        body = orjson.dumps({"epoch": self._shared.epoch, "day": today})
        await self._own.put_learnt(Learnt(TOLD, time.time(), body))
        self._told_day = today

    async def _exchange(self, first_day: str, last_day: str) -> None:
        """Merge both copies on these days, both inclusive, part by part in the order of rows, whatever their number."""
        query = UsageQuery(first_day, last_day, limit=ROWS_COMPARED)
        while True:
            theirs, ours = await self._shared.usage(query), await self._own.usage(query)
            await self._own.put_usage(_larger(theirs, ours))
            await self._shared.put_usage(_larger(ours, theirs))
            # Behind the end of a full page there may be more of that copy: from there on both are compared again.
            ends = (rows[-1] for rows in (theirs, ours) if len(rows) == ROWS_COMPARED)
            after = min((UsagePlace(*row.of, row.writer) for row in ends), default=None)
            if after is None:
                return
            query = query._replace(after=after)

    def _day(self, days_ago: int) -> str:
        return (datetime.fromtimestamp(time.time(), UTC).date() - timedelta(days=days_ago)).isoformat()


def _larger(rows: Rows, than: Rows) -> list[UsageRow]:
    """The rows with a total larger than the other copy's."""
    totals = {(row.writer, row.of): row.totals for row in than}
    nothing = Totals()
    return [
        row
        for row in rows
        if any(mine > yours for mine, yours in zip(row.totals, totals.get((row.writer, row.of), nothing), strict=True))
    ]
