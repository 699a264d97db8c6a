"""PoolOrder: one pool at the leader. It tells the pool's Scheduler what the members say of their requests, and turns
its decisions into what each member is to do.

A request of every member, the leader's own process among them, is a request of this one Scheduler, under its wire id.
"""

from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from operator import attrgetter
from typing import Any, Final, NamedTuple

from gateway.cluster.leader.kept_windows import KeptWindows
from gateway.cluster.leader.ordered_requests import Chores, OrderedRequest, OrderedRequests, Sender
from gateway.cluster.leader.pool_journal import PoolJournal
from gateway.cluster.leader.pool_tenants import PoolTenants
from gateway.cluster.records import PoolCheckpoint
from gateway.cluster.wire import (
    AnyMessage,
    Dispatched,
    Ended,
    Finish,
    Gone,
    Has,
    LimitsOf,
    Refused,
    Spend,
    Submit,
    Told,
    Used,
    Withdraw,
    wire_id,
)
from policies.call_life import ASKED, LEAVING, LIFE, Event, Life
from policies.facts import (
    Adopted,
    Cancelled,
    Fact,
    Interrupted,
    Kept,
    LoadChanged,
    Measured,
    Parked,
    Readmitted,
    Restored,
    Returned,
    RunFact,
    SessionsRestored,
    Spent,
    TakenOver,
    TenantsChanged,
    Undelivered,
    WindowsRestored,
)
from policies.scheduler_protocol import SharedSchedulerProtocol
from policies.types import (
    NO_USAGE,
    BackendLoad,
    Cause,
    Dispatch,
    Outcome,
    Reason,
    Reject,
    ReplicaShare,
    Request,
    Tenant,
    Usage,
)

TENANT_WAIT_S: Final = 1.0  # rule 7: a registry that hears of a new tenant a moment later than a follower's
KEPT_MAX: Final = 10_000  # rejections that members may have missed
CHARGED_MAX: Final = 2_000  # requests of members that went away and may return: each checkpoint has them
_NAMES: Final = tuple(each.name for each in fields(Request))
_values: Final = attrgetter(*_NAMES)
_ID, _ARRIVED_AT, _SENDER = map(_NAMES.index, ("id", "arrived_at", "sender"))


class _Stranger(NamedTuple):
    """A request of a tenant that the registry does not know yet."""

    sender: Sender
    message: Submit
    came_at: float


