"""50 prompts of 1 MB at once take bounded memory, and hold up no other tenant's calls."""

import asyncio
import json
import subprocess
import sys

import pytest
from gateway_process import serving
from gateway_rig import answer, call, http, scripted

from tests.calm.rig import MIB, Watch, percentile, rss_bytes
from tests.calm.streams import CallClient, port_of

PROMPTS = 50
RISE_MAX = PROMPTS * 3 * MIB
P50_ADDED_S_MAX = 0.2  # asserted of the median; the target is 0.02 for p99

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


async def others(port, until_done):
    """Seconds of small calls, one after the other."""
    _, client = await asyncio.get_running_loop().create_connection(
        lambda: CallClient(http(call(), "Authorization: Bearer small")), "127.0.0.1", port
    )
    seconds = []
    while not until_done(len(seconds)):
        watch = Watch()
        assert await client.ask() == 200
        seconds.append(watch.s)
        await asyncio.sleep(0.005)
    client.transport.abort()
    return seconds


@pytest.mark.alone
async def test_fifty_at_once(tmp_path, figure):
    large = json.dumps(call(messages=[{"role": "user", "content": "word " * (MIB // 5)}])).encode()
    async with scripted(answer()) as backend, serving(tmp_path, backend) as process:
        port = port_of(process.url)
        alone = await others(port, lambda count: count >= 200)
        before = rss_bytes(process.pid)
        sender = await asyncio.create_subprocess_exec(
            sys.executable, "-c", SENDER, str(port), str(PROMPTS),
            stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        )  # fmt: skip
        sending = asyncio.create_task(sender.communicate(http(large, "Authorization: Bearer large")))
        beside = await others(port, lambda count: sending.done() and count >= 20)
        statuses = (await sending)[0].decode().split()
        rise = rss_bytes(process.pid, "VmHWM") - before
    added = [percentile(beside, share) - percentile(alone, share) for share in (0.5, 0.99)]
    figure(11, "highest rise of RSS", rise / MIB, "MB", target="<= 150")
    figure(11, "p50 added to others' calls", 1e3 * added[0], "ms")
    figure(11, "p99 added to others' calls", 1e3 * added[1], "ms", target="<= 20")
    assert statuses == ["200"] * PROMPTS
    assert rise <= RISE_MAX
    assert added[0] <= P50_ADDED_S_MAX
