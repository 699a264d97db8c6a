"""Usage book: requests and tokens by tenant, key, model and day, counted in memory and written within a second.

A book has a random writer name, and keeps totals that only grow. A flush writes totals, not increments: a flush that
failed, or whose outcome is unknown, is repeated, and nothing counts twice. A killed process loses the usage of at most
FLUSH_S and the time of one write.
"""

import logging
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime

from gateway.budgets.money.pricing import PriceBook
from gateway.observability.telemetry import CallTrace
from gateway.store.base import Store, StoreUnavailable, Totals, UsageKey, UsageQuery, UsageRow, usage_rows
from gateway.store.periodic import Periodic

FLUSH_S = 0.4
ROWS_MAX = 100_000  # of today and of days not yet written
OTHER = "other"  # tenant and model of usage beyond ROWS_MAX
WRITER_BYTES = 9
TOTAL_MAX = 2**53 - 1  # what every store and every JSON parser holds exactly
DAY_S = 86_400

log = logging.getLogger(__name__)


@dataclass(slots=True)
class _UsageRow:
    """The counts of one row, updated in place once a call."""

    of: UsageKey
    requests: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0

    def totals(self) -> Totals:
        counts = (self.requests, self.prompt_tokens, self.cached_tokens, self.output_tokens)
        return Totals(*(min(count, TOTAL_MAX) for count in counts))


