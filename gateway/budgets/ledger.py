"""BudgetLedger: the limits, spending and reservations of each holder of a budget, here and at other gateways.

It keeps no counts of its own: the usage book adds this process's usage, and other gateways report theirs. The totals of
one writer only grow, so the larger of two reports is the newer one, and nothing counts twice. Processes use each
other's costs only while they have the same prices.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping

from gateway.budgets.accounts import (
    Amounts,
    BudgetAccount,
    BudgetUse,
    Holder,
    Period,
    Unit,
    named_tally,
    renewal_times_s,
)
from gateway.budgets.group_tenants import GroupTenants
from gateway.budgets.usage import UsageBook
from gateway.store.base import Totals, UsageKey

Spent = Mapping[str, Mapping[str, int]]
"""Tokens, and costs in picos, by day and tally (`GroupTenants.tally_name`), as one writer has counted them."""
Reserved = tuple[int, int]
"""What a call has reserved: tokens, and picos."""
NOTHING_RESERVED: Reserved = (0, 0)


class BudgetLedger:
    """The accounts of all holders of budgets (tenants, keys and groups) at one gateway. Mutable."""

    def __init__(self, book: UsageBook, amounts: Amounts, priced_by: str) -> None:
        self.accounts: dict[Holder, BudgetAccount] = {}
        self.groups = GroupTenants()
        self.outstanding: dict[str, Reserved] = {}
        """What the calls of each tenant with a group have reserved here, which moves with the tenant."""
        self.reserved_elsewhere: Mapping[str, int] = {}
        """What is reserved at other gateways, by tally (`GroupTenants.tally_name`)."""
        self.touched: set[Holder] = set()
        """The holders whose use or limits may have changed since `take_touched`."""
        self.priced_by = priced_by
        """The version of the prices that the costs here are by."""
        self._book = book
        self._amounts = amounts
        self._replicas = 1  # that divide the rest while this process is alone
        self._today, self._ends_s = "", dict[Period, float]()
        book.watchers.append(self._counted)

    def holders(self, tenant: str, key: str) -> list[Holder]:
        """The holders of budgets that a call of this tenant and key counts for."""
        return [each for each in self.groups.holders(tenant, key) if each in self.accounts]

    def tally_names(self, tenant: str, key: str) -> dict[str, Unit]:
        """The tallies that a call of this tenant and key counts for."""
        holders = self.holders(tenant, key)
        return {self.groups.tally_name(each, unit): unit for each in holders for unit in self.accounts[each].tallies}

    def reserve(self, tenant: str, key: str, more: Reserved) -> None:
        """Add `more` to the reservations for calls of this tenant and key; negative: release."""
        for holder in self.holders(tenant, key):
            for unit, tally in self.accounts[holder].tallies.items():
                tally.reserved = max(0, tally.reserved + part_of(more, unit))
        if tenant in self.groups.group_of or tenant in self.outstanding:
            before = self.outstanding.pop(tenant, NOTHING_RESERVED)
            now = max(0, before[0] + more[0]), max(0, before[1] + more[1])
            if now != NOTHING_RESERVED:
                self.outstanding[tenant] = now

    def uses(self, holder: Holder) -> Iterator[BudgetUse]:
        """The use of every budget of this holder."""
        account, today = self.accounts.get(holder), self._book.today()
        if account is None:
            return
        if today != self._today:
            self._today, self._ends_s = today, renewal_times_s(today)
        for unit, tally in account.tallies.items():
            reserved = tally.reserved + self.reserved_elsewhere.get(self.groups.tally_name(holder, unit), 0)
            sums = zip(
                self._ends_s.items(), account.limits.of(unit), tally.spent(today), tally.before(today), strict=True
            )
            for (period, ends_s), limit, used, before in sums:
                if limit is not None:
                    kept_back = self._kept_back(limit - before)
                    yield BudgetUse(holder, unit, period, limit, used, reserved, kept_back, ends_s)

    def overview(
        self,
        after: Holder = ("", ""),
        limit: int | None = None,
        shows: Callable[[Holder], bool] | None = None,
    ) -> list[BudgetUse]:
        """The use of all budgets of the first `limit` holders after `after` for which `shows` is true."""
        behind = (holder for holder in self.accounts if holder > after)
        holders = sorted(behind if shows is None else filter(shows, behind))[:limit]
        return [use for holder in holders for use in self.uses(holder)]

    def take_touched(self) -> set[Holder]:
        """The holders whose use or limits may have changed since the last call."""
        touched, self.touched = self.touched, set()
        return touched

    # -- other processes -------------------------------------------------------------------------------------

    def spent_here(self, holders: Iterable[Holder] | None = None) -> tuple[Spent, Mapping[str, int]]:
        """The spending of this writer today and the reservations here, by tally (`GroupTenants.tally_name`): of all
        holders that have any, or of `holders`, zeros included.
        """
        today, writer = self._book.today(), self._book.writer
        counted, reserved = dict[str, int](), dict[str, int]()
        for holder in self.accounts if holders is None else holders:
            for unit, tally in self.accounts[holder].tallies.items():
                name = self.groups.tally_name(holder, unit)
                if amount := tally.days.get(today, {}).get(writer, 0):
                    counted[name] = amount
                if tally.reserved or holders is not None:
                    reserved[name] = tally.reserved
        return {today: counted}, reserved

    def spent_elsewhere(self, writer: str, spent: Spent, priced_by: str) -> None:
        """Record another gateway's totals, whose costs are by this version of the prices."""
        for day, by_tally in spent.items():
            for name, amount in by_tally.items():
                holder, unit = named_tally(name)
                account = self.accounts.get(holder)
                tally = None if account is None else account.tallies.get(unit)
                is_comparable = name == self.groups.tally_name(holder, unit) and (
                    unit is Unit.TOKENS or priced_by == self.priced_by
                )
                if tally is not None and is_comparable:
                    self.touched.add(holder)
                    tally.told(writer, day, amount)

    def cut_off(self, replicas: int) -> None:
        """Set the number of replicas that divide the rest of budgets while this process is alone; 1: it is not."""
        if replicas != self._replicas:
            self._replicas, today = replicas, self._book.today()
            self.reserved_elsewhere = {}
            for account in self.accounts.values():
                for tally in account.tallies.values():
                    tally.cut_off(today, is_alone=replicas != 1)

    def _kept_back(self, left: int) -> int:
        """The part of the rest when this process was left alone that the other replicas may spend."""
        return max(0, left) * (self._replicas - 1) // self._replicas

    def _counted(self, of: UsageKey, totals: Totals) -> None:
        """Add a call that the usage book has just counted."""
        for holder in self.holders(of.tenant, of.key):
            self.touched.add(holder)
            for unit, tally in self.accounts[holder].tallies.items():
                tally.counted(self._book.writer, of.day, self._amounts.of_usage(unit, of, totals))


def part_of(reserved: Reserved, unit: Unit) -> int:
    """The part of a reservation in this unit."""
    tokens, cost = reserved
    return tokens if unit is Unit.TOKENS else cost
