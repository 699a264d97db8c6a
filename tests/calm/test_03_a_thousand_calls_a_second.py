"""1,000 whole calls a second, each sent when it is due, whether or not earlier ones have ended: all succeed."""

import asyncio
import time

import pytest
from gateway_process import serving
from gateway_rig import CHAT, answer, call, http, scripted

from tests.calm.rig import cpu_s, percentile
from tests.calm.streams import CallClient, port_of

RATE = 1_000
SECONDS = 5
CONNECTIONS = 400
CPU_S_MAX = 0.001  # of a call, so that a core carries the rate; the times are only as good as the machine is idle
P99_S_MAX = 10.0  # asserted; the targets are 0.002 for p50 and 0.015 for p99 on idle cores


async def offer(port, rate, seconds):
    """Statuses, and the seconds from when each call was due to its answer."""
    loop = asyncio.get_running_loop()
    request = http(call(), path=CHAT)
    free = []
    for _ in range(CONNECTIONS):
        _, client = await loop.create_connection(lambda: CallClient(request), "127.0.0.1", port)
        free.append(client)
    began, seconds_each, statuses, tasks = time.monotonic() + 0.1, [], [], set()
    waiting = asyncio.Semaphore(CONNECTIONS)

    async def one(due_at):
        async with waiting:
            client = free.pop()
            statuses.append(await client.ask())
            free.append(client)
        seconds_each.append(time.monotonic() - due_at)

    for number in range(int(rate * seconds)):
        due_at = began + number / rate
        if due_at > time.monotonic():
            await asyncio.sleep(due_at - time.monotonic())
        tasks.add(asyncio.create_task(one(due_at)))
    await asyncio.gather(*tasks)
    for client in free:
        client.transport.abort()
    return statuses, seconds_each


@pytest.mark.alone
async def test_calls_that_are_due_are_answered(tmp_path, figure):
    async with scripted(answer()) as backend:
        _, direct = await offer(port_of(backend.url), RATE, 2)
        async with serving(tmp_path, backend, requests_running_max=1000) as process:
            await offer(port_of(process.url), 200, 1)  # modules, connections
            before = cpu_s(process.pid)
            statuses, through = await offer(port_of(process.url), RATE, SECONDS)
            spent = (cpu_s(process.pid) - before) / len(statuses)
    added = [percentile(through, share) - percentile(direct, share) for share in (0.5, 0.99)]
    figure(3, f"calls answered 200, of {len(statuses):,}", statuses.count(200), target="all")
    figure(3, "p50 added, from when a call was due", 1e3 * added[0], "ms", target="<= 2")
    figure(3, "p99 added, from when a call was due", 1e3 * added[1], "ms", target="<= 15")
    assert statuses == [200] * (RATE * SECONDS)
    figure(3, "CPU of the gateway for a call", 1e3 * spent, "ms", target="<= 1")
    assert spent <= CPU_S_MAX
    assert added[1] <= P99_S_MAX
