"""What the live set learns of a real vLLM is what that vLLM does."""

import asyncio
import random
import re
from contextlib import asynccontextmanager

import pytest
from processes import Vllm
from wire import COMPLETIONS, Call

from backends.health import HealthState
from backends.poll import PollTimes
from backends.poll_loop import PollLoop
from backends.pool import BackendPool, BackendSpec
from gateway.calibrate.calls import CallSender, Target
from gateway.calibrate.mix import Mix
from gateway.calibrate.run import keep_calling

LONG = {"model": "tiny", "prompt": "Once", "max_tokens": 3000, "ignore_eos": True, "stream": True}


@asynccontextmanager
async def watching(server):
    pool = BackendPool(
        [BackendSpec("vllm", server.url)],
        on_change=lambda: None,
        on_load=lambda _: None,
        polls=PollLoop(PollTimes(idle_s=0.1, busy_s=0.05), clock=asyncio.get_running_loop().time, rng=random.Random(1)),
    )
    await pool.polls.start()
    try:
        yield pool
    finally:
        await pool.polls.stop()


async def until(condition, timeout_s=10.0):
    async with asyncio.timeout(timeout_s):
        while not condition():  # noqa: ASYNC110 - a condition on the outside of what is tested
            await asyncio.sleep(0.02)


def load(pool):
    ((load,),) = pool.loads().values()
    return load


async def test_the_kv_pool_has_the_size_that_vllm_says(vllm):
    (size,) = re.findall(r'kv_cache_size_tokens="(\d+)"', vllm.text("/metrics"))
    async with watching(vllm) as pool:
        assert load(pool).kv_tokens_max == int(size) == 131072
        assert load(pool).kv_block_tokens == 128
        assert pool.states() == {"vllm": HealthState.HEALTHY}
        assert [card.id for card in pool.catalog.models()] == ["tiny"]


def test_the_gateway_fills_the_part_of_the_kv_pool_that_it_may(vllm, gateway):
    (backend,) = gateway.state()["backends"].values()
    assert backend["tokens_limit"] == int(0.95 * vllm.metrics().kv_tokens_max)


async def test_running_requests_and_their_memory_are_seen_while_they_run(vllm):
    async with watching(vllm) as pool:
        await until(lambda: load(pool).requests_running == 0)
        calls = [Call(vllm.url, COMPLETIONS, LONG) for _ in range(4)]
        await until(lambda: load(pool).requests_running == 4)
        await until(lambda: load(pool).kv_used_ratio >= 4 * 128 / load(pool).kv_tokens_max)
        for call in calls:
            call.close()
        await until(lambda: load(pool).requests_running == 0 and load(pool).kv_used_ratio == 0)


async def test_the_size_of_a_full_step_is_learnt_from_a_vllm_in_which_prompts_wait(tmp_path):
    """It publishes it nowhere, and its histogram of tokens per step knows prompts, not steps."""
    server = Vllm(tmp_path / "vllm.log", "--max-num-batched-tokens=256", "--max-num-seqs=64")
    try:
        await asyncio.to_thread(server.start)
        async with watching(server) as pool:
            mix = Mix(random.Random(1), context_tokens_max=4096)
            async with CallSender() as caller:
                target = Target.at(pool["vllm"].spec, "tiny")
                working = asyncio.gather(*(keep_calling(caller, target, mix) for _ in range(48)))
                try:
                    await until(lambda: load(pool).step_tokens_max is not None, timeout_s=300.0)
                finally:
                    working.cancel()
                    await asyncio.gather(working, return_exceptions=True)
            assert load(pool).step_tokens_max == pytest.approx(256, rel=0.07)
            bucket = r'iteration_tokens_total_bucket\{.*le="([^"]+)".*\} (\S+)'
            counted = dict(re.findall(bucket, server.text("/metrics")))
            assert float(counted["1024.0"]) < float(counted["+Inf"]), "a prompt counts whole in the step that ends it"
    finally:
        server.stop()
