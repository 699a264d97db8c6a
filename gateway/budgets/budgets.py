"""Budgets of tenants and keys, in tokens and in money, per calendar day and month in UTC.

Budgets keep no counts of their own: they follow the usage book. Usage of this process is added as it is counted; usage
of others (earlier processes, other gateways) is read from the store, or told earlier by the leader. The totals
of one writer only grow, so the larger of two reports is the newer, and nothing counts twice.

Money is the cost of the same tokens. With other prices it may shrink, so it is computed anew from the store then, and
processes believe each other's costs only while they have the same prices.

A call reserves its expected tokens (its prompt, and the mean output of its tenant's calls) until it has ended; then its
actual usage counts. It is admitted if its prompt alone fits into what is left: an estimate of its output can hold back
other calls, but not the call itself. A call that costs nothing, or of which no price is known, needs no money.
"""

import logging
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import date, timedelta
from typing import Any, NamedTuple

from gateway.budgets.accounts import (
    LIMIT_KINDS,
    BudgetAccount,
    BudgetLimits,
    BudgetTally,
    BudgetUse,
    Holder,
    Period,
    Unit,
    named_tally,
    renewal_times_s,
)
from gateway.budgets.amounts import Amounts
from gateway.budgets.group_tenants import GroupTenants
from gateway.budgets.usage import UsageBook
from gateway.money.pricing import PriceBook
from gateway.observability.telemetry import CallTrace
from gateway.store.base import Store, StoreUnavailable, Totals, UsageKey, UsageQuery, UsageRow, usage_rows
from gateway.store.periodic import Periodic
from policies.types import LimitKind

LOOK_S = 0.25  # between checks for new budgets
READ_S = 10.0  # between reads of other gateways' usage from the store
OUTPUT_TOKENS_UNKNOWN = 256  # per call, until the first one has ended

log = logging.getLogger(__name__)

BUDGETED = ("groups", "tenants", "keys")
"""Kinds of entries that may have budgets."""
Spent = Mapping[str, Mapping[str, int]]
"""Tokens, and costs in picos, by day and tally (`GroupTenants.tally_name`), as one writer has counted them."""
Reserved = tuple[int, int]
"""What a call has reserved: tokens, and picos."""
NOTHING_RESERVED: Reserved = (0, 0)


class Overrun(NamedTuple):
    """A budget that a call does not fit into, and the seconds until it resets."""

    wait_s: float
    period: LimitKind


class BudgetClaim(NamedTuple):
    """A call that asks for room in the budgets of its tenant and key."""

    tenant: str
    key: str
    model: str
    prompt_tokens: int
    output_tokens: int = 0  # the mean, or the most that it may have


