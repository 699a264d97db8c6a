"""Usage rows of a store, part by part: memory holds one part, however many rows there are."""

from collections.abc import AsyncIterator
from typing import Final

from gateway.store.base import Store, UsagePlace, UsageRow

ROWS_AT_ONCE: Final = 500  # some milliseconds of a thread's work


async def usage_rows(
    store: Store, *, first_day: str, last_day: str, tenant: str | None = None, after: UsagePlace | None = None
) -> AsyncIterator[tuple[UsageRow, ...]]:
    """The rows of these days, both inclusive, in the store's order, those behind `after`. Raises StoreUnavailable."""
    while rows := await store.usage(
        first_day=first_day, last_day=last_day, tenant=tenant, after=after, limit=ROWS_AT_ONCE
    ):
        yield rows
        if len(rows) < ROWS_AT_ONCE:
            return
        after = UsagePlace(*rows[-1].of, rows[-1].writer)
