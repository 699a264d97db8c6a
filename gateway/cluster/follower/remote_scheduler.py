"""RemoteScheduler: a pool's Scheduler as its Dispatcher sees it where the order is shared with other processes.

Facts of requests go to the leader, and its decisions come back, through this process's Follower. Facts about backends,
tenants and policies are the leader's own: they take effect where this process leads, and are ignored elsewhere. Where
this process leads, views come from the Scheduler itself; elsewhere the parts that only the leader knows are empty.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from math import inf
from typing import Final

from gateway.cluster.member import Member
from gateway.cluster.wire import LimitsOf
from policies.accounts.checkpoint import ServiceCheckpoint
from policies.facts import Cancelled, Fact, RunFact, Spent, TenantsChanged
from policies.scheduler_protocol import SharedSchedulerProtocol
from policies.types import (
    Action,
    RateLimits,
    Request,
    Snapshot,
    TenantView,
    Usage,
    Wait,
    WaitView,
)

LIMITS_S: Final = 0.25
PREFILL_ALPHA: Final = 0.1
"""Of the average of prefill times, as of the decode pace (gateway/forwarding/answers/decode_pace.py)."""

AskLimits = Callable[[str, LimitsOf, Callable[[RateLimits], None]], None]
"""Asks the leader for the limits per minute of a tenant and key in a pool; calls the last argument with the answer."""


class RemoteScheduler:
    """The stand-in for one pool's Scheduler in a process of a cluster. It passes facts (what happened to a request, a
    backend or a tenant) to the leader, whose Scheduler decides. `poll` returns the leader's decisions; if messages have
    come, call `Member.tick` before `poll`. Whenever `UsageTelling.is_due`, call `tokens` for each running request, with
    its usage.
    """

    def __init__(self, pool: str, member: Member, ask_limits: AskLimits) -> None:
        self._pool = pool
        self._member = member
        self._follower = member.follower
        self.finished = self._follower.finished
        self.rate_limits = LeadersLimits(pool, member, ask_limits).rate_limits
        self._prefills = PrefillTimes()

    @property
    def led(self) -> SharedSchedulerProtocol | None:
        """The Scheduler itself, if this process leads and has the pool; else None."""
        leader = self._member.lead.leader
        order = None if leader is None else leader.pools.get(self._pool)
        return None if order is None else order.scheduler

    # -- facts -----------------------------------------------------------------------------------------------------

    def submit(self, request: Request, now: float) -> None:
        self._follower.submit(self._pool, request, now)

    def tokens(self, request_id: str, usage: Usage, now: float) -> None:
        own = self._follower.requests.find(request_id)
        if own is None or own.dispatch is None:
            return
        if own.usage is None and usage.output_tokens:
            self._prefills.took(own.dispatch.backend_id, usage.prompt_tokens, now - own.dispatched_at)
        self._follower.usage.used(own, usage, now)

    def told(self, fact: Fact) -> None:
        match fact:
            case RunFact():
                self._follower.told(fact)
            case Cancelled():
                self._follower.cancel(fact.request_id)
            case Spent():
                self._follower.reports.spent(self._pool, fact)
            case TenantsChanged():
                self._tenants_changed(fact)
            case _:
                self._member.lead.told(self._pool, fact)

    def _tenants_changed(self, fact: TenantsChanged) -> None:
        """The leader looks up itself what a tenant is, in all its pools."""
        leader = self._member.lead.leader
        if leader is None:
            return
        for tenant in fact.changed:
            leader.pools.tenant_changed(tenant.id, fact.now)
        for tenant_id in fact.removed:
            leader.pools.tenant_forgotten(tenant_id, fact.now)
        if fact.tiers or fact.tiers_removed or fact.groups or fact.groups_removed:
            self._member.lead.told(self._pool, fact.but(changed=(), removed=()))

    def arrived(self, request: Request, now: float) -> Sequence[Action]:
        self.submit(request, now)
        return self.poll(now)

    # -- decisions -----------------------------------------------------------------------------------------------------

    def poll(self, now: float) -> list[Action]:
        return self._follower.poll(self._pool, now)

    def next_wakeup(self) -> None:
        """None: `Member.wakeup` gives the time of the next decision."""
        return

    # -- views ---------------------------------------------------------------------------------------------------------

    def snapshot(self, now: float, tenant_ids: Iterable[str] | None = None) -> Snapshot:
        """At the leader, a snapshot of all members' requests; elsewhere the counts of this member's own requests."""
        if self.led is not None:
            return self.led.snapshot(now, tenant_ids)
        own = [each for each in self._follower.requests if each.pool == self._pool]
        tenants: dict[str, TenantView] = {}
        for tenant_id in {each.request.tenant_id for each in own} if tenant_ids is None else tenant_ids:
            of = [each for each in own if each.request.tenant_id == tenant_id]
            waiting = [each.request for each in of if each.dispatch is None]
            tenants[tenant_id] = TenantView(
                queued_requests=len(waiting),
                queued_bytes=sum(each.body_bytes for each in waiting),
                in_flight_requests=len(of) - len(waiting),
                in_flight_tokens=0,
                service=0.0,
                counter=0.0,
                rank=0.0,
            )
        queued = [each.request for each in own if each.dispatch is None]
        return Snapshot(now, len(queued), sum(each.body_bytes for each in queued), len(own) - len(queued), tenants)

    def checkpoint(self, tenant_ids: Collection[str] | None = None) -> ServiceCheckpoint:
        """At the leader, the Scheduler's checkpoint; elsewhere the newest received one, always of all tenants."""
        if self.led is not None:
            return self.led.checkpoint(tenant_ids)
        newest = self._follower.checkpoint.read()
        pool = None if newest is None else newest.pools.get(self._pool)
        return {} if pool is None else pool.service

    def counter(self, tenant_id: str) -> float:
        """At the leader, the tenant's counter; elsewhere 0: lifts come with the Dispatch (`OwnRequest.dispatch`)."""
        return 0.0 if self.led is None else self.led.counter(tenant_id)

    def waits_for(self, request_id: str, now: float) -> Wait | None:
        """Always None: the reason why a request waited comes with its Dispatch."""
        return None

    def wait_views(self, request_ids: Iterable[str], now: float) -> Mapping[str, WaitView]:
        """At the leader, the views of all members' requests by wire id; elsewhere empty."""
        return {} if self.led is None else self.led.wait_views(request_ids, now)

    def prefilled(self, request_id: str, now: float) -> Usage | None:
        """The usage of a request that got no token yet, estimated from the time since its dispatch."""
        own = self._follower.requests.find(request_id)
        if own is None or own.dispatch is None:
            return None
        if own.request.produced_tokens:
            return own.usage
        request, cached = own.request, own.dispatch.cached_tokens
        token_s = self._prefills.token_s(own.dispatch.backend_id)
        computed = (now - own.dispatched_at) / token_s if token_s > 0 else request.prompt_tokens
        return Usage(min(request.prompt_tokens, cached + int(computed)), min(cached, request.prompt_tokens), 0)


