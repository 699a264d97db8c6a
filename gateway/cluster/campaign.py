"""Campaign: the actions of one member in the election (rules 1, 4, 25, 28): it leads when the store gives it the key,
steps down when another member has the key, and leads only itself where there is no leader.
"""

from math import inf
from typing import Final

from gateway.cluster.election import Candidate
from gateway.cluster.election_store import StoreCall, StoreView
from gateway.cluster.follower.follower import Follower
from gateway.cluster.own_lead import OwnLead
from gateway.cluster.promise import WITHOUT_STORE_S
from gateway.cluster.wire import Epoch, Frame, Release
from gateway.cluster.wishes import StepDown

HAND_OVER_S: Final = 10.0  # a leader that reached no backend does not stand again for so long


class Campaign:
    """The part of one member (a process of the cluster) in the election of the leader. It collects the calls of the
    election store that are due, and begins or ends the member's leadership by the answers. Mutable.
    """

    def __init__(self, candidate: Candidate, lead: OwnLead, follower: Follower) -> None:
        self.candidate = candidate
        self._lead = lead
        self._follower = follower
        self._calls: list[StoreCall] = []
        self._stands_again_at = -inf

    def target(self) -> str | None:
        """The member to connect to; None: none. A member that is alone looks for the last leader that it knew, because
        a majority may still follow that leader.
        """
        if self._lead.is_standalone and self.candidate.listed.strangers:
            return None
        leader = self.candidate.key.leader
        return leader if leader != self.candidate.member else None

    # -- what comes ------------------------------------------------------------------------------------------

    def ended(self, member: str, now: float) -> None:
        """The process of this member has ended."""
        self.candidate.ended(member, now)
        self._follower.link.granting.release(member)

    def heard(self, leader: str, frame: Frame, now: float) -> None:
        """A frame came from the leader. Call this after the follower has received the frame."""
        epoch = self._follower.link.epoch
        self.candidate.knows(epoch)
        releases = [each for each in frame.messages if isinstance(each, Release)]
        if releases and frame.epoch == epoch:
            self.candidate.resigned_by(leader, now, returns=releases[0].returns)

    def calls(self) -> list[StoreCall]:
        """The calls of the store to make now."""
        calls, self._calls = self._calls, []
        return calls

    def answered(self, call: StoreCall, view: StoreView, now: float) -> None:
        """The store answered this call."""
        self.candidate.answered(call, view, now)
        self._lead.share.listed(view.members, now)

    # -- when its own leadership has ended -------------------------------------------------------------------

    def stepped_down(self, why: StepDown, now: float) -> None:
        """The leader in this process has stepped down by itself."""
        self.candidate.knows(why.epoch)
        self._has_no_lead()
        if why.is_blind:
            self.candidate.stands, self._stands_again_at = False, now + HAND_OVER_S

    def stop(self, now: float) -> None:
        """The process has to stop: it leads no more."""
        call = self.candidate.release(now)
        self._calls += [] if call is None else [call]
        self._has_no_lead()

    def _has_no_lead(self) -> None:
        key = self.candidate.key
        key.give_up()
        key.leader = None if key.leader == self.candidate.member else key.leader

    # -- driving ---------------------------------------------------------------------------------------------

    def tick(self, now: float, overslept_s: float) -> None:
        """Ask the store if that is due, and carry out the result of the election."""
        candidate, link, lead = self.candidate, self._follower.link, self._lead
        candidate.overslept(overslept_s, now)
        is_alone = lead.is_standalone or link.leader is None
        candidate.is_bound = link.granting.is_bound(now) or not is_alone
        candidate.free_epoch = 0 if candidate.is_bound else link.epoch
        candidate.witnesses.members = frozenset() if lead.leader is None else lead.leader.members.grants.witnesses()
        candidate.stands = candidate.stands or self._stands_again_at < now < self._stands_again_at + 1.0
        call = candidate.call(now)
        if call is not None:
            self._calls.append(call)
        link.granting.may_grant = lead.leader is None and candidate.may_grant(link.epoch)
        if candidate.listed.strangers:
            self._divide(now)
        elif candidate.key.led_epoch:
            self._lead_on(candidate.key.led_epoch, now)
        else:
            self._follow(now)

    def _lead_on(self, epoch: Epoch, now: float) -> None:
        """The store has this member lead."""
        leader, key = self._lead.leader, self.candidate.key
        if leader is None or leader.epoch != epoch:
            self._lead.begin(epoch, now, waits=self.candidate.listed.waits(now), lease_until=key.lease_until)
            return
        by_members = leader.members.grants.lease_until(self.candidate.witnesses.of(epoch))
        until = max(key.lease_until, min(by_members, key.lease_until + WITHOUT_STORE_S))
        leader.lease_until = max(leader.lease_until, until)

    def _follow(self, now: float) -> None:
        """The store does not have this member lead."""
        candidate, link, lead = self.candidate, self._follower.link, self._lead
        is_with_others = candidate.asking.is_reached(now) and not candidate.key.is_refused(now)
        if lead.leader is not None and lead.is_for_all:
            lead.leader.step_down("the store has another leader")
            lead.step_down(lead.leader, now)
            self._has_no_lead()
        elif lead.is_standalone:
            if is_with_others:
                lead.end_alone(now)
        elif not is_with_others and not link.granting.is_bound(now) and link.peer is None:
            lead.begin_alone(now)

    def _divide(self, now: float) -> None:
        """Members of unequal versions share no order. So none of them has one: until one version is left each is alone,
        because the parts of all make a whole (rule 28). A new member waits until the others have seen it.
        """
        lead = self._lead
        if lead.leader is not None and lead.is_for_all:
            lead.leader.resign(now, returns=True)
            lead.step_down(lead.leader, now)
            self._has_no_lead()
        if self._follower.link.may_decide(now) and lead.leader is None:
            return  # its leader has not seen it yet
        has_grown = lead.is_standalone and len(lead.share.members(now)) > lead.share.part.replicas
        if has_grown or (lead.leader is None and self.candidate.has_been_seen(now)):
            lead.begin_alone(now)
