"""Follower: a member's side of the shared order. It keeps the waiting and running requests of its own clients, reports
them to the leader over its link, and carries out the leader's actions while the promise holds.

Every member has a Follower, the leader's process too: there it follows the leader over a link without bytes. A Follower
can report all its requests again to another leader (rules 18 to 21), so a change of leaders costs no request. Without
any leader a request waits here until its deadline, or LEADERLESS_S_MAX (rule 24). leader_reports.py and
usage_telling.py make the reports, decided.py keeps the decisions.
"""

from math import inf
from typing import Final

from gateway.cluster.checkpoints import NewestCheckpoint
from gateway.cluster.follower.decided import Decided
from gateway.cluster.follower.leader_link import LeaderLink
from gateway.cluster.follower.leader_reports import LeaderReports
from gateway.cluster.follower.leaderless import Leaderless
from gateway.cluster.follower.member_requests import MemberRequests, OwnRequest
from gateway.cluster.follower.out_of_reach import OutOfReach
from gateway.cluster.follower.usage_telling import UsageTelling
from gateway.cluster.wire import (
    AnyMessage,
    CheckpointPart,
    Dispatched,
    Frame,
    Pong,
    Refused,
    Release,
    Shared,
    TellMore,
    Told,
    WantCheckpoint,
    Welcome,
    Withdraw,
)
from policies.facts import RunFact, Undelivered
from policies.types import Action, Outcome, Preempt, Reason, Reject, Request, Timing, Usage

RETRY_AFTER_S: Final = 1.0  # of a request that is refused here: by then there is a leader again


