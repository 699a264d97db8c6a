"""A whole answer: sent in pieces, with turns of the loop between them, whatever its client reads."""

import asyncio
from types import SimpleNamespace

from aiohttp import HttpVersion11

from gateway.http.whole_response import PIECE_BYTES, WholeResponse


class FastWriter:
    """The writer of a client that reads as fast as is written: no write waits."""

    def __init__(self):
        self.turn, self.turns = 0, []  # of each piece

    async def write_headers(self, *_):
        pass

    async def write(self, _piece):
        self.turns.append(self.turn)

    async def write_eof(self, _last=b""):
        pass


async def test_a_client_that_reads_fast_does_not_keep_others_waiting():
    writer = FastWriter()
    request = SimpleNamespace(writer=writer, version=HttpVersion11, keep_alive=True, protocol=None)
    sending = asyncio.ensure_future(WholeResponse(200, bytes(9 * PIECE_BYTES), {}).prepare(request))
    while not sending.done():
        writer.turn += 1
        await asyncio.sleep(0)
    assert len(writer.turns) == len(set(writer.turns)) == 9
