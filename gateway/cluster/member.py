"""Member: one process of a cluster, put together: it follows, and it leads where it was elected, or alone.

The shell connects a member to sockets and to the store, and calls:

- `tick(now)` whenever something came and at `wakeup(now)`; then it makes the `calls`, sends the `frames`, and carries
  out the `wishes`, in this order.
- `target(now)`: the member that it should have a connection to, and `connected`, `lost` and `received` of it. The
  side that connects is the follower; the side that accepts gives what comes to `accepted` and `received_from`.

The leader's own follower is joined to it by a link without bytes. A member without a leader leads itself, within 1/N of
every limit, where there is no store, or no majority for another leader (rule 25).
"""

from collections.abc import Callable, Mapping
from math import inf
from typing import Final

from gateway.cluster.checkpoints import NewestCheckpoint
from gateway.cluster.election import Candidate, StoreCall, StoreView
from gateway.cluster.follower.follower import Follower
from gateway.cluster.leader.leader import Leader
from gateway.cluster.own_share import OwnShare
from gateway.cluster.promise import PING_S, SILENT_S, WITHOUT_STORE_S
from gateway.cluster.wire import Epoch, Frame, HigherEpoch, Join, Release
from gateway.cluster.wishes import StepDown, Wish
from policies.facts import Fact, LoadChanged, Measured, Restored
from policies.scheduler_protocol import SharedSchedulerProtocol
from policies.types import BackendLoad, ReplicaShare, Tenant

HAND_OVER_S: Final = 10.0  # a leader that reached no backend does not stand again for so long


