"""Recording and replay of a Scheduler's calls, as values and as JSON lines.

A Scheduler's decisions depend only on the calls made on it, so the list of those calls is the run. `Recorder` stands in
for a Scheduler, forwards every call, and passes it as a value to a listener: a file of a live gateway, or the checks of
a simulation. `replay` makes the same calls on a fresh Scheduler and reports every poll that decided differently. There
is none while the Scheduler is deterministic, whether an event loop or a virtual clock drives it.

A line holds only the arguments of a call: ids, sizes and hashes, never a prompt or an API key.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, BinaryIO, Literal, Unpack

import orjson
from pydantic import Field, TypeAdapter

from policies.accounts.checkpoint import RETURNING_S, ServiceCheckpoint
from policies.admission.rate_window import MinuteCheckpoint, WindowCheckpoint
from policies.forwarding import ForwardingScheduler
from policies.scheduler_protocol import (
    Adoption,
    PolicyChoices,
    SchedulerProtocol,
    SharedSchedulerProtocol,
    TenantChanges,
)
from policies.types import (
    Action,
    BackendLoad,
    Group,
    Outcome,
    PolicyChoice,
    Request,
    Tenant,
    Tier,
    Timing,
    Usage,
)


@dataclass(frozen=True, slots=True)
class Submitted:
    now: float
    request: Request
    call: Literal["submit"] = "submit"

    def tell(self, scheduler: SchedulerProtocol) -> None:
        scheduler.submit(self.request, self.now)


@dataclass(frozen=True, slots=True)
class Progressed:
    now: float
    request_id: str
    usage: Usage
    call: Literal["tokens"] = "tokens"

    def tell(self, scheduler: SchedulerProtocol) -> None:
        scheduler.tokens(self.request_id, self.usage, self.now)


@dataclass(frozen=True, slots=True)
class Finished:
    now: float
    request_id: str
    outcome: Outcome
    timing: Timing | None = None
    call: Literal["finished"] = "finished"

    def tell(self, scheduler: SchedulerProtocol) -> None:
        scheduler.finished(self.request_id, self.outcome, self.now, self.timing)


@dataclass(frozen=True, slots=True)
class Returned:
    now: float
    request_id: str
    hold_s: float
    backend_ids: frozenset[str] | None = None
    call: Literal["returned"] = "returned"

    def tell(self, scheduler: SchedulerProtocol) -> None:
        scheduler.returned(self.request_id, self.now, self.hold_s, self.backend_ids)


@dataclass(frozen=True, slots=True)
class Interrupted:
    now: float
    request_id: str
    usage: Usage
    hold_s: float
    call: Literal["interrupted"] = "interrupted"

    def tell(self, scheduler: SchedulerProtocol) -> None:
        scheduler.interrupted(self.request_id, self.usage, self.now, self.hold_s)


@dataclass(frozen=True, slots=True)
class Kept:
    now: float
    request_id: str
    call: Literal["kept"] = "kept"

    def tell(self, scheduler: SchedulerProtocol) -> None:
        scheduler.kept(self.request_id, self.now)


@dataclass(frozen=True, slots=True)
class Cancelled:
    now: float
    request_id: str
    call: Literal["cancel"] = "cancel"

    def tell(self, scheduler: SchedulerProtocol) -> None:
        scheduler.cancel(self.request_id, self.now)


@dataclass(frozen=True, slots=True)
class Spent:
    now: float
    tenant_id: str
    usage: Usage
    key_id: str = ""
    call: Literal["spent"] = "spent"

    def tell(self, scheduler: SchedulerProtocol) -> None:
        scheduler.spent(self.tenant_id, self.usage, self.now, self.key_id)


@dataclass(frozen=True, slots=True)
class LoadChanged:
    now: float
    loads: tuple[BackendLoad, ...]
    call: Literal["load_changed"] = "load_changed"

    def tell(self, scheduler: SchedulerProtocol) -> None:
        scheduler.load_changed(self.loads, self.now)


@dataclass(frozen=True, slots=True)
class Measured:
    now: float
    load: BackendLoad
    call: Literal["measured"] = "measured"

    def tell(self, scheduler: SchedulerProtocol) -> None:
        scheduler.measured(self.load, self.now)


@dataclass(frozen=True, slots=True)
class TenantsChanged:
    now: float
    changed: tuple[Tenant, ...]
    removed: tuple[str, ...]
    tiers: tuple[Tier, ...]
    tiers_removed: tuple[str, ...] = ()
    groups: tuple[Group, ...] = ()
    groups_removed: tuple[str, ...] = ()
    call: Literal["tenants_changed"] = "tenants_changed"

    def tell(self, scheduler: SchedulerProtocol) -> None:
        scheduler.tenants_changed(
            changed=self.changed,
            removed=self.removed,
            tiers=self.tiers,
            tiers_removed=self.tiers_removed,
            groups=self.groups,
            groups_removed=self.groups_removed,
            now=self.now,
        )


@dataclass(frozen=True, slots=True)
class PolicyChanged:
    now: float
    fairness: PolicyChoice | None = None
    prediction: PolicyChoice | None = None
    sizing: PolicyChoice | None = None
    placement: PolicyChoice | None = None
    call: Literal["policy_changed"] = "policy_changed"

    def tell(self, scheduler: SchedulerProtocol) -> None:
        scheduler.policy_changed(
            fairness=self.fairness,
            prediction=self.prediction,
            sizing=self.sizing,
            placement=self.placement,
            now=self.now,
        )


@dataclass(frozen=True, slots=True)
class Restored:
    now: float
    checkpoint: ServiceCheckpoint
    returning_s: float
    call: Literal["restored"] = "restored"

    def tell(self, scheduler: SchedulerProtocol) -> None:
        scheduler.restored(self.checkpoint, self.now, self.returning_s)


@dataclass(frozen=True, slots=True)
class Adopted:
    now: float
    request: Request
    backend_id: str
    usage: Usage
    output_tokens: float
    dispatched_at: float | None
    call: Literal["adopted"] = "adopted"

    def tell(self, scheduler: SharedSchedulerProtocol) -> None:
        scheduler.adopted(
            self.request,
            self.backend_id,
            self.usage,
            self.now,
            output_tokens=self.output_tokens,
            dispatched_at=self.dispatched_at,
        )


@dataclass(frozen=True, slots=True)
class Readmitted:
    now: float
    request: Request
    prepaid: Usage | None
    usage: Usage | None = None
    call: Literal["readmitted"] = "readmitted"

    def tell(self, scheduler: SharedSchedulerProtocol) -> None:
        scheduler.readmitted(self.request, self.now, self.prepaid, self.usage)


@dataclass(frozen=True, slots=True)
class Parked:
    now: float
    request_id: str
    call: Literal["parked"] = "parked"

    def tell(self, scheduler: SharedSchedulerProtocol) -> None:
        scheduler.parked(self.request_id, self.now)


@dataclass(frozen=True, slots=True)
class Undelivered:
    now: float
    request_id: str
    call: Literal["undelivered"] = "undelivered"

    def tell(self, scheduler: SharedSchedulerProtocol) -> None:
        scheduler.undelivered(self.request_id, self.now)


@dataclass(frozen=True, slots=True)
class TakenOver:
    now: float
    call: Literal["taken_over"] = "taken_over"

    def tell(self, scheduler: SharedSchedulerProtocol) -> None:
        scheduler.taken_over(self.now)


@dataclass(frozen=True, slots=True)
class WindowsRestored:
    now: float
    windows: Mapping[str, MinuteCheckpoint]
    call: Literal["windows_restored"] = "windows_restored"

    def tell(self, scheduler: SharedSchedulerProtocol) -> None:
        scheduler.windows_restored(self.windows, self.now)


@dataclass(frozen=True, slots=True)
class Polled:
    """A poll and its decisions; the only entry with a result."""

    now: float
    actions: tuple[Action, ...]
    call: Literal["poll"] = "poll"


Fact = (
    Submitted
    | Progressed
    | Finished
    | Returned
    | Interrupted
    | Cancelled
    | Spent
    | LoadChanged
    | Measured
    | TenantsChanged
    | PolicyChanged
    | Restored
    | Kept
)
SharedFact = Adopted | Readmitted | Parked | Undelivered | TakenOver | WindowsRestored
"""Facts of a Scheduler that decides for many processes (SharedSchedulerProtocol)."""
Entry = Fact | SharedFact | Polled
Listener = Callable[[Entry], None]

_ENTRY: TypeAdapter[Entry] = TypeAdapter(Annotated[Entry, Field(discriminator="call")])


class Recorder(ForwardingScheduler):
    """A Scheduler that passes every call to `listener` after it took effect.

    Calls that only read (`next_wakeup`, `snapshot` and the like) and calls that raise are not recorded.
    """

    def __init__(self, scheduler: SchedulerProtocol, listener: Listener) -> None:
        super().__init__(scheduler)
        self._listener = listener

    def submit(self, request: Request, now: float) -> None:
        self._record(Submitted(now, request))

    def tokens(self, request_id: str, usage: Usage, now: float) -> None:
        self._record(Progressed(now, request_id, usage))

    def finished(
        self, request_id: str, outcome: Outcome, now: float, timing: Timing | None = None, usage: Usage | None = None
    ) -> None:
        if usage is not None:  # two facts, though the Scheduler takes both in one call
            self.tokens(request_id, usage, now)
        self._record(Finished(now, request_id, outcome, timing))

    def returned(
        self, request_id: str, now: float, hold_s: float = 0.0, backend_ids: frozenset[str] | None = None
    ) -> None:
        self._record(Returned(now, request_id, hold_s, backend_ids))

    def interrupted(self, request_id: str, usage: Usage, now: float, hold_s: float = 0.0) -> None:
        self._record(Interrupted(now, request_id, usage, hold_s))

    def cancel(self, request_id: str, now: float) -> None:
        self._record(Cancelled(now, request_id))

    def spent(self, tenant_id: str, usage: Usage, now: float, key_id: str = "") -> None:
        self._record(Spent(now, tenant_id, usage, key_id))

    def load_changed(self, loads: Sequence[BackendLoad], now: float) -> None:
        self._record(LoadChanged(now, tuple(loads)))

    def measured(self, load: BackendLoad, now: float) -> None:
        self._record(Measured(now, load))

    def tenants_changed(self, *, now: float, **changes: Unpack[TenantChanges]) -> None:
        self._record(
            TenantsChanged(
                now,
                tuple(changes.get("changed", ())),
                tuple(changes.get("removed", ())),
                tuple(changes.get("tiers", ())),
                tuple(changes.get("tiers_removed", ())),
                tuple(changes.get("groups", ())),
                tuple(changes.get("groups_removed", ())),
            )
        )

    def policy_changed(self, *, now: float, **choices: Unpack[PolicyChoices]) -> None:
        self._record(PolicyChanged(now, **choices))

    def restored(self, checkpoint: ServiceCheckpoint, now: float, returning_s: float = RETURNING_S) -> None:
        self._record(Restored(now, checkpoint, returning_s))

    def poll(self, now: float) -> list[Action]:
        actions = self._scheduler.poll(now)
        self._listener(Polled(now, tuple(actions)))
        return actions

    def kept(self, request_id: str, now: float) -> None:
        self._record(Kept(now, request_id))

    def _record(self, fact: Fact) -> None:
        fact.tell(self._scheduler)
        self._listener(fact)


class SharedRecorder(Recorder):
    """A Recorder around a Scheduler that decides for many processes."""

    def __init__(self, scheduler: SharedSchedulerProtocol, listener: Listener) -> None:
        super().__init__(scheduler, listener)
        self._shared = scheduler

    def adopted(
        self, request: Request, backend_id: str, usage: Usage, now: float, **adoption: Unpack[Adoption]
    ) -> None:
        self._record_shared(
            Adopted(now, request, backend_id, usage, adoption.get("output_tokens", 0.0), adoption.get("dispatched_at"))
        )

    def readmitted(
        self, request: Request, now: float, prepaid: Usage | None = None, usage: Usage | None = None
    ) -> None:
        self._record_shared(Readmitted(now, request, prepaid, usage))

    def parked(self, request_id: str, now: float) -> None:
        self._record_shared(Parked(now, request_id))

    def undelivered(self, request_id: str, now: float) -> None:
        self._record_shared(Undelivered(now, request_id))

    def taken_over(self, now: float) -> None:
        self._record_shared(TakenOver(now))

    def windows_restored(self, windows: WindowCheckpoint, now: float) -> None:
        self._record_shared(WindowsRestored(now, windows))

    def windows(self, now: float, scopes: Iterable[str] | None = None) -> WindowCheckpoint:
        return self._shared.windows(now, scopes)

    def _record_shared(self, fact: SharedFact) -> None:
        fact.tell(self._shared)
        self._listener(fact)


@dataclass(frozen=True, slots=True)
class Mismatch:
    """The poll at `now`, entry `number` of the recording (from 0), which decided differently in the replay."""

    number: int
    now: float
    recorded: tuple[Action, ...]
    replayed: tuple[Action, ...]


def replay(entries: Iterable[Entry], scheduler: SharedSchedulerProtocol) -> Iterator[Mismatch]:
    """Replay a recording on a Scheduler built like the recorded one; yield every poll that differs."""
    for number, entry in enumerate(entries):
        if isinstance(entry, Polled):
            actions = tuple(scheduler.poll(entry.now))
            if actions != entry.actions:
                yield Mismatch(number, entry.now, entry.actions, actions)
        else:
            entry.tell(scheduler)


def write_to(sink: BinaryIO) -> Listener:
    """Return a listener that appends each entry to `sink` as one JSON line; floats are exact."""

    def write(entry: Entry) -> None:
        sink.write(orjson.dumps(entry, default=tuple, option=orjson.OPT_APPEND_NEWLINE))  # a Usage is a named tuple

    return write


def read_from(lines: Iterable[bytes]) -> Iterator[Entry]:
    """Yield the entries of a recording, in order. Raises pydantic.ValidationError at an invalid line."""
    return (_ENTRY.validate_json(line) for line in lines)
