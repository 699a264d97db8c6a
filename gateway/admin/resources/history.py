"""History routes: the values of a pool, tier, group, tenant or backend over time, and the events meanwhile.

Changes and notes come from the audit log; a change of the leader and the loss of a backend are events that processes
observed. The administrator of a group sees the values of its group and tenants, and as events only their changes.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Annotated, Final, Literal

from pydantic import Field

from gateway.admin.models.resources import Fields
from gateway.admin.problems import AdminProblem
from gateway.admin.resources.audit import declared, shown_body
from gateway.admin.resources.group_scope import GroupScope
from gateway.admin.resources.keys import label_of
from gateway.admin.routes import AdminAnswer, AdminRequest, Caller, Query, Role, Route
from gateway.budgets.money.pricing import PriceBook
from gateway.config.value_types import HISTORY_PATTERN, NOTE_PATTERN
from gateway.identity import key_secret
from gateway.live.history.history import HistoryReader
from gateway.live.history.recorder import GROUP, TENANT
from gateway.live.history.schema import History, HistoryEvent, HistoryMinute
from gateway.live.stream.events import to_json
from gateway.registry.audit_log import NOTES, REQUESTS, TRIALS
from gateway.registry.registry import Registry
from gateway.store.base import AuditEntry

CHANGES_MAX: Final = 500  # of a range: a chart shows no more
PAGE_ROWS: Final = 100
NOT_SHOWN: Final = (REQUESTS, TRIALS, key_secret.KIND)  # of single calls, and what the gateway itself writes
SINGULAR: Final = {"tenants": TENANT, "groups": GROUP}


class HistoryAsked(Query):
    """A query of the history: the recorded values (tokens, waits, shares ...) and events of the last 24 hours. `of` is
    KIND:NAME, where KIND is pool, tier, group, tenant or backend. The values are per 10 s for a `range` up to an hour,
    and per minute for a longer one.
    """

    of: Annotated[str, Field(pattern=HISTORY_PATTERN)]
    range: Literal["15m", "1h", "6h", "24h"] = "1h"


class MinuteAsked(Query):
    """A query of the recorded values and events of one minute. `at`: a time in the minute, in seconds since 1970."""

    at: Annotated[float, Field(ge=0, le=1e11, allow_inf_nan=False)]


class Note(Fields):
    """A note for the history of the last 24 hours, for example that a version was deployed."""

    text: Annotated[str, Field(pattern=NOTE_PATTERN)]


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryRoutes:
    """The admin routes of the history: the recorded values and events of the last 24 hours. `clock` is in seconds since
    1970.
    """

    history: HistoryReader
    registry: Registry
    prices: PriceBook
    clock: Callable[[], float]

    def routes(self) -> Iterator[Route]:
        yield Route(
            method="GET", path="/history", role=Role.VIEWER,
            summary="What was of a pool, tier, group, tenant or backend in the last 24 hours, and what happened.",
            run=self.ranged, query=HistoryAsked, answer=History, stored=True, for_groups=True,
        )  # fmt: skip
        yield Route(
            method="GET", path="/history/minute", role=Role.VIEWER,
            summary="What was of all in one minute of the last 24 hours, once it is over.",
            run=self.minute, query=MinuteAsked, answer=HistoryMinute, stored=True, for_groups=True,
        )  # fmt: skip
        yield Route(
            method="POST", path=f"/{NOTES}", role=Role.OPERATOR,
            summary="Note something in the history, such as a deploy. It is in the audit log.",
            run=self.note, body=Note, status=204,
        )  # fmt: skip

    async def ranged(self, asked: AdminRequest) -> AdminAnswer:
        query: HistoryAsked = asked.query
        kind, _, name = query.of.partition(":")
        if not self._sees(asked.caller, kind, name):
            raise AdminProblem(404, f"there is no such {kind}")
        now = self.clock()
        found = await self.history.range(kind, name, query.range, now)
        found.events = await self._events(asked.caller, found.events, found.from_s, now)
        found.currency = self.prices.currency
        return AdminAnswer(encoded=to_json(found))

    async def minute(self, asked: AdminRequest) -> AdminAnswer:
        query: MinuteAsked = asked.query
        found = await self.history.minute(query.at)
        found.rows = [row for row in found.rows if self._sees(asked.caller, row.kind, row.name)]
        found.events = await self._events(asked.caller, found.events, found.at, found.at + 60.0)
        found.currency = self.prices.currency
        return AdminAnswer(encoded=to_json(found))

    async def note(self, asked: AdminRequest) -> AdminAnswer:
        body: Note = asked.body
        await self.registry.audit_log.note(NOTES, body.text, actor=asked.caller.name)
        return AdminAnswer()

    def _sees(self, caller: Caller, kind: str, name: str) -> bool:
        if caller.group is None:
            return True
        if kind == TENANT:
            return GroupScope(self.registry).sees_tenant_named(caller, name)
        return kind == GROUP and name == caller.group

    async def _events(self, caller: Caller, seen: list[HistoryEvent], begin: float, end: float) -> list[HistoryEvent]:
        """With the changes of the audit log, by time; of a group's administrator those of its group alone."""
        changes = [self._event(caller, entry) for entry in await self._audit(caller, begin, end)]
        return sorted((*([] if caller.group else seen), *changes), key=lambda each: each.at)

    async def _audit(self, caller: Caller, begin: float, end: float) -> list[AuditEntry]:
        found: list[AuditEntry] = []
        before: int | None = None
        while len(found) < CHANGES_MAX:
            page = await self.registry.audit_log.entries(before=before, limit=PAGE_ROWS)
            found += (each for each in page if begin <= each.at_s < end and self._shows(caller, each))
            if len(page) < PAGE_ROWS or page[-1].at_s < begin:
                break
            before = page[-1].revision
        return found[:CHANGES_MAX]

    def _shows(self, caller: Caller, entry: AuditEntry) -> bool:
        if entry.kind in NOT_SHOWN:
            return False
        return caller.group is None or self._sees(caller, SINGULAR.get(entry.kind, ""), entry.name)

    def _event(self, caller: Caller, entry: AuditEntry) -> HistoryEvent:
        if entry.kind == NOTES:
            event = HistoryEvent(at=entry.at_s, kind="note", name=entry.name, what="note")
        else:
            event = HistoryEvent(at=entry.at_s, kind="change", name=f"{entry.kind}/{entry.name}", what=entry.action)
        if caller.group is None:  # the names of others' keys are not its to know, nor what an operator may change
            event.actor, event.actor_label = entry.actor, label_of(self.registry, entry.actor)
            event.before, event.after = (
                None if each is None else shown_body(each) for each in (entry.before, entry.after)
            )
            event.declared = declared(self.registry, entry)
        return event