class Member:
    """One process: its Follower always, its Candidate where a store elects, its Leader where it leads."""

    def __init__(
        self,
        name: str,
        *,
        make_scheduler: Callable[[str], SharedSchedulerProtocol],
        tenant_of: Callable[[str], Tenant | None],
        wait_s_max: float,
        candidate: Candidate | None,
        now: float,
    ) -> None:
        """`candidate` is None where a parent process names the leader (`appoint`)."""
        self.name = name
        self.candidate = candidate
        self.checkpoint = NewestCheckpoint()
        self.follower = Follower(name, wait_s_max=wait_s_max, checkpoint=self.checkpoint, now=now)
        self.leader: Leader | None = None
        self.is_standalone = False
        """It leads itself alone, because there is neither a store nor a leader (rule 25)."""
        self.share = OwnShare(name, tenant_of)
        self.elections = 0
        """How often this member began to lead, for metrics."""
        self._make_scheduler = make_scheduler
        self._loads: dict[str, dict[str, BackendLoad]] = {}
        self._wishes: list[Wish] = []
        self._calls: list[StoreCall] = []
        self._out: list[tuple[str, Frame]] = []
        self._connected_to: str | None = None
        self._stands_again_at = -inf
        self._appointed: str | None = None
        self._due_at = inf  # when `tick` was due, by the last `wakeup`

    # -- election --------------------------------------------------------------------------------------------

    def appoint(self, leader: str, epoch: Epoch, now: float, *, expected: tuple[str, ...] = ()) -> None:
        """A parent process names the leader; for workers of one machine, without a store."""
        self._appointed = leader
        if leader == self.name and (self.leader is None or self.leader.epoch != epoch):
            self._lead(epoch, now, waits=dict.fromkeys(expected, now + SILENT_S))

    def target(self, now: float) -> str | None:
        """The member to have a connection to; None: none, or this one leads. One that is alone looks for the leader
        that it knew: a majority may go on with that one.
        """
        if self.is_leading or (self.is_standalone and self.candidate is not None and self.candidate.strangers):
            return None
        if self._appointed is not None or self.candidate is None:
            return self._appointed
        return self.candidate.leader if self.candidate.leader != self.name else None

    def resign(self, now: float) -> None:
        """The process is told to stop: it leads no more, and does not stand again. One that is alone serves its clients
        on, because no other member can.
        """
        if self.leader is not None and not self.is_standalone:
            self.leader.resign(now, returns=bool(self.follower.requests))
            self._step_down(self.leader, now, stops=True)
        elif self.candidate is not None:
            self.candidate.stands = False

    @property
    def is_leading(self) -> bool:
        """Whether this member decides for others, or will when it has gathered what runs."""
        return self.leader is not None and not self.is_standalone

    # -- the follower's connection ---------------------------------------------------------------------------

    def connected(self, leader: str, now: float) -> None:
        """The connection to the `target` is there, both sides have proved themselves, and that one leads."""
        if self.is_standalone:
            self._end_standalone(now)
        self._connected_to = leader
        self.follower.connected(now)

    def lost(self, leader: str, now: float) -> None:
        """The connection to this leader is gone."""
        if self._connected_to == leader:
            self._connected_to = None
            self.follower.lost(now)
            if self.candidate is not None:
                self.candidate.lost(leader, now)

    def refused(self, member: str, now: float) -> None:
        """The port of this member refuses connections, or another process has it: that one has ended."""
        if self.candidate is not None:
            self.candidate.ended(member, now)
            self.follower.link.granting.release(member)

    def received(self, leader: str, frame: Frame, now: float) -> None:
        """A frame came on the connection to this leader."""
        if self._connected_to == leader:
            self.follower.received(frame, now)
            epoch = self.follower.link.epoch
            self._knows(epoch)
            releases = [each for each in frame.messages if isinstance(each, Release)]
            if self.candidate is not None and releases and frame.epoch == epoch:
                self.candidate.resigned_by(leader, now, returns=releases[0].returns)

    # -- connections of followers ----------------------------------------------------------------------------

    def received_from(self, member: str, frame: Frame, now: float) -> None:
        """A frame came on a connection that this member accepted."""
        self._knows(frame.epoch)
        leader = None if self.is_standalone else self.leader
        joins = bool(frame.messages) and isinstance(frame.messages[0], Join)
        if leader is not None and (joins or frame.epoch >= leader.epoch):
            leader.received(member, frame, now)
        else:  # that epoch is over: its follower looks elsewhere, or joins anew
            epoch = 0 if self.candidate is None else self.candidate.epoch
            epoch = epoch if leader is None else leader.epoch
            self._out.append((member, Frame(epoch, "", (HigherEpoch(epoch),))))

    def lost_from(self, member: str, now: float, *, is_dead: bool = False) -> None:
        """A connection that this member accepted is gone; `is_dead`: the process has ended."""
        if self.leader is not None:
            self.leader.lost(member, now, is_dead=is_dead)

    # -- the store -------------------------------------------------------------------------------------------

    def calls(self) -> list[StoreCall]:
        """Calls of the store to make now."""
        calls, self._calls = self._calls, []
        return calls

    def answered(self, call: StoreCall, view: StoreView, now: float) -> None:
        """The store answered."""
        assert self.candidate is not None, "only a candidate calls a store"
        self.candidate.answered(call, view, now)
        self.share.listed(view.members, now)

    def stored(self, body: bytes) -> None:
        """The checkpoint that the store keeps; read it when the store was connected to, and when elected."""
        self.checkpoint.told(body)

    # -- facts of this process --------------------------------------------------------------------------------

    def told(self, pool: str, fact: Fact) -> None:
        """A fact of the pool; without effect on a follower, which keeps the loads of backends for when it leads."""
        match fact:
            case LoadChanged():
                self._loads[pool] = {load.backend_id: load for load in fact.loads}
            case Measured():
                self._loads.setdefault(pool, {})[fact.load.backend_id] = fact.load
            case Restored():
                return  # a leader's Schedulers are restored when they are made
        if self.leader is not None:
            self.leader.intake.told(pool, self.share.of_fact(fact))

    # -- driving ---------------------------------------------------------------------------------------------

    def tick(self, now: float) -> None:
        """Take in what has come, and decide what is due."""
        # Where it was stopped or had no CPU, it has heard no member. A busy one reads between its turns.
        overslept_s = now - self._due_at if now - self._due_at > PING_S else 0.0
        link = self.follower.link
        link.heard_at = min(now, link.heard_at + overslept_s)
        if self.candidate is not None:
            self.candidate.overslept(overslept_s, now)
            self._look_at_grants(self.candidate, now)
            self._ask_store(self.candidate, now)
            link.granting.may_grant = self.leader is None and self.candidate.may_grant(link.epoch)
            campaign = self._divide if self.candidate.strangers else self._campaign
            campaign(self.candidate, now)
        self._exchange(now)
        if self.leader is not None:
            self.leader.turn(now, overslept_s)
            self._exchange(now)
        self.follower.tick(now)

    def frames(self, now: float) -> list[tuple[str, Frame]]:
        """What is to be sent now, each with the member that it is for."""
        out, self._out = self._out, []
        if self.leader is None and self._connected_to is not None:
            out += [(self._connected_to, frame) for frame in self.follower.link.frames(now)]
        return out

    def wishes(self) -> list[Wish]:
        """What the shell is to do besides."""
        wishes, self._wishes = self._wishes, []
        return wishes

    def wakeup(self, now: float) -> float:
        """When `tick` is due although nothing came."""
        times = [self.follower.due()]
        if self.candidate is not None:
            times.append(self.candidate.wakeup())
        if self.leader is not None:
            times.append(self.leader.wakeup(now))
        self._due_at = max(now, min(times))
        return min(times)

    # -- helpers ---------------------------------------------------------------------------------------------

    def _look_at_grants(self, candidate: Candidate, now: float) -> None:
        """Tell the candidate whether this member helps a leader to lead, and which ones it helps no more."""
        link = self.follower.link
        is_alone = self.is_standalone or link.leader is None
        candidate.is_bound = link.granting.is_bound(now) or not is_alone
        candidate.free_epoch = 0 if candidate.is_bound else link.epoch
        candidate.witnesses = frozenset() if self.leader is None else self.leader.members.grants.witnesses()

    def _ask_store(self, candidate: Candidate, now: float) -> None:
        candidate.stands = candidate.stands or self._stands_again_at < now < self._stands_again_at + 1.0
        call = candidate.call(now)
        if call is not None:
            self._calls.append(call)

    def _campaign(self, candidate: Candidate, now: float) -> None:
        """What the election asks for (rules 1, 4, 25)."""
        leader = self.leader
        if candidate.led_epoch:
            if leader is None or leader.epoch != candidate.led_epoch:
                self._lead(candidate.led_epoch, now, waits=candidate.waits(now))
            elif leader is not None:
                by_members = leader.members.grants.lease_until(candidate.lists())
                until = max(candidate.lease_until, min(by_members, candidate.lease_until + WITHOUT_STORE_S))
                leader.lease_until = max(leader.lease_until, until)
            return
        is_with_others = candidate.is_reached(now) and not candidate.is_refused(now)
        if leader is not None and not self.is_standalone:
            leader.step_down("the store has another leader")
            self._step_down(leader, now)
        elif self.is_standalone:
            if is_with_others:
                self._end_standalone(now)
        elif not is_with_others and not self.follower.link.granting.is_bound(now) and self._connected_to is None:
            self._lead_alone(now)

    def _divide(self, candidate: Candidate, now: float) -> None:
        """Members of unequal versions share no order. So none of them has one: until one version is left each is alone,
        because the parts of all make a whole (rule 28). A new member waits until the others have seen it.
        """
        if self.leader is not None and not self.is_standalone:
            self.leader.resign(now, returns=True)
            self._step_down(self.leader, now)
        if self.follower.link.may_decide(now) and self.leader is None:
            return  # its leader has not seen it yet
        has_grown = self.is_standalone and len(self.share.members(now)) > self.share.part.replicas
        if has_grown or (self.leader is None and candidate.has_been_seen(now)):
            self._lead_alone(now)

    def _lead(self, epoch: Epoch, now: float, *, waits: dict[str, float]) -> None:
        self.is_standalone = False
        self.share.end()
        self.elections += 1
        lease_until = inf if self.candidate is None else self.candidate.lease_until
        self._begin(epoch, waits=waits, lease_until=lease_until, alone=None, now=now)

    def _lead_alone(self, now: float) -> None:
        """Rule 25: lead itself, with 1/N of every limit, N the most members of the last minute."""
        self.is_standalone = True
        alone = self.share.divide(now)
        self._begin(self.follower.link.epoch, waits={}, lease_until=inf, alone=alone, now=now)

    def _end_standalone(self, now: float) -> None:
        """Returning is joining."""
        self.leader, self.is_standalone = None, False
        self.share.end()
        self.follower.lost(now)

    def _begin(
        self,
        epoch: Epoch,
        *,
        waits: Mapping[str, float],
        lease_until: float,
        alone: ReplicaShare | None,
        now: float,
    ) -> None:
        """Leave the leader of before, make the new one, tell it what is known of backends, and join it."""
        self._connected_to = None
        self.follower.lost(now)
        self.leader = Leader(
            epoch,
            self.name,
            make_scheduler=self._make_scheduler,
            tenant_of=self.share.of_tenant,
            waits=waits,
            checkpoint=self.checkpoint,
            lease_until=lease_until,
            alone=alone,
        )
        for pool, loads in self._loads.items():
            self.leader.intake.told(pool, self.share.of_fact(LoadChanged(now, tuple(loads.values()))))
        self.follower.connected(now)

    def _step_down(self, leader: Leader, now: float, *, stops: bool = False) -> None:
        self.leader = None
        self._out += [(member, frame) for member, frame in leader.frames(now) if member != self.name]
        self._wishes += leader.wishes()
        if self.candidate is not None:
            if stops:
                call = self.candidate.release(now)
                self._calls += [] if call is None else [call]
            self.candidate.resigned()
            self.candidate.leader = None if self.candidate.leader == self.name else self.candidate.leader
        self.follower.lost(now)

    def _exchange(self, now: float) -> None:
        """Carry frames over the link between the own follower and the leader, and see whether that one steps down."""
        leader = self.leader
        if leader is None:
            return
        for frame in self.follower.link.frames(now):
            leader.received(self.name, frame, now)
        for member, frame in leader.frames(now):
            if member == self.name:
                self.follower.received(frame, now)
            else:
                self._out.append((member, frame))
        for wish in leader.wishes():
            self._wishes.append(wish)
            if isinstance(wish, StepDown) and self.leader is leader:
                self._knows(wish.epoch)
                self._step_down(leader, now)
                if wish.is_blind and self.candidate is not None:
                    self.candidate.stands, self._stands_again_at = False, now + HAND_OVER_S
        reason = self.follower.link.closes(now)
        if reason and self.leader is not None:
            self.follower.connected(now)  # the link is never broken: join again

    def _knows(self, epoch: Epoch) -> None:
        if self.candidate is not None:
            self.candidate.knows(epoch)
