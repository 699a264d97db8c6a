"""Requests per minute: the limit that today's gateways have, and a baseline of the VTC paper.

It counts accepted requests. The paper describes a fixed one-minute window, its code a sliding one; the
sliding window admits no burst of twice the limit around a boundary and is what the gateway uses.
"""

from collections import deque

from policies.admission.base import Refusal
from policies.queues import Queues
from policies.types import Reason, Request, Tenant

WINDOW_S = 60.0


class SlidingWindowRate:
    """At most `tenant.requests_per_minute_max` accepted requests of age up to 60 s."""

    def __init__(self) -> None:
        self._accepted: dict[str, deque[float]] = {}

    def refuse(self, request: Request, tenant: Tenant, queues: Queues, now: float) -> Refusal | None:
        limit = tenant.requests_per_minute_max
        if limit is None:
            return None
        if limit <= 0:
            return Refusal(Reason.RATE_LIMITED, WINDOW_S)
        accepted = self._accepted.get(tenant.id)
        if accepted is None:
            return None
        while accepted and now - accepted[0] > WINDOW_S:
            accepted.popleft()
        if len(accepted) < limit:
            return None
        return Refusal(Reason.RATE_LIMITED, accepted[-limit] + WINDOW_S - now)

    def admitted(self, tenant: Tenant, now: float) -> None:
        if tenant.requests_per_minute_max is not None:
            self._accepted.setdefault(tenant.id, deque()).append(now)

    def forget(self, tenant_id: str) -> None:
        self._accepted.pop(tenant_id, None)


class FixedWindowRate:
    """At most `tenant.requests_per_minute_max` accepted requests in each minute of the clock."""

    def __init__(self) -> None:
        self._accepted: dict[str, tuple[int, int]] = {}  # tenant id -> (minute, accepted in it)

    def refuse(self, request: Request, tenant: Tenant, queues: Queues, now: float) -> Refusal | None:
        limit = tenant.requests_per_minute_max
        if limit is None or self._accepted_in(tenant.id, int(now // WINDOW_S)) < limit:
            return None
        return Refusal(Reason.RATE_LIMITED, WINDOW_S - now % WINDOW_S)

    def admitted(self, tenant: Tenant, now: float) -> None:
        if tenant.requests_per_minute_max is not None:
            minute = int(now // WINDOW_S)
            self._accepted[tenant.id] = (minute, self._accepted_in(tenant.id, minute) + 1)

    def forget(self, tenant_id: str) -> None:
        self._accepted.pop(tenant_id, None)

    def _accepted_in(self, tenant_id: str, minute: int) -> int:
        last_minute, count = self._accepted.get(tenant_id, (minute, 0))
        return count if last_minute == minute else 0
