"""Hours of load in which a tenth of all clients disconnect: memory, descriptors and tasks stay flat.

`SOAK_S=1800 make test-soak` is the whole; the default is 300 s. They begin when the gateway is warm: when as many calls
have ended as the longest of its records of past calls keeps, so that each new record replaces an old one.
"""

import asyncio
import contextlib
import os
import random
from statistics import linear_regression

import pytest
from gateway_process import serving
from gateway_rig import CHAT, call, engine, running, until

from gateway.steering.requests import ENDED_MAX
from gateway.steering.what_if.recorded_calls import CALLS_MAX
from tests.calm.rig import MIB, Watch, descriptors, rss_bytes

SOAK_S = float(os.environ.get("SOAK_S", "300"))
WHOLE_S = 1800.0
WARM_CALLS = int(os.environ.get("SOAK_WARM_CALLS", str(max(ENDED_MAX, CALLS_MAX))))
WARM_S_MAX = 2400.0  # of 21 calls a second; two quiet cores make ten times as many
CLIENTS = 12
SLOTS = 20  # of which the clients use 60 %
TOKENS_MAX = 8
LEAVE_RATIO = 0.1
SLOPE_MAX = 1 * MIB / 600  # bytes a second
# CPython's allocator takes so much at once (ARENA_SIZE of Objects/obmalloc.c): all that a short soak may rise besides.
ARENA = MIB
LOOK_S = 1.0


@pytest.mark.long
@pytest.mark.alone
@pytest.mark.timeout(WARM_S_MAX + SOAK_S + 60)
async def test_nothing_grows(tmp_path, figure):
    rng, ended, left = random.Random(4), 0, 0
    async with engine(speed=0.5, requests_running_max=SLOTS) as server, serving(tmp_path, server) as process:

        async def client(number):
            nonlocal ended, left
            while True:
                body = call(stream=rng.random() < 0.7, max_tokens=rng.randint(1, TOKENS_MAX))
                leave_s = rng.uniform(0, 0.02) if rng.random() < LEAVE_RATIO else None
                headers = {"Authorization": f"Bearer t{number}"}
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(leave_s):
                        async with process.session.post(process.url + CHAT, json=body, headers=headers) as response:
                            await response.read()
                            assert response.status == 200
                            ended += 1
                            continue
                left += 1

        tasks = [asyncio.create_task(client(number)) for number in range(CLIENTS)]
        watch, cold = Watch(), rss_bytes(process.pid)
        while ended + left < WARM_CALLS:
            assert watch.s < WARM_S_MAX
            await asyncio.sleep(LOOK_S)
        warm_s, watch, samples = watch.s, Watch(), []
        while watch.s < SOAK_S:
            await asyncio.sleep(LOOK_S)
            samples.append((watch.s, rss_bytes(process.pid), descriptors(process.pid)))
            assert not any(task.done() for task in tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await until(lambda: running(server) == 0)
    slope = linear_regression([at for at, _, _ in samples], [rss for _, rss, _ in samples]).slope
    rise = samples[-1][1] - samples[0][1]
    fds = [max(each for _, _, each in part) for part in (samples[: len(samples) // 2], samples[len(samples) // 2 :])]
    figure(4, f"seconds of soak, {ended:,} calls, {left:,} left early", SOAK_S, "s")
    figure(4, f"seconds of {WARM_CALLS:,} calls before it", warm_s, "s")
    figure(4, "RSS rise in them", (samples[0][1] - cold) / MIB, "MB")
    figure(4, "slope of RSS", 600 * slope / MIB, "MB per 10 min", target="< 1")
    figure(4, "most descriptors in the second half over the first", fds[1] / fds[0], target="1")
    assert slope < SLOPE_MAX if SOAK_S >= WHOLE_S else rise < SLOPE_MAX * SOAK_S + ARENA
    assert fds[1] <= fds[0] + 4
