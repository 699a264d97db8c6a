"""Usage export: usage with its cost as a file for other programs, day by day while it is read.

What fails before the first day is there is a problem as everywhere; what fails later ends the connection before the
file is complete, so that no client takes a part for the whole.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from typing import Final

from gateway.admin import models
from gateway.admin.problems import AdminProblem, field_problem
from gateway.admin.resources.group_scope import GroupScope
from gateway.admin.routes import AdminAnswer, AdminRequest, Role, Route
from gateway.money.focus import focus_rows, sums
from gateway.money.pricing import PriceBook
from gateway.money.tables import WRITERS, TableWriter
from gateway.state.registry import Registry
from gateway.store.base import Store, Totals, UsageKey, oldest_day

ROWS_AT_ONCE: Final = 500  # of usage: some milliseconds of a thread's work
NO_PYARROW: Final = "parquet needs a package that is not installed at the gateway: pip install 'fairlead[export]'"


@dataclass(frozen=True, slots=True, kw_only=True)
class UsageExportRoutes:
    """The route of the export."""

    registry: Registry
    store: Store
    prices: PriceBook
    clock: Callable[[], float] = time.time

    def routes(self) -> Iterator[Route]:
        yield Route(
            method="GET", path="/usage/export", role=Role.VIEWER,
            summary="Usage and its cost by day, group, tenant, key and model, as CSV or Parquet with FOCUS columns.",
            run=self.export, query=models.UsageExport, stored=True, for_groups=True,
            media_types=tuple(writer.media_type for writer in WRITERS.values()),
            conflicts="There are too many rows, no such day, or the package for Parquet is not installed.",
        )  # fmt: skip

    async def export(self, asked: AdminRequest) -> AdminAnswer:
        query: models.UsageExport = asked.query
        today = datetime.fromtimestamp(self.clock(), UTC).date()
        first, last = _day(query.first_day, "first_day", today), _day(query.last_day, "last_day", today)
        try:
            writer: TableWriter = await asyncio.to_thread(WRITERS[query.format])
        except ModuleNotFoundError:
            raise AdminProblem(409, NO_PYARROW) from None
        first = max(first, date.fromisoformat(oldest_day(today.isoformat())))  # no day before it is kept
        days = first, min(last, today + timedelta(days=1))
        pieces = self._pieces(writer, days, query.tenant, GroupScope(self.registry).tenants_of(asked.caller))
        begun = await anext(pieces)
        name = f"usage-{first.isoformat()}-{last.isoformat()}.{query.format}"
        return AdminAnswer(pieces=_joined(begun, pieces), media_type=writer.media_type, file_name=name)

    async def _pieces(
        self, writer: TableWriter, days: tuple[date, date], tenant: str | None, seen: Collection[str] | None
    ) -> AsyncIterator[bytes]:
        """The file in pieces, of one tenant or of those that the caller sees. Raises StoreUnavailable, StoreFull."""
        day, last = days
        while day <= last:
            rows = await self.store.usage(first_day=day.isoformat(), last_day=day.isoformat(), tenant=tenant)
            used = await asyncio.to_thread(sums, [row for row in rows if seen is None or row.of.tenant in seen])
            for at in range(0, len(used), ROWS_AT_ONCE):
                yield await asyncio.to_thread(self._written, writer, used[at : at + ROWS_AT_ONCE])
            day += timedelta(days=1)
        yield await asyncio.to_thread(writer.close)

    def _written(self, writer: TableWriter, used: Sequence[tuple[UsageKey, Totals]]) -> bytes:
        return writer.write(list(focus_rows(used, self.prices, self._group_of)))

    def _group_of(self, tenant: str) -> str:
        """The group that a tenant is in now, "" where it is in none, or gone."""
        entry = self.registry.get("tenants", tenant)
        return "" if entry is None else str(entry.body.get("group") or "")


def _day(given: str | None, name: str, today: date) -> date:
    try:
        return today if given is None else date.fromisoformat(given)
    except ValueError:
        raise field_problem(f"query.{name}", "is no day", status=409) from None


async def _joined(first: bytes, rest: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    yield first
    async for piece in rest:
        yield piece
