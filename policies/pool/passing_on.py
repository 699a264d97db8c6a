"""PassingOn: whether a request that has another pool to go to (an alias's next model) goes there now.

It goes as soon as, by the forecast, its first token would come too late here and may still come in time there. The
forecast is read when the request arrives, when half of the time to its target is over, when half of the remaining time
is over, and so on. It is the earlier of two forecasts: by the step-time models, and by how fast the tenant's queue
moved lately. Where neither is known at the first look, the request goes with half of its time left.

A rejection is a last resort, so a tier that rejects takes the best case of a forecast (policies/admission/feasible.py).
Passing on is not a rejection, so here the forecast is used as it is.
"""

from dataclasses import dataclass
from itertools import islice
from math import inf
from typing import Final

from policies.admission.retry_after import QUEUED_S_MIN
from policies.due_times import first_token_due_at
from policies.pool.tenants import Tenants
from policies.slo.ttft_forecast import Forecaster
from policies.types import Request

BEFORE_MAX: Final = 64  # requests of its tenant that are looked at to find a request's place: it is no nearer then


@dataclass(frozen=True, slots=True)
class PassingOn:
    """The rule for when a waiting request moves to another pool. Such a request names an alias (a model name that
    stands for several models), and the other pool serves the next of these models. The rule reads the TTFT forecasts of
    the pool where the request waits.
    """

    tenants: Tenants
    forecaster: Forecaster

    def goes_at_once(self, request: Request, now: float) -> bool:
        """Whether an arriving request goes on to another pool at once."""
        due_at = first_token_due_at(request) if request.passes_on else None
        if due_at is None:
            return False
        tenants = self.tenants
        tenant = tenants.states[request.tenant_id].tenant
        ttft_s, before = self.forecaster.ttft_s(request, tenant, now), len(tenants.queues.of(tenant.id).requests)
        if ttft_s is None and before:
            ttft_s = tenants.admission_rules.start_s(tenant.id, before, now)
        return ttft_s is not None and now + ttft_s > due_at

    def looks_at(self, request: Request, now: float) -> float | None:
        """The time at which a waiting request is looked at next; None: it goes on to another pool now."""
        due_at = first_token_due_at(request) if request.passes_on else None
        if due_at is None or now >= due_at:
            return None
        ttft_s = self._waiting_ttft_s(request, now)
        return next_look(now, due_at) if ttft_s is not None and now + ttft_s <= due_at else None

    def _waiting_ttft_s(self, request: Request, now: float) -> float | None:
        """Seconds until the first token of a waiting request; None where no forecast is known."""
        tenants, waiting = self.tenants, self.tenants.queues.of(request.tenant_id).requests
        if request.id not in waiting:
            return None  # its key holds it back, and no forecast knows for how long
        tenant, ahead = tenants.states[request.tenant_id].tenant, []
        for each in islice(waiting.values(), BEFORE_MAX):
            if each.id == request.id:
                break
            ahead.append(each)
        ttft_s = self.forecaster.waiting_ttft_s(request, tenant, ahead, now)
        # The pace of the queue tells how long the next dispatch has been awaited, which the models do not.
        start_s = tenants.admission_rules.start_s(tenant.id, len(ahead), now)
        return ttft_s if start_s is None else min(start_s, inf if ttft_s is None else ttft_s)


def next_look(now: float, due_at: float) -> float:
    """The time when half of the time until `due_at` is over; `due_at` itself if less than a step remains."""
    rest_s = due_at - now
    return due_at if rest_s <= QUEUED_S_MIN else now + rest_s / 2
