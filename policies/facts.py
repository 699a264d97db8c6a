"""Facts of a Scheduler as values: each says what happened, and when (`now`).

`Scheduler.told` takes any fact. It calls the method that `call` names, of the Scheduler or of the part that the fact
names, with the other fields as parameters; that method's docstring says what the fact means. So another process or a
recorder between a driver and its Scheduler passes values on, and need not know the kinds of facts. For speed, the
methods for every request or token (`submit`, `tokens`, `finished`) are called directly; their facts as values are for
recordings alone.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, Self, get_args

from policies.accounts.checkpoint import RETURNING_S, ServiceCheckpoint
from policies.admission.rate_window import WindowCheckpoint
from policies.sessions.checkpoint import SessionsCheckpoint
from policies.types import BackendLoad, Cause, Group, Outcome, PolicyChoice, Request, Tenant, Tier, Timing, Usage


class Fact:
    """The base class of all facts. A fact is an event that a driver (the code that runs a Scheduler, such as the
    gateway or a simulation) reports to the Scheduler. `now` is the time of the event in seconds, `call` the name of the
    Scheduler's method that handles it. Each subclass is a dataclass; this class is none.
    """

    __slots__: tuple[str, ...] = ()
    now: float
    call: str
    part: ClassVar[str | None] = None
    """The part of the Scheduler (SchedulerParts) whose method handles this fact; None: the Scheduler's own does."""

    def arguments(self) -> dict[str, Any]:
        """The arguments for the method that handles this fact."""
        return {name: getattr(self, name) for name in self.__slots__ if name != "call"}

    def but(self, **changes: Any) -> Self:
        """The fact with some fields changed, for example its time."""
        return replace(self, **changes)  # type: ignore[type-var]  # every fact is a dataclass


class RunFact(Fact):
    """The base class of facts about a dispatched request. The process that relays the request's answer reports them."""

    __slots__ = ()
    request_id: str
    waits_again: ClassVar[bool] = True
    """Whether the request left its backend, and waits in its queue again."""

    @property
    def stopped_after(self) -> Usage | None:
        """The charged usage of a request that left its backend and is to be continued; None for any other."""
        return None

    def waiting(self, request: Request, backend_id: str) -> Request:
        """The request, changed as it waits again after its dispatch to this backend."""
        return request


@dataclass(frozen=True, slots=True)
class Submitted(Fact):
    """The fact that a request arrived."""

    now: float
    request: Request
    call: Literal["submit"] = "submit"


@dataclass(frozen=True, slots=True)
class Progressed(Fact):
    """The fact that a dispatched request has used `usage` so far: prompt, cached and output tokens."""

    now: float
    request_id: str
    usage: Usage
    call: Literal["tokens"] = "tokens"


@dataclass(frozen=True, slots=True)
class Finished(Fact):
    """The fact that a dispatched request ended with this outcome."""

    now: float
    request_id: str
    outcome: Outcome
    timing: Timing | None = None
    call: Literal["finished"] = "finished"


@dataclass(frozen=True, slots=True)
class Returned(RunFact):
    """The fact that a dispatched request comes back to its queue, before any part of its answer was delivered."""

    now: float
    request_id: str
    hold_s: float = 0.0
    backend_ids: frozenset[str] | None = None
    cause: Cause = Cause.FAILED
    call: Literal["returned"] = "returned"

    def waiting(self, request: Request, backend_id: str) -> Request:
        request = _counting(request, self.cause)
        return request if self.backend_ids is None else replace(request, backend_ids=self.backend_ids)


@dataclass(frozen=True, slots=True)
class Interrupted(RunFact):
    """The fact that a dispatched request comes back to its queue after a part of its answer was delivered."""

    now: float
    request_id: str
    usage: Usage
    hold_s: float = 0.0
    cause: Cause = Cause.FAILED
    call: Literal["interrupted"] = "interrupted"

    @property
    def stopped_after(self) -> Usage:
        return self.usage

    def waiting(self, request: Request, backend_id: str) -> Request:
        request = _counting(request, self.cause)
        return replace(request, produced_tokens=self.usage.output_tokens, ran_at=backend_id)


@dataclass(frozen=True, slots=True)
class Undelivered(RunFact):
    """The fact that nothing of a dispatched request was sent to its backend: the process that holds the client's
    connection did not receive the Dispatch, or cannot reach the backend.
    """

    now: float
    request_id: str
    call: Literal["undelivered"] = "undelivered"


@dataclass(frozen=True, slots=True)
class Kept(RunFact):
    """The fact that a dispatched request goes on, because it was too late to preempt it."""

    now: float
    request_id: str
    call: Literal["kept"] = "kept"
    part = "preemption"
    waits_again = False


