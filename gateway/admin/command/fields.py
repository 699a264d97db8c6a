"""Fields as arguments: NAME=VALUE. A dot names an inner field (envelope.ttft_ms=500); a value is JSON, else text."""

import json
from collections.abc import Sequence
from typing import Any

from gateway.options import fail


def fields_of(given: Sequence[str]) -> dict[str, Any]:
    """Parse NAME=VALUE arguments into an object."""
    fields: dict[str, Any] = {}
    for each in given:
        name, found, text = each.partition("=")
        if not found:
            fail(f"'{each}': must be NAME=VALUE, like weight=2")
        at = fields
        *path, last = name.split(".")
        for part in path:
            at = at.setdefault(part, {})
            if not isinstance(at, dict):
                fail(f"'{each}': {part} has a value already")
        at[last] = _value(text, is_money=last.startswith("cost_") or last == "periods")
    return fields


def _value(text: str, *, is_money: bool) -> Any:
    """The text parsed as JSON, or the text itself. A value of money does not become a floating-point number."""
    try:
        return json.loads(text, parse_float=str if is_money else None)
    except ValueError:
        return text
