"""Amounts of money in a configuration: decimals, never floating-point numbers.

An amount has at most nine digits before the decimal point and six behind it. So it is a whole number of millionths, and
a decimal of at most 15 digits survives a reader of YAML or JSON that makes a floating-point number of it (DBL_DIG of
C's float.h).
"""

import re
from decimal import Decimal
from math import isfinite
from typing import Annotated

from pydantic import BeforeValidator, PlainSerializer, WithJsonSchema

AMOUNT_PATTERN = r"^[0-9]{1,9}(\.[0-9]{1,6})?$"

_AMOUNT = re.compile(AMOUNT_PATTERN, re.ASCII)


def _amount(value: object) -> Decimal:
    """Reads an amount from what YAML and JSON make of it: text, an integer, or a floating-point number by its shortest
    text.
    """
    number = Decimal(repr(value)) if isinstance(value, float) and isfinite(value) else value
    text = f"{number:f}" if isinstance(number, Decimal) else str(number)
    if isinstance(value, bool) or not _AMOUNT.fullmatch(text):
        raise ValueError("must be an amount, with at most 9 digits before the decimal point and 6 behind it")
    return Decimal(text)


Amount = Annotated[
    Decimal,
    BeforeValidator(_amount),
    PlainSerializer("{:f}".format, return_type=str, when_used="json"),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "string", "pattern": AMOUNT_PATTERN},
                {"type": "number", "minimum": 0, "maximum": 999_999_999},
            ]
        }
    ),
]
"""An amount of money of at most nine digits before the decimal point and six behind it; as JSON it is text."""