class PoolOrder:
    """One pool's Scheduler, shared by all members. Mutable."""

    def __init__(
        self, name: str, scheduler: SharedSchedulerProtocol, tenant_of: Callable[[str], Tenant | None]
    ) -> None:
        """`tenant_of` looks a tenant up in the registry, without waiting."""
        self.name = name
        self.scheduler = scheduler
        self.tenants = PoolTenants(scheduler, tenant_of)
        self._known = OrderedRequests()
        self.chores = Chores(
            self._known, park=self._park, place_again=self._place_again, end=self._give_up, give_up=self._given_up
        )
        self._strangers: dict[str, _Stranger] = {}
        self._charged: OrderedDict[str, Usage] = (
            OrderedDict()
        )  # what the counters have of requests that are not known now
        self.journal = PoolJournal(name, scheduler, self.tenants, self._known, self._charged)
        self._refused: OrderedDict[str, Refused] = (
            OrderedDict()
        )  # the last rejections: their members may not have heard them
        self._backend_ids: frozenset[str] = frozenset()
        self._available: dict[str, bool] = {}  # as told last
        self._untold: dict[str, dict[str, int]] = {}  # by member and backend (rule 11)
        self._curious: list[str] = []  # traced requests whose wait has no reason yet
        self._came_at = 0.0  # of the fact that is taken in
        self._said: list[tuple[Sender, AnyMessage]] = []
        self._taken: Mapping[type, Callable[..., None]] = {
            Submit: self._submit,
            Used: self._used,
            Finish: self._finish,
            Told: self._told,
            Gone: self._gone,
            Spend: self._spend,
            Ended: self._ended,
            Has: self._has,
        }

    # -- facts of members ------------------------------------------------------------------------------------

    def take(self, sender: Sender, message: AnyMessage, came_at: float, now: float) -> None:
        """Take in one fact of this pool, which came at `came_at`: its ages count from then (rule 24)."""
        self._came_at = came_at
        self._note(sender, message, now)
        self._taken[type(message)](sender, message, now)

    def _note(self, sender: Sender, message: Any, now: float) -> None:
        """The message tells of a request, or of what a tenant has spent."""
        if isinstance(message, Spend):
            self.journal.tenant(message.tenant_id, message.key_id)
            self._restore_windows(message.tenant_id, message.key_id, now)
            return
        id_ = wire_id(sender.member, message.number)
        if isinstance(message, Submit | Has | Ended):
            self.journal.request(id_, message.request)
            self._restore_windows(message.request.tenant_id, message.request.key_id, now)
        elif (known := self._known.get(id_)) is not None:
            self.journal.request(id_, known.asked)

    def _restore_windows(self, tenant_id: str, key_id: str, now: float) -> None:
        """A request of this tenant and key is about to meet its limits per minute."""
        if self.journal.kept:
            windows = self.journal.kept.take(self.tenants.scopes(tenant_id, key_id), now)
            if windows:
                self.scheduler.told(WindowsRestored(now, windows))

    def _submit(self, sender: Sender, message: Submit, now: float) -> None:
        id_ = wire_id(sender.member, message.number)
        if message.number <= sender.request:  # rule 6
            return
        sender.request = message.number
        if sender.told is not None:
            sender.told.add(id_)
        self._ask_admission(sender, id_, message, now)

    def _ask_admission(self, sender: Sender, id_: str, message: Submit, now: float) -> None:
        if self.tenants.learn(message.request.tenant_id, now):
            self._enter(sender, id_, message, now, came_at=self._came_at)
        else:
            self._strangers[id_] = _Stranger(sender, message, self._came_at)

    def _enter(self, sender: Sender, id_: str, message: Submit, now: float, *, came_at: float) -> None:
        request = message.request
        asked = self._named(sender, id_, request, came_at - message.age_s)
        known = self._known.add(id_, OrderedRequest(sender, message.number, asked))
        before = self.scheduler.counter(request.tenant_id) if message.is_traced else 0.0
        self.scheduler.submit(self._reachable(known), now)
        if sender.is_away:  # its connection was lost before this was taken in
            self._park(id_, known, now)
        if message.is_traced:
            known.lift = max(0.0, self.scheduler.counter(request.tenant_id) - before)
            self._curious.append(id_)

    def _used(self, sender: Sender, message: Used | Has, now: float) -> None:
        id_ = wire_id(sender.member, message.number)
        known = self._known.get(id_)
        if known is not None and known.backend_id is not None and message.usage is not None:
            known.told = message.usage
            self.scheduler.tokens(id_, message.usage, now)  # its reservation grows (rule 12)

    def _finish(self, sender: Sender, message: Finish, now: float) -> None:
        if sender.takes(message.entry) and self._forget(id_ := wire_id(sender.member, message.number)):
            self.scheduler.finished(id_, message.outcome, now, message.timing, message.usage)

    def _gone(self, sender: Sender, message: Gone, now: float) -> None:
        if sender.takes(message.entry) and self._forget(id_ := wire_id(sender.member, message.number)):
            self.scheduler.told(Cancelled(now, id_))

    def _spend(self, sender: Sender, message: Spend, now: float) -> None:
        if sender.takes(message.entry) and self.tenants.learn(message.tenant_id, now):
            self.scheduler.told(Spent(now, message.tenant_id, message.usage, message.key_id))

    def _told(self, sender: Sender, message: Told, now: float) -> None:
        """A dispatched request waits again, or runs on."""
        id_ = wire_id(sender.member, message.number)
        known = self._known.get(id_)
        if known is None or known.backend_id is None:
            return
        fact = message.fact.but(request_id=id_, now=now)
        if not fact.waits_again:
            if isinstance(fact, Kept):
                known.life = LIFE[known.life, Event.KEPT]
            self.scheduler.told(fact)
            return
        self._left_backend(known, fact)
        if sender.is_away:
            self._park(id_, known, now)
        elif sender.unreachable:  # what its sender cannot reach may have changed while it ran
            self._place_again(id_, known, now)

    def _left_backend(self, known: OrderedRequest, fact: RunFact) -> None:
        """A dispatched request waits again, by this fact."""
        known.asked = fact.waiting(known.asked, known.backend_id or "")
        known.told = fact.stopped_after or known.told
        known.backend_id, known.life = None, LIFE[known.life, Event.RETURNED]
        self.scheduler.told(fact)

    def _forget(self, id_: str) -> bool:
        """Forget a request that has ended; return whether the Scheduler has it."""
        self._strangers.pop(id_, None)
        return self._known.pop(id_) is not None

    # -- joining (rules 18, 20, 21) --------------------------------------------------------------------------

    def _has(self, sender: Sender, has: Has, now: float) -> None:
        """A member that joins tells a request that it has."""
        id_ = wire_id(sender.member, has.number)
        if sender.told is not None:
            sender.told.add(id_)
        has_arrived = has.number <= sender.joined_at or has.backend_id is not None or has.usage is not None
        if has.backend_id is None:  # what waits is told in order, and what runs before
            sender.request = max(sender.request, has.number)
        else:
            sender.ran = max(sender.ran, has.number)
        known = self._known.get(id_)
        if known is not None and _went_on(known, has):
            self._given_up(id_, known, now)
            known = None
        if known is None:
            self._has_unknown(sender, id_, has, now, has_arrived=has_arrived)
            known = self._known.get(id_)
        elif has.backend_id is None and known.backend_id is not None:
            self._waits_after_all(id_, known, has, now)
        if known is None:
            return
        if known.backend_id is None:
            known.asked = _since(known.asked, self._came_at - has.age_s)
            if not sender.is_away:
                self._resume(id_, known, now)
            return
        if known.life in LEAVING:  # not answered on the connection that is gone; if it is still due, it comes again
            known.life = LIFE[known.life, Event.KEPT]
            self.scheduler.told(Kept(now, id_))
        self._used(sender, has, now)

    def _ended(self, sender: Sender, ended: Ended, now: float) -> None:
        """A member that joins tells a request that has ended, which may be known as it was at any time before."""
        if not sender.takes(ended.entry):
            return
        id_ = wire_id(sender.member, ended.number)
        self._strangers.pop(id_, None)
        known = self._known.get(id_)
        if known is not None and (known.backend_id is None or known.backend_id != ended.backend_id):
            self._given_up(id_, known, now)
            known = None
        if known is None:
            charged = self._charged.pop(id_, None)
            if charged is None and ended.usage is None:
                return
            asked = self._named(sender, id_, ended.request, self._came_at)
            self._learn_gone(ended.request.tenant_id, now)
            if ended.backend_id is None:
                self.scheduler.told(Readmitted(now, asked, charged or NO_USAGE, ended.usage))
                self.scheduler.told(Cancelled(now, id_))
                return
            self.scheduler.told(Adopted(now, asked, ended.backend_id, charged or NO_USAGE))
        self._known.pop(id_)
        if ended.usage is not None:
            self.scheduler.tokens(id_, ended.usage, now)
        self.scheduler.finished(id_, ended.outcome, now, ended.timing)

    def _waits_after_all(self, id_: str, known: OrderedRequest, has: Has, now: float) -> None:
        """Its Dispatch did not arrive at the member, or the news that it had left its backend not here (rule 23)."""
        preemptions, before = has.request.preemptions, known.asked
        cause = Cause.PREEMPTED if preemptions > before.preemptions else Cause.FAILED
        cause = Cause.DRAINED if known.life is Life.MOVING else cause
        known.asked = replace(before, preemptions=preemptions - (cause is Cause.PREEMPTED))  # which the fact counts
        if has.usage is not None and has.request.produced_tokens > before.produced_tokens:
            self._left_backend(known, Interrupted(now, id_, has.usage, cause=cause))
        elif preemptions > before.preemptions:
            self._left_backend(known, Returned(now, id_, cause=cause))
        else:
            self._left_backend(known, Undelivered(now, id_))
        if known.sender.is_away:  # until all is told
            self._park(id_, known, now)

    def _has_unknown(self, sender: Sender, id_: str, has: Has, now: float, *, has_arrived: bool) -> None:
        """Another leader's, or one that was given up here, or one whose Submit was lost with its connection."""
        self._strangers.pop(id_, None)
        if id_ in self._refused:  # what was decided stays decided
            self._said.append((sender, self._refused[id_]))
            return
        if not has_arrived and id_ not in self._charged:  # it asks for admission now
            self._ask_admission(sender, id_, Submit(has.number, has.request, has.age_s, has.is_traced), now)
            return
        charged = self._charged.pop(id_, None if has.usage is None else NO_USAGE)
        self._learn_gone(has.request.tenant_id, now)
        asked = self._named(sender, id_, has.request, self._came_at - has.age_s)
        known = self._known.add(id_, OrderedRequest(sender, has.number, asked, has.backend_id, charged or NO_USAGE))
        known.life = Life.QUEUED if has.backend_id is None else Life.SENT
        if has.backend_id is None:
            known.told = has.usage or known.told
            self.scheduler.told(Readmitted(now, self._reachable(known), charged, has.usage))
            if sender.is_away:
                self._park(id_, known, now)
        else:
            at = self._came_at - has.dispatched_s
            self.scheduler.told(Adopted(now, asked, has.backend_id, known.told, has.output_tokens, at))

    def _learn_gone(self, tenant_id: str, now: float) -> None:
        """Learn a tenant that may have been removed: what runs goes on, and the tenant is forgotten with it."""
        if self.tenants.learn(tenant_id, now):
            return
        self.scheduler.told(TenantsChanged(now, changed=(Tenant(tenant_id),)))
        self.scheduler.told(TenantsChanged(now, removed=(tenant_id,)))

    # -- members that go and change --------------------------------------------------------------------------

    def gone(self, sender: Sender) -> bool:
        """The member does not return: its clients have left. If it does return, what was charged is charged once.
        Returns whether anything ran there: it may run on, so it is external load until a measurement says less.
        """
        sender.is_here = False
        for id_ in [id_ for id_, stranger in self._strangers.items() if stranger.sender is sender]:
            del self._strangers[id_]
        self._untold.pop(sender.member, None)
        return self.chores.give_up(sender, lambda now: self.scheduler.told(TakenOver(now)))

    def _given_up(self, id_: str, known: OrderedRequest, now: float) -> None:
        """Its client has gone with its member; if that comes back, what was charged is charged once."""
        self._charged[id_] = self._give_up(id_, known, now)
        self._trim_charged()

    def _trim_charged(self) -> None:
        """Forget the oldest of too many requests of members that went away."""
        while len(self._charged) > CHARGED_MAX:
            oldest, _ = self._charged.popitem(last=False)
            self.journal.charged(oldest)

    def _place_again(self, id_: str, known: OrderedRequest, now: float) -> None:
        self._park(id_, known, now)
        self._resume(id_, known, now)

    def untold(self, sender: Sender, tokens: dict[str, int]) -> None:
        """What the member's requests hold at backends beyond what was told (rule 11)."""
        self._untold[sender.member] = tokens

    # -- facts of the leader's own process -------------------------------------------------------------------

    def told(self, fact: Fact) -> None:
        """Tell the Scheduler a fact of the pool, of loads with what the members hold there untold."""
        match fact:
            case LoadChanged():
                fact = replace(fact, loads=tuple(map(self._load, fact.loads)))
                self._backend_ids = frozenset(load.backend_id for load in fact.loads)
                self._available = {each: self._available.get(each, False) for each in self._backend_ids}
            case Measured():
                fact = replace(fact, load=self._load(fact.load))
            case _:
                self.journal.all_changed()
        self.scheduler.told(fact)

    def _load(self, load: BackendLoad) -> BackendLoad:
        untold = sum(tokens.get(load.backend_id, 0) for tokens in self._untold.values())
        self._backend_ids |= {load.backend_id}
        if self._available.get(load.backend_id) != load.available:
            self._available[load.backend_id] = load.available
            self.journal.backends_changed()
        return replace(load, untold_tokens=untold) if untold else load

    # -- checkpoints -----------------------------------------------------------------------------------------

    def restored(self, kept: PoolCheckpoint | None, since: float, share: ReplicaShare, now: float) -> None:
        """Go on from what another leader kept of this pool until `since`, with this part of limits; None: nothing."""
        if kept is None:
            return
        self.scheduler.told(Restored(now, kept.service))
        if kept.sessions.eta:
            self.scheduler.told(SessionsRestored(since, kept.sessions))
        self._charged.update(kept.charged)
        self.journal.restored(kept, KeptWindows(kept.windows, since, share), now)
        self._trim_charged()

    # -- decisions -------------------------------------------------------------------------------------------

    def decide(self, now: float) -> list[tuple[Sender, AnyMessage]]:
        """What is decided now, with the member that carries it out. Where `wakeup` is not later, more remains."""
        self._meet_strangers(now)
        for action in self.scheduler.poll(now):
            known = self._known.get(action.request_id)
            if known is None:
                continue  # rejected, and gone before it could be told
            self.journal.request(action.request_id, known.asked)
            if isinstance(action, Dispatch):
                known.backend_id, known.life = action.backend_id, LIFE[known.life, Event.DISPATCHED]
                if not known.asked.produced_tokens:  # else it is continued, and was charged for that
                    known.told = Usage(known.asked.prompt_tokens, action.cached_tokens, 0)
                self._said.append((known.sender, self._dispatched(known, action, now)))
            elif isinstance(action, Reject):
                self._known.pop(action.request_id)
                limits = self.tenants.rate_limits(LimitsOf(known.asked.tenant_id, known.asked.key_id), now)
                refused = Refused(known.number, action.reason, action.retry_after_s, action.limit, limits)
                self._refused[action.request_id] = refused
                self._said.append((known.sender, refused))
            else:
                known.life = LIFE[known.life, ASKED[action.cause]]
                self._said.append((known.sender, Withdraw(known.number, action.cause)))
        for id_ in self._curious:
            if (known_ := self._known.get(id_)) is not None and known_.backend_id is None:
                known_.wait = self.scheduler.waits_for(id_, now)
        self._curious.clear()
        while len(self._refused) > KEPT_MAX:
            self._refused.popitem(last=False)
        said, self._said = self._said, []
        return said

    def wakeup(self) -> float | None:
        """When to decide although nothing was told."""
        meets = (stranger.came_at + TENANT_WAIT_S for stranger in self._strangers.values())
        times = [at for at in (self.scheduler.next_wakeup(), min(meets, default=None)) if at is not None]
        return min(times, default=None)

    def _dispatched(self, known: OrderedRequest, action: Dispatch, now: float) -> Dispatched:
        return Dispatched(
            known.number,
            action.backend_id,
            action.quiet_tokens,
            action.cached_tokens,
            action.may_be_preempted,
            action.number,
            action.output_tokens,
            self.tenants.told_limits(LimitsOf(known.asked.tenant_id, known.asked.key_id), now),
            known.lift,
            known.wait,
            action.expected_tokens,
        )

    def serves(self, tenant_id: str) -> bool:
        """Whether any member has a request of this tenant."""
        return any(known.asked.tenant_id == tenant_id for _, known in self._known)

    # -- helpers ---------------------------------------------------------------------------------------------

    def _meet_strangers(self, now: float) -> None:
        """Rule 7: a tenant that the registry does not know is waited for."""
        for id_, (sender, message, came_at) in list(self._strangers.items()):
            if self.tenants.learn(message.request.tenant_id, now):
                del self._strangers[id_]
                self.journal.request(id_, message.request)
                self._restore_windows(message.request.tenant_id, message.request.key_id, now)
                self._enter(sender, id_, message, now, came_at=came_at)
            elif now >= came_at + TENANT_WAIT_S:
                del self._strangers[id_]
                self._said.append((sender, Refused(message.number, Reason.TENANT_UNKNOWN, 0.0)))

    def _named(self, sender: Sender, id_: str, request: Request, arrived_at: float) -> Request:
        """The request as this leader knows it."""
        values = list(_values(request))  # `replace` takes nine times as long, and every request pays for this
        values[_ID], values[_ARRIVED_AT], values[_SENDER] = id_, arrived_at, sender.member
        return Request(*values)

    def _reachable(self, known: OrderedRequest) -> Request:
        """The request with the backends that its sender can reach (rule 8)."""
        asked, unreachable = known.asked, known.sender.unreachable
        if not unreachable:
            return asked
        may = self._backend_ids if asked.backend_ids is None else asked.backend_ids
        return replace(asked, backend_ids=may - unreachable) if may & unreachable else asked

    def _park(self, id_: str, known: OrderedRequest, now: float) -> None:
        if known.life is Life.QUEUED:
            known.life = LIFE[known.life, Event.PARKED]
            self.journal.tenant(known.asked.tenant_id)
            self.scheduler.told(Parked(now, id_))

    def _resume(self, id_: str, known: OrderedRequest, now: float) -> None:
        if known.life is Life.PARKED:
            known.life = LIFE[known.life, Event.READMITTED]
            self.journal.tenant(known.asked.tenant_id)
            self.scheduler.told(Readmitted(now, self._reachable(known)))

    def _give_up(self, id_: str, known: OrderedRequest, now: float) -> Usage:
        """End a request whose client has gone with its member; return what stays charged."""
        self.journal.request(id_, known.asked)
        self._known.pop(id_)
        if known.backend_id is None:
            self.scheduler.told(Cancelled(now, id_))
            return known.told if known.asked.produced_tokens else NO_USAGE
        self.scheduler.finished(id_, Outcome.CLIENT_DISCONNECTED, now)
        return known.told


def _since(asked: Request, arrived_at: float) -> Request:
    """A request as old as its member says: its Submit may have lain unread while this process stood still."""
    return replace(asked, arrived_at=arrived_at) if arrived_at < asked.arrived_at else asked


def _went_on(known: OrderedRequest, has: Has) -> bool:
    """Whether a member that led itself has sent the request elsewhere, or taken it back, since it was known so."""
    if has.backend_id is not None or known.backend_id is not None:
        return has.backend_id not in (None, known.backend_id)
    return (has.request.preemptions, has.request.produced_tokens) != (
        known.asked.preemptions,
        known.asked.produced_tokens,
    )
