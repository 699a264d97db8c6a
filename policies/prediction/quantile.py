"""Tenant quantile: predicts an upper quantile of the tenant's own recent outputs (by default the 80th percentile).

A reservation that is too small ends in a preemption, one that is too large in an idle slot. The upper
quantile errs on the cheap side, and a window of the last outputs follows a tenant that changes its work.

Some tenants use up the limit that they set: max_tokens is 100 for one summary and 500 for another. So outputs are kept
in two views, as numbers of tokens and as shares of the limit that was set. The view with the smaller recent error is
used, by the loss that a quantile minimises (Koenker and Bassett, 1978).
"""

from bisect import bisect_left, insort
from math import ceil

from policies.types import Request

QUANTILE = 0.8
WINDOW_OUTPUTS = 50
FIRST_TOKENS = 256.0  # predicted per choice for a new tenant
LEAD_TOKENS = 1.0  # of loss: a smaller difference between the views does not count


class TenantQuantile:
    """A predictor: a quantile (nearest rank) of the tenant's last output lengths. The lengths are taken in tokens, or
    as parts of each request's limit, whichever predicted better. A new tenant gets `first_tokens` tokens per choice.
    Mutable.
    """

    def __init__(
        self,
        *,
        quantile: float = QUANTILE,
        window_outputs: int = WINDOW_OUTPUTS,
        first_tokens: float = FIRST_TOKENS,
    ) -> None:
        """`quantile` is in (0, 1]; `window_outputs` is the number of outputs kept per tenant."""
        self._quantile = quantile
        self._window_outputs = window_outputs
        self._first_tokens = first_tokens
        self._tenants: dict[str, _Views] = {}

    def predict(self, request: Request) -> float:
        choices, limit = request.choices, request.output_tokens_max
        if request.tenant_id not in self._tenants:
            first_tokens = self._first_tokens * choices
            if limit < first_tokens:  # `clamp_prediction`, inlined: every decision asks
                return limit
            return first_tokens
        views = self._tenants[request.tenant_id]
        per_choice = (
            views.shares.quantile * limit / choices if views.shares_lead > LEAD_TOKENS else views.outputs.quantile
        )
        output_tokens = per_choice * choices
        if limit < output_tokens:
            return limit
        return output_tokens

    def observed(self, request: Request, output_tokens: int) -> None:
        if not request.output_tokens_max:
            return  # a call that may not produce output says nothing of others
        if request.tenant_id not in self._tenants:
            self._tenants[request.tenant_id] = _Views(self._window_outputs, self._quantile)
        views = self._tenants[request.tenant_id]
        output, limit = output_tokens / request.choices, request.output_tokens_max / request.choices
        outputs, shares, quantile = views.outputs, views.shares, self._quantile
        if outputs.arrived:
            # The pinball loss of both predictions: the quantile has the least mean loss.
            predicted = outputs.quantile if outputs.quantile < limit else limit
            by_tokens, by_shares = output - predicted, output - shares.quantile * limit
            by_tokens *= quantile if by_tokens > 0.0 else quantile - 1.0
            by_shares *= quantile if by_shares > 0.0 else quantile - 1.0
            views.shares_lead += by_tokens - by_shares - views.shares_lead / outputs.outputs_max
        outputs.add(output)
        shares.add(output / limit)

    def forget(self, tenant_id: str) -> None:
        self._tenants.pop(tenant_id, None)


class _Views:
    """One tenant's outputs per choice: in tokens, and as shares of their limits."""

    __slots__ = ("outputs", "shares", "shares_lead")

    def __init__(self, outputs_max: int, quantile: float) -> None:
        self.outputs = OutputWindow(outputs_max, quantile)
        self.shares = OutputWindow(outputs_max, quantile)
        self.shares_lead = 0.0
        """Loss of the token view minus that of the share view, fading over the window."""


class OutputWindow:
    """The lengths of a tenant's last outputs, in order of arrival and in order of size, and a quantile of them.
    Mutable.
    """

    __slots__ = ("_oldest", "_ratio", "_sorted", "arrived", "outputs_max", "quantile")

    def __init__(self, outputs_max: int, ratio: float) -> None:
        self.outputs_max = outputs_max
        self.arrived: list[float] = []  # in a ring; a deque takes 0.7 KB from the start, of each tenant
        self.quantile = 0.0
        """The output that this ratio of the outputs does not exceed (nearest rank), once there are any."""
        self._ratio = ratio
        self._sorted: list[float] = []
        self._oldest = -1  # the place of the oldest in `arrived` once that is full, where the next one is put

    def add(self, output: float) -> None:
        arrived, ranked, oldest = self.arrived, self._sorted, self._oldest
        if oldest < 0:
            arrived.append(output)
            if len(arrived) == self.outputs_max:
                self._oldest = 0
        else:
            before, arrived[oldest] = arrived[oldest], output
            self._oldest = (oldest + 1) % self.outputs_max
            if before == output:
                return
            del ranked[bisect_left(ranked, before)]
        insort(ranked, output)
        self.quantile = ranked[ceil(self._ratio * len(ranked)) - 1]
