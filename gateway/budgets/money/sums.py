"""Sums of usage: over all writers together, and by group, tenant, key or model, and by day or month.

Each gateway writes rows of its own, so a day has as many rows of one key and model as there were gateways. The store
keeps them in one order, with the writer last: a part ends where the next row is of another day, tenant, key or model.
So memory holds one part, however many rows there are.

The sum of a part adds whole numbers: tokens, and their cost in picos by the price of their model and day. So sums of
sums are the total to the last decimal, however it is divided. Memory holds one sum per row of the answer, at most
SUMS_MAX.
"""

from collections.abc import AsyncIterable, AsyncIterator, Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, Self

from gateway.budgets.money.focus import ColumnKind
from gateway.budgets.money.pricing import PriceBook
from gateway.config.amounts import to_decimal
from gateway.store.base import Store, StoreFull, Totals, UsageKey, UsagePlace, UsageQuery, usage_rows

LAST_WRITER: Final = "\U0010ffff"  # behind every writer's name
SUMS_MAX: Final = 20_000
"""In one answer; some 10 MB of memory while it is made."""
COUNTED: Final = ("requests", "prompt_tokens", "cached_tokens", "output_tokens", "unpriced_tokens")
PERIODS: Final = {"day": 10, "month": 7}
"""How many characters of a day (2026-11-20) name its period."""

COLUMNS: Final[Mapping[str, ColumnKind]] = {
    "Period": ColumnKind.TEXT,
    "Group": ColumnKind.TEXT,
    "Tenant": ColumnKind.TEXT,
    "Key": ColumnKind.TEXT,
    "Model": ColumnKind.TEXT,
    "Requests": ColumnKind.COUNT,
    "PromptTokens": ColumnKind.COUNT,
    "CachedPromptTokens": ColumnKind.COUNT,
    "OutputTokens": ColumnKind.COUNT,
    "UnpricedTokens": ColumnKind.COUNT,
    "Cost": ColumnKind.COST,
    "Currency": ColumnKind.TEXT,
}
"""Of a file of sums."""


class SumKey(NamedTuple):
    """The key of a sum of usage: the period, group, tenant, API key and model whose usage is summed. None: the sum
    covers all of them. "": usage without a group, key or model.
    """

    period: str | None = None
    group: str | None = None
    tenant: str | None = None
    key: str | None = None
    model: str | None = None


@dataclass(slots=True)
class UsageSum:
    """A sum of usage rows: requests, tokens and cost. Mutable."""

    requests: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    unpriced_tokens: int = 0
    """Tokens of models without a price on their day: their cost is not known, and not in `picos`."""
    picos: int | None = None
    """The cost; None where no part of it has a price."""

    def add(self, of: UsageKey, totals: Totals, prices: PriceBook) -> None:
        """Add one row of usage, by the price of its day."""
        self.requests += totals.requests
        self.prompt_tokens += totals.prompt_tokens
        self.cached_tokens += totals.cached_tokens
        self.output_tokens += totals.output_tokens
        price = prices.prices(of.model, of.day)
        if price is None:
            self.unpriced_tokens += totals.prompt_tokens + totals.output_tokens
        else:
            cost = price.cost(totals.prompt_tokens, totals.cached_tokens, totals.output_tokens)
            self.picos = (self.picos or 0) + cost

    @classmethod
    def of_all(cls, parts: Collection["UsageSum"]) -> Self:
        """The sum of these partial sums."""
        priced = [part.picos for part in parts if part.picos is not None]
        counts = {name: sum(getattr(part, name) for part in parts) for name in COUNTED}
        return cls(**counts, picos=sum(priced) if priced else None)


@dataclass(frozen=True, slots=True)
class UsageDivision:
    """A query for sums of usage. `by` ("group", "tenant", "key" or "model") and `period` ("day" or "month") say what
    each sum is for. The other fields select the usage of one group, tenant, key and model (None: any).
    """

    by: str | None
    period: str | None
    group: str | None = None
    tenant: str | None = None
    key: str | None = None
    model: str | None = None

    def asks_for(self, of: UsageKey, group: str) -> bool:
        """Whether the query includes this row, whose tenant is in `group`."""
        return (
            self.group in (None, group)
            and self.tenant in (None, of.tenant)
            and self.key in (None, of.key)
            and self.model in (None, of.model)
        )

    def key_of(self, of: UsageKey, group: str) -> SumKey:
        """The key of the sum that this row belongs to; the row's tenant is in `group`."""
        period = None if self.period is None else of.day[: PERIODS[self.period]]
        match self.by:
            case "group":
                return SumKey(period, group)
            case "tenant":
                return SumKey(period, group, of.tenant)
            case "key":
                return SumKey(period, group, of.tenant, of.key)
            case "model":
                return SumKey(period, model=of.model)
        return SumKey(period)


Sums = list[tuple[SumKey, UsageSum]]


def _rank(each: tuple[SumKey, UsageSum]) -> tuple[Any, ...]:
    key, of = each
    return key.period or "", -(of.picos or 0), -(of.prompt_tokens + of.output_tokens), *(part or "" for part in key)


async def summed_usage(
    store: Store, *, first_day: str, last_day: str, tenant: str | None = None, after: UsageKey | None = None
) -> AsyncIterator[list[tuple[UsageKey, Totals]]]:
    """Usage of these days, both inclusive, summed over writers, from after the key `after`. Raises StoreUnavailable."""
    place = None if after is None else UsagePlace(*after, LAST_WRITER)
    sums: dict[UsageKey, Totals] = {}
    async for rows in usage_rows(store, UsageQuery(first_day, last_day, tenant, after=place)):
        unfinished = sums.pop(rows[0].of, None)
        if sums:
            yield list(sums.items())
        sums = {} if unfinished is None else {rows[0].of: unfinished}
        for row in rows:
            sums[row.of] = Totals(*map(sum, zip(sums.get(row.of, Totals()), row.totals, strict=True)))
    if sums:
        yield list(sums.items())


async def sum_usage(
    parts: AsyncIterable[Iterable[tuple[UsageKey, Totals]]],
    division: UsageDivision,
    prices: PriceBook,
    group_of: Callable[[str], str],
) -> Sums:
    """The sums of this usage by period; in each period the most expensive first. `group_of` gives the group of a
    tenant, "" where the tenant has none. Raises StoreFull for more than SUMS_MAX sums, and the errors of `parts`.
    """
    sums: dict[SumKey, UsageSum] = {}
    async for used in parts:
        for of, totals in used:
            group = group_of(of.tenant)
            if not division.asks_for(of, group):
                continue
            key = division.key_of(of, group)
            found = sums.get(key)
            if found is None:
                if len(sums) >= SUMS_MAX:
                    raise StoreFull(f"more than {SUMS_MAX} rows: ask for fewer days, or divide by less")
                found = sums[key] = UsageSum()
            found.add(of, totals, prices)
    return sorted(sums.items(), key=_rank)


def sum_rows(sums: Sums, currency: str | None) -> Iterator[tuple[Any, ...]]:
    """The sums as rows of a table with the columns COLUMNS."""
    for key, of in sums:
        cost = None if of.picos is None else to_decimal(of.picos)
        yield (
            *key, of.requests, of.prompt_tokens, of.cached_tokens, of.output_tokens, of.unpriced_tokens, cost, currency,
        )  # fmt: skip
