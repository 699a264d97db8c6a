"""A stream that stalls for too long ends with an error event, and its connection to the backend is closed."""

import asyncio
import json

from gateway_rig import call, gateway, scripted

from tests.calm.rig import Watch

SILENCE_S_MAX = 1.0
WITHIN_S = 0.5
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
TOKEN = b'data: {"choices":[{"index":0,"delta":{"content":"a"},"finish_reason":null}]}\n\n'


async def test_it_ends_in_time_with_an_error(figure):
    closed = asyncio.get_running_loop().create_future()

    async def stall(reader, writer):
        writer.write(HEAD + b"%x\r\n%b\r\n" % (len(TOKEN), TOKEN))
        watch = Watch()
        await reader.read()
        closed.set_result(watch.s)
        return False

    async with scripted(stall) as backend, gateway(backend, limits={"answer_silence_s_max": SILENCE_S_MAX}) as rig:
        watch = Watch()
        reply = await rig.post(call(stream=True))
        told_s = watch.s
        assert reply.status == 200
        assert reply.events[0].encode() in TOKEN
        assert "error" in json.loads(reply.events[-1])
        assert "[DONE]" not in reply.events
        closed_s = await asyncio.wait_for(closed, 5)
        assert rig.idle()
    figure(17, "time until the error event", told_s, "s", target=f"{SILENCE_S_MAX} ± {WITHIN_S}")
    figure(17, "time until the backend's connection is closed", closed_s, "s", target=f"{SILENCE_S_MAX} ± {WITHIN_S}")
    assert abs(told_s - SILENCE_S_MAX) <= WITHIN_S
    assert abs(closed_s - SILENCE_S_MAX) <= WITHIN_S
