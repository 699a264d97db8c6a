"""Who comes in, who is turned away, and what he is told.

On arrival a request needs a tenant that is served here, a backend that is there or may come soon, and the consent of
every rule of admission; where only space is missing, those who may be shed make room for who is more important. In the
queue it has patience to lose. A refusal moves nobody's counter; where something was promised it is noted.
"""

from collections.abc import Callable
from dataclasses import dataclass

from policies.admission import AdmissionRules
from policies.fleet.fleet import Fleet
from policies.pool.outage import Outage
from policies.pool.tenants import Tenants
from policies.slo.attainment import AttainmentCounts
from policies.slo.queue_timeout import QueueTimeout
from policies.slo.shedding import SHED_MAX, Shedding
from policies.types import Reason, Reject, Request


@dataclass(frozen=True, slots=True)
class PoolAdmission:
    """May this request come in, and if not, or no more, what is it told?"""

    tenants: Tenants
    fleet: Fleet
    admission_rules: AdmissionRules
    shedding: Shedding
    queue_timeout: QueueTimeout
    attainment: AttainmentCounts
    outage: Outage

    def refusal(self, request: Request, now: float, shed: Callable[[Request], None]) -> Reject | None:
        """The refusal of a request that arrives, None where it comes in. `shed` takes a waiting request out of the
        queue, and refuses it.
        """
        tenant = self.tenants.admitted(request.tenant_id)
        if tenant is None:
            return self.reject(request, Reason.TENANT_UNKNOWN, now)
        if not self.fleet.is_available(request.backend_ids) and not self._may_wait_for_backend(request):
            return self.reject(request, Reason.NO_BACKEND, now)
        refusal = self.admission_rules.refuse(request, tenant, now)
        for _ in range(SHED_MAX):
            is_full = refusal is not None and refusal.reason is Reason.QUEUE_FULL
            victim = self.shedding.victim(request, now) if is_full else None
            if victim is None:
                break
            shed(victim)
            refusal = self.admission_rules.refuse(request, tenant, now)
        return self._noted(request, refusal) if refusal is not None else None

    def reject(self, request: Request, reason: Reason, now: float) -> Reject:
        """The refusal of a request that waits no more, or never did, for this reason."""
        return self._noted(request, self.admission_rules.reject(request, reason, now))

    def expired(self, request: Request, now: float) -> Reject:
        """The refusal of a request that has waited long enough."""
        is_served = self.fleet.is_available(request.backend_ids)
        return self.reject(request, self.queue_timeout.reason(request, now) if is_served else Reason.NO_BACKEND, now)

    def _may_wait_for_backend(self, request: Request) -> bool:
        """Where others serve, what waits for some alone would keep back what its tenant sends after it."""
        return self.outage.is_waited_out and self.tenants.fair_queues.has_place(request)

    def _noted(self, request: Request, refusal: Reject) -> Reject:
        if request.envelope is not None and request.tenant_id in self.tenants.states:
            self.attainment.refused(request, tier_id=self.tenants.tier_id(request.tenant_id))
        return refusal
