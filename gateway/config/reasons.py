"""Reasons: what is wrong with a value, in one sentence that says what it must be, for errors that pydantic finds.

A sentence follows the field that it is about ("weight: must be a number, not text"), and never repeats the value, which
may be a secret. Rules of the gateway (ValueError and the like) bring their own sentence.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from pydantic_core import ErrorDetails

from gateway.config.value_types import PATTERNS

Path = tuple[str | int, ...]

DAY: Final = "a day like 2026-11-20"
TIME: Final = "a time with its zone, like 2026-11-20T12:00:00Z"
OBJECT: Final = "an object with fields"
LIST: Final = "a list"
NETWORK: Final = "a network like 10.0.0.0/8 or fc00::/7"
NUMBER: Final = "a number"
WHOLE: Final = "a whole number"

WANTED: Final[Mapping[str, str]] = {
    "bool_parsing": "true or false",
    "bool_type": "true or false",
    "byte_size": "a size in bytes, like 64MiB",
    "byte_size_unit": "a size in bytes, like 64MiB",
    "date_from_datetime_inexact": DAY,
    "date_from_datetime_parsing": DAY,
    "date_parsing": DAY,
    "date_type": DAY,
    "datetime_from_date_parsing": TIME,
    "datetime_object_invalid": TIME,
    "datetime_parsing": TIME,
    "datetime_type": TIME,
    "decimal_parsing": NUMBER,
    "decimal_type": NUMBER,
    "dict_type": OBJECT,
    "finite_number": "a finite number",
    "float_parsing": NUMBER,
    "float_type": NUMBER,
    "frozen_set_type": LIST,
    "int_from_float": WHOLE,
    "int_parsing": WHOLE,
    "int_parsing_size": "a whole number of fewer digits",
    "int_type": WHOLE,
    "ip_v4_network": NETWORK,
    "ip_v6_network": NETWORK,
    "is_instance_of": OBJECT,
    "iterable_type": LIST,
    "list_type": LIST,
    "mapping_type": OBJECT,
    "model_attributes_type": OBJECT,
    "model_type": OBJECT,
    "none_required": "null",
    "path_type": "the path of a file",
    "set_type": LIST,
    "string_type": "text",
    "string_unicode": "text in UTF-8",
    "timezone_aware": TIME,
    "tuple_type": LIST,
    "union_tag_not_found": "an object that names its policy (policy: NAME)",
}
"""What a value must be, by the type of pydantic's error (errors.pydantic.dev)."""

_BOUNDS: Final[Mapping[str, str]] = {
    "greater_than": "must be more than {gt}",
    "greater_than_equal": "must be at least {ge}",
    "less_than": "must be less than {lt}",
    "less_than_equal": "must be at most {le}",
    "string_too_long": "must have at most {max_length} characters",
    "string_too_short": "must have at least {min_length} characters",
    "too_long": "must have at most {max_length} entries",
    "too_short": "must have at least {min_length} entries",
}
NAME_STEP: Final = "[key]"
"""The last step of pydantic's path where the name in a mapping is wrong."""
_ONE: Final = {"1 characters": "1 character", "1 entries": "1 entry"}
_WHOLE_DIGITS: Final = 2**53  # up to here a double holds every integer


def reason_of(error: ErrorDetails) -> str:
    """The sentence for one error, which has its context, and its input where it is known."""
    kind = error["type"]
    if kind == "missing":
        return "is missing"
    if (bound := _BOUNDS.get(kind)) is not None:
        return _bounded(bound, error.get("ctx", {}))
    if kind in ("literal_error", "enum", "union_tag_invalid"):
        return f"must be one of {_choices(error.get('ctx', {}))}"
    if kind == "string_pattern_mismatch":
        return said_of_pattern(error["ctx"]["pattern"])
    if (wanted := WANTED.get(kind)) is not None:
        return f"must be {wanted}{_but_is(error, wanted)}"
    return error["msg"].removeprefix("Value error, ")


def said_of_pattern(pattern: str) -> str:
    """The words for what a text must be to match this pattern."""
    return f"must be {PATTERNS[pattern]}" if pattern in PATTERNS else f"must match {pattern}"


def path_in(value: Any, error: ErrorDetails) -> Path:
    """The path to an error within a value. The branches of a choice, which are in pydantic's path, are left out."""
    loc, is_missing = error["loc"], error["type"] == "missing"
    path: list[str | int] = []
    for number, part in enumerate(loc):
        inside: Any = dict(enumerate(value)) if isinstance(value, list) else value
        if isinstance(inside, Mapping) and part in inside:
            value = inside[part]
            path.append(part)
        elif part == NAME_STEP or (is_missing and number == len(loc) - 1):
            path.append(part)
    return tuple(path)


def merged_reasons(found: Sequence[tuple[Path, str]]) -> list[tuple[Path, str]]:
    """One reason per path: pydantic reports a wrong value of a choice of types once for each type."""
    reasons: dict[Path, dict[str, None]] = {}
    for path, reason in found:
        reasons.setdefault(path, {})[reason] = None
    return [(path, _either(list(each))) for path, each in reasons.items()]


def _either(reasons: list[str]) -> str:
    """All that a value may be: "must be a whole number, or one of auto"."""
    first, *others = reasons
    return ", or ".join([first, *(each.removeprefix("must be ").removeprefix("must ") for each in others)])


def _bounded(text: str, context: Mapping[str, Any]) -> str:
    said = text.format(**{name: number_text(value) for name, value in context.items()})
    for plural, one in _ONE.items():
        said = said.replace(f" {plural}", f" {one}")
    return said


def number_text(value: Any) -> Any:
    """The number as people write it: 1e-15 and 1e15, without a superfluous decimal point."""
    if isinstance(value, float) and math.isfinite(value):
        return str(int(value)) if value.is_integer() and abs(value) < _WHOLE_DIGITS else f"{value:g}"
    return value


def _choices(context: Mapping[str, Any]) -> str:
    """The names of a choice: "'a', 'b' or 'c'" as pydantic has them, without its quotes."""
    given = str(context.get("expected") or context.get("expected_tags") or "")
    return given.replace("' or '", "', '").replace("', '", ", ").strip("'")


KINDS: Final[Sequence[tuple[Callable[[Any], bool], str]]] = (
    (lambda value: value is None, "null"),
    (lambda value: isinstance(value, bool), "true or false"),
    (lambda value: isinstance(value, int | float), NUMBER),
    (lambda value: isinstance(value, str), "text"),
    (lambda value: isinstance(value, list | tuple), LIST),
    (lambda value: isinstance(value, Mapping), "an object"),
)


def _but_is(error: ErrorDetails, wanted: str) -> str:
    """What kind of value it is instead; nothing where that says no more."""
    if "input" not in error:
        return ""
    kind = next((name for is_it, name in KINDS if is_it(error["input"])), "")
    says_more = kind and kind not in wanted and not (kind == NUMBER and "number" in wanted) and "like" not in wanted
    return f", not {kind}" if says_more else ""
