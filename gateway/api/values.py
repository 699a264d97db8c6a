"""JSON values as vLLM reads them: the numbers and flags that pydantic accepts in its default mode, and nothing else.

A number may come as 16, 16.0 or "16", a flag as true, 1 or "yes": the scheduler must read the same value as the
backend. A value that pydantic would reject is rejected here, because another server might accept it.
https://docs.pydantic.dev/latest/concepts/conversion_table/
"""

import re
from collections.abc import Mapping
from typing import Any, Final

from gateway.api.errors import BadRequest

FLOAT_MAX: Final = 2.0**63

_FLAGS: Final[Mapping[str, bool]] = {
    **dict.fromkeys(("0", "off", "f", "false", "n", "no"), False),
    **dict.fromkeys(("1", "on", "t", "true", "y", "yes"), True),
}
_INTEGER: Final = re.compile(r"\s*([+-]?\d{1,30}(?:_\d{1,30}){0,8})(\.0+)?\s*", re.ASCII)


def flag(call: Mapping[str, Any], name: str) -> bool:
    """A flag; False where it is missing or null. Raises BadRequest."""
    value = call.get(name)
    if value is None or value is False:
        return False
    if value is True:
        return True
    read = _FLAGS.get(value.lower()) if type(value) is str else None
    if type(value) in (int, float) and value in (0, 1):
        read = bool(value)
    if read is None:
        raise BadRequest(f"'{name}' must be true or false.", param=name)
    return read


def integer(call: Mapping[str, Any], name: str) -> int | None:
    """An integer of any size; None where it is missing or null. Raises BadRequest."""
    value = call.get(name)
    return value if value is None or type(value) is int else _integer(value, name)


def _integer(value: Any, name: str) -> int:
    if type(value) is bool or (type(value) is float and value.is_integer() and abs(value) < FLOAT_MAX):
        return int(value)
    match = _INTEGER.fullmatch(value) if type(value) is str else None
    if match is None:
        raise BadRequest(f"'{name}' must be an integer.", param=name)
    return int(match.group(1))


def count(call: Mapping[str, Any], name: str, value_max: int) -> int | None:
    """A count that the gateway limits to `value_max`. Raises BadRequest. None where it is missing, null, or 0, which
    the backend may reject. A negative count raises, too: servers differ in what it means, and for some of them it is
    "no limit".
    """
    value = call.get(name)
    if value is None:
        return None
    if type(value) is not int:
        value = _integer(value, name)
    if value > value_max:
        raise BadRequest(f"'{name}' must be at most {value_max}.", param=name)
    if value < 0:
        raise BadRequest(f"'{name}' must not be negative.", param=name)
    return value if value > 0 else None
