"""Amounts: what calls count for in budgets, in tokens and in money, and what each call cost that has ended."""

from collections.abc import Callable

from gateway.budgets.accounts import BudgetUse, Unit
from gateway.money.pricing import PriceBook
from gateway.observability.telemetry import CallTrace
from gateway.store.base import Totals, UsageKey


class Amounts:
    """The amounts of usage and of calls by the present price lists. A model without a price costs nothing."""

    def __init__(self, prices: PriceBook, today: Callable[[], str]) -> None:
        """`today` is the day by whose prices a call is admitted."""
        self._prices = prices
        self._today = today

    @property
    def priced_by(self) -> str:
        """The version of the prices of now."""
        return self._prices.version

    def of_usage(self, unit: Unit, of: UsageKey, totals: Totals) -> int:
        """The amount that this usage counts for, in this unit."""
        if unit is Unit.TOKENS:
            return totals.prompt_tokens + totals.output_tokens
        prices = self._prices.prices(of.model, of.day)
        return 0 if prices is None else prices.cost(totals.prompt_tokens, totals.cached_tokens, totals.output_tokens)

    def cost(self, model: str, prompt_tokens: int, output_tokens: int) -> int:
        """The cost of a prompt and so many output tokens, in picos."""
        prices = self._prices.prices(model, self._today())
        return 0 if prices is None else prices.cost(prompt_tokens, 0, output_tokens)

    def exceeds(self, use: BudgetUse, model: str, prompt_tokens: int) -> bool:
        """Whether a prompt does not fit into what is left of this budget."""
        if use.unit is Unit.TOKENS:
            return prompt_tokens > use.remaining
        # A free prompt fits into nothing if its answer is not free.
        return self.cost(model, prompt_tokens, 1) > 0 and (
            use.remaining == 0 or self.cost(model, prompt_tokens, 0) > use.remaining
        )


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
