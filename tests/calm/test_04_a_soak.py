"""Hours of load in which a tenth of all clients disconnect: memory, descriptors and tasks stay flat.

`SOAK_S=1800 make test-soak` is the whole; the default is 900 s.

Memory rises while caches fill and code runs for the first time, and then less and less. So the soak is cut into windows
of three minutes, and is judged from the first one in which memory rose by at most a quarter of the steepest window
before it. A leak has no such window: all its windows rise alike. Shorter windows find pauses: measured over half an
hour, RSS rose by 3.4 MB in 90 s, stood still for 150 s, rose by 2.3 MB in 120 s, by 0.5 MB until 600 s, and then by 0.5
MB in 10 minutes.
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

SOAK_S = float(os.environ.get("SOAK_S", "900"))
CLIENTS = 12
SLOTS = 20  # of which the clients use 60 %
LEAVE_RATIO = 0.1
SLOPE_MAX = 1 * MIB / 600  # bytes a second
WHOLE_S = 1800.0
ARENA = (
    MIB  # CPython's allocator takes so much at once (ARENA_SIZE of Objects/obmalloc.c): all that a short soak may rise
)
LOOK_S = 1.0
WINDOW_S = 180.0
SETTLED_RATIO = 0.25
JUDGED_WINDOWS_MIN = 2


def warm_from(samples):
    """The index from which samples (of seconds, RSS, ...) are judged; None where memory rises as fast all the time."""
    size, steepest = round(WINDOW_S / LOOK_S), 0.0
    for start in range(0, len(samples) - size, size):
        rise = samples[start + size][1] - samples[start][1]
        seconds = samples[start + size][0] - samples[start][0]
        if rise <= max(SETTLED_RATIO * steepest, SLOPE_MAX * seconds):
            return start
        steepest = max(steepest, rise)
    return None


def test_a_leak_is_never_warm_and_what_settles_is():
    leak = [(second, second * 10_000) for second in range(1800)]
    assert warm_from(leak) is None
    settles = [(second, 3 * MIB * (1 - 2 ** (-second / 60))) for second in range(1800)]
    assert warm_from(settles) == 180
    assert warm_from([(second, 0) for second in range(1800)]) == 0


@pytest.mark.long
@pytest.mark.alone
@pytest.mark.timeout(SOAK_S + 300)
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
    judged_from = warm_from(samples)
    assert judged_from is not None, "memory rises as fast at the end as at the start"
    warm = samples[judged_from:]
    slope = linear_regression([at for at, _, _ in warm], [rss for _, rss, _ in warm]).slope
    judged_s, rise = warm[-1][0] - warm[0][0], warm[-1][1] - warm[0][1]
    fds = [max(each for _, _, each in part) for part in (warm[: len(warm) // 2], warm[len(warm) // 2 :])]
    figure(4, f"seconds of soak, {ended:,} calls, {left:,} left early", SOAK_S, "s")
    figure(4, "seconds of it that were judged, after the warm-up", judged_s, "s")
    figure(4, "RSS rise in the warm-up", (warm[0][1] - samples[0][1]) / MIB, "MB")
    figure(4, "slope of RSS", 600 * slope / MIB, "MB per 10 min", target="< 1")
    figure(4, "most descriptors in the second half over the first", fds[1] / fds[0], target="1")
    assert judged_s >= JUDGED_WINDOWS_MIN * WINDOW_S, "the warm-up took too long for this soak"
    assert slope < SLOPE_MAX if SOAK_S >= WHOLE_S else rise < SLOPE_MAX * judged_s + ARENA
    assert fds[1] <= fds[0] + 4