class PrefillTimes:
    """The average time to the first token per prompt token at each backend, in seconds. The wait inside the engine is
    included. Mutable.
    """

    def __init__(self) -> None:
        self._token_s: dict[str, float] = {}  # by backend

    def token_s(self, backend_id: str) -> float:
        """Seconds of prefill per prompt token; 0 if nothing is known."""
        return self._token_s.get(backend_id, 0.0)

    def took(self, backend_id: str, prompt_tokens: int, seconds: float) -> None:
        """A prompt got its first token after this many seconds, its wait in the engine included."""
        token_s = seconds / max(1, prompt_tokens)
        before = self._token_s.get(backend_id, token_s)
        self._token_s[backend_id] = before + PREFILL_ALPHA * (token_s - before)


class LeadersLimits:
    """The state of the limits per minute (of tenants, groups and keys) in one pool. Where this process leads, the
    Scheduler gives it; elsewhere it is the state that the leader sent last. Mutable.
    """

    def __init__(self, pool: str, member: Member, ask: AskLimits) -> None:
        self._pool = pool
        self._member = member
        self._ask = ask
        self._asked: dict[LimitsOf, float] = {}  # when they were asked for
        self._answered: dict[LimitsOf, tuple[RateLimits, RateLimits]] = {}  # with those told by then

    def rate_limits(self, tenant_id: str, now: float, key_id: str = "") -> RateLimits:
        """The limits, as the leader sent them last: with a request of the tenant and key, or as the answer to a
        question, which is asked every LIMITS_S at most.
        """
        leader, of = self._member.lead.leader, LimitsOf(tenant_id, key_id)
        if leader is not None and self._pool in leader.pools:
            return leader.pools[self._pool].tenants.rate_limits(of, now)
        told = self._member.follower.decided.limits(self._pool, of)
        if now - self._asked.get(of, -inf) >= LIMITS_S:
            self._asked[of] = now

            def answered(limits: RateLimits) -> None:
                self._answered[of] = limits, told

            self._ask(self._pool, of, answered)
        limits, before = self._answered.get(of, (told, told))
        return limits if told is before else told
