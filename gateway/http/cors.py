"""Cross-origin requests of browsers, answered as vLLM answers them: by default no page may ask.

Keys travel in Authorization, which no browser adds by itself, so a door that is opened gives a page nothing that its
user has not given to it. Preflights are answered without a key, as the standard wants: https://fetch.spec.whatwg.org/#http-cors-protocol
"""

from collections.abc import Iterable, Mapping
from typing import Final

from aiohttp import web

ANY: Final = "*"
METHODS: Final = "DELETE, GET, HEAD, OPTIONS, PATCH, POST, PUT, QUERY"
MAX_AGE_S: Final = "600"
ORIGIN_CHARS_MAX: Final = 512

NOTHING: Final[Mapping[str, str]] = {}


class Cors:
    """Which pages may ask, and how they are told."""

    def __init__(self, allowed_origins: Iterable[str]) -> None:
        self._allowed = frozenset(allowed_origins)
        self._any = ANY in self._allowed

    def headers(self, headers: Mapping[str, str]) -> Mapping[str, str]:
        """What an answer to a request with these headers says of it; nothing to who is no browser."""
        origin = headers.get("origin")
        if origin is None:
            return NOTHING
        if self._any:
            return {"access-control-allow-origin": ANY}
        return {"access-control-allow-origin": origin, "vary": "Origin"} if origin in self._allowed else NOTHING

    def preflight(self, headers: Mapping[str, str]) -> web.Response | None:
        """The answer to an OPTIONS that asks whether it may ask, None for one that does not."""
        origin, method = headers.get("origin"), headers.get("access-control-request-method")
        if origin is None or method is None:
            return None
        sent = {
            "access-control-allow-methods": METHODS,
            "access-control-max-age": MAX_AGE_S,
            "vary": "Origin",
            **self.headers(headers),
        }
        asked = headers.get("access-control-request-headers")
        if asked is not None and asked.isascii() and asked.isprintable():
            sent["access-control-allow-headers"] = asked
        if "access-control-allow-origin" not in sent:
            return web.Response(status=400, text="Disallowed CORS origin", headers=sent)
        return web.Response(text="OK", headers=sent)
