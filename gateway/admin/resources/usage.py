"""Usage routes: tokens and their cost by day, tenant, key and model, page by page, summed, or as a file for programs.

Usage is the sum over all gateways that share the state. Usage is written once a second, so it may lag by as much. All
routes read it part by part, so that memory holds one part however much there is. An error before the first part of a
file gets a problem response, as everywhere; a later error ends the connection before the file is complete, so that no
client takes a part for the whole.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from typing import TYPE_CHECKING, Final

from gateway.admin.models import resources as models
from gateway.admin.problems import AdminProblem, field_problem
from gateway.admin.resources.group_scope import GroupScope
from gateway.admin.resources.keys import label_of
from gateway.admin.routes import AdminAnswer, AdminRequest, Role, Route
from gateway.budgets.money import focus, sums
from gateway.budgets.money.focus import Row, focus_rows
from gateway.budgets.money.pricing import PriceBook
from gateway.budgets.money.sums import SumKey, Sums, UsageDivision, UsageSum, sum_rows, sum_usage, summed_usage
from gateway.config.amounts import to_text
from gateway.identity.last_use import LastUse
from gateway.registry.registry import Registry
from gateway.store.base import Store, Totals, UsageKey, oldest_day

if TYPE_CHECKING:
    from gateway.budgets.money.tables import Columns, TableWriter

MEDIA_TYPES: Final = {"csv": "text/csv", "parquet": "application/vnd.apache.parquet"}
NO_PYARROW: Final = "parquet needs a package that is not installed at the gateway: pip install 'fairlead[export]'"
Used = list[tuple[UsageKey, Totals]]


@dataclass(frozen=True, slots=True, kw_only=True)
class UsageRoutes:
    """The admin routes of usage and its cost. `clock` is in seconds since 1970."""

    registry: Registry
    store: Store
    use: LastUse
    prices: PriceBook
    clock: Callable[[], float] = time.time

    def routes(self) -> Iterator[Route]:
        yield Route(
            method="GET", path="/usage", role=Role.VIEWER, summary="Requests and tokens by day, tenant, key and model.",
            run=self.listed, query=models.UsagePage, answer=models.UsageList, stored=True, for_groups=True,
            conflicts="There is no such day.",
        )  # fmt: skip
        yield Route(
            method="GET", path="/usage/sums", role=Role.VIEWER,
            summary="What was spent: usage and its cost by group, tenant, key or model, by day or month, and in all.",
            run=self.summed, query=models.UsageSumsPage, answer=models.UsageSumList, stored=True, for_groups=True,
            conflicts="There is no such day, or there would be too many rows.",
        )  # fmt: skip
        yield Route(
            method="GET", path="/usage/last-days", role=Role.VIEWER,
            summary="Every tenant with usage in the days that are kept, and the last day of it, by tenant.",
            run=self.last_days, query=models.Page, answer=models.LastDayList, stored=True,
        )  # fmt: skip
        yield Route(
            method="GET", path="/usage/export", role=Role.VIEWER,
            summary="Usage and its cost as CSV or Parquet: rows with FOCUS columns, or the sums of `by` and `period`.",
            run=self.export, query=models.UsageExport, stored=True, for_groups=True,
            media_types=tuple(MEDIA_TYPES.values()),
            conflicts="There is no such day, or the package for Parquet is not installed.",
        )  # fmt: skip

    async def listed(self, asked: AdminRequest) -> AdminAnswer:
        query: models.UsagePage = asked.query
        today = self._today()
        first, last = _day(query.first_day, "first_day", today), _day(query.last_day, "last_day", today)
        found: Used = []
        after = _key(query.cursor)
        async for used in self._used(asked, query.tenant, first.isoformat(), last.isoformat(), after):
            found += used
            if len(found) > query.limit:
                break
        shown, cursor = models.first_of(found, query.limit, lambda used: "\n".join(used[0]))
        items = [self._resource(of, totals) for of, totals in shown]
        return AdminAnswer(models.UsageList.model_construct(items=items, next_cursor=cursor))

    def _resource(self, of: UsageKey, totals: Totals) -> models.UsageResource:
        prices = self.prices.prices(of.model, of.day)
        cost = None
        if prices is not None:
            cost = to_text(prices.cost(totals.prompt_tokens, totals.cached_tokens, totals.output_tokens))
        return models.UsageResource.model_construct(
            **of._asdict(), **totals._asdict(), cost=cost, currency=None if cost is None else self.prices.currency
        )

    async def summed(self, asked: AdminRequest) -> AdminAnswer:
        query: models.UsageSumsPage = asked.query
        first, last = self._days(query, self._today().replace(day=1))
        found = await self._sums(asked, query, first, last)
        begin = int(query.cursor or 0)
        end = begin + query.limit
        total = UsageSum.of_all([of for _, of in found])
        return AdminAnswer(
            models.UsageSumList.model_construct(
                items=[self._sum_resource(key, of) for key, of in found[begin:end]],
                next_cursor=str(end) if end < len(found) else None,
                first_day=first.isoformat(),
                last_day=last.isoformat(),
                total=self._sum_resource(SumKey(), total),
            )
        )

    async def last_days(self, asked: AdminRequest) -> AdminAnswer:
        query: models.Page = asked.query
        days = await self.use.of_tenants()
        names = sorted(name for name in days if name > (query.cursor or ""))
        shown, cursor = models.first_of(names, query.limit, str)
        items = [models.LastDayResource.model_construct(tenant=name, last_used_on=days[name]) for name in shown]
        return AdminAnswer(models.LastDayList.model_construct(items=items, next_cursor=cursor))

    def _sum_resource(self, key: SumKey, of: UsageSum) -> models.UsageSumResource:
        return models.UsageSumResource.made_of(
            of,
            **key._asdict(),
            key_label=label_of(self.registry, key.key),
            cost=None if of.picos is None else to_text(of.picos),
            currency=self.prices.currency,
        )

    async def _sums(self, asked: AdminRequest, query: models.UsageDivided, first: date, last: date) -> Sums:
        used = self._used(asked, query.tenant, first.isoformat(), last.isoformat())
        return await sum_usage(used, _division(query), self.prices, self._group_of)

    def _days(self, query: models.UsageDivided, first_default: date) -> tuple[date, date]:
        """The days that are asked for, of those that are kept. Raises AdminProblem."""
        today = self._today()
        first, last = _day(query.first_day, "first_day", first_default), _day(query.last_day, "last_day", today)
        return max(first, date.fromisoformat(oldest_day(today.isoformat()))), min(last, today + timedelta(days=1))

    async def export(self, asked: AdminRequest) -> AdminAnswer:
        query: models.UsageExport = asked.query
        is_divided = query.by is not None or query.period is not None
        first, last = self._days(query, self._today().replace(day=1) if is_divided else self._today())
        try:
            columns = sums.COLUMNS if is_divided else focus.COLUMNS
            writer = await asyncio.to_thread(_writer, query.format, columns)
        except ModuleNotFoundError:
            raise AdminProblem(409, NO_PYARROW) from None
        rows = self._sum_rows if is_divided else self._focus_rows
        pieces = self._pieces(writer, rows(asked, query, first, last))
        begun = await anext(pieces)
        name = f"usage-{first.isoformat()}-{last.isoformat()}.{query.format}"
        return AdminAnswer(pieces=_joined(begun, pieces), media_type=MEDIA_TYPES[query.format], file_name=name)

    async def _pieces(self, writer: "TableWriter", parts: AsyncIterator[list[Row]]) -> AsyncIterator[bytes]:
        async for rows in parts:
            yield await asyncio.to_thread(writer.write, rows)
        yield await asyncio.to_thread(writer.close)

    async def _focus_rows(
        self, asked: AdminRequest, query: models.UsageExport, first: date, last: date
    ) -> AsyncIterator[list[Row]]:
        division = _division(query)
        async for used in self._used(asked, query.tenant, first.isoformat(), last.isoformat()):
            found = [each for each in used if division.asks_for(each[0], self._group_of(each[0].tenant))]
            yield await asyncio.to_thread(list, focus_rows(found, self.prices, self._group_of))

    async def _sum_rows(
        self, asked: AdminRequest, query: models.UsageExport, first: date, last: date
    ) -> AsyncIterator[list[Row]]:
        yield list(sum_rows(await self._sums(asked, query, first, last), self.prices.currency))

    async def _used(
        self, asked: AdminRequest, tenant: str | None, first_day: str, last_day: str, after: UsageKey | None = None
    ) -> AsyncIterator[Used]:
        """The usage of one tenant, or of those that the caller sees, part by part. Raises StoreUnavailable."""
        seen = GroupScope(self.registry).tenants_of(asked.caller)
        parts = summed_usage(self.store, first_day=first_day, last_day=last_day, tenant=tenant, after=after)
        async for part in parts:
            yield part if seen is None else [used for used in part if used[0].tenant in seen]

    def _group_of(self, tenant: str) -> str:
        """The group that a tenant is in now; "" where it is in none, or was removed."""
        entry = self.registry.get("tenants", tenant)
        return "" if entry is None else str(entry.body.get("group") or "")

    def _today(self) -> date:
        return datetime.fromtimestamp(self.clock(), UTC).date()


def _key(cursor: str | None) -> UsageKey | None:
    """The key of the last row on the previous page; any text is a valid cursor."""
    return None if cursor is None else UsageKey(*(*cursor.split("\n", 3), "", "", "")[:4])


def _writer(format_: str, columns: "Columns") -> "TableWriter":
    """A writer of such a file. Raises ModuleNotFoundError."""
    from gateway.budgets.money.tables import WRITERS  # noqa: PLC0415 - few gateways write one

    return WRITERS[format_](columns)


def _division(query: models.UsageDivided) -> UsageDivision:
    return UsageDivision(query.by, query.period, query.group, query.tenant, query.key, query.model)


def _day(given: str | None, name: str, today: date) -> date:
    try:
        return today if given is None else date.fromisoformat(given)
    except ValueError:
        raise field_problem(f"query.{name}", "there is no such day: give one like 2026-11-20", status=409) from None


async def _joined(first: bytes, rest: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    yield first
    async for piece in rest:
        yield piece
