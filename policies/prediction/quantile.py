"""A tenant's own recent outputs, read at an upper quantile (by default their 80th percentile).

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
    """A quantile (nearest rank) of the tenant's last outputs; `first_tokens` of a tenant never seen."""

    def __init__(
        self,
        *,
        quantile: float = QUANTILE,
        window_outputs: int = WINDOW_OUTPUTS,
        first_tokens: float = FIRST_TOKENS,
    ) -> None:
        """`quantile` is in (0, 1]; `window_outputs` how many outputs of a tenant are remembered."""
        self._quantile = quantile
        self._window_outputs = window_outputs
        self._first_tokens = first_tokens
        self._windows: dict[str, OutputWindow] = {}

    def predict(self, request: Request) -> float:
        window = self._windows.get(request.tenant_id)
        return clamped(request, window.quantile(self._quantile) if window is not None else self._first_tokens)

    def observed(self, request: Request, output_tokens: int) -> None:
        window = self._windows.get(request.tenant_id)
        if window is None:
            window = self._windows[request.tenant_id] = OutputWindow(self._window_outputs)
        window.add(output_tokens / request.choices)

    def forget(self, tenant_id: str) -> None:
        self._windows.pop(tenant_id, None)


class OutputWindow:
    """The last outputs, in order of arrival and in order of size."""

    __slots__ = ("_arrived", "_outputs_max", "_sorted")

    def __init__(self, outputs_max: int) -> None:
        self._outputs_max = outputs_max
        self._arrived: deque[float] = deque()
        self._sorted: list[float] = []

    def __len__(self) -> int:
        return len(self._sorted)

    def add(self, output: float) -> None:
        if len(self._arrived) == self._outputs_max:
            oldest = self._arrived.popleft()
            del self._sorted[bisect_left(self._sorted, oldest)]
        self._arrived.append(output)
        insort(self._sorted, output)

    def quantile(self, ratio: float) -> float:
        """The output that this ratio of the outputs does not exceed (nearest rank)."""
        return self._sorted[ceil(ratio * len(self._sorted)) - 1]
