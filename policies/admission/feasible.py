"""Feasibility: whether a request's first token can come in time. If not, its tier says whether it is rejected or waits.

The decision uses the TTFT forecast: without one no request is rejected. A forecast may be wrong by a quarter, and the
best case is taken. Retry-After is the time by which the request would be late: if no other request arrives, the queue
ahead is shorter by that much then.

If a request of a tier that is not sheddable would be late, the pool is overloaded: sheddable tiers are not admitted for
the time by which it would be late. Their waiting requests keep their share, so that no tenant starves; their running
requests are never aborted.
"""

from collections.abc import Callable, Mapping

from policies.admission.base import Admission, AdmissionReject
from policies.due_times import first_token_due_at
from policies.queues import PoolQueues
from policies.types import Reason, Request, Tenant, Tier

FORECAST_ERROR_RATIO = 0.25
RETRY_AFTER_S_MIN = 1.0
RETRY_AFTER_S_MAX = 600.0
OVERLOAD_S_MAX = 10.0  # the longest time that one late request keeps sheddable tiers out


class Feasibility(Admission):
    """An admission rule that rejects a request whose first token is forecast to come after its TTFT target, if the
    request's tier says so. If a request of a tier that may not be shed would be late, the pool is overloaded. The rule
    then rejects all requests of tiers that may be shed, for at most as many seconds as that request would be late.
    Mutable.
    """

    def __init__(
        self,
        *,
        tiers: Mapping[str, Tier],
        ttft_s: Callable[[Request, Tenant, float], float | None],
        is_hopeless: Callable[[Request, float, float], bool],
    ) -> None:
        """`ttft_s(request, tenant, now)` forecasts the seconds from now until the first token; None without a forecast.
        `is_hopeless(request, due_at, now)` tells whether the request would be late even if no other request waited.
        """
        self._tiers = tiers
        self._ttft_s = ttft_s
        self._is_hopeless = is_hopeless
        self._overloaded_until = float("-inf")

    def check(self, request: Request, tenant: Tenant, queues: PoolQueues, now: float) -> AdmissionReject | None:
        if request.envelope is None and now >= self._overloaded_until:
            return None
        if now < self._overloaded_until and self._tiers[tenant.tier_id].is_sheddable:
            return AdmissionReject(Reason.SHED, max(RETRY_AFTER_S_MIN, self._overloaded_until - now))
        due_at = first_token_due_at(request)
        if due_at is None:
            return None
        tier = self._tiers[tenant.tier_id]
        if not (tier.rejects_misses or self._may_shed_for(tier)):
            return None
        forecast_s = self._ttft_s(request, tenant, now)
        # Seconds late, in the best case.
        late_s = 0.0 if forecast_s is None else now + forecast_s * (1.0 - FORECAST_ERROR_RATIO) - due_at
        if late_s <= 0.0:
            return None
        is_hopeless = self._is_hopeless(request, due_at, now)
        if not is_hopeless and self._may_shed_for(tier):
            # A request with a tighter TTFT than its tenant's envelope does not tighten it at the cost of others.
            shed_s = min(late_s - _asked_less_s(request), OVERLOAD_S_MAX)
            self._overloaded_until = max(self._overloaded_until, now + shed_s)
        if not tier.rejects_misses:
            return None
        # A request that could not be in time alone cannot be later either.
        retry_after_s = RETRY_AFTER_S_MAX if is_hopeless else min(max(late_s, RETRY_AFTER_S_MIN), RETRY_AFTER_S_MAX)
        return AdmissionReject(Reason.SLO_UNREACHABLE, retry_after_s)

    def _may_shed_for(self, tier: Tier) -> bool:
        """Whether sheddable tiers are kept out to make room for requests of this tier."""
        return not tier.is_sheddable and any(each.is_sheddable for each in self._tiers.values())


def _asked_less_s(request: Request) -> float:
    """Seconds by which the request's TTFT target is tighter than its tenant's."""
    envelope = request.envelope
    if envelope is None or envelope.ttft_s is None or envelope.ttft_s_given is None:
        return 0.0
    return envelope.ttft_s_given - envelope.ttft_s
