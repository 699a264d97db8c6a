"""JSON Merge Patch (RFC 7396)."""

from collections.abc import Mapping
from typing import Any


def merged(body: Mapping[str, Any], patch: Mapping[str, Any]) -> dict[str, Any]:
    """The result of a merge patch on an object, which is not changed. Unchanged parts are shared by both."""
    result = dict(body)
    for name, value in patch.items():
        if value is None:
            result.pop(name, None)
        elif isinstance(value, Mapping):
            before = result.get(name)
            result[name] = merged(before if isinstance(before, Mapping) else {}, value)
        else:
            result[name] = value
    return result
