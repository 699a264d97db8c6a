"""Cross-origin requests of browsers (CORS), answered as vLLM answers them. By default no origin is allowed.

API keys travel in Authorization, which no browser adds by itself, so an allowed page can use only a key that its user
has given to it. Preflights need no key, as the standard requires: https://fetch.spec.whatwg.org/#http-cors-protocol
"""

from collections.abc import Iterable, Mapping
from typing import Final

from gateway.http.response import Response

ANY: Final = "*"
METHODS: Final = "DELETE, GET, HEAD, OPTIONS, PATCH, POST, PUT, QUERY"
MAX_AGE_S: Final = "600"
PLAIN: Final[Mapping[str, str]] = {"content-type": "text/plain; charset=utf-8"}

NOTHING: Final[Mapping[str, str]] = {}


class Cors:
    """The maker of CORS headers and preflight responses, for a list of allowed origins; "*" allows all."""

    def __init__(self, allowed_origins: Iterable[str]) -> None:
        self._allowed = frozenset(allowed_origins)
        self._any = ANY in self._allowed

    def headers(self, headers: Mapping[str, str]) -> Mapping[str, str]:
        """The CORS headers of the response to a request with these headers; empty without an allowed Origin."""
        origin = headers.get("origin")
        if origin is None:
            return NOTHING
        if self._any:
            return {"access-control-allow-origin": ANY}
        return {"access-control-allow-origin": origin, "vary": "Origin"} if origin in self._allowed else NOTHING

    def preflight(self, headers: Mapping[str, str]) -> Response | None:
        """The response to an OPTIONS request that is a preflight; None for any other."""
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
            return Response(400, {**PLAIN, **sent}, b"Disallowed CORS origin")
        return Response(200, {**PLAIN, **sent}, b"OK")
