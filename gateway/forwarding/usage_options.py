"""How much a stream is asked to say of what it uses, and how much of what it says is its client's to see.

Asked is for all that the backend can say; kept is what the client asked for itself.
"""

from typing import NamedTuple

from backends.kinds import Asked, BackendKind
from gateway.api.calls import ParsedCall


class Usage(NamedTuple):
    """The event with the usage of all, and what chunks say."""

    at_end: bool
    in_chunks: bool


def kept(parsed: ParsedCall, kind: BackendKind) -> Usage:
    """What the client is to see. A server honours continuous_usage_stats only together with include_usage."""
    wants = parsed.client_wants_usage
    if kind.usage is Asked.NOTHING:  # what it says it says by itself
        return Usage(at_end=True, in_chunks=True)
    if kind.usage is Asked.AT_END:
        return Usage(at_end=wants, in_chunks=wants)
    return Usage(at_end=wants, in_chunks=wants and parsed.client_wants_continuous_usage)


def body_for(parsed: ParsedCall, kind: BackendKind) -> bytes:
    """The body as this kind of backend takes it."""
    return parsed.body.asking(usage=kind.usage is not Asked.NOTHING, continuous=kind.usage is Asked.ALWAYS)


def asks_for_more(parsed: ParsedCall, kind: BackendKind) -> bool:
    """Whether this backend is sent options that the client did not give."""
    return parsed.stream and kind.usage is not Asked.NOTHING and not parsed.client_wants_usage
