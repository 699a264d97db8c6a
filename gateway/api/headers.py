"""Which headers cross the gateway, and what a request is called.

Towards a backend goes only what `FORWARDED` lists. A list of what to keep, rather than of what to drop,
because a header that nobody thought of must not become a way to pick an engine, to be served sooner, or
to speak in the gateway's name. The client's credentials are not in it; the backend's come from config.
"""

import re
from collections.abc import Callable, Container, Mapping

from multidict import MultiMapping

# Case-insensitive lookup is the caller's mapping's (aiohttp: request.headers).
FORWARDED = (
    "user-agent",
    "traceparent",
    "tracestate",
    "x-session-id",
    "endpoint-load-metrics-format",
)
# As other gateways and SDKs name it; the first that is usable counts.
REQUEST_ID_HEADERS = ("x-request-id", "x-correlation-id", "x-trace-id", "request-id")

_REQUEST_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/+=@-]{0,127}")


def upstream_headers(headers: MultiMapping[str], *, request_id: str, credentials: Mapping[str, str]) -> dict[str, str]:
    """Return the head of the backend's request, without Host and Content-Length, which its writer knows.

    `credentials` are the headers of this backend, in lower case, and win over all others.
    """
    # RFC 9110, 7.6.1: a header that Connection names is for us alone.
    nominated = {name.strip().lower() for line in headers.getall("connection", ()) for name in line.split(",")}
    sent = {
        name: value
        for name in FORWARDED
        if (value := headers.get(name)) is not None and name not in nominated and _is_plain(value)
    }
    sent["content-type"] = "application/json"
    # A compressed stream could not be counted as it passes.
    sent["accept-encoding"] = "identity"
    sent["x-request-id"] = request_id
    # This header wins over a `priority` in the body, by which a tenant could overtake others in the engine.
    sent["x-vllm-priority"] = "0"
    sent.update(credentials)
    return sent


def request_id(headers: Mapping[str, str], in_flight: Container[str], new_id: Callable[[], str]) -> str:
    """Return the client's own id where it is harmless and not in flight already, else a new one."""
    given = next((value for name in REQUEST_ID_HEADERS if _is_usable(value := headers.get(name))), None)
    if given is not None and given not in in_flight:
        return given
    while (made := new_id()) in in_flight:  # a client has guessed it
        pass
    return made


def _is_usable(value: str | None) -> bool:
    return value is not None and _REQUEST_ID.fullmatch(value) is not None


def _is_plain(value: str) -> bool:
    return value.isascii() and value.isprintable()
