"""LeaderReports: a member's reports to its leader about its requests, each fact in its order (rules 9, 18).

On joining, the member reports everything (telling.py). Until a request's turn comes in that report, no fact about it is
sent: the report gives its state at that time. Ends and spending are kept in a log, and sent to every leader until a
checkpoint includes them.
"""

from gateway.cluster.follower.charge_log import ChargeLog
from gateway.cluster.follower.leader_link import LeaderLink
from gateway.cluster.follower.member_requests import MemberRequests, OwnRequest
from gateway.cluster.follower.out_of_reach import OutOfReach
from gateway.cluster.follower.telling import Telling
from gateway.cluster.wire import AnyMessage, Ended, Finish, Gone, Spend, Submit, ToldAll, ToldPart
from policies.facts import Spent
from policies.types import Outcome, Timing


class LeaderReports:
    """The sender of the reports of one member (a process of the cluster) to its leader about the requests of the
    member's clients. On each new connection to a leader, it reports all requests again. Mutable.
    """

    def __init__(self, link: LeaderLink, requests: MemberRequests, out_of_reach: OutOfReach) -> None:
        self.log = ChargeLog()
        """What has ended and was spent here, and no checkpoint is known to have."""
        self._link = link
        self._requests = requests
        self._out_of_reach = out_of_reach
        self._telling: Telling | None = None
        self._joins = 0  # connections on which all was told, or is

    @property
    def is_telling_all(self) -> bool:
        """Whether the full report to the leader is still incomplete."""
        return self._telling is not None

    def begin(self, now: float) -> None:
        """The member has joined: begin the full report to the leader."""
        self._joins += 1
        self._telling = Telling(self.log, self._requests)
        self.go_on(now)

    def go_on(self, now: float) -> None:
        """Send the next slice of the full report."""
        telling = self._telling
        if telling is None:
            return
        for each in telling.slice():
            if not isinstance(each, OwnRequest):
                self._link.say(*each)
            elif each in self._requests:
                each.known_on = self._joins
                self._link.say(each.pool, each.has(now))
        if telling.is_over:
            self._telling = None
            self._link.say("", ToldAll())
            self._out_of_reach.tell()
        else:
            self._link.say("", ToldPart(telling.has_told_running))

    def lost(self) -> None:
        """The connection is gone. On joining again, everything is reported again."""
        self._telling = None

    def has_told(self, own: OwnRequest) -> bool:
        """Whether the leader has got this request on this connection; otherwise the full report still brings it."""
        return own.known_on == self._joins

    def arrived(self, own: OwnRequest, now: float) -> None:
        """A request asks for admission; while older requests are being reported, it follows them."""
        if self._telling is not None:
            self._telling.arrived(own)
            return
        own.known_on = self._joins
        request = own.request
        self._link.say(own.pool, Submit(own.number, request, now - request.arrived_at, own.is_traced))

    def say(self, own: OwnRequest, message: AnyMessage) -> None:
        """Send a message about this request."""
        if self.has_told(own):
            self._link.say(own.pool, message)

    def ended(self, own: OwnRequest, outcome: Outcome, timing: Timing | None, *, has_run: bool) -> None:
        """The request has ended: report it to every leader, until a checkpoint includes it."""
        message: AnyMessage
        message = entry = own.ended(self.log.next_number(), outcome, timing, has_run=has_run)
        if self.has_told(own):
            finish = Finish(own.number, outcome, own.usage, timing, entry.entry)
            message = finish if has_run else Gone(own.number, entry.entry)
        self._link.outbox.ended(own.number)
        self._log(own.pool, entry, message)

    def spent(self, pool: str, fact: Spent) -> None:
        """Report the usage of a call that was never queued."""
        message = Spend(fact.tenant_id, fact.usage, fact.key_id, self.log.next_number())
        self._log(pool, message, message)

    def _log(self, pool: str, entry: Ended | Spend, message: AnyMessage) -> None:
        """Tell every leader of this, until a checkpoint has it; the present one by this message."""
        self.log.add(pool, entry)
        if self._telling is not None and not self._telling.has_told_log:
            self._telling.logged(pool, entry)
        else:
            self._link.say(pool, message)
