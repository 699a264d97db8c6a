"""A Scheduler behind a ledger of sessions: held turns wait here, and enter the Scheduler where the ledger says."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from policies.accounts.cost import LinearPrice
from policies.accounts.ledger import Charge
from policies.fairness.tree import FairTree
from policies.fairness.vtc import VirtualTokenCounter
from policies.scheduler import Scheduler
from policies.sessions.ledger import SessionLedger, TurnEntry
from policies.types import (
    NO_USAGE,
    Action,
    BackendLoad,
    Dispatch,
    Outcome,
    Request,
    Tenant,
    Tier,
    Timing,
    Usage,
)


def never(request_id: str) -> bool:
    return False


class GatedScheduler(Scheduler):
    """Holds what the ledger holds."""

    def __init__(self, tenants: Iterable[Tenant], *, ledger: Mapping[str, Any], **settings: Any) -> None:
        by_id = {each.id: each for each in tenants}
        super().__init__(tenants=by_id.values(), **settings)
        tiers = [Tier(each) for each in sorted({tenant.tier_id for tenant in by_id.values()})]
        self._tenant = by_id.__getitem__
        self._order = FairTree(VirtualTokenCounter, tiers, lambda _: 0, tenant=by_id.get)
        self.ledger = SessionLedger(self._order, self._tenant, **ledger)
        self.is_final: Callable[[str], bool] = never
        self.held_s: list[float] = []
        self._prices = LinearPrice()
        self._requests: dict[str, Request] = {}
        self._usages: dict[str, Usage] = {}
        self._charged: dict[str, float] = {}
        self._asked_at = 0.0

    def submit(self, request: Request, now: float) -> None:
        self._requests[request.id] = request
        if request.program_id is None:
            super().submit(request, now)
        elif (entry := self.ledger.arrived(request, now)) is not None:
            self._enter(entry, now)

    def _enter(self, entry: TurnEntry, now: float) -> None:
        request = self._requests[entry.request_id]
        if entry.backend_id is not None:
            request = replace(request, backend_ids=frozenset({entry.backend_id}))
        super().submit(request, now)

    def _charge(self, request_id: str, usage: Usage) -> None:
        service = self._prices.service(*self.ledger.charged(request_id, usage))
        before = self._charged.get(request_id, 0.0)
        self._charged[request_id] = service
        self._order.charged(self._tenant(self._requests[request_id].tenant_id), Charge(service - before, 0.0))

    def tokens(self, request_id: str, usage: Usage, now: float) -> None:
        if not self._usages.get(request_id, NO_USAGE).output_tokens and usage.output_tokens:
            self.ledger.first_token(request_id, now)
        self._usages[request_id] = usage
        self._charge(request_id, usage)
        super().tokens(request_id, usage, now)

    def finished(
        self, request_id: str, outcome: Outcome, now: float, timing: Timing | None = None, usage: Usage | None = None
    ) -> None:
        used = usage or self._usages.pop(request_id, NO_USAGE)
        self._charge(request_id, used)
        self.ledger.ended(request_id, used, now, is_final=self.is_final(request_id))
        del self._requests[request_id], self._charged[request_id]
        super().finished(request_id, outcome, now, timing, usage)

    def load_changed(self, loads: Sequence[BackendLoad], now: float) -> None:
        self.ledger.loads_changed(loads)
        super().load_changed(loads, now)

    def poll(self, now: float) -> list[Action]:
        self._asked_at = now
        for entry in self.ledger.released(now):
            self.held_s.append(now - self._requests[entry.request_id].arrived_at)
            self._enter(entry, now)
        actions = super().poll(now)
        for action in actions:
            if isinstance(action, Dispatch):
                self.ledger.sent(self._requests[action.request_id], action.backend_id, now)
        return actions

    def next_wakeup(self) -> float | None:
        times = [at for at in (super().next_wakeup(), self.ledger.next_at()) if at is not None]
        if not times:
            return None
        at = min(times)
        return at if at > self._asked_at else self._asked_at + 1e-6
