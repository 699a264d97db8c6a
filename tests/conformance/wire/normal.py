"""What is left of an answer when everything is taken out that differs between any two answers of one server.

That is: ids (numbered in the order they appear, so that an id that changes within an answer is a difference),
times, and the headers that belong to a connection rather than to an answer. Nothing else: text is generated
greedily or with a seed, and its bytes have to be the same.
"""

import re
from dataclasses import dataclass

from exchange import Got

# Of the connection, or of the sender; that there is a length or chunks is compared, not how long it is.
_CONNECTION_HEADERS = {"date", "server", "connection", "keep-alive", "x-request-id"}
# Which pages may ask is for each server's operator to say, and so are the headers that tell caches of it.
_CORS_HEADERS = {"vary"}
_ID = re.compile(
    rb'"((?:chatcmpl-tool|chatcmpl|cmpl|resp|msg|rs|fc|call|modelperm|embd|score|rerank|pooling|classify|'
    rb'tokn|batch)[-_])[A-Za-z0-9._:/+=@-]+"'
)
_TIME = re.compile(rb'("(?:created|created_at|completed_at)": ?)[0-9]+(?:\.[0-9]+)?')


@dataclass(frozen=True)
class Normal:
    """`pieces` are the events of a stream, or the one body; the bytes that make them up are all there."""

    status: int
    headers: tuple[tuple[str, str], ...]
    pieces: tuple[bytes, ...]


def normal(got: Got) -> Normal:
    return Normal(got.status, _headers(got), _pieces(got))


def _headers(got: Got) -> tuple[tuple[str, str], ...]:
    kept = [(name, value) for name, value in got.headers if name not in _CONNECTION_HEADERS | _CORS_HEADERS]
    return tuple(sorted((name, "" if name == "content-length" else value) for name, value in kept))


def _pieces(got: Got) -> tuple[bytes, ...]:
    seen: dict[bytes, int] = {}

    def numbered(match: re.Match[bytes]) -> bytes:
        return b'"%b#%d"' % (match[1], seen.setdefault(match[0], len(seen)))

    body = _TIME.sub(rb"\g<1>0", _ID.sub(numbered, got.body))
    return tuple(re.split(rb"(?<=\n\n)", body)) if got.is_stream else (body,)
