"""How much a stream is asked to say of what it uses, and how much of what it says is its client's to see.

Asked is for all that the backend can say; kept is what the client asked for itself.
"""

from typing import NamedTuple

from backends.kinds import BackendKind, UsageDetail
from gateway.api.calls import ParsedCall


class StreamUsage(NamedTuple):
    """The event with the usage of all, and what chunks say."""

    at_end: bool
    in_chunks: bool


def usage_of_client(parsed: ParsedCall, kind: BackendKind) -> StreamUsage:
    """What the client is to see. A server honours continuous_usage_stats only together with include_usage."""
    wants = parsed.client_wants_usage
    if kind.usage is UsageDetail.NOTHING:  # what it says it says by itself
        return StreamUsage(at_end=True, in_chunks=True)
    if kind.usage is UsageDetail.AT_END:
        return StreamUsage(at_end=wants, in_chunks=wants)
    return StreamUsage(at_end=wants, in_chunks=wants and parsed.client_wants_continuous_usage)


def body_for(parsed: ParsedCall, kind: BackendKind) -> bytes:
    """The body as this kind of backend takes it."""
    return parsed.body.asking(usage=kind.usage is not UsageDetail.NOTHING, continuous=kind.usage is UsageDetail.ALWAYS)


def asks_for_more(parsed: ParsedCall, kind: BackendKind) -> bool:
    """Whether this backend is sent options that the client did not give."""
    return parsed.stream and kind.usage is not UsageDetail.NOTHING and not parsed.client_wants_usage
