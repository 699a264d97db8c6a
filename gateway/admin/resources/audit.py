"""Audit routes: every change with its author.

The audit log follows the rest of the API: times are seconds since 1970, and hashes of secrets are left out.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from gateway.admin.models import resources as models
from gateway.admin.resources.keys import label_of
from gateway.admin.routes import AdminAnswer, AdminRequest, Role, Route
from gateway.registry.audit_log import NOTES, TRIALS
from gateway.registry.registry import Registry
from gateway.registry.resource_kinds import RESOURCE_KINDS
from gateway.store.base import AuditEntry, Body

# Fields of API keys and of their secret: with one of them, candidate secrets could be tested offline.
HIDDEN = frozenset({"hmac", "fingerprint"})
# Of what is no change.
ACTIONS = {NOTES: "note", TRIALS: "trial"}
TIMES = frozenset({"created_at", "expires_at"})


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditRoutes:
    """The admin routes of the audit log."""

    registry: Registry

    def routes(self) -> Iterator[Route]:
        yield Route(
            method="GET", path="/audit", role=Role.VIEWER,
            summary="Who changed what, and at which replica; the newest first.",
            run=self.audit, query=models.AuditPage, answer=models.AuditList, stored=True,
        )  # fmt: skip

    async def audit(self, asked: AdminRequest) -> AdminAnswer:
        query: models.AuditPage = asked.query
        before = None if query.cursor is None else int(query.cursor)
        entries = await self.registry.audit_log.entries(before=before, limit=query.limit, kind=query.kind)
        items = [
            models.AuditResource.made_of(
                entry,
                at=entry.at_s,
                actor_label=label_of(self.registry, entry.actor),
                replica=entry.replica or None,
                action=ACTIONS.get(entry.kind, entry.action),
                before=None if entry.before is None else shown_body(entry.before),
                after=None if entry.after is None else shown_body(entry.after),
                declared=declared(self.registry, entry),
            )
            for entry in entries
        ]
        more = len(items) == query.limit
        return AdminAnswer(
            models.AuditList.model_construct(items=items, next_cursor=str(items[-1].revision) if more else None)
        )


def declared(registry: Registry, entry: AuditEntry) -> dict[str, Any] | None:
    """The entry that the changed object has in the configuration file now, as shown; None: it has none."""
    body = registry.view.declared_body(entry.kind, entry.name) if entry.kind in RESOURCE_KINDS else None
    return None if body is None else shown_body(body)


def shown_body(body: Body) -> dict[str, Any]:
    """The stored body as the API shows it, without the fields that no caller may see."""
    return {
        name: int(datetime.fromisoformat(value).timestamp()) if name in TIMES and isinstance(value, str) else value
        for name, value in body.items()
        if name not in HIDDEN
    }
