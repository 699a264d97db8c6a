"""SharedDispatcher: a pool's Dispatcher whose Scheduler runs in the process that leads, for this one's requests."""

from collections.abc import Collection, Coroutine
from typing import Any

from gateway.cluster.follower.follower import STEP_S
from gateway.cluster.follower.remote_scheduler import RemoteScheduler
from gateway.scheduling.dispatcher import Dispatcher, QueueWatch
from gateway.shared_order.order import SharedOrder
from policies.facts import RunFact
from policies.types import Dispatch, Request, Tenant, Usage


class SharedDispatcher(Dispatcher):
    """Dispatches this process's requests of one pool, as the leader decides."""

    _tells_all = True

    def __init__(self, order: SharedOrder, pool: str) -> None:
        super().__init__(RemoteScheduler(pool, order.member, order.ask_limits))
        self._order = order
        self._pool = pool
        order.add(pool, self)

    # -- turns of the order ----------------------------------------------------------------------------------

    def report(self, now: float, *, brings_all: bool) -> None:
        if brings_all:
            self._usages.report_all(now)
        else:
            self._usages.report(now)

    def carry_out(self, now: float) -> None:
        if not self._closed:
            self._decide(now)

    def _pump_soon(self) -> None:
        self._order.soon()

    def _decide_first(self) -> None:
        """Nothing: the leader decides, and its process is told of all requests of a tick together."""

    # -- leases ----------------------------------------------------------------------------------------------

    def submit(self, request: Request, watch: QueueWatch | None) -> Coroutine[Any, Any, Dispatch]:
        if watch is None:
            return super().submit(request, None)
        self._order.member.follower.submit(self._pool, request, self.now(), is_traced=True)
        return self._watched(request.id, watch)

    async def _watched(self, request_id: str, watch: QueueWatch) -> Dispatch:
        decision = await self._decision(request_id)
        own = self._order.member.follower.own(request_id)
        if own is not None and own.dispatch is not None:
            if own.dispatch.lift > 0:
                watch.lifted(own.dispatch.lift)
            if own.dispatch.wait is not None:
                watch.waits(own.dispatch.wait)
        return decision

    def wait_again(self, fact: RunFact, watch: QueueWatch | None) -> Coroutine[Any, Any, Dispatch]:
        decision = super().wait_again(fact, None)
        if watch is None:
            return decision
        decision.close()
        return self._watched(fact.request_id, watch)

    def tokens(self, request_id: str, usage: Usage) -> None:
        super().tokens(request_id, usage)
        self._order.within(STEP_S)

    # -- tenants of all workers ------------------------------------------------------------------------------

    def _know(self, tenant: Tenant) -> None:
        """The leader looks a tenant up with each of its requests."""
        self._tenants[tenant.id] = tenant

    def tenant_changed(self, tenant: Tenant) -> None:
        leader = self._order.leader
        if leader is not None:
            leader.tenant_changed(tenant.id, self.now())
            self._order.soon()

    def forget(self, tenant_id: str) -> None:
        self._tenants.pop(tenant_id, None)
        leader = self._order.leader
        if leader is not None:
            leader.tenant_forgotten(tenant_id, self.now())
            self._order.soon()

    def tenants(self) -> Collection[Tenant]:
        """All tenants that any worker has seen in this pool; on a follower, those that it has seen."""
        leader = self._order.leader
        if leader is None or self._pool not in leader.pools:
            return self._tenants.values()
        return leader.pools[self._pool].tenants.all()

    def serves(self, tenant_id: str) -> bool:
        leader = self._order.leader
        order = None if leader is None else leader.pools.get(self._pool)
        return super().serves(tenant_id) or (order is not None and order.serves(tenant_id))
