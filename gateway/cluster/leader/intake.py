"""Intake: how the leader processes the facts of its members and of its own process, by arrival (rule 10)."""

from typing import Final

from gateway.cluster.leader.checkpoint_stream import CheckpointStream
from gateway.cluster.leader.inbox import TAKEN_MAX, Inbox
from gateway.cluster.leader.led_members import LedMember, LedMembers
from gateway.cluster.leader.led_pools import LedPools
from gateway.cluster.leader.sight import Sight
from gateway.cluster.wire import AnyMessage, Failed, Join, Reach, TellMore, ToldAll, ToldPart, Untold
from gateway.cluster.wishes import AskBackends, Wish
from policies.facts import Fact, LoadChanged, Measured

OWN: Final = ""  # the source of facts of the leader's own process


class Intake:
    """The leader's processing of received facts (what happened to a request, a backend or a tenant): it takes them from
    the inbox, and passes each to its pool, or to the record of its member (process). Mutable.
    """

    def __init__(
        self, leader: str, members: LedMembers, pools: LedPools, stream: CheckpointStream, wishes: list[Wish]
    ) -> None:
        """`wishes` is the list that gets requests to measure backends."""
        self.facts = 0
        """Facts of members that were taken in, for metrics."""
        self.is_blind = False
        """Whether this process reaches no backend, and others do."""
        self._leader = leader
        self._members, self._pools, self._stream, self._wishes = members, pools, stream, wishes
        self.inbox: Inbox[tuple[str, AnyMessage | Fact, float]] = Inbox()
        """What was told, with its pool, "" what a member says of itself, and when it came."""
        self._sight = Sight()

    def told(self, pool: str, fact: Fact) -> None:
        """Queue a fact of this process for the pool's Scheduler, after all earlier facts. Tenants of requests are
        looked up separately; the caller has checked that policies exist.
        """
        match fact:
            case LoadChanged():
                self._sight.polled(pool, fact.loads, fact.now, all_of_it=True)
            case Measured():
                self._sight.polled(pool, [fact.load], fact.now)
                if fact.load.available:
                    for _, there in self._members:
                        there.failed.discard(fact.load.backend_id)
        self._pools.made(pool, fact.now)
        self.inbox.add(OWN, (pool, fact, fact.now), is_barrier=isinstance(fact, LoadChanged | Measured))

    def take(self, now: float) -> None:
        """Process received facts and their consequences, as many as one turn has time for."""
        left = self._pools.work(TAKEN_MAX, now)
        for source, (pool, entry, came_at) in self.inbox.turn(left) if left else ():
            self._pools.has_news = True
            if isinstance(entry, Fact):
                self._pools.made(pool, now).told(entry.but(now=now))
            elif (there := self._members.find(source)) is not None:
                self.facts += 1
                self._stream.taken(there.sender)
                if pool:
                    self.is_blind |= source != self._leader and self._sight.is_less_than(entry, now)
                    self._pools.made(pool, now).take(there.sender, entry, came_at, now)
                else:
                    self._take_of_member(there, entry)

    def _take_of_member(self, there: LedMember, entry: AnyMessage) -> None:
        match entry:
            case Join():
                there.sender.joins()
                there.sender.is_away, there.is_joined = there.lost_at is not None, False
            case ToldPart():
                there.say(TellMore())
            case ToldAll():
                there.is_joined = there.lost_at is None
                for order in self._pools.values():
                    order.chores.end_untold(there.sender)
                there.sender.all_told()
            case Reach():
                there.named = frozenset(entry.unreachable)
                there.failed.clear()
                self._reach(there)
            case Failed():  # rule 27: it is sent nothing there, and the backend is asked now
                there.failed.add(entry.backend_id)
                self._wishes.append(AskBackends((entry.backend_id,)))
                self._reach(there)
            case Untold():
                for order in self._pools.values():
                    order.backends.untold(there.sender, entry.tokens)

    def _reach(self, there: LedMember) -> None:
        unreachable = there.named | there.failed
        if unreachable != there.sender.unreachable:
            there.sender.unreachable = frozenset(unreachable)
            for order in self._pools.values():
                order.chores.place_again(there.sender)
