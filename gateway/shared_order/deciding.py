"""SharedDeciding: the times of a pool's decisions in a shared order: the leader decides, in the turns of the order."""

from collections.abc import Collection

from gateway.cluster.follower.remote_scheduler import RemoteScheduler
from gateway.cluster.follower.usage_telling import STEP_S
from gateway.cluster.leader.pool_order import PoolOrder
from gateway.scheduling.deciding import Decides, Deciding, QueueWatch
from gateway.shared_order.order import SharedOrder
from policies.types import Request, Tenant


class SharedDeciding(Deciding):
    """The driver of one pool's decisions in a shared order (a leader decides for several processes). It reports all
    requests of one turn of the loop to the leader together. A QueueWatch (the observer of a traced request) is told
    when its request is dispatched: how much the tenant's counter was lifted, and why the request waited.
    """

    tells_all = True

    def __init__(self, scheduler: RemoteScheduler, order: SharedOrder, pool: str) -> None:
        super().__init__(scheduler)
        self._order = order
        self._pool = pool
        self.is_due = True

    def begin(self, of: Decides) -> None:
        super().begin(of)
        self._order.dispatchers[self._pool] = of

    def soon(self) -> None:
        self._order.turns.soon()

    def recorded(self) -> None:
        self._order.turns.within(STEP_S)

    def submit_watched(self, request: Request, watch: QueueWatch) -> None:
        self._order.member.follower.submit(self._pool, request, self._of.now(), is_traced=True)

    def ask_why(self, request_id: str, watch: QueueWatch) -> None: ...

    def dispatched(self, request_id: str, watch: QueueWatch) -> None:
        own = self._order.member.follower.requests.find(request_id)
        if own is not None and own.dispatch is not None:
            if own.dispatch.lift > 0:
                watch.lifted(own.dispatch.lift)
            if own.dispatch.wait is not None:
                watch.waits(own.dispatch.wait)

    def tenants_elsewhere(self) -> Collection[Tenant]:
        led = self._led()
        return () if led is None else led.tenants.all()

    def serves_elsewhere(self, tenant_id: str) -> bool:
        led = self._led()
        return led is not None and led.known.serves(tenant_id)

    def _led(self) -> PoolOrder | None:
        """The pool at the leader, where this process leads."""
        leader = self._order.leader
        return None if leader is None else leader.pools.get(self._pool)
