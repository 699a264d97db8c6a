"""Facts of a Scheduler as values: what it is told, each with `now`, the time at which it happened.

`Scheduler.told` takes any of them: the method named by `call` handles it, and its parameters are the fact's fields. So
what stands between a driver and its Scheduler (another process, a recorder) passes a value on, and need not know which
fact it is. What every request or token costs, `submit`, `tokens` and `finished`, is called directly; as values these
three exist for recordings alone. The docstrings of the methods say what a fact means.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, Self, get_args

from policies.accounts.checkpoint import RETURNING_S, ServiceCheckpoint
from policies.admission.rate_window import WindowCheckpoint
from policies.sessions.checkpoint import SessionsCheckpoint
from policies.types import BackendLoad, Cause, Group, Outcome, PolicyChoice, Request, Tenant, Tier, Timing, Usage


class Fact:
    """Base of all facts. Not a dataclass itself: a decoder is to ask which one it is."""

    __slots__: tuple[str, ...] = ()
    now: float
    call: str

    def arguments(self) -> dict[str, Any]:
        """The arguments of the method that handles it."""
        return {name: getattr(self, name) for name in self.__slots__ if name != "call"}

    def but(self, **changes: Any) -> Self:
        """The fact with some fields changed, for example its time."""
        return replace(self, **changes)  # type: ignore[type-var]  # every fact is a dataclass


class RunFact(Fact):
    """Base of the facts of a request that was dispatched, told by the process that holds it."""

    __slots__ = ()
    request_id: str
    waits_again: ClassVar[bool] = True
    """Whether the request left its backend, and waits in its queue again."""

    @property
    def stopped_after(self) -> Usage | None:
        """What the request had used when it left its backend, where that stays charged and it is continued."""
        return None

    def waiting(self, request: Request, backend_id: str) -> Request:
        """The request, dispatched to this backend until now, as it waits again."""
        return request


@dataclass(frozen=True, slots=True)
class Submitted(Fact):
    now: float
    request: Request
    call: Literal["submit"] = "submit"


@dataclass(frozen=True, slots=True)
class Progressed(Fact):
    now: float
    request_id: str
    usage: Usage
    call: Literal["tokens"] = "tokens"


@dataclass(frozen=True, slots=True)
class Finished(Fact):
    now: float
    request_id: str
    outcome: Outcome
    timing: Timing | None = None
    call: Literal["finished"] = "finished"


@dataclass(frozen=True, slots=True)
class Returned(RunFact):
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
    now: float
    request_id: str
    call: Literal["undelivered"] = "undelivered"


@dataclass(frozen=True, slots=True)
class Kept(RunFact):
    now: float
    request_id: str
    call: Literal["kept"] = "kept"
    waits_again = False


@dataclass(frozen=True, slots=True)
class Cancelled(Fact):
    now: float
    request_id: str
    call: Literal["cancel"] = "cancel"


@dataclass(frozen=True, slots=True)
class Spent(Fact):
    now: float
    tenant_id: str
    usage: Usage
    key_id: str = ""
    call: Literal["spent"] = "spent"


@dataclass(frozen=True, slots=True)
class LoadChanged(Fact):
    now: float
    loads: tuple[BackendLoad, ...]
    call: Literal["load_changed"] = "load_changed"


@dataclass(frozen=True, slots=True)
class Measured(Fact):
    now: float
    load: BackendLoad
    call: Literal["measured"] = "measured"


@dataclass(frozen=True, slots=True)
class TenantsChanged(Fact):
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
    now: float
    fairness: PolicyChoice | None = None
    prediction: PolicyChoice | None = None
    sizing: PolicyChoice | None = None
    placement: PolicyChoice | None = None
    call: Literal["policy_changed"] = "policy_changed"


@dataclass(frozen=True, slots=True)
class Restored(Fact):
    now: float
    checkpoint: ServiceCheckpoint
    returning_s: float = RETURNING_S
    call: Literal["restored"] = "restored"


@dataclass(frozen=True, slots=True)
class Adopted(Fact):
    now: float
    request: Request
    backend_id: str
    usage: Usage
    output_tokens: float = 0.0
    dispatched_at: float | None = None
    call: Literal["adopted"] = "adopted"


@dataclass(frozen=True, slots=True)
class Readmitted(Fact):
    now: float
    request: Request
    prepaid: Usage | None = None
    usage: Usage | None = None
    call: Literal["readmitted"] = "readmitted"


@dataclass(frozen=True, slots=True)
class Parked(Fact):
    now: float
    request_id: str
    call: Literal["parked"] = "parked"


@dataclass(frozen=True, slots=True)
class TakenOver(Fact):
    now: float
    call: Literal["taken_over"] = "taken_over"


@dataclass(frozen=True, slots=True)
class WindowsRestored(Fact):
    now: float
    windows: WindowCheckpoint
    call: Literal["windows_restored"] = "windows_restored"


@dataclass(frozen=True, slots=True)
class SessionsRestored(Fact):
    now: float
    sessions: SessionsCheckpoint
    call: Literal["sessions_restored"] = "sessions_restored"


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
