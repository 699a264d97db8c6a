"""Amounts: what calls count for in budgets, in tokens and in money."""

from collections.abc import Callable

from gateway.budgets.accounts import BudgetUse, Unit
from gateway.money.pricing import PriceBook
from gateway.store.base import Totals, UsageKey


class Amounts:
    """The amounts of usage and of calls by the present price lists. A model without a price costs nothing."""

    def __init__(self, prices: PriceBook, today: Callable[[], str]) -> None:
        """`today` is the day by whose prices a call is admitted."""
        self._prices = prices
        self._today = today

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
