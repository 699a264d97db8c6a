"""Leader: runs the Schedulers of all pools for all members of a cluster, its own process among them.

Inputs are frames of members, facts of its own process (loads, tenants, policies) and its lease; outputs are frames, and
`Wish`es that its shell carries out. Before it decides, it gathers the running and waiting requests: every member of the
last list has joined, or was silent until its old promise surely ended (rule 2). Then it continues from the newest
checkpoint (rule 19), processes the reports, and dispatches to a backend after its next measurement (rule 22).

The lease is checked before each frame (rule 4). When it has ended, no more frames are sent.
"""

from collections.abc import Callable, Mapping
from math import inf
from types import MappingProxyType

from gateway.cluster.checkpoints import NewestCheckpoint
from gateway.cluster.leader.checkpoint_stream import CheckpointStream
from gateway.cluster.leader.gathering import Gathering
from gateway.cluster.leader.intake import Intake
from gateway.cluster.leader.led_members import LedMember, LedMembers
from gateway.cluster.leader.led_pools import LedPools
from gateway.cluster.promise import LEASE_S
from gateway.cluster.wire import (
    AnyMessage,
    CheckpointPart,
    Epoch,
    Frame,
    HigherEpoch,
    Join,
    Ping,
    Release,
    TellMore,
    ToldAll,
    ToldPart,
)
from gateway.cluster.wishes import AskBackends, CloseMember, StepDown, StoreCheckpoint, Wish
from policies.scheduler_protocol import SharedSchedulerProtocol
from policies.types import ALONE, ReplicaShare, Tenant


