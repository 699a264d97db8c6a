"""Forwarding scheduler: passes every call on to another one. A wrapper inherits it and overrides what it watches."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Unpack

from policies.accounts.checkpoint import RETURNING_S, ServiceCheckpoint
from policies.scheduler_protocol import PolicyChoices, RequestFacts, SchedulerProtocol, TenantChanges
from policies.types import (
    Action,
    BackendLoad,
    Outcome,
    RateLimits,
    Request,
    Snapshot,
    Timing,
    Usage,
    Wait,
    WaitView,
)


class ForwardingFacts:
    """Passes the facts of dispatched requests on."""

    def __init__(self, told: RequestFacts) -> None:
        self._told = told

    def tokens(self, request_id: str, usage: Usage, now: float) -> None:
        self._told.tokens(request_id, usage, now)

    def finished(
        self, request_id: str, outcome: Outcome, now: float, timing: Timing | None = None, usage: Usage | None = None
    ) -> None:
        self._told.finished(request_id, outcome, now, timing, usage)

    def returned(
        self, request_id: str, now: float, hold_s: float = 0.0, backend_ids: frozenset[str] | None = None
    ) -> None:
        self._told.returned(request_id, now, hold_s, backend_ids)

    def interrupted(self, request_id: str, usage: Usage, now: float, hold_s: float = 0.0) -> None:
        self._told.interrupted(request_id, usage, now, hold_s)

    def kept(self, request_id: str, now: float) -> None:
        self._told.kept(request_id, now)

    def cancel(self, request_id: str, now: float) -> None:
        self._told.cancel(request_id, now)


class ForwardingScheduler(ForwardingFacts):
    """Has the interface of a Scheduler and adds nothing to the one that it forwards to."""

    def __init__(self, scheduler: SchedulerProtocol) -> None:
        super().__init__(scheduler)
        self._scheduler = scheduler

    def submit(self, request: Request, now: float) -> None:
        self._scheduler.submit(request, now)

    def spent(self, tenant_id: str, usage: Usage, now: float, key_id: str = "") -> None:
        self._scheduler.spent(tenant_id, usage, now, key_id)

    def load_changed(self, loads: Sequence[BackendLoad], now: float) -> None:
        self._scheduler.load_changed(loads, now)

    def measured(self, load: BackendLoad, now: float) -> None:
        self._scheduler.measured(load, now)

    def tenants_changed(self, *, now: float, **changes: Unpack[TenantChanges]) -> None:
        self._scheduler.tenants_changed(now=now, **changes)

    def policy_changed(self, *, now: float, **choices: Unpack[PolicyChoices]) -> None:
        self._scheduler.policy_changed(now=now, **choices)

    def restored(self, checkpoint: ServiceCheckpoint, now: float, returning_s: float = RETURNING_S) -> None:
        self._scheduler.restored(checkpoint, now, returning_s)

    def poll(self, now: float) -> list[Action]:
        return self._scheduler.poll(now)

    def next_wakeup(self) -> float | None:
        return self._scheduler.next_wakeup()

    def snapshot(self, now: float, tenant_ids: Iterable[str] | None = None) -> Snapshot:
        return self._scheduler.snapshot(now, tenant_ids)

    def rate_limits(self, tenant_id: str, now: float, key_id: str = "") -> RateLimits:
        return self._scheduler.rate_limits(tenant_id, now, key_id)

    def checkpoint(self, tenant_ids: Collection[str] | None = None) -> ServiceCheckpoint:
        return self._scheduler.checkpoint(tenant_ids)

    def counter(self, tenant_id: str) -> float:
        return self._scheduler.counter(tenant_id)

    def waits_for(self, request_id: str, now: float) -> Wait | None:
        return self._scheduler.waits_for(request_id, now)

    def wait_views(self, request_ids: Iterable[str], now: float) -> Mapping[str, WaitView]:
        return self._scheduler.wait_views(request_ids, now)

    def prefilled(self, request_id: str, now: float) -> Usage | None:
        return self._scheduler.prefilled(request_id, now)