class UsageBook:
    """The requests and tokens that this process has counted, by tenant, key, model and day. It writes them to the
    store. Mutable; used on one loop.
    """

    def __init__(self, store: Store, *, clock: Callable[[], float] = time.time) -> None:
        """`clock`: seconds since 1970."""
        self._store = store
        self._clock = clock
        self._rows: dict[tuple[str, ...], _UsageRow] = {}  # by day, tenant, key and model
        self._unwritten: set[UsageKey] = set()
        self._writing: set[UsageKey] = set()
        self._day, self._day_ends_at_s = "", 0.0
        self.watchers: list[Callable[[UsageKey, Totals], None]] = []
        """Called after each count with its key and what was counted."""
        self.recall_watchers: list[Callable[[str], None]] = []
        """Called with each day that began after the first one, when its rows have what was written of it before."""
        self._whole: dict[str, set[UsageKey]] = {}  # by day to recall: the rows that had all usage when it began
        self._complained = ""  # the last error that was logged; empty: the store is written
        self._flusher = Periodic(self._try_flush, FLUSH_S, "flush usage")
        self.writer = secrets.token_urlsafe(WRITER_BYTES)

    def start(self) -> None:
        self._flusher.start()

    async def stop(self) -> None:
        """Write the remaining usage, if the store is available."""
        if self._flusher.is_running:
            await self._flusher.stop()
            try:
                await self.flush()
            except StoreUnavailable as error:
                log.warning("usage is not written, and is lost: %s", error)

    def ended(self, trace: CallTrace) -> None:
        """Count an ended call; a call that was not served is not counted."""
        if trace.tenant_id is not None and trace.usage is not None:
            self.used(
                trace.tenant_id,
                key=trace.key_id,
                model=trace.model or "",
                prompt_tokens=trace.usage.prompt_tokens,
                cached_tokens=min(trace.usage.cached_tokens, trace.usage.prompt_tokens),
                output_tokens=trace.usage.output_tokens,
            )

    def used(
        self, tenant: str, *, key: str, model: str, prompt_tokens: int, cached_tokens: int, output_tokens: int
    ) -> None:
        """Count one served call."""
        day = self.today()
        row = self._rows.get((day, tenant, key, model)) or self._new_row(UsageKey(day, tenant, key, model))
        row.requests += 1
        row.prompt_tokens += prompt_tokens
        row.cached_tokens += cached_tokens
        row.output_tokens += output_tokens
        self._unwritten.add(row.of)
        of = row.of if row.of.tenant == tenant else UsageKey(day, tenant, key, model)
        for watcher in self.watchers:
            watcher(of, Totals(1, prompt_tokens, cached_tokens, output_tokens))

    async def flush(self) -> None:
        """Write the rows changed since the last flush. Raises StoreUnavailable; the next flush writes them then."""
        while self._whole:
            await self._recall(next(iter(self._whole)))
        if not self._unwritten:
            return
        self._writing, self._unwritten = self._unwritten, set()
        try:
            await self._store.put_usage([UsageRow(self.writer, of, self._rows[of].totals()) for of in self._writing])
        except BaseException:
            self._unwritten |= self._writing
            raise
        finally:
            self._writing = set()

    def rows(self) -> list[tuple[UsageKey, Totals]]:
        """The usage that was counted here today, and earlier usage that is not written yet."""
        return [(row.of, row.totals()) for row in self._rows.values()]

    def __contains__(self, of: UsageKey) -> bool:
        return of in self._rows

    def today(self) -> str:
        """The present day, in UTC."""
        now_s = self._clock()
        if not self._day_ends_at_s - DAY_S <= now_s < self._day_ends_at_s:
            is_first = not self._day
            self._day = datetime.fromtimestamp(now_s, UTC).date().isoformat()
            self._day_ends_at_s = (now_s // DAY_S + 1) * DAY_S
            # A clock that jumped may have been at this day before. At the first one, nothing has this writer's name.
            if not is_first:
                self._whole.setdefault(self._day, {row.of for row in self._rows.values() if row.of.day == self._day})
            # Other days do not change: their written rows can be dropped, and are recalled if the day begins again.
            needed = self._unwritten | self._writing
            self._rows = {of: row for of, row in self._rows.items() if row.of.day in self._whole or row.of in needed}
        return self._day

    async def _recall(self, day: str) -> None:
        """Add to the day's rows that lack it what was written of them before: totals only grow, and none of its rows is
        written until then. Raises StoreUnavailable.
        """
        query = UsageQuery(day, day, writer=self.writer)
        written = [row async for rows in usage_rows(self._store, query) for row in rows]
        whole = self._whole.pop(day)
        for of, totals in ((row.of, row.totals) for row in written if row.of not in whole):
            row = self._rows.setdefault(of, _UsageRow(of))
            row.requests += totals.requests
            row.prompt_tokens += totals.prompt_tokens
            row.cached_tokens += totals.cached_tokens
            row.output_tokens += totals.output_tokens
        for watcher in self.recall_watchers:
            watcher(day)

    def _new_row(self, of: UsageKey) -> _UsageRow:
        """The row of this key, or the common row of all usage beyond ROWS_MAX."""
        if len(self._rows) >= ROWS_MAX:
            of = UsageKey(of.day, OTHER, "", OTHER)
        return self._rows.setdefault(of, _UsageRow(of))

    async def _try_flush(self) -> None:
        try:
            await self.flush()
        except StoreUnavailable as error:
            if str(error) != self._complained:  # retried every time, logged once
                log.warning("usage is not written, and is kept in memory: %s", error)
            self._complained = str(error)
        else:
            self._complained = ""


class CallPricing:
    """A meter that sets the cost of each call that ends, before other meters count it."""

    def __init__(self, prices: PriceBook, today: Callable[[], str]) -> None:
        """`today` is the day that usage is counted on."""
        self._prices = prices
        self._today = today

    def ended(self, trace: CallTrace) -> None:
        """Set the call's cost, where it was served and its model has a price."""
        usage = trace.usage
        if usage is None or trace.tenant_id is None or self._prices.currency is None:
            return
        prices = self._prices.prices(trace.model or "", self._today())
        if prices is None:
            trace.is_unpriced = True
        else:
            cached_tokens = min(usage.cached_tokens, usage.prompt_tokens)
            trace.cost = prices.cost(usage.prompt_tokens, cached_tokens, usage.output_tokens)
            trace.currency = self._prices.currency
