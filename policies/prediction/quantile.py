"""A tenant's own recent outputs, read at their 80th percentile.

A reservation that is too small ends in a preemption, one that is too large in an idle seat; the upper
quantile is wrong on the cheap side, and a window of the last outputs follows a tenant that changes its work.
"""

from bisect import bisect_left, insort
from collections import deque
from math import ceil

from policies.prediction.base import clamped
from policies.types import Request

QUANTILE = 0.8
WINDOW_OUTPUTS = 50
FIRST_TOKENS = 256.0  # expected per choice of a tenant never seen


class TenantQuantile:
    """The 80th percentile (nearest rank) of the tenant's last 50 outputs; at first min(limit, 256)."""

    def __init__(self) -> None:
        self._windows: dict[str, _Window] = {}

    def predict(self, request: Request) -> float:
        window = self._windows.get(request.tenant_id)
        return clamped(request, window.quantile() if window else FIRST_TOKENS)

    def observed(self, request: Request, output_tokens: int) -> None:
        window = self._windows.get(request.tenant_id)
        if window is None:
            window = self._windows[request.tenant_id] = _Window()
        window.add(output_tokens / request.choices)

    def forget(self, tenant_id: str) -> None:
        self._windows.pop(tenant_id, None)


class _Window:
    """The last outputs, in order of arrival and in order of size."""

    __slots__ = ("_arrived", "_sorted")

    def __init__(self) -> None:
        self._arrived: deque[float] = deque()
        self._sorted: list[float] = []

    def add(self, output: float) -> None:
        if len(self._arrived) == WINDOW_OUTPUTS:
            oldest = self._arrived.popleft()
            del self._sorted[bisect_left(self._sorted, oldest)]
        self._arrived.append(output)
        insort(self._sorted, output)

    def quantile(self) -> float:
        return self._sorted[ceil(QUANTILE * len(self._sorted)) - 1]
