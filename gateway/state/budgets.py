"""Token budgets of tenants and keys, per calendar day and month in UTC.

Budgets keep no counts of their own: they follow the usage book. Usage of this process is added as it is counted; usage
of others (earlier processes, other gateways) is read from the store, or told earlier by the leader. The totals
of one writer only grow, so the larger of two reports is the newer, and nothing counts twice.

A call reserves its expected tokens (its prompt, and the mean output of its tenant's calls) until it has ended; then its
actual usage counts. It is admitted if its prompt alone fits into what is left: an estimate of its output can hold back
other calls, but not the call itself.
"""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from typing import Literal, NamedTuple

from gateway.config.sections import Section, TenantSection
from gateway.observability.telemetry import CallTrace
from gateway.state.resource_kinds import ApiKey
from gateway.state.usage import UsageBook
from gateway.store.base import Store, StoreFull, StoreUnavailable, UsageKey, UsageRow
from gateway.store.periodic import Periodic
from policies.types import LimitKind

LOOK_S = 0.25  # between checks for new budgets
READ_S = 10.0  # between reads of other gateways' usage from the store
ROWS_AT_ONCE = 1_000
OUTPUT_TOKENS_UNKNOWN = 256  # per call, until the first one has ended

log = logging.getLogger(__name__)

BUDGETED = ("tenants", "keys")
"""Kinds of entries that may have budgets."""
Holder = tuple[str, str]
"""The holder of a budget: a tenant and one of its keys, "" for the tenant as a whole."""
Spent = Mapping[str, Mapping[str, int]]
"""Tokens by day and holder (`holder_name`), as one writer has counted them."""


class BudgetLimits(NamedTuple):
    """Maximum tokens; None: no such budget."""

    day: int | None = None
    month: int | None = None


class Overrun(NamedTuple):
    """A budget that a call does not fit into, and the seconds until it resets."""

    wait_s: float
    period: LimitKind


class BudgetClaim(NamedTuple):
    """A call that asks for room in the budgets of its tenant and key."""

    tenant: str
    key: str
    prompt_tokens: int
    expected_tokens: int  # its prompt, and the mean output


@dataclass(frozen=True, slots=True)
class BudgetUse:
    """The present use of one budget."""

    holder: Holder
    period: Literal["day", "month"]
    limit: int
    used: int
    reserved: int
    kept_back: int  # for other replicas, while this one is alone
    renewed_at_s: float

    @property
    def remaining(self) -> int:
        return max(0, self.limit - self.used - self.reserved - self.kept_back)


@dataclass(slots=True)
class _Account:
    """The tokens that one holder has spent this month. Mutable."""

    limits: BudgetLimits
    days: dict[str, dict[str, int]] = field(default_factory=dict)  # by writer
    month: str = ""
    month_tokens: int = 0
    reserved: int = 0  # by calls at this gateway
    calls: int = 0
    output_tokens: int = 0
    cut_off: tuple[str, int, int] | None = None  # the day, and tokens of day and month, when it was left alone

    def told(self, writer: str, day: str, tokens: int) -> None:
        """Record one writer's total of this day."""
        writers = self.days.setdefault(day, {})
        more = tokens - writers.get(writer, 0)
        if more > 0:
            writers[writer] = tokens
            if day[:7] == self.month:
                self.month_tokens += more

    def spent(self, today: str) -> tuple[int, int]:
        """Tokens spent today and this month."""
        if self.month != today[:7]:
            self.month = today[:7]
            self.days = {day: writers for day, writers in self.days.items() if day[:7] == self.month}
            self.month_tokens = sum(sum(writers.values()) for writers in self.days.values())
        return sum(self.days.get(today, {}).values()), self.month_tokens

    def before(self, today: str) -> tuple[int, int]:
        """The part of today's and this month's tokens that was spent before this process was left alone."""
        if self.cut_off is None:
            return 0, 0
        day, day_tokens, month_tokens = self.cut_off
        return day_tokens if day == today else 0, month_tokens if day[:7] == today[:7] else 0


