"""The way into the queue: every rule is asked in turn, and a refusal says when it is worth coming back."""

from collections.abc import Sequence

from policies.admission.base import Admission
from policies.admission.drain import DrainEstimate
from policies.queues import Queues
from policies.types import Reason, Reject, Request, Tenant

BACKEND_RETRY_S = 5.0  # no backend lives: about one health poll


class Gate:
    """May this request enter the queue, by all rules; and if not, when may it try again?"""

    def __init__(self, rules: Sequence[Admission], queues: Queues) -> None:
        self._rules = tuple(rules)
        self._queues = queues
        self._drain = DrainEstimate()

    def refuse(self, request: Request, tenant: Tenant, now: float) -> Reject | None:
        """The refusal by the first rule that has one; None, and counted as accepted, where no rule has."""
        for rule in self._rules:
            refusal = rule.refuse(request, tenant, self._queues, now)
            if refusal is not None:
                return self.reject(request, refusal.reason, now, refusal.retry_after_s)
        for rule in self._rules:
            rule.admitted(tenant, now)
        return None

    def reject(self, request: Request, reason: Reason, now: float, retry_after_s: float | None = None) -> Reject:
        """A refusal of a request that is not queued (any more), with the time in which its queue drains by default."""
        if retry_after_s is None:
            retry_after_s = BACKEND_RETRY_S if reason is Reason.NO_BACKEND else self._drained_s(request.tenant_id, now)
        return Reject(request.id, reason, retry_after_s)

    def dispatched(self, request: Request, now: float) -> None:
        """The request has left the queue for a backend."""
        queued = len(self._queues)
        self._drain.dispatched(request.tenant_id, arrived_at=request.arrived_at, queued=queued, now=now)

    def forget(self, tenant_id: str) -> None:
        self._drain.forget(tenant_id)
        for rule in self._rules:
            rule.forget(tenant_id)

    def _drained_s(self, tenant_id: str, now: float) -> float:
        requests = self._queues.of(tenant_id).requests
        return self._drain.wait_s(
            tenant_id,
            tenant_queued=len(requests),
            queued=len(self._queues),
            head_arrived_at=self._queues.head(tenant_id).arrived_at if requests else now,
            now=now,
        )
