"""Usage and audit routes: tokens and their cost by tenant, key, model and day; and every change with its author.

Usage is the sum over all gateways that share the state. It is written once a second, so it may lag by as much. The
audit log follows the rest of the API: times are seconds since 1970, and hashes of secrets are left out.
"""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from gateway.admin import models
from gateway.admin.resources.group_scope import GroupScope
from gateway.admin.routes import AdminAnswer, AdminRequest, Role, Route
from gateway.money.amounts import to_text
from gateway.money.pricing import PriceBook
from gateway.state.registry import Registry
from gateway.store.base import Body, Store, Totals, UsageKey

# Fields of API keys and of their secret: with one of them, candidate secrets could be tested offline.
HIDDEN = frozenset({"hmac", "fingerprint"})
TIMES = frozenset({"created_at", "expires_at"})


@dataclass(frozen=True, slots=True, kw_only=True)
class UsageAndAuditRoutes:
    """Routes of usage and the audit log."""

    registry: Registry
    store: Store
    prices: PriceBook
    clock: Callable[[], float] = time.time

    def routes(self) -> Iterator[Route]:
        yield Route(
            method="GET", path="/usage", role=Role.VIEWER, summary="Requests and tokens by day, tenant, key and model.",
            run=self.usage, query=models.UsagePage, answer=models.UsageList, stored=True,
            conflicts="There are too many rows: ask for fewer days.", for_groups=True,
        )  # fmt: skip
        yield Route(
            method="GET", path="/audit", role=Role.VIEWER,
            summary="Who changed what, and at which replica; the newest first.",
            run=self.audit, query=models.AuditPage, answer=models.AuditList, stored=True,
        )  # fmt: skip

    async def usage(self, asked: AdminRequest) -> AdminAnswer:
        query: models.UsagePage = asked.query
        today = datetime.fromtimestamp(self.clock(), UTC).date().isoformat()
        rows = await self.store.usage(
            first_day=query.first_day or today, last_day=query.last_day or today, tenant=query.tenant
        )
        totals: dict[UsageKey, Totals] = {}
        seen = GroupScope(self.registry).tenants_of(asked.caller)
        for row in rows:  # one row per writer
            if seen is not None and row.of.tenant not in seen:
                continue
            totals[row.of] = Totals(*map(sum, zip(totals.get(row.of, Totals()), row.totals, strict=True)))
        # A cursor is the last row of a page; any text is a valid one.
        names = [of for of in sorted(totals) if "\n".join(of) > (query.cursor or "")]
        shown = names[: query.limit]
        items = [self._used(of, totals[of]) for of in shown]
        more = len(names) > len(shown)
        return AdminAnswer(
            models.UsageList.model_construct(items=items, next_cursor="\n".join(shown[-1]) if more else None)
        )

    def _used(self, of: UsageKey, totals: Totals) -> models.UsageResource:
        prices = self.prices.prices(of.model, of.day)
        cost = None
        if prices is not None:
            cost = to_text(prices.cost(totals.prompt_tokens, totals.cached_tokens, totals.output_tokens))
        return models.UsageResource.model_construct(
            **of._asdict(), **totals._asdict(), cost=cost, currency=None if cost is None else self.prices.currency
        )

    async def audit(self, asked: AdminRequest) -> AdminAnswer:
        query: models.AuditPage = asked.query
        before = None if query.cursor is None else int(query.cursor)
        entries = await self.registry.audit(before=before, limit=query.limit, kind=query.kind)
        items = [
            models.AuditResource.model_construct(
                revision=entry.revision,
                at=entry.at_s,
                actor=entry.actor,
                replica=entry.replica or None,
                action=entry.action,
                kind=entry.kind,
                name=entry.name,
                before=None if entry.before is None else _shown(entry.before),
                after=None if entry.after is None else _shown(entry.after),
            )
            for entry in entries
        ]
        more = len(items) == query.limit
        return AdminAnswer(
            models.AuditList.model_construct(items=items, next_cursor=str(items[-1].revision) if more else None)
        )


def _shown(body: Body) -> dict[str, Any]:
    """A stored document, without the fields that no caller may see."""
    return {
        name: int(datetime.fromisoformat(value).timestamp()) if name in TIMES and isinstance(value, str) else value
        for name, value in body.items()
        if name not in HIDDEN
    }
