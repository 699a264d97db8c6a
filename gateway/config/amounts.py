"""Amounts of money, never floating-point numbers: decimals in a configuration, whole numbers of picos (10^-12 of a
currency's unit) in sums.

An amount has at most nine digits before the decimal point and six behind it. So it is a whole number of millionths, and
a decimal of at most 15 digits survives a reader of YAML or JSON that makes a floating-point number of it (DBL_DIG of
C's float.h). So the price of one token, of a price per million, is a whole number of picos, and so is every sum of
prices times tokens: nothing is ever rounded. Python's integers have no largest value.
"""

import re
from decimal import Decimal
from typing import Annotated, Final

from pydantic import AfterValidator, BeforeValidator, Field, PlainSerializer

from gateway.config.value_types import AMOUNT_PATTERN, PATTERNS, InJson, whole

AMOUNT_MAX = 999_999_999
DECIMALS: Final = 12
PICOS: Final = 10**DECIMALS
"""Picos in one unit of a currency."""
DECIMALS_SHOWN_MIN: Final = 2

_AMOUNT = re.compile(AMOUNT_PATTERN, re.ASCII)
# Helm writes 0.000001 as 1e-06, which YAML 1.1 reads as text.
_WRITTEN = re.compile(r"[0-9]{1,15}(\.[0-9]{1,15})?([eE][+-]?[0-9]{1,2})?", re.ASCII)


def _amount(value: object) -> Decimal:
    """Read an amount from a value of YAML or JSON: text, an integer, or a floating-point number by its text."""
    written = repr(value) if isinstance(value, int | float) else str(value)
    number = Decimal(written) if not isinstance(value, bool) and _WRITTEN.fullmatch(written) else None
    if number is not None and "e" in written.lower():
        number = number.normalize()  # 1.50e+01 has no more decimals than 15
    if number is None or not _AMOUNT.fullmatch(f"{number:f}"):
        raise ValueError(f"must be {PATTERNS[AMOUNT_PATTERN]}")
    return number


def _plain(amount: Decimal) -> str:
    """The amount as text without an exponent."""
    return f"{amount:f}"


Amount = Annotated[
    Decimal,
    BeforeValidator(_amount),
    InJson(
        Annotated[
            Annotated[str, Field(pattern=AMOUNT_PATTERN)]
            | Annotated[int, Field(ge=0, le=AMOUNT_MAX), BeforeValidator(whole)],
            AfterValidator(_amount),
        ],
        {
            "anyOf": [
                {"type": "string", "pattern": AMOUNT_PATTERN},
                {"type": "number", "minimum": 0, "maximum": AMOUNT_MAX},
            ]
        },
    ),
    PlainSerializer(_plain, return_type=str, when_used="json"),
]
"""An amount of money of at most nine digits before the decimal point and six behind it. JSON has it as text or as a
whole number, a file as any number, too.
"""


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
