"""Retry-After: an estimate of how long a tenant's queue takes to drain, from its measured dispatch rate.

A queue of n requests that sends one every s seconds needs about n * s until a newcomer at its end would be sent. s is
the time in which a request waited, divided by the dispatches in it; both fade with the time waited. Many dispatches at
one instant count as many, an hour without work does not count, and an overdue dispatch counts at once, so the estimate
grows while nothing is dispatched.

The time at which a queued request will be sent follows from the tenant's last dispatches alone (`start_s`). Only
requests that had to wait count there: one that found a free slot does not show how fast a queue moves.
"""

from collections import deque
from math import exp

RETRY_AFTER_S_MIN = 1.0
RETRY_AFTER_S_MAX = 600.0
MEMORY_S = 60.0  # seconds of waiting after which a dispatch counts 1/e
STARTS_MAX = 32  # dispatches that say when the next ones come; docs/results/prediction.md has what other numbers gave
STARTS_MIN = 3  # fewer are chance
STARTS_S = 60.0  # after so long without one, the last ones say nothing of now
QUEUED_S_MIN = 0.01  # a request that waited less found room when the scheduler looked next: about a step of an engine


class DrainEstimate:
    """An estimate of how soon a tenant's queued requests are sent, from its last dispatches. It gives the header
    Retry-After of a rejection (`wait_s`), and the predicted start of a waiting request (`start_s`). Mutable.
    """

    def __init__(self) -> None:
        self._tenants: dict[str, _Pace] = {}
        self._all = _Pace()

    def dispatched(self, tenant_id: str, *, arrived_at: float, queued: int, now: float) -> None:
        """Record the dispatch of the tenant's oldest request; `queued` requests of all tenants still wait."""
        if tenant_id not in self._tenants:
            self._tenants[tenant_id] = _Pace()
        self._tenants[tenant_id].happened(arrived_at, now, waits=False)  # the arrival of its next head says since when
        self._all.happened(arrived_at, now, waits=queued > 0)

    def wait_s(self, tenant_id: str, *, tenant_queued: int, queued: int, head_arrived_at: float, now: float) -> float:
        """Seconds until `tenant_queued` requests of the tenant are sent, within RETRY_AFTER_S_MIN and
        RETRY_AFTER_S_MAX. The oldest arrived at `head_arrived_at`. For a tenant that has not been served yet, the pace
        and the length (`queued`) of the whole queue are used.
        """
        pace = self._tenants.get(tenant_id)
        if pace is None:
            wait_s = self._all.interval_s(head_arrived_at, now) * queued
        else:
            wait_s = pace.interval_s(head_arrived_at, now) * tenant_queued
        return min(max(wait_s, RETRY_AFTER_S_MIN), RETRY_AFTER_S_MAX)

    def start_s(self, tenant_id: str, before: int, *, head_arrived_at: float, now: float) -> float | None:
        """Seconds from `now` until the tenant's request with `before` other requests of the tenant ahead of it is sent.
        Dispatches are assumed to go on as they did lately. None where too few of the tenant's requests that waited were
        sent lately.
        """
        pace = self._tenants.get(tenant_id)
        return None if pace is None else pace.start_s(before, head_arrived_at, now)

    def forget(self, tenant_id: str) -> None:
        self._tenants.pop(tenant_id, None)


class _Pace:
    """The pace of one queue: dispatches, and the time waited for them, over about the last minute of waiting."""

    __slots__ = ("_dispatches", "_last_at", "_started_at", "_starts", "_waited_s", "_waits")

    def __init__(self) -> None:
        self._dispatches = 0.0
        self._waited_s = 0.0
        self._last_at = float("-inf")
        self._starts: deque[float] | None = None  # the waits for the last dispatches of what was queued, in seconds
        self._started_at = float("-inf")  # the last of these
        self._waits = False  # whether a request has waited ever since the last dispatch

    def happened(self, arrived_at: float, now: float, *, waits: bool) -> None:
        """A request was dispatched that arrived then; `waits`: another is waiting since before."""
        since = self._last_at if self._waits or self._last_at > arrived_at else arrived_at
        waited_s = now - since if now > since else 0.0  # `_waiting_s`, inlined
        self._waits = waits
        if waited_s:
            fade = exp(-waited_s / MEMORY_S)
            self._dispatches *= fade
            self._waited_s = self._waited_s * fade + waited_s
        self._dispatches += 1.0
        self._last_at = now
        if now - arrived_at >= QUEUED_S_MIN:
            if self._starts is None:
                self._starts = deque(maxlen=STARTS_MAX)
            self._starts.append(waited_s)
            self._started_at = now

    def start_s(self, before: int, arrived_at: float, now: float) -> float | None:
        """Seconds until the dispatch after `before` others, if the request of the next dispatch arrived at
        `arrived_at`.
        """
        starts = self._starts
        if starts is None or len(starts) < STARTS_MIN or now - self._started_at > STARTS_S:
            return None
        elapsed_s = self._waiting_s(arrived_at, now)
        # An overdue dispatch counts, so that a queue which has come to a stop shows it.
        interval_s = max(sum(starts) / len(starts), (sum(starts) + elapsed_s) / (len(starts) + 1))
        # The next one is not due at once because it is late: half an interval is the mean rest of a regular one.
        return before * interval_s + max(interval_s - elapsed_s, interval_s / 2)

    def interval_s(self, arrived_at: float, now: float) -> float:
        """Seconds per dispatch, if the request of the next dispatch arrived at `arrived_at`."""
        overdue_s = self._waiting_s(arrived_at, now)
        fade = exp(-overdue_s / MEMORY_S)
        return (self._waited_s * fade + overdue_s) / max(self._dispatches * fade, 1.0)

    def _waiting_s(self, arrived_at: float, now: float) -> float:
        """Seconds for which a request has waited for the next dispatch."""
        since = self._last_at if self._waits or self._last_at > arrived_at else arrived_at
        return now - since if now > since else 0.0
