"""Wait reasons: why a request is queued. They are for people; no decision reads them.

A poll makes every possible decision, so after it every waiting request has a reason: no backend for it is available,
its key's limit, its session, its tenant's own limit, its tenant's older requests, or no room for the next request.
"""

from collections.abc import Callable, Mapping

from policies.fleet.fleet import Fleet
from policies.queueing.fair_queue import QueuedTenant
from policies.queues import PoolQueues
from policies.types import Request, Wait


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
