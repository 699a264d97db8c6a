"""PoolRequests: the state changes of one pool's requests, in the leader's record and the Scheduler together."""

from collections.abc import Mapping

from gateway.cluster.leader.kept_charges import KeptCharges
from gateway.cluster.leader.ordered_requests import OrderedRequest, OrderedRequests, Sender
from gateway.cluster.leader.pool_backends import PoolBackends
from gateway.cluster.leader.pool_journal import PoolJournal
from gateway.cluster.wire import Has, Told, Used, wire_id
from policies.call_life import LIFE, Event, Life
from policies.facts import Cancelled, Kept, Parked, Readmitted, RunFact
from policies.scheduler_protocol import SharedSchedulerProtocol
from policies.types import NO_USAGE, Outcome, Usage


class PoolRequests:
    """The requests of one pool at the leader. It tells the pool's Scheduler each change of their state. Mutable."""

    def __init__(
        self,
        scheduler: SharedSchedulerProtocol,
        known: OrderedRequests,
        charges: KeptCharges,
        journal: PoolJournal,
        backends: PoolBackends,
    ) -> None:
        self.known, self.charges = known, charges
        self._scheduler = scheduler
        self._journal, self._backends = journal, backends

    # -- facts of members ------------------------------------------------------------------------------------

    def enter(self, id_: str, known: OrderedRequest, now: float) -> None:
        """A request asks for admission."""
        self.known.add(id_, known)
        self._scheduler.submit(self._backends.reachable(known), now)
        if known.sender.is_away:  # its connection was lost before this was taken in
            self.park(id_, known, now)

    def used(self, sender: Sender, message: Used | Has, now: float) -> None:
        """A dispatched request has used this much."""
        id_ = wire_id(sender.member, message.number)
        known = self.known.get(id_)
        if known is not None and known.backend_id is not None and message.usage is not None:
            known.told = message.usage
            self._scheduler.tokens(id_, message.usage, now)  # its reservation grows (rule 12)

    def told(self, sender: Sender, message: Told, now: float) -> None:
        """A dispatched request waits again, or runs on, as `message` says."""
        id_ = wire_id(sender.member, message.number)
        known = self.known.get(id_)
        if known is None or known.backend_id is None:
            return
        fact = message.fact.but(request_id=id_, now=now)
        if not fact.waits_again:
            if isinstance(fact, Kept):
                known.life = LIFE[known.life, Event.KEPT]
            self._scheduler.told(fact)
            return
        self.left_backend(known, fact)
        if sender.is_away:
            self.park(id_, known, now)
        elif sender.unreachable:  # what its sender cannot reach may have changed while it ran
            self.place_again(id_, known, now)

    def left_backend(self, known: OrderedRequest, fact: RunFact) -> None:
        """A dispatched request has left its backend and waits again, as `fact` says."""
        known.asked = fact.waiting(known.asked, known.backend_id or "")
        known.told = fact.stopped_after or known.told
        known.backend_id, known.life = None, LIFE[known.life, Event.RETURNED]
        self._scheduler.told(fact)

    def kept(self, id_: str, known: OrderedRequest, now: float) -> None:
        """The member did not carry out the withdrawal: the request runs on."""
        known.life = LIFE[known.life, Event.KEPT]
        self._scheduler.told(Kept(now, id_))

    # -- members that go and change --------------------------------------------------------------------------

    def park(self, id_: str, known: OrderedRequest, now: float) -> None:
        """If it waits, it waits outside of the order, until its member is back."""
        if known.life is Life.QUEUED:
            known.life = LIFE[known.life, Event.PARKED]
            self._journal.tenant(known.asked.tenant_id)
            self._scheduler.told(Parked(now, id_))

    def resume(self, id_: str, known: OrderedRequest, now: float) -> None:
        """Let the request wait in the order again, if it was parked."""
        if known.life is Life.PARKED:
            known.life = LIFE[known.life, Event.READMITTED]
            self._journal.tenant(known.asked.tenant_id)
            self._scheduler.told(Readmitted(now, self._backends.reachable(known)))

    def place_again(self, id_: str, known: OrderedRequest, now: float) -> None:
        """If it waits in the order, it may go to other backends than before."""
        if known.life is Life.QUEUED:
            self.park(id_, known, now)
            self.resume(id_, known, now)

    def give_up(self, id_: str, known: OrderedRequest, now: float) -> Usage:
        """End a request whose client has gone with its member; return the usage that stays charged."""
        self._journal.request(id_, known.asked)
        self.known.pop(id_)
        if known.backend_id is None:
            self._scheduler.told(Cancelled(now, id_))
            return known.told if known.asked.produced_tokens else NO_USAGE
        self._scheduler.finished(id_, Outcome.CLIENT_DISCONNECTED, now)
        return known.told

    def given_up(self, id_: str, known: OrderedRequest, now: float) -> None:
        """End a request whose client has gone with its member, and keep its charge in case the member returns."""
        self.keep_charged({id_: self.give_up(id_, known, now)})

    def keep_charged(self, usages: Mapping[str, Usage]) -> None:
        """Keep the charged usage of these requests, which are not known now."""
        for forgotten in self.charges.keep(usages):
            self._journal.charged(forgotten)
