"""Amounts of money in a configuration: decimals, never floating-point numbers.

An amount has at most nine digits before the decimal point and six behind it. So it is a whole number of millionths, and
a decimal of at most 15 digits survives a reader of YAML or JSON that makes a floating-point number of it (DBL_DIG of
C's float.h).
"""

import re
from decimal import Decimal
from typing import Annotated

from pydantic import AfterValidator, BeforeValidator, Field, PlainSerializer

from gateway.config.value_types import AMOUNT_PATTERN, PATTERNS, InJson, whole

AMOUNT_MAX = 999_999_999

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