class Budgets:
    """All budgets of one gateway. Mutable; used on one loop."""

    def __init__(
        self, book: UsageBook, store: Store, *, is_shared: bool, clock: Callable[[], float] = time.time
    ) -> None:
        """`is_shared`: other gateways write the store too. `clock`: seconds since 1970."""
        self._book = book
        self._store = store
        self._is_shared = is_shared
        self._clock = clock
        self._accounts: dict[Holder, _Account] = {}
        self._unread: set[Holder] = set()
        self._read_at_s = 0.0
        self._reader = Periodic(self._read, LOOK_S, "read what budgets have spent")
        self.reserved_elsewhere: Mapping[str, int] = {}
        """Tokens reserved at other gateways, by holder (`holder_name`)."""
        self.claim_elsewhere: Callable[[BudgetClaim], Awaitable[Overrun | None]] | None = None
        """Asks the process that admits to budgets for all, where that is another one. Raises StoreUnavailable."""
        self._replicas = 1  # that divide the rest while this process is alone
        self._today, self._ends_s = "", (0.0, 0.0)
        book.counted = self._counted

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
        account = self._accounts.get(holder)
        if limits == BudgetLimits():
            self._accounts.pop(holder, None)
            self._unread.discard(holder)
        elif account is not None:
            account.limits = limits
        else:
            account = self._accounts[holder] = _Account(limits)
            account.told(self._book.writer, self._book.today(), self._counted_today(holder))
            self._unread.add(holder)

    def forget_key(self, key: str) -> None:
        """Remove the budgets of a deleted key."""
        for holder in [holder for holder in self._accounts if holder[1] == key]:
            self.put(holder, BudgetLimits())

    # -- calls ---------------------------------------------------------------------------------------------

    def spent_by(self, tenant: str, key: str, prompt_tokens: int) -> Overrun | None:
        """The budget that a prompt does not fit into, of several the one that resets last; None where it fits
        into all.
        """
        if not self._accounts:
            return None
        over = [
            Overrun(standing.renewed_at_s - self._clock(), LimitKind(standing.period))
            for holder in _holders(tenant, key)
            for standing in self._uses(holder)
            if prompt_tokens > standing.remaining
        ]
        return max(over, default=None)

    def reserve(self, tenant: str, key: str, *, prompt_tokens: int, output_tokens_max: int) -> int:
        """Reserve the expected tokens of a call, and return their number; `ended` releases them."""
        accounts = [self._accounts[each] for each in self.holders(tenant, key)]
        tokens = self._expected(accounts, prompt_tokens, output_tokens_max)
        for each in accounts:
            each.reserved += tokens
        return tokens

    async def claim(self, tenant: str, key: str, *, prompt_tokens: int, output_tokens_max: int) -> int | Overrun:
        """Reserve the expected tokens of a call where its prompt fits, whichever process admits for all. `ended`
        releases them.
        """
        over = self.spent_by(tenant, key, prompt_tokens)
        if over is not None:
            return over
        accounts = [self._accounts[each] for each in self.holders(tenant, key)]
        if accounts and self.claim_elsewhere is not None:
            expected = self._expected(accounts, prompt_tokens, output_tokens_max)
            with suppress(StoreUnavailable):  # then what is known here decides
                over = await self.claim_elsewhere(BudgetClaim(tenant, key, prompt_tokens, expected))
        if over is not None:
            return over
        return self.reserve(tenant, key, prompt_tokens=prompt_tokens, output_tokens_max=output_tokens_max)

    @staticmethod
    def _expected(accounts: list[_Account], prompt_tokens: int, output_tokens_max: int) -> int:
        """How many tokens a call is expected to use, by the first of its holders; 0 without a budget."""
        if not accounts:
            return 0
        account = accounts[0]
        mean = account.output_tokens / account.calls if account.calls else OUTPUT_TOKENS_UNKNOWN
        return prompt_tokens + min(round(mean), output_tokens_max)

    def ended(self, trace: CallTrace) -> None:
        """Release the reservation of an ended call, which the usage book has counted before."""
        if trace.reserved_tokens and trace.tenant_id is not None:
            for holder in _holders(trace.tenant_id, trace.key_id):
                account = self._accounts.get(holder)
                if account is not None:
                    account.reserved = max(0, account.reserved - trace.reserved_tokens)
                    if trace.usage is not None:
                        account.calls += 1
                        account.output_tokens += trace.usage.output_tokens
            trace.reserved_tokens = 0

    def holders(self, tenant: str, key: str) -> list[Holder]:
        """The holders of budgets that a call of this tenant and key counts for."""
        return [each for each in _holders(tenant, key) if each in self._accounts]

    # -- other processes -------------------------------------------------------------------------------------

    def spent_here(self, holders: Iterable[Holder] | None = None) -> tuple[Spent, Mapping[str, int]]:
        """Tokens that this writer has counted today, and tokens reserved here, by holder (`holder_name`): of all that
        have any, or of these, zeros included.
        """
        today, writer = self._book.today(), self._book.writer
        accounts = self._accounts if holders is None else {each: self._accounts[each] for each in holders}
        counted = {holder: account.days.get(today, {}).get(writer, 0) for holder, account in accounts.items()}
        reserved = {
            holder_name(holder): account.reserved
            for holder, account in accounts.items()
            if account.reserved or holders is not None
        }
        return {today: {holder_name(holder): tokens for holder, tokens in counted.items() if tokens}}, reserved

    def spent_elsewhere(self, writer: str, spent: Spent) -> None:
        """Record another gateway's totals."""
        for day, by_holder in spent.items():
            for name, tokens in by_holder.items():
                tenant, _, key = name.partition("\n")
                account = self._accounts.get((tenant, key))
                if account is not None:
                    account.told(writer, day, tokens)

    def cut_off(self, replicas: int) -> None:
        """The number of replicas that divide the rest while this process is alone; 1: it is not."""
        if replicas != self._replicas:
            self._replicas, today = replicas, self._book.today()
            self.reserved_elsewhere = {}
            for account in self._accounts.values():
                account.cut_off = None if replicas == 1 else (today, *account.spent(today))

    # -- overview ------------------------------------------------------------------------------------------

    def overview(self, after: Holder = ("", ""), limit: int | None = None) -> list[BudgetUse]:
        """The use of every budget of at most `limit` holders, by holder, after `after`."""
        holders = sorted(holder for holder in self._accounts if holder > after)[:limit]
        return [standing for holder in holders for standing in self._uses(holder)]

    # -- internals -----------------------------------------------------------------------------------------

    def _uses(self, holder: Holder) -> Iterator[BudgetUse]:
        account = self._accounts.get(holder)
        if account is None:
            return
        today = self._book.today()
        if today != self._today:
            self._today, self._ends_s = today, (_day_ends_at_s(today), _month_ends_at_s(today))
        reserved = account.reserved + self.reserved_elsewhere.get(holder_name(holder), 0)
        (day, month), used, before, ends_s = account.limits, account.spent(today), account.before(today), self._ends_s
        if day is not None:
            yield BudgetUse(holder, "day", day, used[0], reserved, self._kept_back(day - before[0]), ends_s[0])
        if month is not None:
            yield BudgetUse(holder, "month", month, used[1], reserved, self._kept_back(month - before[1]), ends_s[1])

    def _kept_back(self, left: int) -> int:
        """The part of the rest when this process was left alone that the other replicas may spend."""
        return max(0, left) * (self._replicas - 1) // self._replicas

    def _counted(self, of: UsageKey, tokens: int) -> None:
        """Add tokens that the usage book has just counted."""
        for holder in _holders(of.tenant, of.key):
            account = self._accounts.get(holder)
            if account is not None:
                before = account.days.get(of.day, {}).get(self._book.writer, 0)
                account.told(self._book.writer, of.day, before + tokens)

    def _counted_today(self, holder: Holder) -> int:
        by_key = self._book.tokens_today(holder[0])
        return by_key.get(holder[1], 0) if holder[1] else sum(by_key.values())

    async def _read(self) -> None:
        """Read usage from the store: this month's for new budgets, and every READ_S the last two days' for all."""
        today = date.fromisoformat(self._book.today())
        unread, self._unread = self._unread, set()
        try:
            if unread:
                await self._read_days(unread, today.replace(day=1), today)
            if self._is_shared and self._accounts and self._clock() - self._read_at_s >= READ_S:
                await self._read_days(set(self._accounts), max(today - timedelta(days=1), today.replace(day=1)), today)
                self._read_at_s = self._clock()
        except StoreUnavailable as error:
            self._unread |= unread & self._accounts.keys()
            log.warning("what budgets have spent before cannot be read: %s", error)

    async def _read_days(self, holders: set[Holder], first: date, last: date) -> None:
        tenants = {tenant for tenant, _ in holders}
        day = first
        while day <= last:
            totals: dict[tuple[Holder, str], int] = {}
            async for row in self._rows(day.isoformat(), tenants):
                for holder in _holders(row.of.tenant, row.of.key):
                    if holder in holders:
                        tokens = row.totals.prompt_tokens + row.totals.output_tokens
                        totals[holder, row.writer] = totals.get((holder, row.writer), 0) + tokens
            for (holder, writer), tokens in totals.items():
                if holder in self._accounts:
                    self._accounts[holder].told(writer, day.isoformat(), tokens)
            day += timedelta(days=1)

    async def _rows(self, day: str, tenants: set[str]) -> AsyncIterator[UsageRow]:
        """The rows of these tenants on one day; yields to the event loop between them."""
        one = next(iter(tenants)) if len(tenants) == 1 else None
        try:
            rows: Iterable[UsageRow] = await self._store.usage(first_day=day, last_day=day, tenant=one)
        except StoreFull:
            rows = [row for each in sorted(tenants) for row in await self._of_tenant(day, each)]
        for number, row in enumerate(rows, start=1):
            if row.of.tenant in tenants:
                yield row
            if number % ROWS_AT_ONCE == 0:
                await asyncio.sleep(0)

    async def _of_tenant(self, day: str, tenant: str) -> Iterable[UsageRow]:
        return await self._store.usage(first_day=day, last_day=day, tenant=tenant)


def limits_of(section: Section | None) -> BudgetLimits:
    """The budgets of a tenant or a key; none where the section is neither, or gone."""
    if not isinstance(section, TenantSection | ApiKey):
        return BudgetLimits()
    return BudgetLimits(section.tokens_per_day_max, section.tokens_per_month_max)


def holder_name(holder: Holder) -> str:
    """The holder as a string: one line for a tenant, two for a key."""
    return "\n".join(holder) if holder[1] else holder[0]


def _holders(tenant: str, key: str) -> tuple[Holder, ...]:
    return ((tenant, ""), (tenant, key)) if key else ((tenant, ""),)


def _day_ends_at_s(day: str) -> float:
    return _at_s(date.fromisoformat(day) + timedelta(days=1))


def _month_ends_at_s(day: str) -> float:
    this = date.fromisoformat(day)
    return _at_s(date(this.year + this.month // 12, this.month % 12 + 1, 1))


def _at_s(day: date) -> float:
    return datetime(day.year, day.month, day.day, tzinfo=UTC).timestamp()
