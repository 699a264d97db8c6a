"""How long until a refused tenant's queue has room: the honest Retry-After.

A queue of n requests that sends one every s seconds needs about n * s until a newcomer at its end would be
sent. The interval is averaged over recent dispatches, and a dispatch that is overdue counts at once, so the
answer grows while nothing moves.
"""

RETRY_AFTER_S_MIN = 1.0
RETRY_AFTER_S_MAX = 600.0
SMOOTHING = 0.2  # weight of the newest interval


class DrainEstimate:
    """How soon will this tenant's queue have drained?"""

    def __init__(self) -> None:
        self._tenants: dict[str, _Intervals] = {}
        self._all = _Intervals()

    def dispatched(self, tenant_id: str, now: float) -> None:
        self._tenants.setdefault(tenant_id, _Intervals()).happened(now)
        self._all.happened(now)

    def wait_s(self, tenant_id: str, *, tenant_queued: int, queued: int, now: float) -> float:
        """Seconds until `tenant_queued` requests of the tenant are sent; judged by the whole
        queue's pace (`queued` requests) for a tenant that has not been served yet.
        """
        intervals = self._tenants.get(tenant_id)
        interval_s = intervals.interval_s(now) if intervals else None
        own_wait_s = None if interval_s is None else interval_s * tenant_queued
        wait_s = (self._all.interval_s(now) or 0.0) * queued if own_wait_s is None else own_wait_s
        return min(max(wait_s, RETRY_AFTER_S_MIN), RETRY_AFTER_S_MAX)

    def forget(self, tenant_id: str) -> None:
        self._tenants.pop(tenant_id, None)


class _Intervals:
    """Smoothed seconds between events."""

    __slots__ = ("_average_s", "_last_at")

    def __init__(self) -> None:
        self._last_at: float | None = None
        self._average_s: float | None = None

    def happened(self, now: float) -> None:
        if self._last_at is not None:
            interval_s = now - self._last_at
            before = self._average_s
            self._average_s = interval_s if before is None else before + SMOOTHING * (interval_s - before)
        self._last_at = now

    def interval_s(self, now: float) -> float | None:
        if self._last_at is None:
            return None
        overdue_s = now - self._last_at
        return overdue_s if self._average_s is None else max(self._average_s, overdue_s)
