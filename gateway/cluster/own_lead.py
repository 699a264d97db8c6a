"""OwnLead: the Leader in a member's own process, where it leads: for all, or for itself alone (rule 25).

Its own follower is joined to it by a link without bytes.
"""

from collections.abc import Callable, Mapping
from math import inf

from gateway.cluster.follower.follower import Follower
from gateway.cluster.leader.leader import Leader
from gateway.cluster.own_share import OwnShare
from gateway.cluster.wire import Epoch, Frame
from gateway.cluster.wishes import StepDown, Wish
from policies.facts import Fact, LoadChanged, Measured, Restored
from policies.scheduler_protocol import SharedSchedulerProtocol
from policies.types import BackendLoad, ReplicaShare


class OwnLead:
    """The leadership of one member (a process of the cluster): its Leader object while it leads, otherwise none. It
    leads all members, or only itself where it is alone. Mutable.
    """

    def __init__(
        self, follower: Follower, share: OwnShare, make_scheduler: Callable[[str], SharedSchedulerProtocol]
    ) -> None:
        self.leader: Leader | None = None
        self.is_standalone = False
        """It leads itself alone, because there is neither a store nor a leader."""
        self.elections = 0
        """How often this member began to lead, for metrics."""
        self.share = share
        self._follower = follower
        self._make_scheduler = make_scheduler
        self._loads: dict[str, dict[str, BackendLoad]] = {}
        self._out: list[tuple[str, Frame]] = []
        self._wishes: list[Wish] = []

    @property
    def is_for_all(self) -> bool:
        """Whether this member decides for others, or will do so once it has gathered the running requests."""
        return self.leader is not None and not self.is_standalone

    def told(self, pool: str, fact: Fact) -> None:
        """Pass a fact of the pool to the Leader, if this member leads. A follower only keeps backends' loads."""
        match fact:
            case LoadChanged():
                self._loads[pool] = {load.backend_id: load for load in fact.loads}
            case Measured():
                self._loads.setdefault(pool, {})[fact.load.backend_id] = fact.load
            case Restored():
                return  # a leader's Schedulers are restored when they are made
        if self.leader is not None:
            self.leader.intake.told(pool, self.share.of_fact(fact))

    # -- when it begins and ends -----------------------------------------------------------------------------

    def begin(self, epoch: Epoch, now: float, *, waits: Mapping[str, float], lease_until: float = inf) -> None:
        """Begin to lead all members in this epoch."""
        self.is_standalone = False
        self.share.end()
        self.elections += 1
        self._begin(epoch, now, waits, lease_until, None)

    def begin_alone(self, now: float) -> None:
        """Lead only itself, with 1/N of every limit; N is the most members of the last minute (rule 25)."""
        self.is_standalone = True
        self._begin(self._follower.link.epoch, now, {}, inf, self.share.divide(now))

    def end_alone(self, now: float) -> None:
        """End leading only itself: the follower then joins a leader again."""
        self.leader, self.is_standalone = None, False
        self.share.end()
        self._follower.lost(now)

    def step_down(self, leader: Leader, now: float) -> None:
        """End this leadership; its last messages are still sent."""
        self.leader = None
        self._out += [(member, frame) for member, frame in leader.frames(now) if member != leader.member]
        self._wishes += leader.wishes()
        self._follower.lost(now)

    def _begin(
        self, epoch: Epoch, now: float, waits: Mapping[str, float], lease_until: float, alone: ReplicaShare | None
    ) -> None:
        """Leave the leader of before, make the new one, tell it what is known of backends, and join it."""
        self._follower.lost(now)
        self.leader = Leader(
            epoch,
            self._follower.link.member,
            make_scheduler=self._make_scheduler,
            tenant_of=self.share.of_tenant,
            waits=waits,
            checkpoint=self._follower.checkpoint,
            lease_until=lease_until,
            alone=alone,
        )
        for pool, loads in self._loads.items():
            self.leader.intake.told(pool, self.share.of_fact(LoadChanged(now, tuple(loads.values()))))
        self._follower.connected(now)

    # -- driving ---------------------------------------------------------------------------------------------

    def turn(self, now: float, overslept_s: float) -> StepDown | None:
        """Process received facts, and decide. Returns the StepDown if the leadership has ended meanwhile."""
        ends = self._exchange(now)
        if self.leader is not None:
            self.leader.turn(now, overslept_s)
            ends = self._exchange(now)
        return ends

    def frames(self) -> list[tuple[str, Frame]]:
        """The frames to send now, each with its member."""
        out, self._out = self._out, []
        return out

    def wishes(self) -> list[Wish]:
        """The leader's other tasks for the shell."""
        wishes, self._wishes = self._wishes, []
        return wishes

    def _exchange(self, now: float) -> StepDown | None:
        """Carry frames over the link between the own follower and the leader, and see whether that one steps down."""
        leader, ends = self.leader, None
        if leader is None:
            return None
        for frame in self._follower.link.frames(now):
            leader.received(leader.member, frame, now)
        for member, frame in leader.frames(now):
            if member == leader.member:
                self._follower.received(frame, now)
            else:
                self._out.append((member, frame))
        for wish in leader.wishes():
            self._wishes.append(wish)
            if isinstance(wish, StepDown) and self.leader is leader:
                ends = wish
                self.step_down(leader, now)
        if self.leader is not None and self._follower.link.closes(now):
            self._follower.connected(now)  # the link is never broken: join again
        return ends
