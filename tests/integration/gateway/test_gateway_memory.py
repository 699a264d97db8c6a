"""A gateway that is killed or stopped goes on as it was: a tenant ahead is ahead, and how long steps take is known."""

import asyncio
import signal
from functools import partial

import pytest
from admin_rig import within
from forked import FAIRLEAD
from gateway_process import kept, serving
from gateway_rig import MODEL, PATIENCE_S, engine, running, until

from gateway.scheduling.checkpoint.documents import Counters, LearntModels
from policies.accounts.checkpoint import SHARED_QUEUE

AHEAD_SERVICE = 1_000.0
KEPT_S = 0.5  # instead of 5
KEEPS_OFTEN = f"from gateway.scheduling.checkpoint import checkpoint; checkpoint.CHECKPOINT_S = {KEPT_S}; {FAIRLEAD}"
LONG = [{"role": "user", "content": "word " * 3_000}]


def somebody_is_ahead(folder):
    pool = kept(folder, "counters", Counters).pools.get(MODEL)
    if pool is None:
        return False
    tier = pool.fair_queues[SHARED_QUEUE].tiers["default"]
    return max(tier.tenants.values(), default=0.0) - tier.level > AHEAD_SERVICE


async def get_ahead(process, server, folder):
    """Alice and bob wait for the one seat together; alice's long prompt is served, bob's short calls go on waiting, and
    alice, which waits again, came last: it is the last to be rejected.
    """
    calls = [asyncio.create_task(process.ask("carol", max_tokens=3_000))]
    await until(lambda: running(server))
    for tenant, times, fields in [
        ("alice", 1, {"messages": LONG, "max_tokens": 1}),
        ("bob", 40, {"max_tokens": 100}),
        ("alice", 1, {}),
    ]:
        calls += [asyncio.create_task(process.ask(tenant, **fields)) for _ in range(times)]
        await within(partial(have_come, process, calls), PATIENCE_S)
    in_slot = calls.pop(0)
    assert not in_slot.done(), "all have come while the seat was taken"
    in_slot.cancel()
    await until(lambda: somebody_is_ahead(folder), 2 * PATIENCE_S)
    return calls


async def have_come(process, calls):
    """Whether all that have not ended are in the queue or run."""
    gauges = ("fairlead_tenant_queued_requests", "fairlead_tenant_in_flight_requests")
    here = sum([sum((await process.metric(name)).values()) for name in gauges])
    return here >= sum(not each.done() for each in calls)


async def order_of(process, server):
    """The order in which alice and bob are served, where alice is the first to come back."""
    in_slot = asyncio.create_task(process.ask("carol", max_tokens=50))
    await until(lambda: running(server))
    ended = []

    async def ask(tenant):
        assert await process.ask(tenant) == 200
        ended.append(tenant[0])

    first = [asyncio.create_task(ask("alice")) for _ in range(4)]
    await asyncio.sleep(0.1)
    await asyncio.gather(in_slot, *first, *[ask("bob") for _ in range(4)])
    return "".join(ended)


@pytest.mark.parametrize("how", [signal.SIGKILL, pytest.param(signal.SIGTERM, marks=pytest.mark.long)])
async def test_who_was_served_far_more_than_another_stays_behind_it_after_a_restart(tmp_path, how):
    """Takes seconds: 42 calls wait for one seat, and processes start."""
    async with engine(speed=0.05, max_model_len=16_384) as server:
        async with serving(tmp_path, server, requests_running_max=1, program=KEEPS_OFTEN) as process:
            calls = await get_ahead(process, server, tmp_path)
            assert await process.end(how) == ""
            await asyncio.gather(*calls)
        await until(lambda: not running(server))
        async with serving(tmp_path, server, requests_running_max=1) as process:
            assert await order_of(process, server) == "bbbbaaaa"


async def test_without_what_was_kept_all_are_even(tmp_path):
    """So what the test above sees comes from the state file."""
    async with engine(speed=0.05) as server, serving(tmp_path, server, requests_running_max=1) as process:
        assert await order_of(process, server) != "bbbbaaaa"


SURE, BASE = "fairlead_backend_step_time_sure", "fairlead_backend_step_time_coefficient_seconds"


def is_sure(folder):
    return "b0" in kept(folder, "models", LearntModels).backends


@pytest.mark.long  # state/test_memory.py says what is kept and read
async def test_how_long_steps_take_is_known_at_once_after_a_kill_unless_something_else_was_configured(tmp_path):
    async with engine(speed=0.5, requests_running_max=8) as server:
        async with serving(tmp_path, server, requests_running_max=8) as process:
            assert 1.0 not in (await process.metric(SURE)).values()
            stop = asyncio.Event()
            callers = [asyncio.create_task(call_on(process, number, stop)) for number in range(8)]
            await until(lambda: is_sure(tmp_path))
            stop.set()
            await asyncio.gather(*callers)
            await process.end(signal.SIGKILL)
        learnt = kept(tmp_path, "models", LearntModels).backends["b0"].step_time.model
        async with serving(tmp_path, server, requests_running_max=8) as process:
            assert list((await process.metric(SURE)).values()) == [1.0]
            coefficients = await process.metric(BASE)
            assert learnt.token_s in coefficients.values()
            await process.end(signal.SIGTERM)
        step_time = {"base_ms": 77.0, "token_us": 5.0, "error_ratio": 0.1}
        async with serving(tmp_path, server, requests_running_max=8, step_time=step_time) as process:
            assert 0.077 in (await process.metric(BASE)).values()


async def call_on(process, number, stop):
    """Prompts and answers of many lengths, until they are stopped."""
    length = number
    while not stop.is_set():
        length = (7 * length + 3) % 41
        messages = [{"role": "user", "content": f"{number} {length} word" * (1 + 12 * length)}]
        assert await process.ask("alice", messages=messages, max_tokens=4 + length) == 200
