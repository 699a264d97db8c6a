"""Accounts of budgets: what one holder may spend, has spent and has reserved, in tokens and in money.

Money is the cost of the tokens by the present price lists, in picos (config/amounts.py).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from enum import StrEnum
from typing import Literal, NamedTuple

from gateway.budgets.money.pricing import PriceBook
from gateway.config.amounts import to_picos
from gateway.config.sections import LimitedSection, Section
from gateway.store.base import Totals, UsageKey
from policies.types import LimitKind

Holder = tuple[str, str]
"""The holder of a budget: a tenant and one of its keys, "" for the tenant as a whole; or a group (`group_holder`)."""
GROUP = "group="  # no tenant's name begins with it
Period = Literal["day", "month"]


def group_holder(group: str) -> Holder:
    """The group as a holder of budgets."""
    return GROUP + group, ""


def group_of(holder: Holder) -> str:
    """The id of the group that the holder is; "" for a tenant or key."""
    return holder[0].removeprefix(GROUP) if holder[0].startswith(GROUP) else ""


class Unit(StrEnum):
    """The unit in which a budget is counted: tokens, or money."""

    TOKENS = "tokens"
    COST = "cost"


class BudgetLimits(NamedTuple):
    """The budgets of one holder (a tenant, a key or a group) per day and month: tokens, and cost in picos (10^-12 of
    the currency's unit). None: no limit.
    """

    day: int | None = None
    month: int | None = None
    cost_day: int | None = None
    cost_month: int | None = None

    def of(self, unit: Unit) -> tuple[int | None, int | None]:
        """The limits of a day and of a month in this unit."""
        return (self.day, self.month) if unit is Unit.TOKENS else (self.cost_day, self.cost_month)

    def units(self) -> list[Unit]:
        """The units that have a limit."""
        return [unit for unit in Unit if self.of(unit) != (None, None)]


LIMIT_KINDS: Mapping[tuple[Unit, Period], LimitKind] = {
    (Unit.TOKENS, "day"): LimitKind.DAY,
    (Unit.TOKENS, "month"): LimitKind.MONTH,
    (Unit.COST, "day"): LimitKind.COST_DAY,
    (Unit.COST, "month"): LimitKind.COST_MONTH,
}


@dataclass(frozen=True, slots=True)
class BudgetUse:
    """The use of one budget in its present period, in tokens, or in picos (10^-12 of the currency's unit)."""

    holder: Holder
    unit: Unit
    period: Period
    limit: int
    used: int
    reserved: int
    kept_back: int  # for other replicas, while this one is alone
    renewed_at_s: float

    @property
    def remaining(self) -> int:
        return max(0, self.limit - self.used - self.reserved - self.kept_back)


@dataclass(slots=True)
class BudgetTally:
    """The spending of one holder of budgets this month in one unit, tokens or picos, by day and writer (the process
    that counted it). Mutable.
    """

    days: dict[str, dict[str, int]] = field(default_factory=dict)  # by writer
    month: str = ""
    month_sum: int = 0
    reserved: int = 0  # by calls at this gateway
    _cut_off: tuple[str, int, int] | None = None  # the day, and the sums of day and month, when it was left alone

    def told(self, writer: str, day: str, amount: int) -> None:
        """Record one writer's total of this day."""
        writers = self.days.setdefault(day, {})
        more = amount - writers.get(writer, 0)
        if more > 0:
            writers[writer] = amount
            if day[:7] == self.month:
                self.month_sum += more

    def counted(self, writer: str, day: str, amount: int) -> None:
        """Add to one writer's total of this day."""
        self.told(writer, day, self.days.get(day, {}).get(writer, 0) + amount)

    def replace(self, days: dict[str, dict[str, int]]) -> None:
        """Replace the present totals by these totals, by day and writer."""
        self.days, self.month = days, ""

    def spent(self, today: str) -> tuple[int, int]:
        """The amounts that were spent today and this month."""
        if self.month != today[:7]:
            self.month = today[:7]
            self.days = {day: writers for day, writers in self.days.items() if day[:7] == self.month}
            self.month_sum = sum(sum(writers.values()) for writers in self.days.values())
        return sum(self.days.get(today, {}).values()), self.month_sum

    def before(self, today: str) -> tuple[int, int]:
        """The parts of today's and this month's sums that were spent before this process was left alone."""
        if self._cut_off is None:
            return 0, 0
        day, day_sum, month_sum = self._cut_off
        return day_sum if day == today else 0, month_sum if day[:7] == today[:7] else 0

    def cut_off(self, today: str, *, is_alone: bool) -> None:
        """Record whether the process is left alone now."""
        self._cut_off = (today, *self.spent(today)) if is_alone else None


@dataclass(slots=True)
class BudgetAccount:
    """The account of one holder of budgets (a tenant, a key or a group): its limits and its spending. Mutable."""

    limits: BudgetLimits
    tallies: dict[Unit, BudgetTally] = field(default_factory=dict)  # of the units that have a limit
    calls: int = 0
    output_tokens: int = 0


class Amounts:
    """A converter of usage into amounts of a budget (tokens, or picos of money), by the present price lists. A model
    without a price costs nothing.
    """

    def __init__(self, prices: PriceBook, today: Callable[[], str]) -> None:
        """`today` is the day by whose prices a call is admitted."""
        self.prices = prices
        self._today = today

    def of_usage(self, unit: Unit, of: UsageKey, totals: Totals) -> int:
        """The amount, in this unit, that this usage counts for."""
        if unit is Unit.TOKENS:
            return totals.prompt_tokens + totals.output_tokens
        prices = self.prices.prices(of.model, of.day)
        return 0 if prices is None else prices.cost(totals.prompt_tokens, totals.cached_tokens, totals.output_tokens)

    def cost(self, model: str, prompt_tokens: int, output_tokens: int) -> int:
        """The cost of this many prompt and output tokens, in picos."""
        prices = self.prices.prices(model, self._today())
        return 0 if prices is None else prices.cost(prompt_tokens, 0, output_tokens)

    def exceeds(self, use: BudgetUse, model: str, prompt_tokens: int) -> bool:
        """Whether a prompt does not fit into the rest of this budget."""
        if use.unit is Unit.TOKENS:
            return prompt_tokens > use.remaining
        # A free prompt fits into nothing if its answer is not free.
        return self.cost(model, prompt_tokens, 1) > 0 and (
            use.remaining == 0 or self.cost(model, prompt_tokens, 0) > use.remaining
        )


def limits_of(section: Section | None) -> BudgetLimits:
    """The limits of the budgets in the section of a tenant, group or key; no limits for any other section, or none."""
    if not isinstance(section, LimitedSection):
        return BudgetLimits()
    costs = (section.cost_per_day_max, section.cost_per_month_max)
    day, month = (None if cost is None else to_picos(cost) for cost in costs)
    return BudgetLimits(section.tokens_per_day_max, section.tokens_per_month_max, day, month)


def named_tally(name: str) -> tuple[Holder, Unit]:
    """The holder and the unit of a `GroupTenants.tally_name`."""
    tenant, key, unit, *_ = (*name.split("\n"), "", "")
    return (tenant, "" if tenant.startswith(GROUP) else key), Unit(unit or Unit.TOKENS)


def renewal_times_s(today: str) -> dict[Period, float]:
    """When this day and its month end, in seconds since 1970."""
    this = date.fromisoformat(today)
    month_end = date(this.year + this.month // 12, this.month % 12 + 1, 1)
    return {"day": _at_s(this + timedelta(days=1)), "month": _at_s(month_end)}


def _at_s(day: date) -> float:
    return datetime(day.year, day.month, day.day, tzinfo=UTC).timestamp()
