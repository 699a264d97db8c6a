"""LeaderReports: what a member tells its leader of its requests, each fact in its order (rules 9, 18).

On joining it tells all that it has (telling.py). Of a request that was not told yet on this connection nothing is said:
what is told says how it stands by then. What ends and is spent is kept in a log, and told to every leader until a
checkpoint has it.
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
    """The reports of one member to its leader about its requests. On each new connection, it reports all requests
    again. Mutable.
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
        """Whether the leader does not know all yet that this member has."""
        return self._telling is not None

    def begin(self, now: float) -> None:
        """The member has joined: tell the leader all that is known here."""
        self._joins += 1
        self._telling = Telling(self.log, self._requests)
        self.go_on(now)

    def go_on(self, now: float) -> None:
        """Tell the next slice of all that is known here."""
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
        """The connection is gone. All is told again on joining."""
        self._telling = None

    def has_told(self, own: OwnRequest) -> bool:
        """Whether the leader was told of this request on this connection; else it is told how it stands then."""
        return own.known_on == self._joins

    def arrived(self, own: OwnRequest, now: float) -> None:
        """A request asks for admission; while older ones are told, after those."""
        if self._telling is not None:
            self._telling.arrived(own)
            return
        own.known_on = self._joins
        request = own.request
        self._link.say(own.pool, Submit(own.number, request, now - request.arrived_at, own.is_traced))

    def say(self, own: OwnRequest, message: AnyMessage) -> None:
        """Tell what has become of this request."""
        if self.has_told(own):
            self._link.say(own.pool, message)

    def ended(self, own: OwnRequest, outcome: Outcome, timing: Timing | None, *, has_run: bool) -> None:
        """The request has ended: every leader is told, until a checkpoint has it."""
        message: AnyMessage
        message = entry = own.ended(self.log.next_number(), outcome, timing, has_run=has_run)
        if self.has_told(own):
            finish = Finish(own.number, outcome, own.usage, timing, entry.entry)
            message = finish if has_run else Gone(own.number, entry.entry)
        self._link.outbox.ended(own.number)
        self._log(own.pool, entry, message)

    def spent(self, pool: str, fact: Spent) -> None:
        """A call that was never queued used this much."""
        message = Spend(fact.tenant_id, fact.usage, fact.key_id, self.log.next_number())
        self._log(pool, message, message)

    def _log(self, pool: str, entry: Ended | Spend, message: AnyMessage) -> None:
        """Tell every leader of this, until a checkpoint has it; the present one by this message."""
        self.log.add(pool, entry)
        if self._telling is not None and not self._telling.has_told_log:
            self._telling.logged(pool, entry)
        else:
            self._link.say(pool, message)
