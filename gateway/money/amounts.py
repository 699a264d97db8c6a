"""Amounts of money as whole numbers of picos: 10^-12 of a currency's unit. Nothing is ever rounded.

A price per million tokens has at most six decimals, so the price of one token is a whole number of picos, and so is
every sum of prices times tokens. Python's integers have no largest value.
"""

from decimal import Decimal
from typing import Final

DECIMALS: Final = 12
PICOS: Final = 10**DECIMALS
"""Picos in one unit of a currency."""
DECIMALS_SHOWN_MIN: Final = 2


def to_picos(amount: Decimal) -> int:
    """The amount in picos, which is exact for an amount of at most 12 decimals."""
    picos = amount.scaleb(DECIMALS)
    assert picos == int(picos), "amounts have fewer decimals"
    return int(picos)


def to_decimal(picos: int) -> Decimal:
    """The amount in units of its currency, exact whatever the context's precision."""
    return Decimal(f"{picos}E-{DECIMALS}")


def to_text(picos: int) -> str:
    """The exact amount in units of its currency, with at least two decimals."""
    whole, rest = divmod(abs(picos), PICOS)
    decimals = f"{rest:0{DECIMALS}}".rstrip("0").ljust(DECIMALS_SHOWN_MIN, "0")
    return f"{'-' if picos < 0 else ''}{whole}.{decimals}"
