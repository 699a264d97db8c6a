"""`fairlead serve` before backends that report nothing: whatever becomes of their speed, no throughput is lost; and how
many requests at once are of use is learnt, so that the others wait in the gateway.
"""

import asyncio
import contextlib
import random
import re
import signal
import time
from functools import partial

import pytest
from gateway_process import serving
from gateway_rig import until as until_in_time
from paced_backend import paced

PATIENCE_S = 60.0  # what takes a second alone takes many where others use the machine
until = partial(until_in_time, timeout_s=PATIENCE_S)
ANSWERS, LATE_S, ENOUGH = 30, 10.0, 0.9  # until then, of the throughput without a limit
KIND = "openai"  # which has no counters to read
TOKENS = (20, 40)  # of a stream
SLOTS, TOKEN_S = 8, 0.008  # of the backend whose size is not known
SIZE_KNOWN, BINDS = "fairlead_backend_size_known", "fairlead_backend_limit_binds"


class Clients:
    """So many, each with one call of a tenant at a time at one model."""

    def __init__(self, process, model, number, *, tenant="a", **fields):
        self.tokens = 0  # of answers that have ended
        self._going = True
        self._rng = random.Random(f"{model} {tenant}")
        self._fields = {"model": model, "stream": True, **fields}
        self._tasks = [asyncio.create_task(self._call_on(process, tenant)) for _ in range(number)]

    async def _call_on(self, process, tenant):
        while self._going:
            tokens = self._rng.randint(*TOKENS)
            if await process.ask(tenant, max_tokens=tokens, **self._fields) != 200:
                return  # the test misses what is not asked for any more
            self.tokens += tokens

    async def end(self):
        """Let what they have asked for be the last."""
        self._going = False
        await asyncio.gather(*self._tasks)

    async def leave(self):
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


@contextlib.asynccontextmanager
async def everywhere(process, backends, number, **fields):
    """So many clients before each of the backends."""
    clients = [Clients(process, model, number, **fields) for model in backends]
    try:
        yield
        await asyncio.gather(*(each.end() for each in clients))
    finally:
        await asyncio.gather(*(each.leave() for each in clients))


async def throughputs(backends, tokens):
    """What each computes against the one without a limit, while that one computes so many tokens. The first of such
    spells in which nothing is lost counts, else the one that begins 30 answers or 10 s from now, whichever is later.
    """
    free = backends["free"]
    answers, late_at = free.streams + ANSWERS, time.monotonic() + LATE_S
    await until(lambda: free.streams >= answers)
    while True:
        is_late = time.monotonic() >= late_at
        before = {model: backend.tokens for model, backend in backends.items()}
        await until(lambda: free.tokens - before["free"] >= tokens)  # noqa: B023 - awaited within the turn
        gained = {model: backend.tokens - before[model] for model, backend in backends.items()}
        found = {model: gained[model] / gained["free"] for model in backends if model != "free"}
        if is_late or min(found.values()) >= ENOUGH:
            return found


@pytest.mark.long  # in simulation: tests/simulation/test_limit_by_answers.py
async def test_no_throughput_is_lost_where_a_backend_changes_its_speed_and_bursts_end(tmp_path):
    sizes = {"unknown": {}, "large": {"requests_running_max": 8192}, "free": {"requests_running_max": 8192}}
    async with contextlib.AsyncExitStack() as stack:
        backends = {model: await stack.enter_async_context(paced(model=model, token_s=0.010)) for model in sizes}
        entries = [{"name": model, "url": backends[model].url, "kind": KIND, **size} for model, size in sizes.items()]
        settings = {"pools": {"free": {"scheduling": {"limit": "room"}}}}
        process = await stack.enter_async_context(serving(tmp_path, *entries, settings=settings))
        found = {}
        async with everywhere(process, backends, 4, stream=False):
            await until(lambda: min(backend.wholes for backend in backends.values()) >= 100)
        async with everywhere(process, backends, 2):
            async with everywhere(process, backends, 18):
                found["after whole answers"] = await throughputs(backends, 4_000)
                for backend in backends.values():
                    backend.set_token_s(0.100)
                found["10 times slower"] = await throughputs(backends, 600)
                for backend in backends.values():
                    backend.set_token_s(0.010)
                found["10 times as fast"] = await throughputs(backends, 4_000)
            await until(lambda: max(backend.in_flight for backend in backends.values()) <= 2)
            async with everywhere(process, backends, 18):
                found["a burst again"] = await throughputs(backends, 4_000)
    lost = {f"{when}, {model}": ratio for when, by in found.items() for model, ratio in by.items() if ratio < ENOUGH}
    assert not lost, found


async def metric(process, name, wanted):
    """Wait until this metric of the backend has this value."""
    deadline = time.monotonic() + PATIENCE_S
    while wanted not in (found := (await process.metric(name)).values()):
        assert time.monotonic() < deadline, f"{name} is {found}"
        await asyncio.sleep(0.1)


@pytest.mark.long  # in simulation: tests/simulation/test_limit_by_answers.py
async def test_a_size_that_cannot_be_read_is_said_and_learnt_and_then_calls_wait_in_the_gateway(tmp_path):
    async with (
        paced(slots=SLOTS, token_s=TOKEN_S) as backend,
        serving(tmp_path, backend, kind=KIND) as process,
    ):
        only = {backend.model: backend}
        async with everywhere(process, only, 40):
            await until(lambda: backend.in_flight >= 30)  # nearly all: they wait there
            await metric(process, SIZE_KNOWN, 0.0)
            await metric(process, BINDS, 1.0)
            await until(lambda: backend.in_flight <= 20)
        said = process.said + await process.end(signal.SIGTERM)
    assert len(re.findall("backend b0: how many requests it runs at once is not known", said)) == 1, said
    assert re.search(r"backend b0: limit binds: \d+ requests at once", said), said
