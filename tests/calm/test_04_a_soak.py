"""Hours of load in which a tenth of all clients disconnect: memory, descriptors and tasks stay flat.

`SOAK_S=1800 make test-soak` is the whole; the default is 180 s.
"""

import asyncio
import contextlib
import os
import random
from statistics import linear_regression

import pytest
from gateway_process import serving
from gateway_rig import CHAT, call, engine, running, until

from tests.calm.rig import MIB, Watch, descriptors, rss_bytes

SOAK_S = float(os.environ.get("SOAK_S", "180"))
CLIENTS = 12
SLOTS = 20  # of which the clients use 60 %
LEAVE_RATIO = 0.1
SLOPE_MAX = 1 * MIB / 600  # bytes a second
NOISE = 2 * MIB  # of what a short soak finds: pages that its second half touches first
LOOK_S = 1.0


@pytest.mark.long
@pytest.mark.alone
async def test_nothing_grows(tmp_path, figure):
    rng, ended, left = random.Random(4), 0, 0
    async with engine(speed=0.2, requests_running_max=SLOTS) as server, serving(tmp_path, server) as process:

        async def client(number):
            nonlocal ended, left
            while True:
                body = call(stream=rng.random() < 0.7, max_tokens=rng.randint(1, 32))
                leave_s = rng.uniform(0, 0.1) if rng.random() < LEAVE_RATIO else None
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
        watch, samples = Watch(), []
        while watch.s < SOAK_S:
            await asyncio.sleep(LOOK_S)
            samples.append((watch.s, rss_bytes(process.pid), descriptors(process.pid)))
            assert not any(task.done() for task in tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await until(lambda: running(server) == 0)
    warm = samples[len(samples) // 3 :]
    slope = linear_regression([at for at, _, _ in warm], [rss for _, rss, _ in warm]).slope
    rise = slope * (warm[-1][0] - warm[0][0])
    fds = [max(each for _, _, each in part) for part in (warm[: len(warm) // 2], warm[len(warm) // 2 :])]
    figure(4, f"seconds of soak, {ended:,} calls, {left:,} left early", SOAK_S, "s")
    figure(4, "slope of RSS", 600 * slope / MIB, "MB per 10 min", target="< 1")
    figure(4, "most descriptors in the second half over the first", fds[1] / fds[0], target="1")
    assert slope < SLOPE_MAX or rise < NOISE * (SOAK_S < 1800)
    assert fds[1] <= fds[0] + 4
