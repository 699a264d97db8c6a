"""What a token looks like, and where a claim is in it: all that those need to know who check none."""

from collections.abc import Mapping
from typing import Any

TOKEN_CHARS_MAX = 8192


def looks_like_token(text: str) -> bool:
    """Whether it has the form of a token (RFC 7515, 7.1), which no key of ours has."""
    return text.count(".") == 2 and text.startswith("ey") and len(text) <= TOKEN_CHARS_MAX


def claim(claims: Mapping[str, Any], path: str) -> Any:
    """What the claim holds, by its whole name or by the names of those that it is in; None where there is none."""
    if path in claims:
        return claims[path]
    value: Any = claims
    for name in path.split("."):
        value = value.get(name) if isinstance(value, Mapping) else None
    return value
