"""A POST whose backend broke before its first byte: sent once more by default, exactly once with `resends_max: 0`."""

import socket
import struct

import pytest
from gateway_rig import answer, assert_error, call, gateway, scripted, stream

TOKEN = b'data: {"choices":[{"index":0,"delta":{"content":"a"},"finish_reason":null}]}\n\n'
END = b'data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\ndata: [DONE]\n\n'


async def reset(reader, writer):
    """Send a TCP reset instead of an answer."""
    raw = writer.get_extra_info("socket")
    raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()
    return False


async def begin_and_reset(reader, writer):
    """Send the head of a stream, and no byte of it."""
    writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n")
    await writer.drain()
    return await reset(reader, writer)


@pytest.mark.parametrize("breaks", [reset, begin_and_reset])
@pytest.mark.parametrize("is_pooled", [False, True])
@pytest.mark.parametrize("is_stream", [False, True])
async def test_without_resends_the_backend_saw_it_exactly_once_and_the_client_gets_a_502(
    breaks, is_pooled, is_stream, figure
):
    async with scripted(answer()) as backend, gateway(backend, limits={"resends_max": 0}) as rig:
        if is_pooled:  # its connection is used again, and breaks
            assert (await rig.post()).status == 200
        before = len(backend.calls)
        backend.default = breaks
        reply = await rig.post(call(stream=is_stream))
        assert_error(reply, 502, code="backend_failed")
        seen = len(backend.calls) - before
        figure(14, "times seen by the backend with resends_max: 0", seen, target="1")
        assert seen == 1
        assert rig.idle()


@pytest.mark.parametrize("breaks", [reset, begin_and_reset])
async def test_by_default_it_is_sent_once_more_and_answered(breaks, figure):
    good = stream(TOKEN, END)
    async with scripted(good, breaks) as backend, gateway(backend) as rig:
        reply = await rig.post(call(stream=True))
        assert reply.status == 200
        assert reply.events[-1] == "[DONE]"
        figure(14, "times seen by backends by default", len(backend.calls), target="2")
        assert len(backend.calls) == 2


async def test_what_breaks_every_backend_is_not_sent_again_and_again():
    async with scripted(reset) as backend, gateway(backend) as rig:
        assert (await rig.post()).status == 502
        assert len(backend.calls) == 2
