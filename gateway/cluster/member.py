"""Member: one process of a cluster, put together: it follows, and it leads where it was elected, or alone.

The shell connects a member to sockets and to the store, and calls:

- `tick(now)` whenever something arrived and at `wakeup(now)`; then it makes the calls of its campaign, sends the
  `frames`, and carries out the wishes of its lead, in this order.
- `target()`: the member that it should have a connection to, and for that connection `connected`, `lost` and
  `received`. The side that connects is the follower; the side that accepts calls `received_from` and `lost_from`.

The leader's own follower is joined to it by a link without bytes. A member without a leader leads itself, within 1/N of
every limit, where there is no store, or no majority for another leader (rule 25).
"""

from collections.abc import Callable
from math import inf

from gateway.cluster.campaign import Campaign
from gateway.cluster.checkpoints import NewestCheckpoint
from gateway.cluster.election import Candidate
from gateway.cluster.follower.follower import Follower
from gateway.cluster.own_lead import OwnLead
from gateway.cluster.own_share import OwnShare
from gateway.cluster.promise import PING_S, SILENT_S
from gateway.cluster.wire import Epoch, Frame, HigherEpoch, Join
from policies.scheduler_protocol import SharedSchedulerProtocol
from policies.types import Tenant


class Member:
    """One process of a cluster, as rules without I/O: its caller has the sockets and the store. It always has a
    Follower. It has a Campaign (its part in the election) where a store elects the leader, and a Leader while it leads.
    """

    def __init__(
        self,
        name: str,
        *,
        make_scheduler: Callable[[str], SharedSchedulerProtocol],
        tenant_of: Callable[[str], Tenant | None],
        wait_s_max: float,
        now: float,
    ) -> None:
        """It has no leader until it takes part in an election (`stand`), or a parent process names one (`appoint`)."""
        self.name = name
        self.checkpoint = NewestCheckpoint()
        """The newest; tell it the one that the store keeps, when the store was connected to, and when elected."""
        self.follower = Follower(name, wait_s_max=wait_s_max, checkpoint=self.checkpoint, now=now)
        self.lead = OwnLead(self.follower, OwnShare(name, tenant_of), make_scheduler)
        self.campaign: Campaign | None = None
        self._out: list[tuple[str, Frame]] = []
        self._appointed: str | None = None
        self._due_at = inf  # when `tick` was due, by the last `wakeup`

    # -- which member leads ----------------------------------------------------------------------------------

    def stand(self, candidate: Candidate) -> None:
        """Take part in the election of a store from now on."""
        self.campaign = Campaign(candidate, self.lead, self.follower)

    def appoint(self, leader: str, epoch: Epoch, now: float, *, expected: tuple[str, ...] = ()) -> None:
        """A parent process names the leader; for workers of one machine, without a store."""
        self._appointed = leader
        if leader == self.name and (self.lead.leader is None or self.lead.leader.epoch != epoch):
            self.lead.begin(epoch, now, waits=dict.fromkeys(expected, now + SILENT_S))

    def target(self) -> str | None:
        """The member to connect to; None: there is none, or this member leads."""
        if self.lead.is_for_all:
            return None
        return self._appointed if self.campaign is None else self.campaign.target()

    def resign(self, now: float) -> None:
        """The process has to stop: the member leads no more, and does not stand again. A member that is alone continues
        to serve its clients, because no other member can.
        """
        leader = self.lead.leader
        if leader is not None and self.lead.is_for_all:
            leader.resign(now, returns=bool(self.follower.requests))
            self.lead.step_down(leader, now)
            if self.campaign is not None:
                self.campaign.stop(now)
        elif self.campaign is not None:
            self.campaign.candidate.stands = False

    # -- the follower's connection ---------------------------------------------------------------------------

    def connected(self, leader: str, now: float) -> None:
        """The connection to the `target` is open, both sides are authenticated, and the target leads."""
        if self.lead.is_standalone:
            self.lead.end_alone(now)
        self.follower.connected(now, leader)

    def lost(self, leader: str, now: float) -> None:
        """The connection to this leader is gone."""
        if self.follower.link.peer == leader:
            self.follower.lost(now)
            if self.campaign is not None:
                self.campaign.candidate.lost(leader, now)

    def received(self, leader: str, frame: Frame, now: float) -> None:
        """A frame came on the connection to this leader."""
        if self.follower.link.peer == leader:
            self.follower.received(frame, now)
            if self.campaign is not None:
                self.campaign.heard(leader, frame, now)

    # -- connections of followers ----------------------------------------------------------------------------

    def received_from(self, member: str, frame: Frame, now: float) -> None:
        """A frame came on a connection that this member accepted."""
        candidate = None if self.campaign is None else self.campaign.candidate
        if candidate is not None:
            candidate.knows(frame.epoch)
        leader = None if self.lead.is_standalone else self.lead.leader
        joins = bool(frame.messages) and isinstance(frame.messages[0], Join)
        if leader is not None and (joins or frame.epoch >= leader.epoch):
            leader.received(member, frame, now)
        else:  # that epoch is over: its follower looks elsewhere, or joins anew
            epoch = 0 if candidate is None else candidate.epoch
            epoch = epoch if leader is None else leader.epoch
            self._out.append((member, Frame(epoch, "", (HigherEpoch(epoch),))))

    def lost_from(self, member: str, now: float, *, is_dead: bool = False) -> None:
        """A connection that this member accepted is gone; `is_dead`: the process has ended."""
        if self.lead.leader is not None:
            self.lead.leader.lost(member, now, is_dead=is_dead)

    # -- driving ---------------------------------------------------------------------------------------------

    def tick(self, now: float) -> None:
        """Process what has arrived, and do what is due."""
        # Where it was stopped or had no CPU, it has heard no member. A busy one reads between its turns.
        overslept_s = now - self._due_at if now - self._due_at > PING_S else 0.0
        link = self.follower.link
        link.heard_at = min(now, link.heard_at + overslept_s)
        if self.campaign is not None:
            self.campaign.tick(now, overslept_s)
        ends = self.lead.turn(now, overslept_s)
        if ends is not None and self.campaign is not None:
            self.campaign.stepped_down(ends, now)
        self.follower.tick(now)

    def frames(self, now: float) -> list[tuple[str, Frame]]:
        """The frames to send now, each with its member."""
        out, self._out = [*self._out, *self.lead.frames()], []
        link = self.follower.link
        if self.lead.leader is None and link.peer is not None:
            out += [(link.peer, frame) for frame in link.frames(now)]
        return out

    def wakeup(self, now: float) -> float:
        """When `tick` is due although nothing arrived."""
        times = [self.follower.due()]
        if self.campaign is not None:
            times.append(self.campaign.candidate.asking.wakeup())
        if self.lead.leader is not None:
            times.append(self.lead.leader.wakeup(now))
        self._due_at = max(now, min(times))
        return min(times)
