"""Leader: runs the Schedulers of all pools for all members of a cluster, its own process among them.

Inputs are frames of members, facts of its own process (loads, tenants, policies) and its lease; outputs are frames, and
`Wish`es that its shell carries out. Before it decides anything it gathers what runs and waits: every member of the last
list has joined, or was silent until its old promise surely ended (rule 2). Then it goes on from the newest checkpoint
(rule 19), takes in what was told, and dispatches to a backend once it has been measured since (rule 22).

Whether its lease holds is asked before each frame (rule 4). When it does not, nothing more leaves.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from math import inf
from types import MappingProxyType
from typing import Final

from gateway.cluster.checkpoints import Mark, NewestCheckpoint
from gateway.cluster.leader.checkpoint_stream import CheckpointStream
from gateway.cluster.leader.inbox import TAKEN_MAX, Inbox
from gateway.cluster.leader.ordered_requests import Sender
from gateway.cluster.leader.pool_order import PoolOrder
from gateway.cluster.leader.sight import Sight
from gateway.cluster.promise import LEASE_S, SILENCE_S_MAX, Grants
from gateway.cluster.records import PoolCheckpoint
from gateway.cluster.wire import (
    AnyMessage,
    CheckpointPart,
    Epoch,
    Failed,
    Frame,
    HigherEpoch,
    Join,
    Ping,
    Pong,
    Reach,
    Release,
    Shared,
    TellMore,
    ToldAll,
    ToldPart,
    Untold,
    WantCheckpoint,
    Welcome,
    frames_of,
)
from gateway.cluster.wishes import (
    AskBackends,
    CloseMember,
    StepDown,
    StoreCheckpoint,
    Wish,
)
from policies.facts import Fact, LoadChanged, Measured, TakenOver
from policies.scheduler_protocol import SharedSchedulerProtocol
from policies.types import ALONE, ReplicaShare, Tenant

POLL_S: Final = 0.001  # rule 10
UNSENT_BYTES_MAX: Final = 8 << 20  # rule 26: beyond it a follower is dropped
UNSENT_S_MAX: Final = 2.0
OWN: Final = ""  # the source of facts of the leader's own process


@dataclass(slots=True, eq=False)
class _Member:
    """A member that is connected, or was until a moment ago."""

    sender: Sender
    heard_at: float
    checkpoint: Mark
    has_told_running: bool = False  # since its Join
    has_more: bool = False  # and it will tell more when a decision was made
    is_joined: bool = False  # all that it has was taken in
    lost_at: float | None = None
    pinged_at: float | None = None  # of its last ping, by its own clock
    is_asked: bool = False  # for its checkpoint
    named: frozenset[str] = frozenset()  # backends that it says it cannot reach
    failed: set[str] = field(default_factory=set)  # and those that failed it since
    outbox: list[tuple[str, AnyMessage]] = field(default_factory=list)


class Leader:
    """One leadership. Mutable; it ends with a StepDown, and is then thrown away."""

    def __init__(
        self,
        epoch: Epoch,
        member: str,
        *,
        make_scheduler: Callable[[str], SharedSchedulerProtocol],
        tenant_of: Callable[[str], Tenant | None],
        waits: Mapping[str, float] = MappingProxyType({}),
        checkpoint: NewestCheckpoint | None = None,
        lease_until: float = inf,
        alone: ReplicaShare | None = None,
        now: float,
    ) -> None:
        """`make_scheduler` makes the Scheduler of a pool, without tenants but with the configured tiers; `tenant_of`
        looks a tenant up in the registry. `waits` are the members of the last list, each with until when it is waited
        for. `lease_until` is infinite where nothing but a parent process elects. `alone` is the part of every limit
        that a member has which leads itself; it takes no checkpoints: its member tells the next leader what was charged
        here. None: it leads all.
        """
        self.epoch = epoch
        self.member = member
        self.lease_until = lease_until
        self.grants = Grants(member)
        self.pools: dict[str, PoolOrder] = {}
        self.is_deciding = False
        self.is_over = False
        self._is_gathered = False  # what a decision needs was told, and is being taken in
        self.facts = 0
        """Facts of members that were taken in, for metrics."""
        self._alone = alone
        self._make_scheduler = make_scheduler
        self._tenant_of = tenant_of
        self._checkpoint = checkpoint or NewestCheckpoint()
        self._restored: Mapping[str, PoolCheckpoint] = {}
        self._restored_at = now
        self._stream = CheckpointStream(epoch, member, self._checkpoint)
        self._waits = dict(waits)
        self._members: dict[str, _Member] = {}
        self._senders: dict[str, Sender] = {}  # of all that ever joined: a name is never used again
        self._shared: dict[str, bytes] = {}
        self._inbox: Inbox[tuple[str, AnyMessage | Fact, float]] = Inbox()  # with its pool and arrival
        self._polled_at = -inf
        self._has_news = False
        self._sight = Sight()
        self._wishes: list[Wish] = []

    # -- members ---------------------------------------------------------------------------------------------

    def renewed(self, lease_until: float) -> None:
        """The lease was renewed: it lasts until then by this process's clock, the margin taken off."""
        self.lease_until = max(self.lease_until, lease_until)

    def received(self, member: str, frame: Frame, now: float) -> None:
        """A frame came on the connection of this member. The first one begins with a Join."""
        if frame.epoch > self.epoch:  # rule 1
            self.step_down("a higher epoch is known", frame.epoch)
            return
        joins = bool(frame.messages) and isinstance(frame.messages[0], Join)
        if not joins and (frame.epoch != self.epoch or not self._is_connected(member)):  # rule 5
            return
        if joins:
            self._connect(member, frame.messages[0], now)  # type: ignore[arg-type]
        there = self._members[member]
        there.heard_at = now
        if frame.pool:  # facts of requests: all of them need the order
            for fact in frame.messages:
                self._inbox.add(member, (frame.pool, fact, now))
            return
        for message in frame.messages:
            self._hear(member, there, message, now)

    def lost(self, member: str, now: float, *, is_dead: bool = False) -> None:
        """The connection of this member is gone; `is_dead`: its parent saw it end (rule 17)."""
        there = self._members.get(member)
        if there is None:
            return
        if there.lost_at is None:
            there.lost_at, there.is_joined, there.has_told_running, there.has_more = now, False, False, False
            there.outbox.clear()
            self._stream.lost(member)
            there.sender.is_away = True
            if not self._is_gathered:
                self._inbox.drop(member)  # it tells all of it again
            for pool in self.pools.values():
                pool.chores.park(there.sender)
            self._has_news = True
        if is_dead:
            self._waits.pop(member, None)
            self._forget(member, now)

    def unsent(self, member: str, size: int, oldest_s: float) -> None:
        """So many bytes wait in the connection's buffer, the oldest for so long (rule 26)."""
        if (size > UNSENT_BYTES_MAX or oldest_s > UNSENT_S_MAX) and self._is_connected(member):
            self._wishes.append(CloseMember(member, "it does not read"))

    def share(self, topic: str, body: bytes) -> None:
        """Tell all followers this state, now and on joining (wire.Shared)."""
        if self._shared.get(topic) != body:
            self._shared[topic] = body
            for there in self._members.values():
                if there.lost_at is None:
                    there.outbox.append(("", Shared(topic, body)))

    def _is_connected(self, member: str) -> bool:
        there = self._members.get(member)
        return there is not None and there.lost_at is None

    def _connect(self, member: str, join: Join, now: float) -> None:
        """A member joins, for the first time or again: what it says from now on is of this connection."""
        if self._is_connected(member):
            self.lost(member, now)
        sender = self._senders.setdefault(member, Sender(member))
        there = self._members[member] = _Member(sender, now, Mark(*join.checkpoint))
        self.grants.met(member)
        if self.is_deciding:
            self._stream.joined(member, there.checkpoint)
        self._inbox.add(member, ("", join, now))
        there.outbox.append(("", Welcome(self.member)))
        there.outbox += [("", Shared(topic, body)) for topic, body in self._shared.items()]

    def _pong(self, there: _Member, now: float) -> None:
        """Promise what the lease has left (rule 3); nothing while this leader decides nothing yet."""
        left_s = min(LEASE_S, self.lease_until - now) if self.is_deciding else 0.0
        if there.pinged_at is not None and not self.is_over:
            there.outbox.append(("", Pong(there.pinged_at, max(0.0, left_s), now)))

    def _hear(self, member: str, there: _Member, message: AnyMessage, now: float) -> None:
        """Answered what needs no order at once; the rest goes into the inbox."""
        match message:
            case Ping():
                there.pinged_at = message.at
                if message.granted is not None:
                    self.grants.granted(member, message.granted)
                self._pong(there, now)
            case Join():
                return
            case CheckpointPart():
                self._checkpoint.part(member, message)
            case HigherEpoch():
                if message.epoch > self.epoch:
                    self.step_down("a higher epoch is known", message.epoch)
            case ToldPart() if not self.is_deciding:
                there.has_told_running |= message.has_told_running
                if there.has_told_running:
                    there.has_more = True
                else:
                    there.outbox.append(("", TellMore()))
            case _:
                there.has_told_running |= isinstance(message, ToldAll)
                self._inbox.add(member, ("", message, now))

    # -- facts of this process -------------------------------------------------------------------------------

    def told(self, pool: str, fact: Fact) -> None:
        """What the pool's Scheduler is to be told when all before it was taken in. Tenants of requests are looked up
        besides; the caller has checked that policies exist.
        """
        match fact:
            case LoadChanged():
                self._sight.polled(pool, fact.loads, fact.now, all_of_it=True)
            case Measured():
                self._sight.polled(pool, [fact.load], fact.now)
                if fact.load.available:
                    for there in self._members.values():
                        there.failed.discard(fact.load.backend_id)
        self.pool(pool, fact.now)
        self._inbox.add(OWN, (pool, fact, fact.now), is_barrier=isinstance(fact, LoadChanged | Measured))

    def tenant_changed(self, tenant_id: str, now: float) -> None:
        """The registry has changed this tenant; look it up again wherever it is known."""
        for order in self.pools.values():
            order.tenants.changed(tenant_id, now)
            order.journal.tenant(tenant_id)
        self._has_news = True

    def tenant_forgotten(self, tenant_id: str, now: float) -> None:
        """Forget this tenant; its queued requests are rejected."""
        for order in self.pools.values():
            order.tenants.forget(tenant_id, now)
            order.journal.tenant(tenant_id)
        self._has_news = True

    def pool(self, name: str, now: float) -> PoolOrder:
        """The pool of this name; made with its first load or request."""
        order = self.pools.get(name)
        if order is None:
            order = self.pools[name] = PoolOrder(name, self._make_scheduler(name), self._tenant_of)
            if self._is_gathered:
                order.restored(self._restored.get(order.name), self._restored_at, self._alone or ALONE, now)
                order.scheduler.told(TakenOver(now))
        return order

    # -- deciding --------------------------------------------------------------------------------------------

    def turn(self, now: float, overslept_s: float = 0.0) -> None:
        """Take in what has come, and decide. Call it for every arrival, and at `wakeup`. For `overslept_s` this process
        did not run: what was sent meanwhile is unread, and no member is silent for that.
        """
        if self.is_over:
            return
        if now >= self.lease_until:  # rule 4
            self.step_down("its lease has ended")
            return
        self._notice_silence(now, overslept_s)
        if not self.is_deciding and not self._begin(now):
            return
        self._take_in(now)
        is_due = any(pool.wakeup() <= now for pool in self.pools.values())
        may_decide = not any(pool.chores.is_urgent for pool in self.pools.values())
        if (
            may_decide and (self._has_news or is_due) and (not self._inbox or now - self._polled_at >= POLL_S)
        ):  # rule 10
            self._polled_at, self._has_news = now, False
            for name, order in self.pools.items():
                for sender, message in order.decide(now):
                    self._members[sender.member].outbox.append((name, message))
        self._tell_checkpoint(now)

    def resign(self, now: float, *, returns: bool) -> None:
        """The process is told to stop: a last checkpoint, then every promise is released; `frames` has them. It
        `returns` as a follower if it has requests.
        """
        if self.is_over:
            return
        if self.is_deciding:
            self._tell_checkpoint(now, is_last=True)
        self.is_over, self.is_deciding = True, False
        for there in self._members.values():
            there.outbox.append(("", Release(returns)))
        self._wishes.append(StepDown("it resigns"))

    def step_down(self, reason: str, epoch: Epoch = 0, *, is_blind: bool = False) -> None:
        """The leadership is over: what was decided and not sent yet is dropped."""
        if not self.is_over:
            self.is_over, self.is_deciding = True, False
            for there in self._members.values():
                there.outbox.clear()
            self._wishes.append(StepDown(reason, epoch, is_blind))

    def frames(self, now: float) -> list[tuple[str, Frame]]:
        """What is to be sent now, with the member that it is for. Nothing leaves once the lease has ended (rule 4)."""
        if now >= self.lease_until:
            if not self.is_over:
                self.step_down("its lease has ended")
            return []
        found = []
        for member, there in self._members.items():
            if there.outbox and there.lost_at is None:
                said, there.outbox = there.outbox, []
                found += [(member, frame) for frame in frames_of(self.epoch, said)]
        return found

    def wishes(self) -> list[Wish]:
        """What the shell is to do, each once."""
        wishes, self._wishes = self._wishes, []
        return wishes

    def wakeup(self, now: float) -> float:
        """When `turn` is due although nothing came; not later than `now`: at once."""
        times = [pool.wakeup() for pool in self.pools.values()] if self.is_deciding else []
        if self._is_gathered and (self._inbox or any(pool.chores.is_busy for pool in self.pools.values())):
            times.append(now)
        times += [there.heard_at + SILENCE_S_MAX for there in self._members.values() if there.lost_at is None]
        times += [there.heard_at + LEASE_S for there in self._members.values() if there.lost_at is not None]
        times += [self.lease_until, *([self._stream.wakeup(now)] if self.is_deciding else self._awaits(now))]
        return min(times)

    def _awaits(self, now: float) -> list[float]:
        """Until when it waits for members that have not told what they have (rule 2)."""
        told = {name for name, there in self._members.items() if there.has_told_running}
        return [until for name, until in self._waits.items() if name not in told and now < until]

    def _begin(self, now: float) -> bool:
        """Whether all is gathered that a decision needs, and was taken in (rules 2, 18 to 22)."""
        if not self._is_gathered:
            own = self._members.get(self.member)
            # Its own process is never silent: what that runs is there before the first Pong tells it of a decision.
            if own is None or not own.has_told_running or self._awaits(now):
                return False
            if not self._goes_on(now):
                return False
            self._is_gathered = True
        self._take_in(now)
        if self._inbox or any(order.chores.is_busy for order in self.pools.values()):
            return False
        self.is_deciding = True
        if self._alone is None:
            self._stream.begins(now)  # what was waiting is admitted now, all at once
        for name, there in self._members.items():
            if there.lost_at is None:
                self._pong(there, now)
                if there.has_more:
                    there.outbox.append(("", TellMore()))
                self._stream.joined(name, there.checkpoint)
        for order in self.pools.values():
            order.scheduler.told(TakenOver(now))
        self._wishes.append(AskBackends())
        return True

    def _goes_on(self, now: float) -> bool:
        """Go on from the newest checkpoint, unless a member that is there has a newer one: then ask it (rule 19)."""
        there = [each for each in self._members.values() if each.lost_at is None]
        newest = max(there, key=lambda each: each.checkpoint)
        if newest.checkpoint > self._checkpoint.mark:
            if not newest.is_asked:
                newest.is_asked = True
                newest.outbox.append(("", WantCheckpoint()))
            return False
        checkpoint = self._checkpoint.read()
        if checkpoint is not None:
            self._restored, self._restored_at = checkpoint.pools, now
            for name, taken in checkpoint.taken.items():
                sender = self._senders.setdefault(name, Sender(name))
                sender.request, sender.entry = taken
        for order in self.pools.values():
            order.restored(self._restored.get(order.name), self._restored_at, self._alone or ALONE, now)
        return True

    def _take_in(self, now: float) -> None:
        """Take in what has come, and what it entails, as much as one turn has time for."""
        left = TAKEN_MAX
        for order in self.pools.values():
            if left and order.chores.is_busy:
                left -= order.chores.work(left, now)
                self._has_news = True
        for source, (pool, entry, came_at) in self._inbox.turn(left) if left else ():
            self._take(source, pool, entry, came_at, now)

    def _take(self, source: str, pool: str, entry: AnyMessage | Fact, came_at: float, now: float) -> None:
        self._has_news = True
        if isinstance(entry, Fact):
            self.pool(pool, now).told(entry.but(now=now))
            return
        there = self._members.get(source)
        if there is None:
            return
        self.facts += 1
        self._stream.taken(there.sender)
        if pool:
            if source != self.member and self._sight.is_less_than(entry, now):
                self.step_down("it reaches no backend, and others do", is_blind=True)
            self.pool(pool, now).take(there.sender, entry, came_at, now)
            return
        self._take_of_member(there, entry, now)

    def _take_of_member(self, there: _Member, entry: AnyMessage, now: float) -> None:
        match entry:
            case Join():
                there.sender.joins()
                there.sender.is_away, there.is_joined = there.lost_at is not None, False
            case ToldPart():
                there.outbox.append(("", TellMore()))
            case ToldAll():
                there.is_joined = there.lost_at is None
                for order in self.pools.values():
                    order.chores.end_untold(there.sender)
                there.sender.all_told()
            case Reach():
                there.named = frozenset(entry.unreachable)
                there.failed.clear()
                self._reach(there, now)
            case Failed():
                self._failed(there, entry.backend_id, now)
            case Untold():
                for order in self.pools.values():
                    order.backends.untold(there.sender, entry.tokens)

    def _tell_checkpoint(self, now: float, *, is_last: bool = False) -> None:
        """Tell all members, and each second the store, what has been charged until now."""
        journals = [order.journal for order in self.pools.values()]
        if self._alone is not None:
            for journal in journals:
                journal.clear()
            return
        parts, body = self._stream.turn(journals, self._senders, now, is_last=is_last)
        for member, part in parts:
            self._members[member].outbox.append(("", part))
        if body:
            self._wishes.append(StoreCheckpoint(body))

    # -- members that fall silent, backends that fail --------------------------------------------------------

    def _notice_silence(self, now: float, overslept_s: float) -> None:
        for member, there in list(self._members.items()):
            there.heard_at = min(now, there.heard_at + overslept_s)
            if there.lost_at is None:
                if now - there.heard_at > SILENCE_S_MAX:  # rule 26
                    self._wishes.append(CloseMember(member, "it is silent"))
                    self.lost(member, now)
            elif self.is_deciding and now - there.heard_at >= LEASE_S:  # rule 17: its promise has ended
                self._forget(member, now)

    def _forget(self, member: str, now: float) -> None:
        there = self._members.pop(member)
        self.grants.forget(member)
        ran = [order.gone(there.sender) for order in self.pools.values()]
        if any(ran):
            self._wishes.append(AskBackends())
        self._has_news = True

    def _failed(self, there: _Member, backend_id: str, now: float) -> None:
        """A follower's call failed (rule 27): it is sent nothing there, and the backend is asked now."""
        there.failed.add(backend_id)
        self._wishes.append(AskBackends((backend_id,)))
        self._reach(there, now)

    def _reach(self, there: _Member, now: float) -> None:
        unreachable = there.named | there.failed
        if unreachable != there.sender.unreachable:
            there.sender.unreachable = frozenset(unreachable)
            for order in self.pools.values():
                order.chores.place_again(there.sender)
