"""Wait views: why requests are queued, which tenant is next, and when requests will probably be sent.

The views are for people; no decision reads them, and making them changes no decision. The predicted start follows from
the number of the tenant's requests before this one, and from how fast those that waited were sent lately
(policies/admission/retry_after.py). This includes everything that slows the tenant down, also its own in-flight limit
and other tenants. Before three of its requests that waited were sent, the TTFT forecast is used
(policies/slo/ttft_forecast.py): the work before the request is estimated as a fluid, and slots become free at the mean
rate of the running requests. A tenant at its own limit then has no forecast. A turn that waits for room for its session
starts when it has waited as long as any, at the latest.
"""

from collections.abc import Collection, Iterable

from policies.pool.scheduler_parts import SchedulerParts
from policies.pool.wait_reasons import waits_for
from policies.queueing.fair_queue import FairQueue
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
    sessions = parts.handover.sessions
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
