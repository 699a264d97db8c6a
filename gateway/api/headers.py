"""Header rules: which headers of a request are forwarded to a backend, and which are for one hop alone.

Only the headers in `FORWARDED` are forwarded. An allowlist, because a header that the gateway does not know must not
select an engine, raise a priority, or speak in the gateway's name. The client's credentials are not forwarded; the
backend's credentials come from the configuration.
"""

from collections.abc import Iterable, Mapping

FORWARDED = (
    "user-agent",
    "traceparent",
    "tracestate",
    "x-session-id",
)

_NONE_NOMINATED: frozenset[str] = frozenset()


class Headers(dict[str, str]):
    """The header fields of one HTTP message, by name in lower case. If a field comes more than once, its first value
    counts, and `again` has the others; None: there are none.
    """

    again: dict[str, list[str]] | None = None

    def add(self, name: str, value: str) -> None:
        """Add a value of a field that has come before."""
        if self.again is None:
            self.again = {}
        self.again.setdefault(name, []).append(value)

    def getall(self, name: str) -> list[str]:
        """Every value of the field, in order. Raises KeyError where there is none."""
        return [self[name]] if self.again is None else [self[name], *self.again.get(name, ())]

    @property
    def number(self) -> int:
        """The number of fields; a field counts as often as it came."""
        return len(self) if self.again is None else len(self) + sum(map(len, self.again.values()))


def upstream_headers(
    headers: Headers,
    *,
    request_id: str,
    content_type: str,
    credentials: Mapping[str, str],
    priority: int = 0,
) -> dict[str, str]:
    """Return the headers of the backend request, without Host and Content-Length, which the backend client adds.

    `priority` is for backends that order calls by it (policies/slo/engine_priority.py). `credentials` are the headers
    of this backend, in lower case, and override all others.
    """
    nominated = nominated_by(headers.getall("connection")) if "connection" in headers else _NONE_NOMINATED
    sent = {
        "content-type": content_type,
        # The gateway could not count the tokens of a compressed stream.
        "accept-encoding": "identity",
        "x-request-id": request_id,
        # This header overrides a `priority` in the body, by which a tenant could overtake others in the engine.
        "x-vllm-priority": str(priority),
    }
    for name in FORWARDED:
        if name in headers and (value := headers[name]).isascii() and value.isprintable() and name not in nominated:
            sent[name] = value
    if credentials:
        sent.update(credentials)
    return sent


def nominated_by(connection: Iterable[str]) -> frozenset[str]:
    """The headers, in lower case, that these values of Connection name. Such headers are for the next hop only, in a
    request and in a response (RFC 9110, 7.6.1).
    """
    return frozenset(name.strip().lower() for line in connection for name in line.split(","))