class Leader:
    """The leader of a cluster for one epoch: it runs the Schedulers of all pools for all members (processes). Mutable.
    It ends with a StepDown instruction, and is not used again.
    """

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
    ) -> None:
        """`make_scheduler` makes the Scheduler of a pool, without tenants but with the configured tiers; `tenant_of`
        looks a tenant up in the registry. `waits` has the members of the last list, each with the time until which the
        leader waits for it. `lease_until` is infinite where a parent process appoints the leader. `alone` is the part
        of every limit for a member that leads only itself (None: it leads all). Such a leader takes no checkpoints: its
        member reports the charges to the next leader.
        """
        self.epoch = epoch
        self.member = member
        self.lease_until = lease_until
        """By this process's clock, the margin taken off (rule 4)."""
        self.is_deciding = False
        self.is_over = False
        self._wishes: list[Wish] = []
        self._alone = alone
        self._checkpoint = NewestCheckpoint() if checkpoint is None else checkpoint
        self._stream = CheckpointStream(epoch, member, self._checkpoint)
        self.members = LedMembers(member, self._wishes)
        self.pools = LedPools(make_scheduler, tenant_of, alone or ALONE)
        self.intake = Intake(member, self.members, self.pools, self._stream, self._wishes)
        self._gathering = Gathering(member, self.members, waits, self._checkpoint)

    # -- members ---------------------------------------------------------------------------------------------

    def received(self, member: str, frame: Frame, now: float) -> None:
        """A frame came on the connection of this member. The first frame begins with a Join."""
        if frame.epoch > self.epoch:  # rule 1
            self.step_down("a higher epoch is known", frame.epoch)
            return
        there, first = self.members.connected(member), frame.messages[0] if frame.messages else None
        if isinstance(first, Join):
            if there is not None:
                self.lost(member, now)
            there = self.members.connect(member, first, now)
            if self.is_deciding:
                self._stream.joined(member, there.checkpoint)
            self.intake.inbox.add(member, ("", first, now))
        elif there is None or frame.epoch != self.epoch:  # rule 5
            return
        there.heard_at = now
        for message in frame.messages:
            if frame.pool:  # facts of requests: all of them need the order
                self.intake.inbox.add(member, (frame.pool, message, now))
            else:
                self._hear(member, there, message, now)

    def lost(self, member: str, now: float, *, is_dead: bool = False) -> None:
        """The connection of this member is gone; `is_dead`: the parent process saw it end (rule 17)."""
        there = self.members.find(member)
        if there is None:
            return
        if there.lost_at is None:
            there.lost(now)
            self._stream.lost(member)
            if not self._gathering.is_over:
                self.intake.inbox.drop(member)  # it tells all of it again
            for pool in self.pools.values():
                pool.chores.park(there.sender)
            self.pools.has_news = True
        if is_dead:
            self._gathering.died(member)
            self._forget(member)

    def _hear(self, member: str, there: LedMember, message: AnyMessage, now: float) -> None:
        """Answered what needs no order at once; the rest goes into the inbox."""
        match message:
            case Ping():
                there.pinged_at = message.at
                if message.granted is not None:
                    self.members.grants.granted(member, message.granted)
                if not self.is_over:
                    there.pong(self._left_s(now), now)
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
                    there.say(TellMore())
            case _:
                there.has_told_running |= isinstance(message, ToldAll)
                self.intake.inbox.add(member, ("", message, now))

    def _left_s(self, now: float) -> float:
        """What the lease has left to promise (rule 3); nothing while this leader decides nothing yet."""
        return max(0.0, min(LEASE_S, self.lease_until - now)) if self.is_deciding else 0.0

    # -- deciding --------------------------------------------------------------------------------------------

    def turn(self, now: float, overslept_s: float = 0.0) -> None:
        """Process received facts, and decide. Call it for every arrival, and at `wakeup`. This process did not run for
        `overslept_s`: frames from that time are unread, and no member counts as silent for it.
        """
        if self.is_over:
            return
        if now >= self.lease_until:  # rule 4
            self.step_down("its lease has ended")
            return
        silent, ended = self.members.unheard(now, overslept_s)
        for member in silent:
            self._wishes.append(CloseMember(member, "it is silent"))
            self.lost(member, now)
        for member in ended if self.is_deciding else ():
            self._forget(member)
        if not self.is_deciding and not self._begin(now):
            return
        self.intake.take(now)
        if self.intake.is_blind:
            self.step_down("it reaches no backend, and others do", is_blind=True)
        for pool, sender, message in self.pools.decide(now, has_more=len(self.intake.inbox) > 0):
            self.members.say(sender.member, pool, message)
        self._tell_checkpoint(now)

    def resign(self, now: float, *, returns: bool) -> None:
        """The process has to stop: `frames` then has a last checkpoint, and the release of every promise. `returns`:
        this process comes back as a follower, because it has requests.
        """
        if self.is_over:
            return
        if self.is_deciding:
            self._tell_checkpoint(now, is_last=True)
        self.is_over, self.is_deciding = True, False
        for _, there in self.members:
            there.say(Release(returns))
        self._wishes.append(StepDown("it resigns"))

    def step_down(self, reason: str, epoch: Epoch = 0, *, is_blind: bool = False) -> None:
        """The leadership is over: decisions that are not sent yet are dropped."""
        if not self.is_over:
            self.is_over, self.is_deciding = True, False
            for _, there in self.members:
                there.outbox.clear()
            self._wishes.append(StepDown(reason, epoch, is_blind))

    def frames(self, now: float) -> list[tuple[str, Frame]]:
        """The frames to send now, each with its member. After the end of the lease there are none (rule 4)."""
        if now >= self.lease_until:
            if not self.is_over:
                self.step_down("its lease has ended")
            return []
        return self.members.frames(self.epoch)

    def wishes(self) -> list[Wish]:
        """The tasks for the shell, each returned once."""
        wishes = list(self._wishes)
        self._wishes.clear()
        return wishes

    def wakeup(self, now: float) -> float:
        """When `turn` is due although nothing arrived; not later than `now`: at once."""
        times = [self.lease_until, *self.members.due()]
        if self._gathering.is_over and (self.intake.inbox or self.pools.are_busy):
            times.append(now)
        if self.is_deciding:
            times += [self.pools.wakeup(), self._stream.wakeup(now)]
        else:
            times += self._gathering.awaits(now)
        return min(times)

    def _begin(self, now: float) -> bool:
        """Whether all is gathered that a decision needs, and was taken in (rules 2, 18 to 22)."""
        if not self._gathering.is_over:
            if not self._gathering.look(now):
                return False
            checkpoint = self._checkpoint.read()
            self.members.restored({} if checkpoint is None else checkpoint.taken)
            self.pools.go_on({} if checkpoint is None else checkpoint.pools, now)
        self.intake.take(now)
        if self.intake.inbox or self.pools.are_busy:
            return False
        self.is_deciding = True
        if self._alone is None:
            self._stream.begins(now)  # what was waiting is admitted now, all at once
        for name, there in self.members.here():
            there.pong(self._left_s(now), now)
            if there.has_more:
                there.say(TellMore())
            self._stream.joined(name, there.checkpoint)
        self.pools.taken_over(now)
        self._wishes.append(AskBackends())
        return True

    def _tell_checkpoint(self, now: float, *, is_last: bool = False) -> None:
        """Tell all members, and each second the store, what has been charged until now."""
        journals = [order.journal for order in self.pools.values()]
        if self._alone is not None:
            for journal in journals:
                journal.clear()
            return
        parts, body = self._stream.turn(journals, self.members.senders, now, is_last=is_last)
        for member, part in parts:
            self.members.say(member, "", part)
        if body:
            self._wishes.append(StoreCheckpoint(body))

    def _forget(self, member: str) -> None:
        """The member is given up: what ran there is external load until a measurement says less."""
        if self.pools.gone(self.members.forget(member)):
            self._wishes.append(AskBackends())
