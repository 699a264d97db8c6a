"""Usage rows of a store, part by part: memory holds one part, however many rows there are."""

from collections.abc import AsyncIterator
from typing import Final

from gateway.store.base import Store, UsagePlace, UsageQuery, UsageRow

ROWS_AT_ONCE: Final = 500  # some milliseconds of a thread's work


async def usage_rows(store: Store, query: UsageQuery) -> AsyncIterator[tuple[UsageRow, ...]]:
    """The rows that are asked for, without a limit. Raises StoreUnavailable."""
    while rows := await store.usage(query := query._replace(limit=ROWS_AT_ONCE)):
        yield rows
        if len(rows) < ROWS_AT_ONCE:
            return
        query = query._replace(after=UsagePlace(*rows[-1].of, rows[-1].writer))
