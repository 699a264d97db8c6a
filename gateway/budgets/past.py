"""PastSpending: earlier spending, from the usage book and the store.

The store has the usage of earlier processes and of other gateways. After a change of prices a cost may shrink, so costs
are then computed anew from the store.
"""

import logging
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import date, timedelta
from typing import Any

from gateway.budgets.accounts import Amounts, Holder, Unit
from gateway.budgets.ledger import BudgetLedger
from gateway.budgets.usage import UsageBook
from gateway.store.base import Store, StoreUnavailable, UsageQuery, UsageRow, usage_rows

READ_S = 10.0  # between reads of other gateways' usage from the store

log = logging.getLogger(__name__)

_Sums = defaultdict[Any, Any]


class PastSpending:
    """A reader of stored usage, of earlier processes and other gateways, for the BudgetLedger. Mutable."""

    def __init__(
        self,
        ledger: BudgetLedger,
        book: UsageBook,
        store: Store,
        amounts: Amounts,
        *,
        is_shared: bool,
        clock: Callable[[], float],
    ) -> None:
        """`is_shared`: other gateways write the store too. `clock`: seconds since 1970."""
        self._ledger = ledger
        self._book = book
        self._store = store
        self._amounts = amounts
        self._is_shared = is_shared
        self._clock = clock
        self._read_at_s = 0.0
        self._unread: set[Holder] = set()
        self._recalled: set[date] = set()
        self._month = book.today()[:7]  # of the last day that was recalled
        book.recall_watchers.append(self._recall)

    def count(self, holder: Holder, units: Iterable[Unit]) -> None:
        """Count the usage book's rows in the holder's empty tallies; the next read adds the store's rows."""
        for unit in units:
            self._unread.add(holder)
            tally = self._ledger.accounts[holder].tallies[unit]
            for of, totals in self._book.rows():
                if holder in self._ledger.groups.holders(of.tenant, of.key):
                    tally.counted(self._book.writer, of.day, self._amounts.of_usage(unit, of, totals))

    def repriced(self) -> None:
        """The prices have changed: costs are computed anew, with the next read."""
        accounts = self._ledger.accounts
        self._unread = {each for each in accounts if each in self._unread or Unit.COST in accounts[each].tallies}
        if not self._unread:
            self._ledger.priced_by = self._amounts.prices.version

    def _recall(self, day: str) -> None:
        """The next read includes this day for all budgets; the month, if it is another: the tallies may lack it."""
        if day[:7] != self._month:
            self._unread |= self._ledger.accounts.keys()
            self._month = day[:7]
        elif self._ledger.accounts:
            self._recalled.add(date.fromisoformat(day))

    async def read(self) -> None:
        """Read usage from the store: this month's usage for new budgets and after a change of prices or of the month;
        each new day's usage for all budgets; every READ_S also the usage of the last two days for all budgets.
        """
        ledger, today = self._ledger, date.fromisoformat(self._book.today())
        unread, self._unread = self._unread & ledger.accounts.keys(), set()
        recalled, self._recalled = self._recalled, set()
        priced_by = self._amounts.prices.version
        try:
            if unread:
                is_other = priced_by != ledger.priced_by
                await self._read_days(unread, today.replace(day=1), today, replaces_costs=is_other)
            if self._amounts.prices.version == priced_by:
                ledger.priced_by = priced_by
            for day in recalled:
                await self._read_days(set(ledger.accounts), day, day)
            if self._is_shared and ledger.accounts and not 0 <= self._clock() - self._read_at_s < READ_S:
                await self._read_days(set(ledger.accounts), max(today - timedelta(days=1), today.replace(day=1)), today)
                self._read_at_s = self._clock()
        except StoreUnavailable as error:
            self._unread |= unread
            self._recalled |= recalled
            log.warning("what budgets have spent before cannot be read: %s", error)

    async def _read_days(self, holders: set[Holder], first: date, last: date, *, replaces_costs: bool = False) -> None:
        """Take over what the store has of these holders and days; costs instead of what is known, or the larger."""
        ledger, book = self._ledger, self._book
        of_whom = {holder: ledger.groups.hash_of(holder) for holder in holders}
        tenants = ledger.groups.tenants(holders)
        sums = _Sums(lambda: _Sums(lambda: _Sums(int)))
        one = next(iter(tenants)) if len(tenants) == 1 else None
        async for rows in usage_rows(self._store, UsageQuery(first.isoformat(), last.isoformat(), one)):
            for row in rows:
                if row.of.tenant in tenants and (row.writer != book.writer or row.of not in book):
                    self._add(sums, holders, row)
        for of, totals in book.rows():  # newer than the store's
            self._add(sums, holders, UsageRow(book.writer, of, totals))
        for holder in self._unchanged(of_whom):
            ledger.touched.add(holder)
            for unit, tally in ledger.accounts[holder].tallies.items():
                days = sums[holder, unit]
                if replaces_costs and unit is Unit.COST:
                    tally.replace(days)
                for day, writers in days.items():
                    for writer, amount in writers.items():
                        tally.told(writer, day, amount)

    def _unchanged(self, of_whom: Mapping[Holder, int]) -> Iterator[Holder]:
        """The holders but those that have other tenants than then: a tenant that moves has them read anew."""
        for holder, tenants in of_whom.items():
            if holder in self._ledger.accounts and self._ledger.groups.hash_of(holder) == tenants:
                yield holder

    def _add(self, sums: _Sums, holders: set[Holder], row: UsageRow) -> None:
        """Add a row to the sums, by holder and unit, day, and writer."""
        for holder in self._ledger.holders(row.of.tenant, row.of.key):
            if holder in holders:
                for unit in self._ledger.accounts[holder].tallies:
                    sums[holder, unit][row.of.day][row.writer] += self._amounts.of_usage(unit, row.of, row.totals)
