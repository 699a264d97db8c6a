"""PoolOrder: one pool at the leader. It passes the members' reports on their requests to the pool's Scheduler, and
turns the Scheduler's decisions into messages to each member.

The requests of all members, the leader's own process among them, are requests of this one Scheduler, by their wire ids.
"""

from collections.abc import Callable, Mapping
from math import inf
from typing import Any

from gateway.cluster.leader.arrivals import Arrivals
from gateway.cluster.leader.decisions import Decisions
from gateway.cluster.leader.joining import Joining
from gateway.cluster.leader.kept_charges import KeptCharges
from gateway.cluster.leader.kept_windows import KeptWindows
from gateway.cluster.leader.ordered_requests import Chores, OrderedRequests, Sender
from gateway.cluster.leader.pool_backends import PoolBackends
from gateway.cluster.leader.pool_journal import PoolJournal
from gateway.cluster.leader.pool_requests import PoolRequests
from gateway.cluster.leader.pool_tenants import PoolTenants
from gateway.cluster.records import PoolCheckpoint
from gateway.cluster.wire import AnyMessage, Ended, Finish, Gone, Has, Spend, Submit, Told, Used, wire_id
from policies.facts import Cancelled, Fact, LoadChanged, Measured, Restored, SessionsRestored, Spent, TakenOver
from policies.scheduler_protocol import SharedSchedulerProtocol
from policies.types import ReplicaShare, Tenant


class PoolOrder:
    """One pool at the leader: its Scheduler, which decides on the requests of all processes. Mutable."""

    def __init__(
        self, name: str, scheduler: SharedSchedulerProtocol, tenant_of: Callable[[str], Tenant | None]
    ) -> None:
        """`tenant_of` looks a tenant up in the registry, without waiting."""
        self.name = name
        self.scheduler = scheduler
        self.tenants = tenants = PoolTenants(scheduler, tenant_of)
        self.known, charges = OrderedRequests(), KeptCharges()
        self.journal = journal = PoolJournal(name, scheduler, tenants, self.known, charges)
        self.backends = PoolBackends(journal)
        self._requests = requests = PoolRequests(scheduler, self.known, charges, journal, self.backends)
        self._decisions = Decisions(scheduler, self.known, tenants, journal)
        self._arrivals = Arrivals(scheduler, requests, tenants, journal, self._decisions)
        self._joining = Joining(
            scheduler,
            requests,
            arrivals=self._arrivals,
            decisions=self._decisions,
            tenants=tenants,
            backends=self.backends,
        )
        self.chores = Chores(
            self.known,
            park=requests.park,
            place_again=requests.place_again,
            end=requests.give_up,
            give_up=requests.given_up,
        )
        self._asks: Mapping[type, Callable[[Sender, Any, float, float], None]] = {
            Submit: self._arrivals.submit,
            Ended: self._joining.ended,
            Has: self._joining.has,
        }
        self._tells: Mapping[type, Callable[[Sender, Any, float], None]] = {
            Used: requests.used,
            Finish: self._finish,
            Told: requests.told,
            Gone: self._gone,
            Spend: self._spend,
        }

    # -- facts of members ------------------------------------------------------------------------------------

    def take(self, sender: Sender, message: AnyMessage, came_at: float, now: float) -> None:
        """Process one fact of this pool, which arrived at `came_at`: its ages count from then (rule 24)."""
        self._note(sender, message, now)
        tells = self._tells.get(type(message))
        if tells is None:
            self._asks[type(message)](sender, message, came_at, now)
        else:
            tells(sender, message, now)

    def _note(self, sender: Sender, message: Any, now: float) -> None:
        """The message tells of a request, or of what a tenant has spent."""
        if isinstance(message, Spend):
            self.journal.tenant(message.tenant_id, message.key_id)
            self.journal.meets_limits(message.tenant_id, message.key_id, now)
            return
        id_ = wire_id(sender.member, message.number)
        if isinstance(message, Submit | Has | Ended):
            self.journal.request(id_, message.request)
            self.journal.meets_limits(message.request.tenant_id, message.request.key_id, now)
        elif (known := self.known.get(id_)) is not None:
            self.journal.request(id_, known.asked)

    def _finish(self, sender: Sender, message: Finish, now: float) -> None:
        if sender.takes(message.entry) and self._forget(id_ := wire_id(sender.member, message.number)):
            self.scheduler.finished(id_, message.outcome, now, message.timing, message.usage)

    def _gone(self, sender: Sender, message: Gone, now: float) -> None:
        if sender.takes(message.entry) and self._forget(id_ := wire_id(sender.member, message.number)):
            self.scheduler.told(Cancelled(now, id_))

    def _spend(self, sender: Sender, message: Spend, now: float) -> None:
        if sender.takes(message.entry) and self.tenants.learn(message.tenant_id, now):
            self.scheduler.told(Spent(now, message.tenant_id, message.usage, message.key_id))

    def _forget(self, id_: str) -> bool:
        """Forget a request that has ended; return whether the Scheduler has it."""
        self._arrivals.forget(id_)
        return self.known.pop(id_) is not None

    def gone(self, sender: Sender) -> bool:
        """The member does not return: its clients have disconnected. If it does return, each request is charged once.
        Returns whether any ran there: it may still run, so it is external load until a measurement says less.
        """
        sender.is_here = False
        self._arrivals.gone(sender)
        self.backends.forget(sender)
        return self.chores.give_up(sender, lambda now: self.scheduler.told(TakenOver(now)))

    # -- facts of the leader's own process -------------------------------------------------------------------

    def told(self, fact: Fact) -> None:
        """Pass a fact of the pool to the Scheduler; loads get the members' unreported tokens added."""
        if isinstance(fact, LoadChanged | Measured):
            fact = self.backends.told(fact)
        else:
            self.journal.all_changed()
        self.scheduler.told(fact)

    def restored(self, kept: PoolCheckpoint | None, since: float, share: ReplicaShare, now: float) -> None:
        """Continue from another leader's checkpoint of the time `since` (None: from nothing), with part of limits."""
        if kept is None:
            return
        self.scheduler.told(Restored(now, kept.service))
        if kept.sessions.eta:
            self.scheduler.told(SessionsRestored(since, kept.sessions))
        self._requests.keep_charged(kept.charged)
        self.journal.restored(kept, KeptWindows(kept.windows, since, share), now)

    # -- decisions -------------------------------------------------------------------------------------------

    def decide(self, now: float) -> list[tuple[Sender, AnyMessage]]:
        """The decisions to carry out now, each with its member. If `wakeup` is not after `now`, more remain."""
        self._arrivals.meet(now)
        return self._decisions.decide(now)

    def wakeup(self) -> float:
        """When to decide although no fact arrived."""
        at = self.scheduler.next_wakeup()
        return min(self._arrivals.wakeup(), inf if at is None else at)
