"""Queue timeout: how long a request may wait, and for which reason it is rejected after that.

No request waits longer than `wait_s_max`. In a tier that rejects requests that would miss their target, a request waits
at most until its first token is due: after that it is certainly late, whatever the forecast. For a request that may go
to another pool, each timeout is a check of whether it should (passing_on.py); the last check is at that time.
"""

from collections.abc import Callable
from dataclasses import dataclass

from policies.due_times import first_token_due_at
from policies.pool.passing_on import next_look
from policies.types import Reason, Request, Tier


@dataclass(frozen=True, slots=True)
class QueueTimeout:
    """The rule for how long a request of one pool may wait: `wait_s_max` seconds from its arrival. If its tenant's tier
    (`tier` returns it) has `rejects_misses`, a request that cannot meet its latency target is rejected: it waits at
    most until its first token is due.
    """

    wait_s_max: float
    tier: Callable[[str], Tier]

    def ends_at(self, request: Request, now: float) -> float:
        """The time at which the wait of a request ends, if it waits since `now` or was queued before. A request whose
        client already has a part of the answer waits from now, because it cannot be late any more.
        """
        if request.produced_tokens:
            return now + self.wait_s_max
        waited_at = request.arrived_at + self.wait_s_max
        due_at = None if request.envelope is None else first_token_due_at(request)
        if due_at is None or due_at >= waited_at:
            return waited_at
        if request.passes_on:
            return next_look(now, due_at)
        return due_at if self.tier(request.tenant_id).rejects_misses else waited_at

    def reason(self, request: Request, now: float) -> Reason:
        """The reason for which a request is rejected whose wait has ended by `now`."""
        return (
            Reason.QUEUE_TIMEOUT
            if request.produced_tokens or now >= request.arrived_at + self.wait_s_max
            else Reason.SLO_UNREACHABLE
        )
