"""Arrivals: requests that ask for admission to one pool, some of them of tenants that the registry does not know yet
(rules 6, 7).
"""

from math import inf
from typing import Final, NamedTuple

from gateway.cluster.leader.decisions import Decisions
from gateway.cluster.leader.ordered_requests import OrderedRequest, Sender, named
from gateway.cluster.leader.pool_journal import PoolJournal
from gateway.cluster.leader.pool_requests import PoolRequests
from gateway.cluster.leader.pool_tenants import PoolTenants
from gateway.cluster.wire import Refused, Submit, wire_id
from policies.scheduler_protocol import SharedSchedulerProtocol
from policies.types import Reason

TENANT_WAIT_S: Final = 1.0  # rule 7: a registry that hears of a new tenant a moment later than a follower's


class _Stranger(NamedTuple):
    """A request of a tenant that the registry does not know yet."""

    sender: Sender
    message: Submit
    came_at: float


class Arrivals:
    """The leader's handling of new requests for one pool: it submits them to the pool's Scheduler. A request whose
    tenant the registry does not know yet waits here, for at most TENANT_WAIT_S. Mutable.
    """

    def __init__(
        self,
        scheduler: SharedSchedulerProtocol,
        requests: PoolRequests,
        tenants: PoolTenants,
        journal: PoolJournal,
        decisions: Decisions,
    ) -> None:
        self._scheduler, self._requests = scheduler, requests
        self._tenants, self._journal, self._decisions = tenants, journal, decisions
        self._strangers: dict[str, _Stranger] = {}

    def submit(self, sender: Sender, message: Submit, came_at: float, now: float) -> None:
        """A request of a member's client asks for admission."""
        id_ = wire_id(sender.member, message.number)
        if message.number <= sender.request:  # rule 6
            return
        sender.request = message.number
        if sender.told is not None:
            sender.told.add(id_)
        self.ask(sender, id_, message, came_at, now)

    def ask(self, sender: Sender, id_: str, message: Submit, came_at: float, now: float) -> None:
        """Ask for admission of this request, whether it is new or reported again."""
        if self._tenants.learn(message.request.tenant_id, now):
            self._enter(sender, id_, message, came_at, now)
        else:
            self._strangers[id_] = _Stranger(sender, message, came_at)

    def meet(self, now: float) -> None:
        """Admit requests whose tenant is known by now; refuse those that have waited for it too long (rule 7)."""
        for id_, (sender, message, came_at) in list(self._strangers.items()):
            request = message.request
            if self._tenants.learn(request.tenant_id, now):
                del self._strangers[id_]
                self._journal.request(id_, request)
                self._journal.meets_limits(request.tenant_id, request.key_id, now)
                self._enter(sender, id_, message, came_at, now)
            elif now >= came_at + TENANT_WAIT_S:
                del self._strangers[id_]
                self._decisions.say(sender, Refused(message.number, Reason.TENANT_UNKNOWN, 0.0))

    def forget(self, id_: str) -> None:
        """The request has ended, or was reported in another state: it does not ask any more."""
        self._strangers.pop(id_, None)

    def gone(self, sender: Sender) -> None:
        """The member does not return: drop its requests."""
        for id_ in [id_ for id_, stranger in self._strangers.items() if stranger.sender is sender]:
            del self._strangers[id_]

    def wakeup(self) -> float:
        """When `meet` has something to do although no fact arrived."""
        return min((stranger.came_at + TENANT_WAIT_S for stranger in self._strangers.values()), default=inf)

    def _enter(self, sender: Sender, id_: str, message: Submit, came_at: float, now: float) -> None:
        request = message.request
        known = OrderedRequest(sender, message.number, named(sender, id_, request, came_at - message.age_s))
        before = self._scheduler.counter(request.tenant_id) if message.is_traced else 0.0
        self._requests.enter(id_, known, now)
        if message.is_traced:
            known.lift = max(0.0, self._scheduler.counter(request.tenant_id) - before)
            self._decisions.watch(id_)