class Budgets:
    """All budgets of one gateway. Mutable; used on one loop."""

    def __init__(
        self,
        book: UsageBook,
        store: Store,
        *,
        is_shared: bool,
        prices: PriceBook | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """`is_shared`: other gateways write the store too. `clock`: seconds since 1970."""
        self.book = book
        self._store = store
        self._is_shared = is_shared
        self.prices = PriceBook() if prices is None else prices
        self._amounts = Amounts(self.prices, book.today)
        self._clock = clock
        self._accounts: dict[Holder, BudgetAccount] = {}
        self._unread: set[Holder] = set()
        self._groups = GroupTenants()
        self._outstanding: dict[str, Reserved] = {}  # by tenant with a group: what its calls here have reserved
        self._read_at_s = 0.0
        self._reader = Periodic(self._read, LOOK_S, "read what budgets have spent")
        self.priced_by = self.prices.version
        """The version of the prices that the costs here are by."""
        self.reserved_elsewhere: Mapping[str, int] = {}
        """What is reserved at other gateways, by tally (`GroupTenants.tally_name`)."""
        self._touched: set[Holder] = set()
        self._replicas = 1  # that divide the rest while this process is alone
        self._today, self._ends_s = "", dict[Period, float]()
        book.watchers.append(self._counted)

    async def start(self) -> None:
        """Read past usage before any call is admitted, as far as the store can be read."""
        await self._read()
        self._reader.start()

    async def stop(self) -> None:
        if self._reader.is_running:
            await self._reader.stop()

    # -- limits --------------------------------------------------------------------------------------------

    def put(self, holder: Holder, limits: BudgetLimits) -> None:
        """Set the budgets of a holder; no limits remove it."""
        if limits == BudgetLimits():
            self._accounts.pop(holder, None)
            self._unread.discard(holder)
            return
        account = self._accounts.setdefault(holder, BudgetAccount(limits))
        account.limits, before = limits, account.tallies
        self._touched.add(holder)
        account.tallies = {unit: before.get(unit) or BudgetTally() for unit in limits.units()}
        new = account.tallies.keys() - before.keys()
        if new:
            self._unread.add(holder)
        for unit in new:
            for of, totals in self._rows_here(holder):
                account.tallies[unit].counted(self.book.writer, of.day, self._amounts.of_usage(unit, of, totals))

    def put_group(self, tenant: str, group: str | None) -> None:
        """Set the tenant's group. A group's budgets count what its tenants have used this month, wherever they were
        then.
        """
        reserved = self._outstanding.get(tenant, NOTHING_RESERVED)
        for holder, sign in zip(self._groups.move(tenant, group), (-1, 1), strict=True):
            if holder is not None and holder in self._accounts:
                self._count_anew(holder, more=(sign * reserved[0], sign * reserved[1]))

    def tenant_deleted(self, tenant: str) -> None:
        """What the tenant has used, and what it still runs, counts for its group until the month ends: else a group
        would get budget back for every tenant that it deletes.
        """
        self._groups.delete(tenant, self.book.today()[:7])

    def _count_anew(self, holder: Holder, more: Reserved) -> None:
        """Count from the usage book and the store what the holder has used; so much more is reserved than before."""
        account = self._accounts[holder]
        for unit, before in account.tallies.items():
            tally = account.tallies[unit] = BudgetTally()
            tally.reserved = max(0, before.reserved + _of(unit, more))
            for of, totals in self._rows_here(holder):
                tally.counted(self.book.writer, of.day, self._amounts.of_usage(unit, of, totals))
        self._unread.add(holder)

    def forget_key(self, key: str) -> None:
        """Remove the budgets of a deleted key."""
        for holder in [holder for holder in self._accounts if holder[1] == key]:
            self.put(holder, BudgetLimits())

    def repriced(self) -> None:
        """The prices have changed: costs are computed anew, with the next read."""
        self._unread |= {holder for holder, account in self._accounts.items() if Unit.COST in account.tallies}
        if not self._unread:
            self.priced_by = self.prices.version

    # -- calls ---------------------------------------------------------------------------------------------

    def spent_by(self, claim: BudgetClaim) -> Overrun | None:
        """The budget that a prompt does not fit into, of several the one that resets last; None where it fits
        into all.
        """
        if not self._accounts:
            return None
        over = [
            Overrun(use.renewed_at_s - self._clock(), LIMIT_KINDS[use.unit, use.period])
            for holder in self.holders(claim.tenant, claim.key)
            for use in self.uses(holder)
            if self._amounts.exceeds(use, claim.model, claim.prompt_tokens)
        ]
        return max(over, default=None)

    def reserve(self, claim: BudgetClaim) -> Reserved:
        """Reserve what a call is expected to use, and return it; `ended` releases it."""
        reserved = self.expected(claim)
        for holder in self.holders(claim.tenant, claim.key):
            for unit, tally in self._accounts[holder].tallies.items():
                tally.reserved += _of(unit, reserved)
        self._reserve_more(claim.tenant, reserved)
        return reserved

    def with_output(self, claim: BudgetClaim) -> BudgetClaim:
        """The claim of a call that has budgets, with the output that it is expected to have: the mean, or its most."""
        account = self._accounts[self.holders(claim.tenant, claim.key)[0]]
        mean = account.output_tokens / account.calls if account.calls else OUTPUT_TOKENS_UNKNOWN
        return claim._replace(output_tokens=min(round(mean), claim.output_tokens))

    def expected(self, claim: BudgetClaim) -> Reserved:
        """The tokens of a call with this prompt and output, and what they cost."""
        cost = self._amounts.cost(claim.model, claim.prompt_tokens, claim.output_tokens)
        return claim.prompt_tokens + claim.output_tokens, cost

    def ended(self, trace: CallTrace) -> None:
        """Release the reservation of an ended call, which the usage book has counted before."""
        if trace.reserved != NOTHING_RESERVED and trace.tenant_id is not None:
            for holder in self.holders(trace.tenant_id, trace.key_id):
                account = self._accounts[holder]
                for unit, tally in account.tallies.items():
                    tally.reserved = max(0, tally.reserved - _of(unit, trace.reserved))
                if trace.usage is not None:
                    account.calls += 1
                    account.output_tokens += trace.usage.output_tokens
            self._reserve_more(trace.tenant_id, (-trace.reserved[0], -trace.reserved[1]))
            trace.reserved = NOTHING_RESERVED

    def holders(self, tenant: str, key: str) -> list[Holder]:
        """The holders of budgets that a call of this tenant and key counts for."""
        return [each for each in self._groups.holders(tenant, key) if each in self._accounts]

    def tally_names(self, tenant: str, key: str) -> dict[str, Unit]:
        """The tallies that a call of this tenant and key counts for."""
        holders = self.holders(tenant, key)
        return {self._groups.tally_name(each, unit): unit for each in holders for unit in self._accounts[each].tallies}

    # -- other processes -------------------------------------------------------------------------------------

    def spent_here(self, holders: Iterable[Holder] | None = None) -> tuple[Spent, Mapping[str, int]]:
        """What this writer has counted today, and what is reserved here, by tally (`GroupTenants.tally_name`): of all
        that have any, or of these, zeros included.
        """
        today, writer = self.book.today(), self.book.writer
        counted, reserved = dict[str, int](), dict[str, int]()
        for holder in self._accounts if holders is None else holders:
            for unit, tally in self._accounts[holder].tallies.items():
                name = self._groups.tally_name(holder, unit)
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
                account = self._accounts.get(holder)
                tally = None if account is None else account.tallies.get(unit)
                is_comparable = name == self._groups.tally_name(holder, unit) and (
                    unit is Unit.TOKENS or priced_by == self.priced_by
                )
                if tally is not None and is_comparable:
                    self._touched.add(holder)
                    tally.told(writer, day, amount)

    def cut_off(self, replicas: int) -> None:
        """The number of replicas that divide the rest while this process is alone; 1: it is not."""
        if replicas != self._replicas:
            self._replicas, today = replicas, self.book.today()
            self.reserved_elsewhere = {}
            for account in self._accounts.values():
                for tally in account.tallies.values():
                    tally.cut_off(today, is_alone=replicas != 1)

    # -- overview ------------------------------------------------------------------------------------------

    def overview(
        self,
        after: Holder = ("", ""),
        limit: int | None = None,
        shows: Callable[[Holder], bool] = lambda _holder: True,
    ) -> list[BudgetUse]:
        """The use of every budget of at most `limit` holders, by holder, after `after`, of those that it `shows`."""
        holders = sorted(holder for holder in self._accounts if holder > after and shows(holder))[:limit]
        return [use for holder in holders for use in self.uses(holder)]

    def take_touched(self) -> set[Holder]:
        """The holders whose use or limits may have changed since this was asked last."""
        touched, self._touched = self._touched, set()
        return touched

    # -- internals -----------------------------------------------------------------------------------------

    def uses(self, holder: Holder) -> Iterator[BudgetUse]:
        """The use of every budget of this holder."""
        account, today = self._accounts.get(holder), self.book.today()
        if account is None:
            return
        if today != self._today:
            self._today, self._ends_s = today, renewal_times_s(today)
        for unit, tally in account.tallies.items():
            reserved = tally.reserved + self.reserved_elsewhere.get(self._groups.tally_name(holder, unit), 0)
            sums = zip(
                self._ends_s.items(), account.limits.of(unit), tally.spent(today), tally.before(today), strict=True
            )
            for (period, ends_s), limit, used, before in sums:
                if limit is not None:
                    kept_back = self._kept_back(limit - before)
                    yield BudgetUse(holder, unit, period, limit, used, reserved, kept_back, ends_s)

    def _kept_back(self, left: int) -> int:
        """The part of the rest when this process was left alone that the other replicas may spend."""
        return max(0, left) * (self._replicas - 1) // self._replicas

    def _counted(self, of: UsageKey, totals: Totals) -> None:
        """Add a call that the usage book has just counted."""
        for holder in self.holders(of.tenant, of.key):
            self._touched.add(holder)
            for unit, tally in self._accounts[holder].tallies.items():
                tally.counted(self.book.writer, of.day, self._amounts.of_usage(unit, of, totals))

    def _reserve_more(self, tenant: str, reserved: Reserved) -> None:
        """Remember what the calls of a tenant have reserved, which moves with it to another group."""
        if self._groups.group_of(tenant) is not None or tenant in self._outstanding:
            before = self._outstanding.pop(tenant, NOTHING_RESERVED)
            now = max(0, before[0] + reserved[0]), max(0, before[1] + reserved[1])
            if now != NOTHING_RESERVED:
                self._outstanding[tenant] = now

    def _rows_here(self, holder: Holder) -> list[tuple[UsageKey, Totals]]:
        """The rows of a holder in the usage book."""
        return [(of, totals) for of, totals in self.book.rows() if holder in self._groups.holders(of.tenant, of.key)]

    async def _read(self) -> None:
        """Read usage from the store: this month's for new budgets and after a change of prices, and every READ_S the
        last two days' for all.
        """
        today = date.fromisoformat(self.book.today())
        for tenant in self._groups.deleted_before(self.book.today()[:7]):
            self.put_group(tenant, None)
        unread, self._unread = self._unread, set()
        priced_by = self.prices.version
        try:
            if unread:
                is_other = priced_by != self.priced_by
                await self._read_days(unread, today.replace(day=1), today, replaces_costs=is_other)
                if self.prices.version == priced_by:
                    self.priced_by = priced_by
            if self._is_shared and self._accounts and self._clock() - self._read_at_s >= READ_S:
                await self._read_days(set(self._accounts), max(today - timedelta(days=1), today.replace(day=1)), today)
                self._read_at_s = self._clock()
        except StoreUnavailable as error:
            self._unread |= unread & self._accounts.keys()
            log.warning("what budgets have spent before cannot be read: %s", error)

    async def _read_days(self, holders: set[Holder], first: date, last: date, *, replaces_costs: bool = False) -> None:
        """Take over what the store has of these holders and days; costs instead of what is known, or the larger."""
        of_whom = {holder: self._groups.hash_of(holder) for holder in holders}
        tenants = self._groups.tenants(holders)
        sums = _Sums(lambda: _Sums(lambda: _Sums(int)))
        one = next(iter(tenants)) if len(tenants) == 1 else None
        async for rows in usage_rows(self._store, UsageQuery(first.isoformat(), last.isoformat(), one)):
            for row in rows:
                if row.of.tenant in tenants and (row.writer != self.book.writer or row.of not in self.book):
                    self._add(sums, holders, row)
        for of, totals in self.book.rows():  # newer than the store's
            self._add(sums, holders, UsageRow(self.book.writer, of, totals))
        for holder in self._unchanged(of_whom):
            self._touched.add(holder)
            for unit, tally in self._accounts[holder].tallies.items():
                days = sums[holder, unit]
                if replaces_costs and unit is Unit.COST:
                    tally.replace(days)
                for day_, writers in days.items():
                    for writer, amount in writers.items():
                        tally.told(writer, day_, amount)

    def _unchanged(self, of_whom: Mapping[Holder, int]) -> Iterator[Holder]:
        """The holders but those that have other tenants than then: a tenant that moves has them read anew."""
        for holder, tenants in of_whom.items():
            if holder in self._accounts and self._groups.hash_of(holder) == tenants:
                yield holder

    def _add(self, sums: "_Sums", holders: set[Holder], row: UsageRow) -> None:
        """Add a row to the sums, by holder and unit, day, and writer."""
        for holder in self.holders(row.of.tenant, row.of.key):
            if holder in holders:
                for unit in self._accounts[holder].tallies:
                    sums[holder, unit][row.of.day][row.writer] += self._amounts.of_usage(unit, row.of, row.totals)


_Sums = defaultdict[Any, Any]


def _of(unit: Unit, reserved: Reserved) -> int:
    """The part of a reservation in this unit."""
    tokens, cost = reserved
    return tokens if unit is Unit.TOKENS else cost
