"""Usage as rows of a cost report, with the column names of FOCUS 1.2 (FinOps Open Cost and Usage Specification).

A row is the usage of one tenant on one day with one key of one model, by one meter: prompt tokens that were computed,
prompt tokens from the cache, output tokens, and requests. Quantities and costs are exact, so a sum over rows equals the
counters. Columns that FOCUS does not have begin with x_.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from enum import Enum
from typing import Any, Final

from gateway.budgets.money.pricing import MILLION, PriceBook, TokenPrices
from gateway.config.amounts import DECIMALS_SHOWN_MIN, to_decimal
from gateway.store.base import Totals, UsageKey


class ColumnKind(Enum):
    """The type of the values in a column of a cost report (FOCUS)."""

    TEXT = "text"
    COST = "cost"  # a decimal of at most 12 places, in the billing currency
    COUNT = "count"
    TIME = "time"  # the start of a day in UTC
    FLAG = "flag"


COLUMNS: Final[Mapping[str, ColumnKind]] = {
    "BillingPeriodStart": ColumnKind.TIME,  # the month
    "BillingPeriodEnd": ColumnKind.TIME,
    "ChargePeriodStart": ColumnKind.TIME,  # the day
    "ChargePeriodEnd": ColumnKind.TIME,
    "ChargeCategory": ColumnKind.TEXT,
    "ServiceCategory": ColumnKind.TEXT,
    "ServiceName": ColumnKind.TEXT,
    "x_Group": ColumnKind.TEXT,
    "SubAccountId": ColumnKind.TEXT,  # the tenant
    "SubAccountType": ColumnKind.TEXT,
    "ResourceId": ColumnKind.TEXT,  # the id of the API key
    "ResourceType": ColumnKind.TEXT,
    "SkuId": ColumnKind.TEXT,  # the model
    "SkuMeter": ColumnKind.TEXT,
    "ConsumedQuantity": ColumnKind.COUNT,
    "ConsumedUnit": ColumnKind.TEXT,
    "PricingUnit": ColumnKind.TEXT,
    "ListUnitPrice": ColumnKind.COST,
    "ListCost": ColumnKind.COST,
    "ContractedCost": ColumnKind.COST,
    "EffectiveCost": ColumnKind.COST,
    "BilledCost": ColumnKind.COST,
    "BillingCurrency": ColumnKind.TEXT,
    "x_HasPrice": ColumnKind.FLAG,
}
Row = tuple[Any, ...]
"""Values of COLUMNS: text, Decimal, int, datetime, bool, or None."""
REQUESTS: Final = "Requests"
TOKENS: Final = "Tokens"
PRICING_UNIT: Final = f"{MILLION} {TOKENS}"
FREE: Final = TokenPrices(0, 0, 0)


def focus_rows(
    used: Iterable[tuple[UsageKey, Totals]], prices: PriceBook, group_of: Callable[[str], str]
) -> Iterator[Row]:
    """Yield the rows of this usage. `group_of` gives the group of a tenant; "" where the tenant has none."""
    for of, totals in used:
        price = prices.prices(of.model, of.day)
        for meter, unit, quantity, per_token in _meters(totals, price or FREE):
            is_tokens = unit == TOKENS
            cost = to_decimal(quantity * per_token)
            has_price = price is not None
            yield (
                *_periods(of.day),
                "Usage", "AI and Machine Learning", "fairlead",
                group_of(of.tenant) or None,
                of.tenant, "Tenant",
                of.key or None, "API key" if of.key else None,
                of.model or None, meter,
                quantity, unit,
                PRICING_UNIT if is_tokens else None,
                to_decimal(per_token * MILLION) if has_price and is_tokens else None,
                cost, cost, cost, cost,
                prices.currency,
                has_price,
            )  # fmt: skip


def _meters(totals: Totals, price: TokenPrices) -> Iterator[tuple[str, str, int, int]]:
    """Yield the meters of a row of usage that are not zero: name, unit, quantity, and the price of one in picos."""
    cached_tokens = min(totals.cached_tokens, totals.prompt_tokens)  # as TokenPrices.cost has it
    meters = (
        ("Prompt tokens", TOKENS, totals.prompt_tokens - cached_tokens, price.prompt),
        ("Cached prompt tokens", TOKENS, cached_tokens, price.cached),
        ("Output tokens", TOKENS, totals.output_tokens, price.output),
        ("Requests", REQUESTS, totals.requests, 0),
    )
    return (meter for meter in meters if meter[2])


def _periods(day: str) -> tuple[datetime, datetime, datetime, datetime]:
    """The start and end of the month, and the start and end of the day."""
    this = date.fromisoformat(day)
    next_month = date(this.year + this.month // 12, this.month % 12 + 1, 1)
    first, second = _time(this.replace(day=1)), _time(next_month)
    return first, second, _time(this), _time(this + timedelta(days=1))


def _time(day: date) -> datetime:
    return datetime(day.year, day.month, day.day, tzinfo=UTC)


def text_of(value: str | Decimal | int | datetime | bool | None) -> str:  # noqa: FBT001 - a cell
    """A cell as FOCUS writes it: decimals without exponents, times in UTC, an empty text for null."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, datetime):
        return value.strftime("%Y-%m-%dT%H:%M:%SZ")
    if isinstance(value, Decimal):
        whole, _, decimals = f"{value:f}".partition(".")
        return f"{whole}.{decimals.rstrip('0').ljust(DECIMALS_SHOWN_MIN, '0')}"
    return str(value)
