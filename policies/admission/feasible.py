"""Can this request be in time? And if not: its tier says whether it is refused at once or waits all the same.

By the outlook, and only where that is sure: what nobody knows refuses nobody. A forecast may be wrong by a quarter, and
is taken at its best. A refused request may try again when what makes it late has passed, if nothing else comes: an
instant by which it would be late is an instant less of queue.

Where a request of a protected tier would be late there is too much work, and for as long as it would be late
sheddable tiers are let in no more. What they have waiting keeps its share, so that nobody starves; what they run is
never cut off.
"""

from collections.abc import Callable, Mapping

from policies.admission.base import Admission, AdmissionReject
from policies.envelope import first_token_due_at
from policies.queues import PoolQueues
from policies.types import Reason, Request, Tenant, Tier

FORECAST_ERROR_RATIO = 0.25
RETRY_AFTER_S_MIN = 1.0
RETRY_AFTER_S_MAX = 600.0
OVERLOAD_S_MAX = 10.0  # one hopeless request does not shut others out for longer


class Feasibility(Admission):
    """Would its first token come in time, and do those who may be shed leave room for that?"""

    def __init__(
        self,
        *,
        tiers: Mapping[str, Tier],
        ttft_s: Callable[[Request, Tenant, float], float | None],
        is_hopeless: Callable[[Request, float, float], bool],
    ) -> None:
        """`ttft_s` forecasts how many seconds from now a request would have its first token, None where nobody can be
        sure; `is_hopeless` knows whether it could not be in time, by when it is due, even if there were no other.
        """
        self._tiers = tiers
        self._ttft_s = ttft_s
        self._is_hopeless = is_hopeless
        self._overloaded_until = float("-inf")

    def refuse(self, request: Request, tenant: Tenant, queues: PoolQueues, now: float) -> AdmissionReject | None:
        if now < self._overloaded_until and self._tiers[tenant.tier_id].is_sheddable:
            return AdmissionReject(Reason.SHED, max(RETRY_AFTER_S_MIN, self._overloaded_until - now))
        due_at = first_token_due_at(request)
        if due_at is None:
            return None
        tier = self._tiers[tenant.tier_id]
        if not (tier.rejects_misses or self._may_shed_for(tier)):
            return None
        forecast_s = self._ttft_s(request, tenant, now)
        # Too late by so much, at the best.
        late_s = 0.0 if forecast_s is None else now + forecast_s * (1.0 - FORECAST_ERROR_RATIO) - due_at
        if late_s <= 0.0:
            return None
        is_hopeless = self._is_hopeless(request, due_at, now)
        if not is_hopeless and self._may_shed_for(tier):
            # Whoever asks for less time than he was given does not ask it of others.
            shed_s = min(late_s - _asked_less_s(request), OVERLOAD_S_MAX)
            self._overloaded_until = max(self._overloaded_until, now + shed_s)
        if not tier.rejects_misses:
            return None
        # What could not be in time alone will not be later.
        retry_after_s = RETRY_AFTER_S_MAX if is_hopeless else min(max(late_s, RETRY_AFTER_S_MIN), RETRY_AFTER_S_MAX)
        return AdmissionReject(Reason.SLO_UNREACHABLE, retry_after_s)

    def _may_shed_for(self, tier: Tier) -> bool:
        """Whether others are shut out for requests of this tier."""
        return not tier.is_sheddable and any(each.is_sheddable for each in self._tiers.values())


def _asked_less_s(request: Request) -> float:
    """How much less time the request asks for than its tenant was given."""
    envelope = request.envelope
    if envelope is None or envelope.ttft_s is None or envelope.ttft_s_given is None:
        return 0.0
    return envelope.ttft_s_given - envelope.ttft_s
