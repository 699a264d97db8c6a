"""Usage reports in streams: those that the gateway asks a backend for, and those that it passes on to the client.

The gateway asks for all usage that this kind of backend can report, and passes on the usage that the client asked for.
"""

from typing import NamedTuple

from backends.kinds import BackendKind, UsageDetail
from gateway.api.calls import ParsedCall


class StreamUsage(NamedTuple):
    """Whether a stream has usage reports: in an event at its end, and in its other chunks."""

    at_end: bool
    in_chunks: bool


def usage_of_client(parsed: ParsedCall, kind: BackendKind) -> StreamUsage:
    """The usage that the client sees. A server honours continuous_usage_stats only together with include_usage."""
    wants = parsed.client_wants_usage
    if kind.usage is UsageDetail.NOTHING:  # what it reports it reports unasked
        return StreamUsage(at_end=True, in_chunks=True)
    if kind.usage is UsageDetail.AT_END:
        return StreamUsage(at_end=wants, in_chunks=wants)
    return StreamUsage(at_end=wants, in_chunks=wants and parsed.client_wants_continuous_usage)


def body_for(
    parsed: ParsedCall, kind: BackendKind, *, token_ids: bool = False, has_ids: bool = False
) -> bytes | bytearray:
    """The body for this kind of backend, with the usage options that it accepts, and a request for `token_ids`. A
    backend that is known to report them (`has_ids`) need not report usage in chunks.
    """
    usage = kind.usage
    return parsed.body.asking(
        usage=usage is not UsageDetail.NOTHING,
        continuous=usage is UsageDetail.ALWAYS and not (token_ids and has_ids),
        token_ids=token_ids,
    )


def asks_for_more(parsed: ParsedCall, kind: BackendKind) -> bool:
    """Whether the gateway sends this backend usage options that the client did not give."""
    return parsed.stream and kind.usage is not UsageDetail.NOTHING and not parsed.client_wants_usage
