"""Admission to a pool: which requests enter the queue, and why others are rejected.

An arriving request needs a tenant of this pool, a backend that is available or may come soon, and the consent of every
admission rule. If only the queue is full, a waiting request makes room: one of a lower tier is shed for a more
important one, otherwise one of the tenant that exceeds its share of the queue most. A request in the queue has a queue
timeout. A rejection changes no counter; the rejection of a request with an envelope counts in the SLO attainment.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

from policies.fleet.fleet import Fleet
from policies.pool.outage import Outage
from policies.pool.passing_on import PassingOn
from policies.pool.push_out import PushOut
from policies.pool.queue_timeout import QueueTimeout
from policies.pool.tenants import Tenants
from policies.slo.shedding import SHED_MAX, Shedding
from policies.types import PASSED_ON, Action, Reason, Reject, Request


@dataclass(frozen=True, slots=True)
class PoolAdmission:
    """The part of a Scheduler that admits requests to the queue of one pool, or rejects them with a reason."""

    tenants: Tenants
    fleet: Fleet
    shedding: Shedding
    push_out: PushOut
    passing_on: PassingOn
    queue_timeout: QueueTimeout
    outage: Outage
    rejected: list[Action] = field(default_factory=list)
    """Rejected by facts; the next poll reports them."""

    def check(self, request: Request, now: float, drop: Callable[[Request, Reason, float], None]) -> Reject | None:
        """The Reject of an arriving request; None if it is admitted. `drop` takes a waiting request out of the queue
        and rejects it for the given reason.
        """
        state = self.tenants.states.get(request.tenant_id)
        if state is None or state.removed:
            return self.reject(request, Reason.TENANT_UNKNOWN, now)
        tenant = state.tenant
        is_served = not self.outage.is_on and (
            request.backend_ids is None or self.fleet.is_available(request.backend_ids)
        )
        if not is_served and not self._may_wait_for_backend(request):
            return self.reject(request, Reason.NO_BACKEND, now)
        if request.may_pass_on and self.passing_on.goes_at_once(request, now):
            return self.reject(request, Reason.SLO_UNREACHABLE, now)
        rejection = self.tenants.admission_rules.check(request, tenant, now)
        for _ in range(SHED_MAX):
            if rejection is None or rejection.reason is not Reason.QUEUE_FULL:
                break
            reason, victim = Reason.SHED, self.shedding.victim(request, now)
            if victim is None:
                of_bytes = self.tenants.admission_rules.is_full_of_bytes(request)
                reason, victim = Reason.QUEUE_FULL, self.push_out.victim(request, of_bytes=of_bytes)
            if victim is None or victim.produced_tokens:  # an answer under way is not dropped
                break
            drop(victim, reason, now)
            rejection = self.tenants.admission_rules.check(request, tenant, now)
        return self._noted(request, rejection) if rejection is not None else None

    def refuses_again(self, request: Request) -> Reason | None:
        """The reason why a request that was admitted before may not wait any more; None: the request may wait."""
        if self.tenants.admitted(request.tenant_id) is None:
            return Reason.TENANT_UNKNOWN
        if not self.fleet.is_available(request.backend_ids) and not self._may_wait_for_backend(request):
            return Reason.NO_BACKEND
        return None

    def reject(self, request: Request, reason: Reason, now: float) -> Reject:
        """The Reject of a request that is not in the queue, for this reason."""
        return self._noted(request, self.tenants.admission_rules.reject(request, reason, now))

    def waits_until(self, request: Request, now: float) -> float | None:
        """The time until which a request waits on after its queue timeout; None: the request is rejected now."""
        is_over = self.queue_timeout.reason(request, now) is Reason.QUEUE_TIMEOUT
        return None if is_over else self.passing_on.looks_at(request, now)

    def expired(self, request: Request, now: float) -> Reject:
        """The Reject of a request whose queue timeout has ended."""
        is_served = self.fleet.is_available(request.backend_ids)
        return self.reject(request, self.queue_timeout.reason(request, now) if is_served else Reason.NO_BACKEND, now)

    def _may_wait_for_backend(self, request: Request) -> bool:
        """Whether a request may wait for a backend that is not available now. Not while other backends serve: it would
        block later requests of its tenant. Not where another pool may serve it.
        """
        return (
            not request.passes_on and self.outage.is_waited_out and self.tenants.present.fair_queues.has_place(request)
        )

    def _noted(self, request: Request, rejection: Reject) -> Reject:
        """Count the rejection, unless the request goes on to another pool, where it is counted at its end."""
        if request.passes_on and rejection.reason in PASSED_ON:
            return rejection
        if request.envelope is not None and request.tenant_id in self.tenants.states:
            self.tenants.attainment.refused(request, tier_id=self.tenants.tier_id(request.tenant_id))
        return rejection
