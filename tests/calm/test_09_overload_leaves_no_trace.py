"""Five times what backends can serve: they serve as much as ever, and a call is served soon when it ends."""

import asyncio

import aiohttp
import pytest
from gateway_rig import call, gateway, until
from paced_backend import paced

from tests.calm.rig import Watch

SLOTS = 32
TOKENS = 32
TOKEN_S = 0.04
CAPACITY = SLOTS / TOKEN_S  # tokens a second
OVERLOADS_S = [6.0, pytest.param(60.0, marks=pytest.mark.long)]
CALLS_PER_S = 5 * CAPACITY / TOKENS
# A backend of unknown size is assumed to run 256 requests at once until its answers tell: so many may wait in it.
UNKNOWN_S_MAX = 256 / (CAPACITY / TOKENS)
WAIT_S_MAX = 2.0
GOODPUT_MIN = 0.9
RECOVERED_S_MAX = 5.0


async def offer(rig, seconds):
    """Five times the capacity, for so long; each call of another of 20 tenants. Returns the tasks of all calls."""
    loop, tasks = asyncio.get_running_loop(), []
    began = loop.time()
    while (elapsed := loop.time() - began) < seconds:
        while len(tasks) < elapsed * CALLS_PER_S:
            headers = {"Authorization": f"Bearer t{len(tasks) % 20}"}
            tasks.append(asyncio.create_task(rig.post(call(stream=True, max_tokens=TOKENS), headers=headers)))
        await asyncio.sleep(0.01)
    return tasks


async def goodput(rig, backend, figure, *, kind, overload_s, recovered_s_max):
    rig.session._timeout = aiohttp.ClientTimeout(total=60)
    await asyncio.gather(*(rig.post(call(stream=True, max_tokens=TOKENS)) for _ in range(SLOTS)))
    before, watch = backend.tokens, Watch()
    tasks = await offer(rig, overload_s)
    ratio = (backend.tokens - before) / watch.s / CAPACITY
    ended = Watch()
    while True:
        tried = Watch()
        reply = await rig.post(call(stream=True, max_tokens=TOKENS), headers={"Authorization": "Bearer late"})
        if reply.status == 200 and tried.s < 3 * TOKENS * TOKEN_S:
            break
        assert ended.s < 60
    recovered_s = ended.s
    statuses = [reply.status for reply in await asyncio.gather(*tasks)]
    figure(9, f"tokens served relative to capacity, {overload_s:g} s, {kind}", ratio, target=">= 0.9")
    figure(9, f"time until the load is served again, {overload_s:g} s, {kind}", recovered_s, "s", target="<= 5")
    assert set(statuses) <= {200, 429}
    assert ratio >= GOODPUT_MIN
    assert recovered_s <= recovered_s_max
    await until(rig.idle)


@pytest.mark.alone
@pytest.mark.parametrize("overload_s", OVERLOADS_S)
async def test_an_engine_of_a_configured_size(overload_s, figure):
    asked = {"kind": "of a backend of configured size", "overload_s": overload_s, "recovered_s_max": RECOVERED_S_MAX}
    async with paced(slots=SLOTS, token_s=TOKEN_S) as backend:
        entry = {"name": "b0", "url": backend.url, "requests_running_max": SLOTS}
        async with gateway(entry, queue={"wait_s_max": WAIT_S_MAX}) as rig:
            await goodput(rig, backend, figure, **asked)


@pytest.mark.alone
@pytest.mark.parametrize("overload_s", OVERLOADS_S)
async def test_a_backend_that_says_nothing_of_itself(overload_s, figure):
    asked = {"kind": "of a backend that reports nothing", "overload_s": overload_s}
    queue = {"wait_s_max": WAIT_S_MAX}
    async with paced(slots=SLOTS, token_s=TOKEN_S) as backend, gateway(backend, queue=queue) as rig:
        await goodput(rig, backend, figure, **asked, recovered_s_max=RECOVERED_S_MAX + UNKNOWN_S_MAX)
