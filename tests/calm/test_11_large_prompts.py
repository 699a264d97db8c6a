"""50 prompts of 1 MB at once take bounded memory, and hold up no other tenant's calls."""

import asyncio
import json
import subprocess
import sys

import pytest
from gateway_process import serving
from gateway_rig import answer, call, gateway, http, scripted

from tests.calm.rig import MIB, Watch, own_s, percentile, rss_bytes, undisturbed
from tests.calm.streams import CallClient, port_of

PROMPTS = 50
RISE_MAX = PROMPTS * 3 * MIB
P99_ADDED_S_MAX = 0.02
LARGE = json.dumps(call(messages=[{"role": "user", "content": "word " * (MIB // 5)}])).encode()

# Another process sends them, so that they hold up nothing in the one that measures.
SENDER = """
import asyncio, sys
async def one(port, request):
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(request)
    status = int((await reader.readline()).split()[1])
    writer.close()
    return status
async def main(port, request):
    print(*await asyncio.gather(*(one(port, request) for _ in range(int(sys.argv[2])))))
asyncio.run(main(int(sys.argv[1]), sys.stdin.buffer.read()))
"""


async def send_prompts(port):
    """The statuses of all prompts."""
    sender = await asyncio.create_subprocess_exec(
        sys.executable, "-c", SENDER, str(port), str(PROMPTS),
        stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    )  # fmt: skip
    told, _ = await sender.communicate(http(LARGE, "Authorization: Bearer large"))
    return told.decode().split()


async def others(port, until_done):
    """Seconds of own time of small calls, one after the other."""
    _, client = await asyncio.get_running_loop().create_connection(
        lambda: CallClient(http(call(), "Authorization: Bearer small")), "127.0.0.1", port
    )
    seconds = []
    while not until_done(len(seconds)):
        watch = Watch(own_s)
        assert await client.ask() == 200
        seconds.append(watch.s)
        await asyncio.sleep(0.005)
    client.transport.abort()
    return seconds


@pytest.mark.alone
async def test_fifty_at_once_take_bounded_memory(tmp_path, figure):
    async with scripted(answer()) as backend, serving(tmp_path, backend) as process:
        assert await process.ask("small") == 200
        before = rss_bytes(process.pid)
        statuses = await send_prompts(port_of(process.url))
        rise = rss_bytes(process.pid, "VmHWM") - before
    figure(11, "highest rise of RSS", rise / MIB, "MB", target="<= 150")
    assert statuses == ["200"] * PROMPTS
    assert rise <= RISE_MAX


@pytest.mark.alone
async def test_fifty_at_once_hold_up_no_other_call(figure):
    async with scripted(answer()) as backend, gateway(backend) as rig:

        async def measure():
            alone = await others(rig.port, lambda count: count >= 200)
            sending = asyncio.create_task(send_prompts(rig.port))
            beside = await others(rig.port, lambda count: sending.done() and count >= 20)
            assert await sending == ["200"] * PROMPTS
            backend.calls.clear()
            return len(beside), *(percentile(beside, share) - percentile(alone, share) for share in (0.5, 0.99))

        calls, p50, p99 = await undisturbed(measure, lambda found: found[2] <= P99_ADDED_S_MAX)
    figure(11, "others' calls beside them", calls)
    figure(11, "p50 added to others' calls, own time", 1e3 * p50, "ms")
    figure(11, "p99 added to others' calls, own time", 1e3 * p99, "ms", target="<= 20")
    assert p99 <= P99_ADDED_S_MAX
