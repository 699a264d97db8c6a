"""The way into the queue: every rule is asked in turn, and a refusal says when it is worth coming back."""

from collections.abc import Sequence

from policies.admission.base import Admission, AdmissionReject
from policies.admission.retry_after import DrainEstimate
from policies.queues import PoolQueues
from policies.types import LimitKind, RateLimits, Reason, Reject, Request, Tenant

BACKEND_RETRY_S = 5.0  # no backend lives: about one health poll


class AdmissionRules:
    """May this request enter the queue, by all rules; and if not, when may it try again?"""

    def __init__(self, rules: Sequence[Admission], queues: PoolQueues) -> None:
        self._rules = tuple(rules)
        # Most rules want to hear nothing of what they let in, and it is told with every request.
        self._told_admitted = tuple(each for each in rules if type(each).admitted is not Admission.admitted)
        self._told_settled = tuple(each for each in rules if type(each).settled is not Admission.settled)
        self._queues = queues
        self._drain = DrainEstimate()

    def refuse(self, request: Request, tenant: Tenant, now: float) -> Reject | None:
        """The refusal by the first rule that has one, for want of space only where no other has; None, and counted as
        accepted, where no rule has.
        """
        full: AdmissionReject | None = None
        for rule in self._rules:
            refusal = rule.refuse(request, tenant, self._queues, now)
            if refusal is None:
                continue
            if refusal.reason is not Reason.QUEUE_FULL:
                return self.reject(request, refusal.reason, now, refusal.retry_after_s, refusal.limit)
            full = full or refusal
        if full is not None:
            return self.reject(request, full.reason, now, full.retry_after_s)
        for rule in self._told_admitted:
            rule.admitted(request, tenant, now)
        return None

    def settled(self, request_id: str, tokens: int, now: float) -> None:
        """A request that was let in is over, having used so many tokens; 0 where it was never served."""
        for rule in self._told_settled:
            rule.settled(request_id, tokens, now)

    def spent(self, tenant: Tenant, tokens: int, now: float) -> None:
        """The tenant used so many tokens by a call that was never queued."""
        for rule in self._rules:
            rule.spent(tenant, tokens, now)

    def limits(self, tenant: Tenant, now: float) -> RateLimits:
        """The tenant's limits per minute as they stand: of each kind the first rule's that keeps one."""
        limits = [rule.limits(tenant, now) for rule in self._rules]
        return RateLimits(
            requests=next((each.requests for each in limits if each.requests), None),
            tokens=next((each.tokens for each in limits if each.tokens), None),
        )

    def reject(
        self,
        request: Request,
        reason: Reason,
        now: float,
        retry_after_s: float | None = None,
        limit: LimitKind | None = None,
    ) -> Reject:
        """A refusal of a request that is not queued (any more), with the time in which its queue drains by default."""
        if retry_after_s is None:
            retry_after_s = BACKEND_RETRY_S if reason is Reason.NO_BACKEND else self._drained_s(request.tenant_id, now)
        return Reject(request.id, reason, retry_after_s, limit)

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
