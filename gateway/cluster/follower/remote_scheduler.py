"""RemoteScheduler: a pool's Scheduler as its Dispatcher sees it where the order is shared with other processes.

Facts of requests go to the leader, and its decisions come back, through this process's Follower. Facts about backends,
tenants and policies are the leader's own: they take effect where this process leads, and are ignored elsewhere. So are
views: what only the leader knows is empty here, and its shell asks the leader instead.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Unpack

from gateway.cluster.member import Member
from gateway.cluster.wire import LimitsOf
from policies.accounts.checkpoint import RETURNING_S, ServiceCheckpoint
from policies.forwarding import ForwardingFacts
from policies.scheduler_protocol import PolicyChoices, TenantChanges
from policies.types import (
    Action,
    BackendLoad,
    RateLimits,
    Request,
    Snapshot,
    TenantView,
    Usage,
    Wait,
    WaitView,
)


class RemoteScheduler(ForwardingFacts):
    """One pool, with the interface of a Scheduler (SchedulerProtocol). Its driver calls `Member.tick` before `poll`
    where frames came, and brings all usages up to date whenever `is_usage_due`.
    """

    def __init__(self, pool: str, member: Member) -> None:
        super().__init__(member.follower)
        self._pool = pool
        self._member = member
        self._follower = member.follower

    # -- facts of requests ----------------------------------------------------------------------------------------

    def submit(self, request: Request, now: float) -> None:
        self._follower.submit(self._pool, request, now)

    def spent(self, tenant_id: str, usage: Usage, now: float, key_id: str = "") -> None:
        self._follower.spent(self._pool, tenant_id, usage, now, key_id)

    # -- facts of the leader's process -------------------------------------------------------------------------------

    def load_changed(self, loads: Sequence[BackendLoad], now: float) -> None:
        self._member.load_changed(self._pool, tuple(loads), now)

    def measured(self, load: BackendLoad, now: float) -> None:
        self._member.measured(self._pool, load, now)

    def tenants_changed(self, *, now: float, **changes: Unpack[TenantChanges]) -> None:
        if self._member.leader is not None:
            self._member.leader.tenants_changed(self._pool, now=now, **self._member.own_part(changes))

    def policy_changed(self, *, now: float, **choices: Unpack[PolicyChoices]) -> None:
        if self._member.leader is not None:
            self._member.leader.policy_changed(self._pool, now=now, **choices)

    def restored(self, checkpoint: ServiceCheckpoint, now: float, returning_s: float = RETURNING_S) -> None:
        """Nothing: a leader goes on from the cluster's checkpoint."""

    # -- decisions -----------------------------------------------------------------------------------------------------

    def poll(self, now: float) -> list[Action]:
        return self._follower.poll(self._pool, now)

    def next_wakeup(self) -> float | None:
        """When this member's Follower has something to do; the leader's own times are `Member.wakeup`."""
        return self._follower.due()

    def is_usage_due(self, now: float) -> bool:
        """Whether the driver is to tell all usages, with `tokens`, now (rule 11)."""
        return self._follower.is_usage_due(now)

    # -- views ---------------------------------------------------------------------------------------------------------

    def snapshot(self, now: float, tenant_ids: Iterable[str] | None = None) -> Snapshot:
        """The member's own requests; the pool's state is the leader's."""
        own = [each for each in self._follower.requests().values() if each.pool == self._pool]
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

    def rate_limits(self, tenant_id: str, now: float, key_id: str = "") -> RateLimits:
        """As last told by the leader, with a decision on a request of this tenant and key."""
        return self._follower.limits(self._pool, LimitsOf(tenant_id, key_id))

    def checkpoint(self, tenant_ids: Collection[str] | None = None) -> ServiceCheckpoint:
        """The newest of the cluster's that this member was told, of all tenants."""
        newest = self._follower.checkpoint.read()
        pool = None if newest is None else newest.pools.get(self._pool)
        return {} if pool is None else pool.service

    def counter(self, tenant_id: str) -> float:
        """0: lifts come with the Dispatch (`Follower.own(request_id).lift`)."""
        return 0.0

    def waits_for(self, request_id: str, now: float) -> Wait | None:
        """None: why a request waited comes with its Dispatch."""
        return None

    def wait_views(self, request_ids: Iterable[str], now: float) -> Mapping[str, WaitView]:
        """None: the leader's process knows."""
        return {}

    def prefilled(self, request_id: str, now: float) -> Usage | None:
        """All of the prompt, as a Scheduler answers where too little is known of a backend's steps."""
        own = self._follower.own(request_id)
        return None if own is None or own.dispatch is None else own.told
