"""How long may a request wait, and what is it told then?

No longer than any request may; and in a tier that refuses what cannot be in time, no longer than until its first
token is due: from then on it is late for certain, whatever is forecast.
"""

from collections.abc import Callable
from dataclasses import dataclass

from policies.envelope import first_token_due_at
from policies.types import Reason, Request, Tier


@dataclass(frozen=True, slots=True)
class QueueTimeout:
    """`tier` gives the tier of a tenant's id."""

    wait_s_max: float
    tier: Callable[[str], Tier]

    def ends_at(self, request: Request) -> float:
        """When it has waited long enough."""
        waited_at, due_at = request.arrived_at + self.wait_s_max, first_token_due_at(request)
        if due_at is None or due_at >= waited_at or not self.tier(request.tenant_id).rejects_misses:
            return waited_at
        return due_at

    def reason(self, request: Request, now: float) -> Reason:
        """Why a request is refused whose time has run out."""
        return Reason.QUEUE_TIMEOUT if now >= request.arrived_at + self.wait_s_max else Reason.SLO_UNREACHABLE
