"""Tenant quantile: predicts an upper quantile of the tenant's own recent outputs (by default the 80th percentile).

A reservation that is too small ends in a preemption, one that is too large in an idle slot. The upper
quantile errs on the cheap side, and a window of the last outputs follows a tenant that changes its work.

Some tenants use up the limit that they set: max_tokens is 100 for one summary and 500 for another. So outputs are kept
in two views, as numbers of tokens and as shares of the limit that was set. The view with the smaller recent error is
used, by the loss that a quantile minimises (Koenker and Bassett, 1978).
"""

from bisect import bisect_left, insort
from math import ceil

from policies.prediction.base import clamp_prediction
from policies.types import Request

QUANTILE = 0.8
WINDOW_OUTPUTS = 50
FIRST_TOKENS = 256.0  # predicted per choice for a new tenant
LEAD_TOKENS = 1.0  # of loss: a smaller difference between the views does not count


class TenantQuantile:
    """A quantile (nearest rank) of the tenant's last outputs, or of their shares of the limits; `first_tokens` per
    choice for a new tenant. Mutable.
    """

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
        self._tenants: dict[str, _Views] = {}

    def predict(self, request: Request) -> float:
        views = self._tenants.get(request.tenant_id)
        return clamp_prediction(
            request, self._first_tokens if views is None else views.predict(request, self._quantile)
        )

    def observed(self, request: Request, output_tokens: int) -> None:
        if not request.output_tokens_max:
            return  # a call that may not produce output says nothing of others
        views = self._tenants.get(request.tenant_id)
        if views is None:
            views = self._tenants[request.tenant_id] = _Views(self._window_outputs)
        views.observed(request, output_tokens, self._quantile)

    def forget(self, tenant_id: str) -> None:
        self._tenants.pop(tenant_id, None)


class _Views:
    """One tenant's outputs per choice: in tokens, and as shares of their limits."""

    __slots__ = ("_outputs", "_shares", "_shares_lead")

    def __init__(self, outputs_max: int) -> None:
        self._outputs = OutputWindow(outputs_max)
        self._shares = OutputWindow(outputs_max)
        self._shares_lead = 0.0  # loss of the token view minus that of the share view, fading over the window

    def predict(self, request: Request, quantile: float) -> float:
        if self._shares_lead > LEAD_TOKENS:
            return self._shares.quantile(quantile) * request.output_tokens_max / request.choices
        return self._outputs.quantile(quantile)

    def observed(self, request: Request, output_tokens: int, quantile: float) -> None:
        output, limit = output_tokens / request.choices, request.output_tokens_max / request.choices
        if len(self._outputs):
            by_tokens = _loss(output - min(self._outputs.quantile(quantile), limit), quantile)
            by_shares = _loss(output - self._shares.quantile(quantile) * limit, quantile)
            self._shares_lead += by_tokens - by_shares - self._shares_lead / self._outputs.outputs_max
        self._outputs.add(output)
        self._shares.add(output / limit)


def _loss(short: float, quantile: float) -> float:
    """Pinball loss of a prediction that was `short` tokens too low; the quantile has the least mean loss."""
    return quantile * short if short > 0.0 else (quantile - 1.0) * short


class OutputWindow:
    """The last outputs, in order of arrival and in order of size."""

    __slots__ = ("_arrived", "_sorted", "outputs_max")

    def __init__(self, outputs_max: int) -> None:
        self.outputs_max = outputs_max
        self._arrived: list[float] = []  # a deque takes 0.7 KB from the start, of each tenant
        self._sorted: list[float] = []

    def __len__(self) -> int:
        return len(self._sorted)

    def add(self, output: float) -> None:
        if len(self._arrived) == self.outputs_max:
            oldest = self._arrived.pop(0)
            del self._sorted[bisect_left(self._sorted, oldest)]
        self._arrived.append(output)
        insort(self._sorted, output)

    def quantile(self, ratio: float) -> float:
        """The output that this ratio of the outputs does not exceed (nearest rank)."""
        return self._sorted[ceil(ratio * len(self._sorted)) - 1]
