"""RunExposure: the service bound that a policy guarantees in a run, with U as the run determined it.

U is the exposure: the distance by which counters can diverge although every choice was right. It is the larger of the
price of the longest prompt and the price of the output of all requests in flight at once. This output is the actual and
the expected output, limited by the engines' KV tokens. The charge for a prompt before its cached part is known counts,
too. The bound is a multiple of U + K, and larger where tenants are capped or charges are refunded
(policies/fairness/bounds.py).
"""

from gateway.observability.metrics.service_gap import GapBound
from policies.accounts.cost import Price
from policies.types import Request


class RunExposure:
    """The exposure U of a simulated run: the service by which tenants' counters can differ although every decision was
    right. The run's bound on service gaps is a multiple of it. Mutable: it grows as requests are sent.
    """

    def __init__(self, price: Price, *, kv_tokens: int, engines: int = 1) -> None:
        self._price = price
        self._engines = engines
        self._expected = price.service(0, 0, kv_tokens)
        self._prompt_max = 0.0
        self._open = _GapPeak()
        self._refundable = _GapPeak()

    @property
    def service(self) -> float:
        """The value of U where requests wait for all engines together."""
        return max(self._expected, self._prompt_max, self._open.highest)

    def promised(self, promise: GapBound) -> float | None:
        """The largest allowed difference in service of two tenants that both wait; None: the bound does not hold."""
        bound = promise.bound
        if bound.until_refund and self._refundable.highest:
            return None
        queues = self._engines if promise.is_per_engine else 1
        sides = max(self.service, queues * self._prompt_max) + queues * promise.ahead_service
        if promise.is_capped:
            sides += max(self._expected, self._open.highest)
        if bound.plus_refunds:
            sides += self._refundable.highest
        return bound.both_wait * sides

    def dispatched(self, request: Request) -> None:
        self._prompt_max = max(self._prompt_max, self._price.service(request.prompt_tokens, 0, 0))
        refundable = self._cached_at_most(request)
        self._refundable.add(refundable)
        self._open.add(self._output(request) + refundable)

    def ended(self, request: Request) -> None:
        refundable = self._cached_at_most(request)
        self._refundable.add(-refundable)
        self._open.add(-self._output(request) - refundable)

    def _output(self, request: Request) -> float:
        output_tokens = request.output_tokens_known or request.output_tokens_max
        return self._price.service(request.prompt_tokens, 0, output_tokens) - self._price.service(
            request.prompt_tokens, 0, 0
        )

    def _cached_at_most(self, request: Request) -> float:
        """The refund for a prompt if all of it is found in a cache."""
        if not request.prefix:
            return 0.0
        prompt_tokens = request.prompt_tokens
        return self._price.service(prompt_tokens, 0, 0) - self._price.service(prompt_tokens, prompt_tokens, 0)


class _GapPeak:
    """A sum that changes, and the highest value that it has had."""

    __slots__ = ("_now", "highest")

    def __init__(self) -> None:
        self._now = 0.0
        self.highest = 0.0

    def add(self, amount: float) -> None:
        self._now += amount
        self.highest = max(self.highest, self._now)
