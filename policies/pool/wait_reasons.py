"""Wait reasons: why a request is queued. For people; no decision reads them.

A poll decides all that can be decided, so after it every waiting request has a reason: no backend for it is available,
its tenant's own limit, its tenant's older requests, or no room for the next request.
"""

from collections.abc import Mapping

from policies.fleet.fleet import Fleet
from policies.queueing.fair_queue import QueuedTenant
from policies.queues import PoolQueues
from policies.types import Request, Wait


def waits_for(
    request: Request, queues: PoolQueues, tenants: Mapping[str, QueuedTenant], fleet: Fleet, now: float
) -> Wait:
    """The first member of Wait that holds for a queued request."""
    there = fleet.available(request)
    if not there:
        return Wait.NO_BACKEND
    if not any(fleet.is_open(each.id, now) for each in there):
        return Wait.BACKENDS_HELD
    if not tenants[request.tenant_id].may_send:
        return Wait.TENANT_LIMIT
    if next(iter(queues.of(request.tenant_id).requests)) != request.id:
        return Wait.OWN_QUEUE
    return Wait.NO_ROOM
