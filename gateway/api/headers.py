"""Which headers cross the gateway.

Towards a backend goes only what `FORWARDED` lists. A list of what to keep, rather than of what to drop,
because a header that nobody thought of must not become a way to pick an engine, to be served sooner, or
to speak in the gateway's name. The client's credentials are not in it; the backend's come from config.
"""

from collections.abc import Mapping

from multidict import MultiMapping

# Case-insensitive lookup is the caller's mapping's (aiohttp: request.headers).
FORWARDED = (
    "user-agent",
    "traceparent",
    "tracestate",
    "x-session-id",
)

_NONE_NOMINATED: frozenset[str] = frozenset()


def upstream_headers(
    headers: MultiMapping[str],
    *,
    request_id: str,
    content_type: str,
    credentials: Mapping[str, str],
    priority: int = 0,
) -> dict[str, str]:
    """Return the head of the backend's request, without Host and Content-Length, which its writer knows.

    `priority` is for backends that order calls by it (policies/slo/engine_priority.py). `credentials` are the headers
    of this backend, in lower case, and win over all others.
    """
    nominated = _nominated(headers) if "connection" in headers else _NONE_NOMINATED
    sent = {
        "content-type": content_type,
        # A compressed stream could not be counted as it passes.
        "accept-encoding": "identity",
        "x-request-id": request_id,
        # This header wins over a `priority` in the body, by which a tenant could overtake others in the engine.
        "x-vllm-priority": str(priority),
    }
    for name in FORWARDED:
        value = headers.get(name)
        if value is not None and value.isascii() and value.isprintable() and name not in nominated:
            sent[name] = value
    sent.update(credentials)
    return sent


def _nominated(headers: MultiMapping[str]) -> frozenset[str]:
    """RFC 9110, 7.6.1: a header that Connection names is for us alone."""
    return frozenset(name.strip().lower() for line in headers.getall("connection", ()) for name in line.split(","))
