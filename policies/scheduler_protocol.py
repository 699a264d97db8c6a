"""Scheduler protocols: the interface of a Scheduler, for substitutes and wrappers."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Protocol, TypedDict, Unpack

from policies.accounts.checkpoint import RETURNING_S, ServiceCheckpoint
from policies.admission.rate_window import WindowCheckpoint
from policies.types import (
    Action,
    BackendLoad,
    Group,
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
    WaitView,
)


class TenantChanges(TypedDict, total=False):
    """What `tenants_changed` is told besides the time."""

    changed: Iterable[Tenant]
    removed: Iterable[str]
    tiers: Iterable[Tier]
    tiers_removed: Iterable[str]
    groups: Iterable[Group]
    groups_removed: Iterable[str]


class PolicyChoices(TypedDict, total=False):
    """What `policy_changed` is told besides the time; None keeps a policy."""

    fairness: PolicyChoice | None
    prediction: PolicyChoice | None
    sizing: PolicyChoice | None
    placement: PolicyChoice | None


class Adoption(TypedDict, total=False):
    """What `adopted` may be told of the dispatch: the predicted output, and when it was."""

    output_tokens: float
    dispatched_at: float | None


class RequestFacts(Protocol):
    """The facts of a request that was dispatched, or left the queue."""

    def tokens(self, request_id: str, usage: Usage, now: float) -> None: ...
    def finished(
        self, request_id: str, outcome: Outcome, now: float, timing: Timing | None = None, usage: Usage | None = None
    ) -> None: ...
    def returned(
        self, request_id: str, now: float, hold_s: float = 0.0, backend_ids: frozenset[str] | None = None
    ) -> None: ...
    def interrupted(self, request_id: str, usage: Usage, now: float, hold_s: float = 0.0) -> None: ...
    def kept(self, request_id: str, now: float) -> None: ...
    def cancel(self, request_id: str, now: float) -> None: ...


class SchedulerProtocol(RequestFacts, Protocol):
    """All facts, decisions and views of a Scheduler. A wrapper of one has the same interface (forwarding.py)."""

    def submit(self, request: Request, now: float) -> None: ...
    def spent(self, tenant_id: str, usage: Usage, now: float, key_id: str = "") -> None: ...
    def load_changed(self, loads: Sequence[BackendLoad], now: float) -> None: ...
    def measured(self, load: BackendLoad, now: float) -> None: ...
    def tenants_changed(self, *, now: float, **changes: Unpack[TenantChanges]) -> None: ...
    def policy_changed(self, *, now: float, **choices: Unpack[PolicyChoices]) -> None: ...
    def restored(self, checkpoint: ServiceCheckpoint, now: float, returning_s: float = RETURNING_S) -> None: ...
    def poll(self, now: float) -> list[Action]: ...
    def next_wakeup(self) -> float | None: ...
    def snapshot(self, now: float, tenant_ids: Iterable[str] | None = None) -> Snapshot: ...
    def rate_limits(self, tenant_id: str, now: float, key_id: str = "") -> RateLimits: ...
    def checkpoint(self, tenant_ids: Collection[str] | None = None) -> ServiceCheckpoint: ...
    def counter(self, tenant_id: str) -> float: ...
    def waits_for(self, request_id: str, now: float) -> Wait | None: ...
    def wait_views(self, request_ids: Iterable[str], now: float) -> Mapping[str, WaitView]: ...
    def prefilled(self, request_id: str, now: float) -> Usage | None: ...


class SharedSchedulerProtocol(SchedulerProtocol, Protocol):
    """A Scheduler that decides for many processes: also the facts of requests that were known elsewhere before."""

    def adopted(
        self, request: Request, backend_id: str, usage: Usage, now: float, **adoption: Unpack[Adoption]
    ) -> None: ...
    def readmitted(
        self, request: Request, now: float, prepaid: Usage | None = None, usage: Usage | None = None
    ) -> None: ...
    def parked(self, request_id: str, now: float) -> None: ...
    def undelivered(self, request_id: str, now: float) -> None: ...
    def taken_over(self, now: float) -> None: ...
    def windows(self, now: float, scopes: Iterable[str] | None = None) -> WindowCheckpoint: ...
    def windows_restored(self, windows: WindowCheckpoint, now: float) -> None: ...