class Follower:
    """The part of a member (a process of the cluster) that follows a leader: it reports the requests of the member's
    clients to the leader, and receives the leader's actions. Mutable; it lives as long as the process.
    """

    def __init__(
        self, member: str, *, wait_s_max: float, checkpoint: NewestCheckpoint | None = None, now: float = 0.0
    ) -> None:
        """`member` is a name that no other process has or had: wire ids begin with it. `wait_s_max` is the queue
        timeout of the configuration.
        """
        self.link = LeaderLink(member, now)
        self.checkpoint = checkpoint or NewestCheckpoint()
        self.shared: dict[str, bytes] = {}
        """What the leader's shell has told all (wire.Shared), by topic."""
        self.requests = MemberRequests()
        self.out_of_reach = OutOfReach(self.link)
        self.reports = LeaderReports(self.link, self.requests, self.out_of_reach)
        self.usage = UsageTelling(self.link, self.requests, self.reports)
        self.decided = Decided()
        self._leaderless = Leaderless(wait_s_max, now)

    # -- connection ------------------------------------------------------------------------------------------

    def connected(self, now: float, peer: str | None = None) -> None:
        """There is a new connection to a leader, in the process of the member `peer` (None: in its own process). The
        connection before is closed, and its promise is over.
        """
        if self.link.is_connected:
            self.lost(now)
        self.link.connected(peer, self.checkpoint.mark, now)

    def lost(self, now: float) -> None:
        """The connection is gone. After the next join, everything is reported again."""
        self.checkpoint.forget(self.link.leader)
        self.link.lost()
        if self.reports.is_telling_all:
            self._leaderless.ends()  # it kept the deadlines of what was not told alone
        self.reports.lost()
        self._leaderless.begins(self.requests, now)

    def received(self, frame: Frame, now: float) -> None:
        """A frame came from the leader."""
        for message in self.link.received(frame, now):
            self._hear(message, now)

    # -- facts of this member's clients ----------------------------------------------------------------------

    def submit(self, pool: str, request: Request, now: float, *, is_traced: bool = False) -> None:
        """A request arrived."""
        if not self.link.is_read:
            self.decided.add(pool, Reject(request.id, Reason.QUEUE_FULL, RETRY_AFTER_S))
            return
        own = self.requests.arrived(pool, request, is_traced=is_traced)
        self._leaderless.waits(own)
        self.reports.arrived(own, now)

    def finished(
        self, request_id: str, outcome: Outcome, now: float, timing: Timing | None = None, usage: Usage | None = None
    ) -> None:
        """A dispatched request ended."""
        own = self.requests.find(request_id)
        if own is None or own.dispatch is None:
            return
        own.usage = usage or own.usage
        self._end(own, outcome, timing, has_run=True)

    def told(self, fact: RunFact) -> None:
        """A dispatched request waits again, or a withdrawal came too late (rule 15): `fact` says which."""
        own = self.requests.find(fact.request_id)
        if own is None or own.dispatch is None:
            return
        if fact.waits_again:
            own.wait_again(fact, own.dispatch.backend_id)
            self._leaderless.waits(own)
        self.reports.say(own, Told(own.number, fact))

    def cancel(self, request_id: str) -> None:
        """The client of a request disconnected; as far as this member knows, the request still waits (rule 14)."""
        own = self.requests.find(request_id)
        if own is not None:
            self._end(own)

    # -- what its drivers ask --------------------------------------------------------------------------------

    def poll(self, pool: str, now: float) -> list[Action]:
        """The actions of this pool to carry out now; each action is returned once."""
        self.tick(now)
        return self.decided.take(pool)

    def due(self) -> float:
        """When `tick` is due although nothing arrived; -inf: there are actions to carry out; inf: no time is known."""
        if self.decided:
            return -inf
        return min(self.out_of_reach.due(), self._leaderless.due(), self.link.due(), self.usage.due())

    def tick(self, now: float) -> None:
        """Send the reports that are due, and refuse requests that have waited too long without a leader."""
        self.out_of_reach.expire(now)
        for own in self._leaderless.overdue(now):
            has_leader = self.reports.has_told(own) and self.link.may_decide(now)
            if own in self.requests and own.dispatch is None and not has_leader:
                reason = Reason.QUEUE_TIMEOUT if self._leaderless.is_over(own, now) else Reason.NO_BACKEND
                self._end(own)
                self.decided.add(own.pool, Reject(own.request.id, reason, RETRY_AFTER_S))
        if self.usage.is_due(now):
            self.reports.log.taken(self.checkpoint.taken_of(self.link.member))
            self.usage.tell_held(now)

    # -- the leader's messages -------------------------------------------------------------------------------

    def _hear(self, message: AnyMessage, now: float) -> None:
        match message:
            case Dispatched() | Refused() | Withdraw():
                if self.link.takes_action(now):
                    self._act(message, now)
            case Welcome() | TellMore() | Pong() | Release():
                self._hear_of_lead(message, now)
            case CheckpointPart():
                self.checkpoint.part(self.link.leader, message)
            case WantCheckpoint():
                for part in self.checkpoint.parts():
                    self.link.say("", part)
            case Shared():
                self.shared[message.topic] = message.body

    def _hear_of_lead(self, message: Welcome | TellMore | Pong | Release, now: float) -> None:
        match message:
            case Welcome():
                self.usage.begin(now)
                self.reports.begin(now)
            case TellMore():
                self.reports.go_on(now)
            case Pong():
                self.link.ponged(message, now)
            case Release():
                self.link.released()
        has_leader = self.link.may_decide(now) and not self.reports.is_telling_all
        if has_leader:  # what was not told yet has none
            self._leaderless.ends()

    def _act(self, message: Dispatched | Refused | Withdraw, now: float) -> None:
        own = self.requests.numbered(message.number)
        if own is None:
            return  # it has ended here: what says so is on its way (rules 14, 15)
        if isinstance(message, Withdraw):
            if own.dispatch is not None:
                self.decided.add(own.pool, Preempt(own.request.id, message.cause))
            return
        if own.dispatch is not None:
            return
        if message.limits is not None:
            self.decided.limited(own, message.limits)
        if isinstance(message, Refused):
            if own.told is not None or own.is_retold:  # what it was charged for a dispatch is refunded, or stays
                self._end(own)
            else:
                self.requests.forget(own)
                self.decided.drop(own)
            self.decided.add(own.pool, Reject(own.request.id, message.reason, message.retry_after_s, message.limit))
        elif message.backend_id in self.out_of_reach:  # rule 8
            self.reports.say(own, Told(own.number, Undelivered(now, own.request.id)))
        else:
            self.decided.add(own.pool, own.dispatched(message, now))

    def _end(
        self,
        own: OwnRequest,
        outcome: Outcome = Outcome.CLIENT_DISCONNECTED,
        timing: Timing | None = None,
        *,
        has_run: bool = False,
    ) -> None:
        self.reports.ended(own, outcome, timing, has_run=has_run)
        self.requests.forget(own)
        self.decided.drop(own)