@dataclass(frozen=True, slots=True)
class Cancelled(Fact):
    """The fact that a request's client disconnected before the driver knew that the request was dispatched."""

    now: float
    request_id: str
    call: Literal["cancel"] = "cancel"


@dataclass(frozen=True, slots=True)
class Spent(Fact):
    """The fact that a call that never waits in a queue, such as tokenizing, used these tokens at a tenant's cost."""

    now: float
    tenant_id: str
    usage: Usage
    key_id: str = ""
    call: Literal["spent"] = "spent"


@dataclass(frozen=True, slots=True)
class LoadChanged(Fact):
    """The fact that the backends of the pool, or their loads, changed. `loads` has all backends of the pool."""

    now: float
    loads: tuple[BackendLoad, ...]
    call: Literal["load_changed"] = "load_changed"


@dataclass(frozen=True, slots=True)
class Measured(Fact):
    """The fact that the load of one backend was measured."""

    now: float
    load: BackendLoad
    call: Literal["measured"] = "measured"


@dataclass(frozen=True, slots=True)
class TenantsChanged(Fact):
    """The fact that settings of tenants, tiers or groups changed."""

    now: float
    changed: tuple[Tenant, ...] = ()
    removed: tuple[str, ...] = ()
    tiers: tuple[Tier, ...] = ()
    tiers_removed: tuple[str, ...] = ()
    groups: tuple[Group, ...] = ()
    groups_removed: tuple[str, ...] = ()
    call: Literal["tenants_changed"] = "tenants_changed"


@dataclass(frozen=True, slots=True)
class PolicyChanged(Fact):
    """The fact that an operator changed policies of the pool. A policy of None stays as it is."""

    now: float
    fairness: PolicyChoice | None = None
    prediction: PolicyChoice | None = None
    sizing: PolicyChoice | None = None
    placement: PolicyChoice | None = None
    call: Literal["policy_changed"] = "policy_changed"


@dataclass(frozen=True, slots=True)
class Restored(Fact):
    """The fact that tenants' and tiers' counters were restored from a checkpoint."""

    now: float
    checkpoint: ServiceCheckpoint
    returning_s: float = RETURNING_S
    call: Literal["restored"] = "restored"


@dataclass(frozen=True, slots=True)
class Adopted(Fact):
    """The fact that a request runs at a backend already, where another Scheduler (an earlier leader) sent it."""

    now: float
    request: Request
    backend_id: str
    usage: Usage
    output_tokens: float = 0.0
    dispatched_at: float | None = None
    call: Literal["adopted"] = "adopted"


@dataclass(frozen=True, slots=True)
class Readmitted(Fact):
    """The fact that a waiting request was admitted before: by another Scheduler (an earlier leader), or by this one,
    which then parked it (Parked). The request is queued without a new admission.
    """

    now: float
    request: Request
    prepaid: Usage | None = None
    usage: Usage | None = None
    call: Literal["readmitted"] = "readmitted"
    part = "waiting"


@dataclass(frozen=True, slots=True)
class Parked(Fact):
    """The fact that the leader has lost contact with the process that holds the client's connection of a queued
    request. The request leaves the queue until that process is back.
    """

    now: float
    request_id: str
    call: Literal["park"] = "park"
    part = "waiting"


@dataclass(frozen=True, slots=True)
class TakenOver(Fact):
    """The fact that this Scheduler takes over from an earlier one, after all requests of that one were reported to it.
    No backend gets a request before its next measurement.
    """

    now: float
    call: Literal["taken_over"] = "taken_over"
    part = "fleet"


@dataclass(frozen=True, slots=True)
class WindowsRestored(Fact):
    """The fact that the amounts that count against limits per minute were restored from a checkpoint."""

    now: float
    windows: WindowCheckpoint
    call: Literal["windows_restored"] = "windows_restored"
    part = "admission_rules"


@dataclass(frozen=True, slots=True)
class SessionsRestored(Fact):
    """The fact that agents' sessions were restored from a checkpoint."""

    now: float
    sessions: SessionsCheckpoint
    call: Literal["sessions_restored"] = "sessions_restored"
    part = "waiting"


AnyFact = (
    Submitted | Progressed | Finished | Returned | Interrupted | Undelivered | Kept | Cancelled | Spent | LoadChanged
    | Measured | TenantsChanged | PolicyChanged | Restored | Adopted | Readmitted | Parked | TakenOver | WindowsRestored
    | SessionsRestored
)  # fmt: skip
FACTS: Mapping[str, type[Fact]] = {kind.__dataclass_fields__["call"].default: kind for kind in get_args(AnyFact)}
"""All facts by `call`."""


def _counting(request: Request, cause: Cause) -> Request:
    """The request that has left its backend for this cause, with its preemptions counted."""
    return replace(request, preemptions=request.preemptions + 1) if cause is Cause.PREEMPTED else request
