"""Observer: a wrapper of a run's Scheduler that samples queues, the load of engines, and the differences of service.

It passes every event on unchanged; it does not inspect token events, which are the most frequent. At intervals it reads
the Scheduler's accounts and the engines' gauges.

Service is compared between two tenants that both had requests waiting all the time; only for these does a fair policy
have a bound. The figure of a pair is the largest difference of service over weight in any part of that time, as in
VTC's Theorem 4.4 (Sheng et al., OSDI 2024); the figure of the run is the largest of all pairs.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from types import MappingProxyType

from backends.engine.engine import Engine
from gateway.observability.metrics.service_gap import jain_index
from gateway.simulate.exposure import RunExposure
from gateway.simulate.report.series import Timeline
from gateway.simulate.session_findings import SessionFindings
from gateway.simulate.session_times import SessionTimes
from policies.facts import Cancelled, Fact, LoadChanged, Measured, Returned, TenantsChanged
from policies.scheduler_protocol import ViewedSchedulerProtocol
from policies.types import (
    Action,
    Dispatch,
    Group,
    Outcome,
    Reject,
    Request,
    Tenant,
    Timing,
    Usage,
)

JUDGED_TENANTS_MAX = 32  # those that have waited longest: pairs are their square
SHARE_WINDOW_S = 60.0  # as long as the windows of the VTC paper


@dataclass(slots=True)
class _ObservedSpan:
    """The range in which one tenant was ahead of another since both have been waiting."""

    low: float
    high: float


class Shares:
    """A measurement of how evenly service was shared in a run. For each window of a minute (or a longer bin), it
    computes Jain's index over the service per weight of tenants that waited throughout.
    """

    def __init__(self) -> None:
        self._began_at: float | None = None
        self._service: Mapping[str, float] = {}
        self._indices = 0.0
        self.windows = 0

    @property
    def jain(self) -> float | None:
        """The mean of the index over all windows; None where no two tenants ever waited throughout a window."""
        return self._indices / self.windows if self.windows else None

    def looked(self, now: float, service: Mapping[str, float], waiting_since: Mapping[str, float]) -> None:
        """Observe the service over weight that each waiting tenant has received since the run began."""
        began_at = self._began_at
        if began_at is not None and now - began_at < SHARE_WINDOW_S:
            return
        if began_at is not None:
            got = [
                service[tenant_id] - before
                for tenant_id, before in self._service.items()
                if tenant_id in service and waiting_since[tenant_id] <= began_at
            ]
            if len(got) > 1 and (index := jain_index(got)) is not None:
                self.windows += 1
                self._indices += index
        self._began_at, self._service = now, service

    def interrupted(self) -> None:
        """End the window without a comparison, because fewer than two tenants wait."""
        self._began_at = None


class Observer:
    """A wrapper of a run's Scheduler that passes all calls on and samples queues, engines and service. `tenant_of`
    returns the tenant of an id, for tenants that the Scheduler does not know yet; `groups` has each Group of tenants by
    its id.
    """

    def __init__(
        self,
        scheduler: ViewedSchedulerProtocol,
        *,
        engines: Mapping[str, Engine],
        tenant_of: Callable[[str], Tenant],
        exposure: RunExposure,
        timeline: Timeline,
        groups: Mapping[str, Group] = MappingProxyType({}),
    ) -> None:
        self._scheduler = scheduler
        self._engines = engines
        self._tenant_of = tenant_of
        self._groups = groups
        self._tenants: dict[str, Tenant] = {}
        self._requests: dict[str, Request] = {}
        self._waiting: dict[str, int] = {}
        self._waiting_since: dict[str, float] = {}
        self._spans: dict[tuple[str, str], _ObservedSpan] = {}
        self._sampled_bin = -1
        self._looked_at = 0.0
        self._timeline = timeline
        self._exposure = exposure
        self.shares = Shares()
        self._sessions = SessionTimes()
        self.running, self.queued, self.kv_ratio = timeline.series(max), timeline.series(max), timeline.series(max)
        self.difference = timeline.series(max)
        self.tokens, self.next_wakeup = scheduler.tokens, scheduler.next_wakeup  # straight through

    @property
    def difference_max(self) -> float:
        return max(self.difference.bins.values(), default=0.0)

    def session_findings(self, now: float) -> SessionFindings | None:
        """The findings about sessions until now; None: there were no sessions."""
        return self._sessions.findings(self._scheduler.snapshot(now, ()).sessions)

    # -- facts ---------------------------------------------------------------------------------------------

    def submit(self, request: Request, now: float) -> None:
        tenant_id = request.tenant_id
        if tenant_id not in self._tenants:
            self._tenants[tenant_id] = tenant = self._tenant_of(tenant_id)
            groups = () if tenant.group_id is None else (self._groups[tenant.group_id],)
            self._scheduler.told(TenantsChanged(now, changed=(tenant,), groups=groups))
        self._requests[request.id] = request
        self._sessions.arrived(request, now)
        self._waits(tenant_id, now)
        self._scheduler.submit(request, now)

    def arrived(self, request: Request, now: float) -> Sequence[Action]:
        self.submit(request, now)
        return self.poll(now)

    def finished(
        self, request_id: str, outcome: Outcome, now: float, timing: Timing | None = None, usage: Usage | None = None
    ) -> None:
        request = self._requests.pop(request_id)
        self._exposure.ended(request)
        self._sessions.ended(request, now)
        self._scheduler.finished(request_id, outcome, now, timing, usage)

    def told(self, fact: Fact) -> None:
        match fact:
            case Returned():
                request = self._requests[fact.request_id]
                self._exposure.ended(request)
                self._waits(request.tenant_id, fact.now)
            case Cancelled():
                self._left_queue(self._requests.pop(fact.request_id))
        self._scheduler.told(fact)
        if isinstance(fact, LoadChanged | Measured):
            self._sample(fact.now)

    def poll(self, now: float) -> list[Action]:
        actions = self._scheduler.poll(now)
        for action in actions:
            if isinstance(action, Dispatch):
                request = self._requests[action.request_id]
                self._exposure.dispatched(request)
                self._sessions.dispatched(request, now)
                self._left_queue(request)
            elif isinstance(action, Reject):
                self._left_queue(self._requests.pop(action.request_id))
        return actions

    # -- what is seen --------------------------------------------------------------------------------------

    def _waits(self, tenant_id: str, now: float) -> None:
        waiting = self._waiting.get(tenant_id, 0)
        self._waiting[tenant_id] = waiting + 1
        if not waiting:
            self._waiting_since[tenant_id] = now

    def _left_queue(self, request: Request) -> None:
        tenant_id = request.tenant_id
        self._waiting[tenant_id] -= 1
        if not self._waiting[tenant_id]:
            del self._waiting[tenant_id], self._waiting_since[tenant_id]

    def _sample(self, now: float) -> None:
        """Sample the accounts once per bin, however often the engines are measured."""
        number = self._timeline.bin_at(now)
        self._gauge(number)
        if self._sessions.has_any:
            self._sessions.sampled(self._scheduler.snapshot(now, ()).sessions)
        if number == self._sampled_bin:
            return
        self._sampled_bin = number
        waiting = [tenant_id for tenant_id in self._waiting_since if self._tenants[tenant_id].in_flight_max is None]
        if len(waiting) < 2:
            self._spans.clear()
            self.shares.interrupted()
            return
        views = self._scheduler.snapshot(now).tenants
        service = {tenant_id: views[tenant_id].service / self._tenants[tenant_id].weight for tenant_id in waiting}
        self.shares.looked(now, service, self._waiting_since)
        self.difference.put(number, self._judge(service, now))

    def _gauge(self, number: int) -> None:
        gauges = [engine.snapshot() for engine in self._engines.values()]
        self.running.put(number, sum(gauge.requests_running for gauge in gauges))
        self.queued.put(number, sum(self._waiting.values()))
        self.kv_ratio.put(number, sum(gauge.kv_used_ratio for gauge in gauges) / len(gauges))

    def _judge(self, service: Mapping[str, float], now: float) -> float:
        """The largest difference of any pair so far, updated for the pairs of tenants that have waited longest."""
        longest = sorted(service, key=lambda tenant_id: (self._waiting_since[tenant_id], tenant_id))
        spans: dict[tuple[str, str], _ObservedSpan] = {}
        largest = 0.0
        for pair in combinations(sorted(longest[:JUDGED_TENANTS_MAX]), 2):
            one, other = self._tenants[pair[0]], self._tenants[pair[1]]
            if (one.tier_id, one.group_id) != (other.tier_id, other.group_id):
                continue
            ahead = service[one.id] - service[other.id]
            span = spans[pair] = self._span(pair, ahead)
            span.low, span.high = min(span.low, ahead), max(span.high, ahead)
            largest = max(largest, (span.high - span.low) * min(one.weight, other.weight))
        self._spans, self._looked_at = spans, now
        return largest

    def _span(self, pair: tuple[str, str], ahead: float) -> _ObservedSpan:
        """The pair's span; a new one where one of both had no waiting request at some time since the last look."""
        span = self._spans.get(pair)
        began = max(self._waiting_since[tenant_id] for tenant_id in pair)
        return span if span is not None and began <= self._looked_at else _ObservedSpan(ahead, ahead)
