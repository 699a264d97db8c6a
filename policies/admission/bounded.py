"""Bounded queues: limits on queued requests and bytes, per tenant and per pool.

A fair order protects tenants from each other's work, not from each other's memory use: a flood of tiny requests pays
nothing for queue space, so space is bounded separately.
"""

from typing import Final

from policies.admission.base import Admission, AdmissionReject
from policies.queues import PoolQueues
from policies.types import Reason, Request, Tenant

# Chosen: bodies of the largest size, 16 MiB by default, of 16 calls of a tenant, and four tenants that fill their part.
# Where that is more than a process may have, its limit of memory refuses bodies before.
TENANT_BYTES_MAX: Final = 256 << 20
BYTES_MAX: Final = 4 * TENANT_BYTES_MAX


class BoundedQueues(Admission):
    """An admission rule that limits the queue of one pool, in requests and body bytes. A tenant's own limits override
    `tenant_requests_max` and `tenant_bytes_max`.
    """

    def __init__(
        self,
        requests_max: int = 10_000,
        bytes_max: int = BYTES_MAX,
        tenant_requests_max: int = 2_000,
        tenant_bytes_max: int = TENANT_BYTES_MAX,
    ) -> None:
        self.requests_max, self.bytes_max = requests_max, bytes_max
        self.tenant_requests_max, self.tenant_bytes_max = tenant_requests_max, tenant_bytes_max

    def check(self, request: Request, tenant: Tenant, queues: PoolQueues, now: float) -> AdmissionReject | None:
        queued = queued_bytes = waiting = 0
        if queues.deadlines:
            waiting, queue = len(queues.deadlines), queues.by_tenant.get(tenant.id)
            queued, queued_bytes = (0, 0) if queue is None else (len(queue), queue.body_bytes)
        requests_max, bytes_max = tenant.queued_requests_max, tenant.queued_bytes_max
        requests_max = self.tenant_requests_max if requests_max is None else requests_max
        bytes_max = self.tenant_bytes_max if bytes_max is None else bytes_max
        if queued >= requests_max or queued_bytes + request.body_bytes > bytes_max:
            return AdmissionReject(Reason.TENANT_QUEUE_FULL)
        if waiting >= self.requests_max or queues.body_bytes + request.body_bytes > self.bytes_max:
            return AdmissionReject(Reason.QUEUE_FULL)
        return None

    def is_full_of_bytes(self, request: Request, queues: PoolQueues) -> bool:
        return len(queues) < self.requests_max
