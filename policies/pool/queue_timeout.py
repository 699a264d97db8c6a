"""Queue timeout: how long a request may wait, and with which reason it is rejected then.

No request waits longer than `wait_s_max`. In a tier that rejects requests that would miss their target, a request waits
at most until its first token is due: after that it is certainly late, whatever the forecast. So does one that may go to
another pool.
"""

from collections.abc import Callable
from dataclasses import dataclass

from policies.due_times import first_token_due_at
from policies.types import Reason, Request, Tier


@dataclass(frozen=True, slots=True)
class QueueTimeout:
    """The queue timeout of one pool. `wait_s_max` is in seconds; `tier` maps a tenant's id to its tier."""

    wait_s_max: float
    tier: Callable[[str], Tier]

    def ends_at(self, request: Request, now: float) -> float:
        """When the wait of the request ends, which waits since `now` or was queued before. What its client has a part
        of waits anew, and is in time whenever it goes on.
        """
        if request.produced_tokens:
            return now + self.wait_s_max
        waited_at, due_at = request.arrived_at + self.wait_s_max, first_token_due_at(request)
        rejects_misses = request.passes_on or self.tier(request.tenant_id).rejects_misses
        return due_at if due_at is not None and due_at < waited_at and rejects_misses else waited_at

    def reason(self, request: Request, now: float) -> Reason:
        """Why a request is rejected whose wait has ended by `now`."""
        return (
            Reason.QUEUE_TIMEOUT
            if request.produced_tokens or now >= request.arrived_at + self.wait_s_max
            else Reason.SLO_UNREACHABLE
        )
