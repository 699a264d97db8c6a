"""Token form: recognizes a token and reads a claim, without the library that verifies signatures."""

from collections.abc import Mapping
from typing import Any

TOKEN_CHARS_MAX = 8192


def looks_like_token(text: str) -> bool:
    """Whether the text has the form of a JWT (RFC 7515, 7.1), which no API key of fairlead has."""
    return text.count(".") == 2 and text.startswith("ey") and len(text) <= TOKEN_CHARS_MAX


def claim(claims: Mapping[str, Any], path: str) -> Any:
    """The value of a claim, by its whole name or by a dotted path into nested objects; None without such a claim."""
    if path in claims:
        return claims[path]
    value: Any = claims
    for name in path.split("."):
        value = value.get(name) if isinstance(value, Mapping) else None
    return value
