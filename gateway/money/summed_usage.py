"""Summed usage: what was used, over all writers together, read from the store part by part.

Each gateway writes rows of its own, so a day has as many rows of one key and model as there were gateways. The store
keeps them in one order, with the writer last: a part ends where the next row is of another day, tenant, key or model.
So memory holds one part, however many rows there are.
"""

from collections.abc import AsyncIterator
from typing import Final

from gateway.store.base import Store, Totals, UsageKey, UsagePlace, UsageQuery
from gateway.store.usage_rows import usage_rows

LAST_WRITER: Final = "\U0010ffff"  # behind every writer's name


async def summed_usage(
    store: Store, *, first_day: str, last_day: str, tenant: str | None = None, after: UsageKey | None = None
) -> AsyncIterator[list[tuple[UsageKey, Totals]]]:
    """Usage of these days, both inclusive, in the order of its keys, those behind `after`. Raises StoreUnavailable."""
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
