"""Server-sent events of the live document: written once, and compressed once for all viewers that take gzip.

The stream of a viewer that takes gzip is one gzip member that never ends. Each event is a run of deflate blocks that
refers to no earlier bytes and ends at a byte boundary (RFC 1951, 3.2.4), so the same bytes fit into every viewer's
stream, whenever the stream began.
"""

import asyncio
import zlib
from dataclasses import dataclass
from itertools import islice
from typing import Final

import msgspec

from gateway.live.stream.changes import OBJECTS, SLICE_MEMBERS, Object, members_of

STATE: Final = "state"
PATCH: Final = "patch"
# The head of a gzip member: deflate, no flags, no time, the fastest level, an unknown system (RFC 1952, 2.3).
GZIP_HEAD: Final = b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x04\xff"
GZIP_LEVEL: Final = 1
to_json: Final = msgspec.json.Encoder().encode
PIECE_BYTES: Final = 64 << 10  # compressed in about a millisecond


@dataclass(frozen=True, slots=True)
class Encoded:
    """One server-sent event as bytes on the wire, plain and as gzip; `deflated` is empty if no viewer takes gzip."""

    plain: bytes
    deflated: bytes = b""


async def encode(kind: str, number: int, document: Object, *, depth: int, deflates: bool) -> Encoded:
    """Encode an event, with turns of the event loop between the members that are `depth` levels deep."""
    plain = b"event: %b\nid: %d\ndata: %b\n\n" % (kind.encode(), number, await sliced_json(document, depth))
    return await encoded(plain, deflates=deflates)


async def sliced_json(document: Object, depth: int) -> bytes:
    """As `to_json`, in slices: in one piece, a thousand tenants would keep the event loop for three milliseconds."""
    if depth:
        return to_json(
            {
                name: msgspec.Raw(await sliced_json(value, depth - 1)) if isinstance(value, OBJECTS) else value
                for name, value in members_of(document).items()
            }
        )
    members, parts = iter(members_of(document).items()), []
    while part := dict(islice(members, SLICE_MEMBERS)):
        parts.append(to_json(part)[1:-1])
        await asyncio.sleep(0)
    return b"{" + b",".join(parts) + b"}"


async def encoded(plain: bytes, *, deflates: bool) -> Encoded:
    """An event of these bytes; `deflates`: also compressed, because a viewer takes gzip."""
    return Encoded(plain, await _deflate(plain) if deflates else b"")


async def _deflate(plain: bytes) -> bytes:
    """Deflate blocks in pieces, with turns of the event loop between them."""
    deflater = zlib.compressobj(GZIP_LEVEL, zlib.DEFLATED, -zlib.MAX_WBITS)
    pieces = []
    for start in range(0, len(plain), PIECE_BYTES):
        pieces.append(deflater.compress(plain[start : start + PIECE_BYTES]))
        await asyncio.sleep(0)
    pieces.append(deflater.flush(zlib.Z_SYNC_FLUSH))
    return b"".join(pieces)
