"""CallPricing: the cost of each call, set when it has ended (money/pricing.py)."""

from collections.abc import Callable

from gateway.money.pricing import PriceBook
from gateway.observability.telemetry import CallTrace


class CallPricing:
    """Sets the cost of calls that end, before others count them."""

    def __init__(self, prices: PriceBook, today: Callable[[], str]) -> None:
        """`today` is the day that usage is counted on."""
        self._prices = prices
        self._today = today

    def ended(self, trace: CallTrace) -> None:
        """Set the call's cost, where it was served and its model has a price."""
        usage = trace.usage
        if usage is None or trace.tenant_id is None or self._prices.currency is None:
            return
        prices = self._prices.prices(trace.model or "", self._today())
        if prices is None:
            trace.is_unpriced = True
        else:
            cached_tokens = min(usage.cached_tokens, usage.prompt_tokens)
            trace.cost = prices.cost(usage.prompt_tokens, cached_tokens, usage.output_tokens)
            trace.currency = self._prices.currency
