"""Wait views: why requests are queued, which tenant is next, and when requests will probably be sent.

The views are for people; no decision reads them, and making them changes no decision. A poll makes every possible
decision, so after it every waiting request has a reason: no backend for it is available, its key's limit, its session,
its tenant's own limit, its tenant's older requests, or no room for the next request.

The predicted start follows from the number of the tenant's requests before this one, and from how fast the tenant's
waiting requests were sent lately (policies/admission/retry_after.py). This includes everything that slows the tenant
down, also its own in-flight limit and other tenants. Before three waiting requests of the tenant were sent, the TTFT
forecast is used (policies/slo/ttft_forecast.py): the work before the request is estimated as a fluid, and slots become
free at the mean rate of the running requests. A tenant at its own limit then has no forecast. A turn that waits for
room for its session starts, at the latest, when it has waited for the longest time that a turn is held.
"""

from collections.abc import Callable, Collection, Iterable, Mapping

from policies.fleet.fleet import Fleet
from policies.pool.scheduler_parts import SchedulerParts
from policies.queueing.fair_queue import FairQueue, QueuedTenant
from policies.queues import PoolQueues
from policies.slo.ttft_forecast import BackendScan
from policies.types import Request, Wait, WaitView

IN_ORDER = frozenset({Wait.OWN_QUEUE, Wait.NO_ROOM})
"""The reasons for which the order of requests decides when the request is sent."""
BY_PACE = IN_ORDER | {Wait.TENANT_LIMIT}
"""The reasons for which the pace of its tenant's last dispatches decides that."""


def wait_views(parts: SchedulerParts, requests: Collection[Request], now: float) -> dict[str, WaitView]:
    """The view of each of these queued requests, by id."""
    queues, tenants, forecaster = parts.queues, parts.tenants.states, parts.forecaster
    sessions = parts.sessions
    turns = [(fair_queue, _next_tenant(fair_queue, queues)) for fair_queue in parts.arrangement.fair_queues.all()]
    before = _before_each(requests, queues)
    scans: dict[frozenset[str] | None, BackendScan] = {}
    views = {}
    for request in requests:
        reason, tenant = waits_for(request, queues, tenants, parts.fleet, now), tenants[request.tenant_id].tenant
        own, turn = before[request.id], None
        starts_in_s = parts.admission_rules.start_s(tenant.id, own[0], now) if reason in BY_PACE else None
        if reason is Wait.SESSION and sessions is not None:
            starts_in_s = sessions.wait_s(request, now)
        if reason in IN_ORDER:
            turn = next((turn for queue, turn in turns if request.id in queue.queues.of(tenant.id).requests), None)
            if starts_in_s is None:
                scan = scans.get(request.backend_ids)
                if scan is None:
                    scan = scans[request.backend_ids] = forecaster.survey(request, now)
                starts_in_s = forecaster.start_s(request, tenant, own, scan)
        views[request.id] = WaitView(reason, None if turn == tenant.id else turn, starts_in_s, own[0])
    return views


def _next_tenant(fair_queue: FairQueue, queues: PoolQueues) -> str | None:
    """The tenant that is next; None where no tenant may send."""
    for request_id in fair_queue.first:  # these precede any new choice
        return queues.get(request_id).tenant_id
    found = fair_queue.next((), ())
    return None if found is None else found[1].tenant_id


def _before_each(requests: Iterable[Request], queues: PoolQueues) -> dict[str, tuple[int, int]]:
    """For each request, the number of requests that its tenant has queued before it, and their prompt tokens."""
    before: dict[str, tuple[int, int]] = {}
    for tenant_id in {request.tenant_id for request in requests}:
        prompt_tokens = 0
        for number, each in enumerate(queues.of(tenant_id).all()):
            before[each.id] = number, prompt_tokens
            prompt_tokens += each.prompt_tokens
    return before


def waits_for(
    request: Request, queues: PoolQueues, tenants: Mapping[str, QueuedTenant], fleet: Fleet, now: float
) -> Wait:
    """The first member of Wait that holds for a queued request."""
    reason = _backends_wait(request, fleet, now)
    if reason is not None:
        return reason
    if request.id in queues.held_for:
        return queues.held_for[request.id]
    if tenants[request.tenant_id].is_limited:
        return Wait.TENANT_LIMIT
    if queues.head(request.tenant_id).id != request.id:
        return Wait.OWN_QUEUE
    return Wait.NO_ROOM


def first_waits_for(
    queues: PoolQueues, tenants: Mapping[str, QueuedTenant], fleet: Fleet, now: float
) -> Callable[[Request], Wait]:
    """A function like `waits_for`, for many requests that are each the first of their tenant's queue. Most of them may
    go to all backends, which are therefore examined only once.
    """
    reasons: dict[frozenset[str] | None, Wait | None] = {}

    def waits(request: Request) -> Wait:
        ids = request.backend_ids
        if ids not in reasons:
            reasons[ids] = _backends_wait(request, fleet, now)
        reason = reasons[ids]
        if reason is not None:
            return reason
        if request.id in queues.held_for:
            return queues.held_for[request.id]
        return Wait.TENANT_LIMIT if tenants[request.tenant_id].is_limited else Wait.NO_ROOM

    return waits


def _backends_wait(request: Request, fleet: Fleet, now: float) -> Wait | None:
    """The reason that lies in the request's backends; None: one of them is available and open."""
    there = fleet.available(request)
    if not there:
        return Wait.NO_BACKEND
    return None if any(fleet.is_open(each.id, now) for each in there) else Wait.BACKENDS_HELD
