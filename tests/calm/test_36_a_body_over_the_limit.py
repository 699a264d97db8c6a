"""A body over the limit gets 413 before more than the limit and one read are in memory, and the connection closes."""

import pytest
from gateway_rig import CHAT, assert_untouched, gateway, scripted, wire

from gateway.http.connection import ClientConnection
from gateway.http.request import HttpRequest
from tests.calm.rig import MIB

LIMIT = MIB
READ_BYTES = 256 << 10  # of one read by uvloop
HEAD = f"POST {CHAT} HTTP/1.1\r\nHost: g\r\nContent-Type: application/json\r\n".encode()


@pytest.mark.parametrize("declared", [True, False])
async def test_no_more_than_the_limit_is_buffered(monkeypatch, figure, declared):
    received, at_refusal = [0], []
    data_received, read = ClientConnection.data_received, HttpRequest.read_body

    def count(self, data):
        received[0] += len(data)
        data_received(self, data)

    async def note(*given):
        try:
            return await read(*given)
        except Exception:
            at_refusal.append(received[0])
            raise

    monkeypatch.setattr(ClientConnection, "data_received", count)
    monkeypatch.setattr(HttpRequest, "read_body", note)
    async with (
        scripted() as backend,
        gateway(backend, limits={"body_bytes_max": LIMIT}) as rig,
        wire(rig) as connection,
    ):
        received[0] = 0
        piece = b"8000\r\n" + b" " * 0x8000 + b"\r\n"
        connection.send(HEAD + b"Transfer-Encoding: chunked\r\n\r\n" if not declared else b"")
        if declared:
            connection.send(HEAD + b"Content-Length: %d\r\n\r\n" % (8 * LIMIT) + b" " * 1000)
        else:
            for _ in range(8 * LIMIT // 0x8000):
                connection.send(piece)
                await connection.writer.drain()
                if at_refusal:
                    break
        reply = await connection.reply()
        assert reply.status == 413
        assert reply.headers["connection"] == "close"
        (buffered,) = at_refusal
        figure(
            36,
            f"buffered bytes of a body, {'with' if declared else 'without'} length",
            buffered / 1024,
            "KiB",
            target="<= 1088",
        )
        assert buffered <= LIMIT + 2 * READ_BYTES, "the limit, and what came in the turn that passed it"
        connection.writer.write_eof()
        assert await connection.at_end()
        assert_untouched(rig, backend)
