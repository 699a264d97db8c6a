"""PriceBook: the present price lists, and the cost of tokens by them.

Cost is not counted: it is tokens times the price of their day, so it always agrees with the counters of tokens. A day's
price is the price that the present lists have for that day. A planned change is a period that begins on a later day; an
edit of a period that has begun corrects the cost of its days. Days are UTC, as in usage and budgets.
"""

import logging
import zlib
from bisect import bisect_right
from collections import Counter
from collections.abc import Mapping
from datetime import date
from typing import NamedTuple

from gateway.config.amounts import to_picos
from gateway.config.prices import PricePeriod, PriceSection

MILLION = 10**6  # tokens that a price is for

log = logging.getLogger(__name__)


class TokenPrices(NamedTuple):
    """The prices of one prompt token, cached prompt token and output token, in picos (10^-12 of the currency)."""

    prompt: int
    cached: int
    output: int

    def cost(self, prompt_tokens: int, cached_tokens: int, output_tokens: int) -> int:
        """The cost of these tokens in picos; cached tokens are a part of the prompt tokens. The cost of a sum is the
        sum of the costs.
        """
        fresh_tokens = max(prompt_tokens - cached_tokens, 0)  # a backend may report anything
        return fresh_tokens * self.prompt + cached_tokens * self.cached + output_tokens * self.output


class PriceBook:
    """The price lists of all models: it finds a model's prices on a day. Mutable."""

    def __init__(self) -> None:
        self._periods: dict[str, tuple[list[str], list[TokenPrices]]] = {}  # first days, and the prices from then on
        self.currency: str | None = None
        """The currency of the prices (ISO 4217); None: there are no prices."""
        self.version = ""
        """A number that changes with the prices."""

    def replace(self, sections: Mapping[str, PriceSection]) -> None:
        """Replace the present price lists by these, which are given by model. Lists in another currency than most have
        no effect: the file and the admin API may disagree.
        """
        currencies = Counter(section.currency for section in sections.values())
        self.currency = max(sorted(currencies), key=currencies.__getitem__, default=None)
        agreeing = {name: each for name, each in sections.items() if each.currency == self.currency}
        for name in sorted(sections.keys() - agreeing.keys()):
            log.error("the price list of %s is not in %s as others are, and has no effect", name, self.currency)
        self._periods = {name: _by_day(section) for name, section in agreeing.items()}
        known = sorted((name, section.model_dump_json()) for name, section in agreeing.items())
        self.version = f"{zlib.crc32(repr(known).encode()):08x}" if known else ""

    def prices(self, model: str, day: str) -> TokenPrices | None:
        """The prices of this model on this day (like 2026-11-20); None where the model has no price."""
        found = self._periods.get(model)
        if found is None:
            return None
        first_days, prices = found
        number = bisect_right(first_days, day)
        return prices[number - 1] if number else None


def _by_day(section: PriceSection) -> tuple[list[str], list[TokenPrices]]:
    periods = sorted(section.periods, key=_first_day)
    return [_first_day(each).isoformat() for each in periods], [_token_prices(each) for each in periods]


def _first_day(period: PricePeriod) -> date:
    return period.valid_from or date.min


def _token_prices(period: PricePeriod) -> TokenPrices:
    cached = period.prompt if period.cached_prompt is None else period.cached_prompt
    return TokenPrices(*(to_picos(price) // MILLION for price in (period.prompt, cached, period.output)))
