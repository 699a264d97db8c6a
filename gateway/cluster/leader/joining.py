"""Joining: a joining member's report on its requests, against the leader's knowledge of them (rules 18, 20, 21)."""

from dataclasses import replace

from gateway.cluster.leader.arrivals import Arrivals
from gateway.cluster.leader.decisions import Decisions
from gateway.cluster.leader.ordered_requests import OrderedRequest, Sender, named
from gateway.cluster.leader.pool_backends import PoolBackends
from gateway.cluster.leader.pool_requests import PoolRequests
from gateway.cluster.leader.pool_tenants import PoolTenants
from gateway.cluster.wire import Ended, Has, Submit, wire_id
from policies.call_life import LEAVING, Life
from policies.facts import Adopted, Cancelled, Interrupted, Readmitted, Returned, TenantsChanged, Undelivered
from policies.scheduler_protocol import SharedSchedulerProtocol
from policies.types import NO_USAGE, Cause, Request, Tenant


class Joining:
    """The leader's handling of the full report that a joining member (process of the cluster) makes of its requests in
    one pool. It corrects the leader's record of these requests by the report.
    """

    def __init__(
        self,
        scheduler: SharedSchedulerProtocol,
        requests: PoolRequests,
        *,
        arrivals: Arrivals,
        decisions: Decisions,
        tenants: PoolTenants,
        backends: PoolBackends,
    ) -> None:
        self._scheduler, self._requests, self._known = scheduler, requests, requests.known
        self._arrivals, self._decisions, self._charges = arrivals, decisions, requests.charges
        self._tenants, self._backends = tenants, backends

    def has(self, sender: Sender, has: Has, came_at: float, now: float) -> None:
        """A joining member reports a request that it has."""
        id_ = wire_id(sender.member, has.number)
        if sender.told is not None:
            sender.told.add(id_)
        has_arrived = has.number <= sender.joined_at or has.backend_id is not None or has.usage is not None
        if has.backend_id is None:  # what waits is told in order, and what runs before
            sender.request = max(sender.request, has.number)
        else:
            sender.ran = max(sender.ran, has.number)
        known = self._known.get(id_)
        if known is not None and _went_on(known, has):
            self._requests.given_up(id_, known, now)
            known = None
        if known is None:
            known = self._has_unknown(sender, id_, has, came_at, now, has_arrived=has_arrived)
        elif has.backend_id is None and known.backend_id is not None:
            self._waits_after_all(id_, known, has, now)
        if known is None:
            return
        if known.backend_id is None:
            known.asked = _since(known.asked, came_at - has.age_s)
            if not sender.is_away:
                self._requests.resume(id_, known, now)
            return
        if known.life in LEAVING:  # not answered on the connection that is gone; if it is still due, it comes again
            self._requests.kept(id_, known, now)
        self._requests.used(sender, has, now)

    def ended(self, sender: Sender, ended: Ended, came_at: float, now: float) -> None:
        """A joining member reports a request that has ended; the leader may know it in any earlier state."""
        if not sender.takes(ended.entry):
            return
        id_ = wire_id(sender.member, ended.number)
        self._arrivals.forget(id_)
        known = self._known.get(id_)
        if known is not None and (known.backend_id is None or known.backend_id != ended.backend_id):
            self._requests.given_up(id_, known, now)
            known = None
        if known is None:
            charged = self._charges.pop(id_, None)
            if charged is None and ended.usage is None:
                return
            asked = named(sender, id_, ended.request, came_at)
            self._learn_gone(ended.request.tenant_id, now)
            if ended.backend_id is None:
                self._scheduler.told(Readmitted(now, asked, charged or NO_USAGE, ended.usage))
                self._scheduler.told(Cancelled(now, id_))
                return
            self._scheduler.told(Adopted(now, asked, ended.backend_id, charged or NO_USAGE))
        self._known.pop(id_)
        if ended.usage is not None:
            self._scheduler.tokens(id_, ended.usage, now)
        self._scheduler.finished(id_, ended.outcome, now, ended.timing)

    def _waits_after_all(self, id_: str, known: OrderedRequest, has: Has, now: float) -> None:
        """Its Dispatch did not arrive at the member, or the news that it had left its backend not here (rule 23)."""
        preemptions, before = has.request.preemptions, known.asked
        cause = Cause.PREEMPTED if preemptions > before.preemptions else Cause.FAILED
        cause = Cause.DRAINED if known.life is Life.MOVING else cause
        known.asked = replace(before, preemptions=preemptions - (cause is Cause.PREEMPTED))  # which the fact counts
        if has.usage is not None and has.request.produced_tokens > before.produced_tokens:
            self._requests.left_backend(known, Interrupted(now, id_, has.usage, cause=cause))
        elif preemptions > before.preemptions:
            self._requests.left_backend(known, Returned(now, id_, cause=cause))
        else:
            self._requests.left_backend(known, Undelivered(now, id_))
        if known.sender.is_away:  # until all is told
            self._requests.park(id_, known, now)

    def _has_unknown(
        self, sender: Sender, id_: str, has: Has, came_at: float, now: float, *, has_arrived: bool
    ) -> OrderedRequest | None:
        """Another leader's, or one that was given up here, or one whose Submit was lost with its connection. Returns
        what is known of it from now on.
        """
        self._arrivals.forget(id_)
        if self._decisions.repeat(sender, id_):  # what was decided stays decided
            return None
        if not has_arrived and id_ not in self._charges:  # it asks for admission now
            self._arrivals.ask(sender, id_, Submit(has.number, has.request, has.age_s, has.is_traced), came_at, now)
            return self._known.get(id_)
        charged = self._charges.pop(id_, None)
        if charged is None and has.usage is not None:
            charged = NO_USAGE
        self._learn_gone(has.request.tenant_id, now)
        asked = named(sender, id_, has.request, came_at - has.age_s)
        known = self._known.add(id_, OrderedRequest(sender, has.number, asked, has.backend_id, charged or NO_USAGE))
        known.life = Life.QUEUED if has.backend_id is None else Life.SENT
        if has.backend_id is None:
            known.told = has.usage or known.told
            self._scheduler.told(Readmitted(now, self._backends.reachable(known), charged, has.usage))
            if sender.is_away:
                self._requests.park(id_, known, now)
        else:
            at = came_at - has.dispatched_s
            self._scheduler.told(Adopted(now, asked, has.backend_id, known.told, has.output_tokens, at))
        return known

    def _learn_gone(self, tenant_id: str, now: float) -> None:
        """Learn a tenant that may have been removed: what runs goes on, and the tenant is forgotten with it."""
        if self._tenants.learn(tenant_id, now):
            return
        self._scheduler.told(TenantsChanged(now, changed=(Tenant(tenant_id),)))
        self._scheduler.told(TenantsChanged(now, removed=(tenant_id,)))


def _since(asked: Request, arrived_at: float) -> Request:
    """A request as old as its member says: its Submit may have lain unread while this process stood still."""
    return replace(asked, arrived_at=arrived_at) if arrived_at < asked.arrived_at else asked


def _went_on(known: OrderedRequest, has: Has) -> bool:
    """Whether a member that led itself has sent the request elsewhere, or taken it back, since it was known so."""
    if has.backend_id is not None or known.backend_id is not None:
        return has.backend_id not in (None, known.backend_id)
    return (has.request.preemptions, has.request.produced_tokens) != (
        known.asked.preemptions,
        known.asked.produced_tokens,
    )
