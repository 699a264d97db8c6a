"""Scheduler protocols: the interface of a Scheduler, for substitutes and wrappers."""

from collections.abc import Iterable, Sequence
from typing import Protocol

from policies.accounts.checkpoint import RETURNING_S, ServiceCheckpoint
from policies.types import (
    Action,
    BackendLoad,
    Outcome,
    PolicyChoice,
    RateLimits,
    Request,
    Snapshot,
    Tenant,
    Tier,
    Timing,
    Usage,
    Wait,
)


class MinimalScheduler(Protocol):
    """The facts and decisions of a Scheduler that a simulated world needs."""

    def submit(self, request: Request, now: float) -> None: ...
    def tokens(self, request_id: str, usage: Usage, now: float) -> None: ...
    def finished(self, request_id: str, outcome: Outcome, now: float, timing: Timing | None = None) -> None: ...
    def returned(self, request_id: str, now: float, hold_s: float = 0.0) -> None: ...
    def cancel(self, request_id: str, now: float) -> None: ...
    def spent(self, tenant_id: str, usage: Usage, now: float) -> None: ...
    def load_changed(self, loads: Sequence[BackendLoad], now: float) -> None: ...
    def tenants_changed(
        self,
        *,
        changed: Iterable[Tenant] = (),
        removed: Iterable[str] = (),
        tiers: Iterable[Tier] = (),
        now: float,
    ) -> None: ...
    def policy_changed(
        self,
        *,
        fairness: PolicyChoice | None = None,
        prediction: PolicyChoice | None = None,
        sizing: PolicyChoice | None = None,
        placement: PolicyChoice | None = None,
        now: float,
    ) -> None: ...
    def poll(self, now: float) -> list[Action]: ...
    def next_wakeup(self) -> float | None: ...
    def snapshot(self, now: float) -> Snapshot: ...
    def rate_limits(self, tenant_id: str, now: float) -> RateLimits: ...


class SchedulerProtocol(MinimalScheduler, Protocol):
    """All facts, decisions and views of a Scheduler. A Recorder around one has the same interface."""

    def measured(self, load: BackendLoad, now: float) -> None: ...
    def finished(
        self, request_id: str, outcome: Outcome, now: float, timing: Timing | None = None, usage: Usage | None = None
    ) -> None: ...
    def tenants_changed(
        self,
        *,
        changed: Iterable[Tenant] = (),
        removed: Iterable[str] = (),
        tiers: Iterable[Tier] = (),
        tiers_removed: Iterable[str] = (),
        now: float,
    ) -> None: ...
    def restored(self, checkpoint: ServiceCheckpoint, now: float, returning_s: float = RETURNING_S) -> None: ...
    def checkpoint(self) -> ServiceCheckpoint: ...
    def snapshot(self, now: float, tenant_ids: Iterable[str] | None = None) -> Snapshot: ...
    def counter(self, tenant_id: str) -> float: ...
    def waits_for(self, request_id: str, now: float) -> Wait | None: ...
    def prefilled(self, request_id: str, now: float) -> Usage | None: ...
