"""SharedDispatcher: a pool's Dispatcher whose Scheduler runs in worker 0, for the requests of this worker.

`SharedScheduler` is the Scheduler as this worker sees it: a RemoteScheduler that reads the Scheduler itself where this
worker leads.
"""

from collections.abc import Collection, Coroutine, Iterable, Mapping
from math import inf
from typing import Any, Final, Unpack

from gateway.cluster.follower.follower import STEP_S
from gateway.cluster.follower.remote_scheduler import RemoteScheduler
from gateway.cluster.wire import LimitsOf
from gateway.scheduling.dispatcher import Dispatcher, QueueWatch
from gateway.shared_order.order import SharedOrder
from policies.accounts.checkpoint import RETURNING_S, ServiceCheckpoint
from policies.scheduler_protocol import SharedSchedulerProtocol, TenantChanges
from policies.types import Dispatch, Outcome, RateLimits, Request, Snapshot, Tenant, Timing, Usage, WaitView

LIMITS_S: Final = 0.25
PREFILL_ALPHA: Final = 0.1
"""Of the average of prefill times, as of the decode pace (gateway/forwarding/answers/decode_pace.py)."""


class SharedScheduler(RemoteScheduler):
    """The Scheduler of one pool, as its Dispatcher in this worker uses it."""

    def __init__(self, order: SharedOrder, pool: str) -> None:
        super().__init__(pool, order.member)
        self._order = order
        self._prefill_s: dict[str, float] = {}  # of a prompt token, by backend
        self._asked: dict[LimitsOf, float] = {}  # when they were asked for
        self._answered: dict[LimitsOf, tuple[RateLimits, RateLimits]] = {}  # with those told by then

    @property
    def led(self) -> SharedSchedulerProtocol | None:
        """The Scheduler itself, where this worker leads and the pool exists."""
        leader = self._order.leader
        order = None if leader is None else leader.pools.get(self._pool)
        return None if order is None else order.scheduler

    def tokens(self, request_id: str, usage: Usage, now: float) -> None:
        own = self._follower.own(request_id)
        is_first = own is not None and own.usage is None and not own.is_begun
        if is_first and own is not None and own.dispatch is not None and usage.output_tokens:
            self._prefilled_within(own.dispatch.backend_id, usage.prompt_tokens, now - own.dispatched_at)
        super().tokens(request_id, usage, now)

    def next_wakeup(self) -> None:
        """The order has the timer."""
        return

    def tenants_changed(self, *, now: float, **changes: Unpack[TenantChanges]) -> None:
        """Only of tiers and groups: the leader looks tenants up itself."""
        changes.pop("changed", None)
        changes.pop("removed", None)
        super().tenants_changed(now=now, **changes)

    def restored(self, checkpoint: ServiceCheckpoint, now: float, returning_s: float = RETURNING_S) -> None:
        """Nothing: a leader's Schedulers are restored when they are made."""

    # -- views -----------------------------------------------------------------------------------------------

    def checkpoint(self, tenant_ids: Collection[str] | None = None) -> ServiceCheckpoint:
        return super().checkpoint() if self.led is None else self.led.checkpoint(tenant_ids)

    def snapshot(self, now: float, tenant_ids: Iterable[str] | None = None) -> Snapshot:
        """Of all workers at the leader; elsewhere the counts of this worker's requests."""
        return super().snapshot(now, tenant_ids) if self.led is None else self.led.snapshot(now, tenant_ids)

    def wait_views(self, request_ids: Iterable[str], now: float) -> Mapping[str, WaitView]:
        """Of all members' requests at the leader, by wire id; nothing elsewhere."""
        return {} if self.led is None else self.led.wait_views(request_ids, now)

    def rate_limits(self, tenant_id: str, now: float, key_id: str = "") -> RateLimits:
        leader, of = self._order.leader, LimitsOf(tenant_id, key_id)
        if leader is None or self._pool not in leader.pools:
            return self._limits_told(of, now)
        return leader.pools[self._pool].tenants.rate_limits(of, now)

    def _limits_told(self, of: LimitsOf, now: float) -> RateLimits:
        """As last told: with the latest request of the tenant and key, or in answer to a question, asked every LIMITS_S
        at most.
        """
        told = self._follower.limits(self._pool, of)
        if now - self._asked.get(of, -inf) >= LIMITS_S:
            self._asked[of] = now

            def answered(limits: RateLimits) -> None:
                self._answered[of] = limits, told

            self._order.ask_limits(self._pool, of, answered)
        limits, before = self._answered.get(of, (told, told))
        return limits if told is before else told

    def counter(self, tenant_id: str) -> float:
        return 0.0 if self.led is None else self.led.counter(tenant_id)

    def prefilled(self, request_id: str, now: float) -> Usage | None:
        """Estimated by the time since the dispatch, and the time that prompts took at this backend so far."""
        own = self._follower.own(request_id)
        if own is None or own.dispatch is None:
            return None
        if own.request.produced_tokens:
            return own.usage
        request, cached = own.request, own.dispatch.cached_tokens
        token_s = self._prefill_s.get(own.dispatch.backend_id, 0.0)
        computed = (now - own.dispatched_at) / token_s if token_s > 0 else request.prompt_tokens
        return Usage(min(request.prompt_tokens, cached + int(computed)), min(cached, request.prompt_tokens), 0)

    def _prefilled_within(self, backend_id: str, prompt_tokens: int, seconds: float) -> None:
        """A prompt was answered after so long, its wait in the engine included."""
        token_s = seconds / max(1, prompt_tokens)
        before = self._prefill_s.get(backend_id, token_s)
        self._prefill_s[backend_id] = before + PREFILL_ALPHA * (token_s - before)


class SharedDispatcher(Dispatcher):
    """Dispatches this worker's requests of one pool, as worker 0 decides."""

    def __init__(self, order: SharedOrder, pool: str) -> None:
        self._shared = SharedScheduler(order, pool)
        super().__init__(self._shared)
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

    def returned(
        self, request_id: str, hold_s: float, watch: QueueWatch | None, backend_ids: frozenset[str] | None = None
    ) -> Coroutine[Any, Any, Dispatch]:
        decision = super().returned(request_id, hold_s, None, backend_ids)
        if watch is None:
            return decision
        decision.close()
        return self._watched(request_id, watch)

    def interrupted(
        self, request_id: str, usage: Usage, hold_s: float, watch: QueueWatch | None
    ) -> Coroutine[Any, Any, Dispatch]:
        decision = super().interrupted(request_id, usage, hold_s, None)
        if watch is None:
            return decision
        decision.close()
        return self._watched(request_id, watch)

    def tokens(self, request_id: str, usage: Usage) -> None:
        super().tokens(request_id, usage)
        self._order.within(STEP_S)

    def trued_up(self) -> None:
        self._order.soon()

    def kept(self, request_id: str) -> None:
        super().kept(request_id)
        self._order.soon()

    def finished(self, request_id: str, outcome: Outcome, timing: Timing | None = None) -> None:
        super().finished(request_id, outcome, timing)
        self._order.soon()

    def spent(self, tenant: Tenant, usage: Usage, key_id: str = "") -> None:
        super().spent(tenant, usage, key_id)
        self._order.soon()

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
