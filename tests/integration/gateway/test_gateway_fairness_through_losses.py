"""Backlogged tenants stay within VTC's bound while one of two engines is killed and comes back, and pay what they got.

The bound is judged twice: over the facts of the live Scheduler, by the checker of the simulation, and over the tokens
that reached the clients.
"""

import asyncio
import json
import random
from itertools import combinations

import aiohttp
import pytest
from engine_process import EngineProcess
from gateway_rig import CHAT, call, gateway, until

from gateway.observability.metrics.service_gap import jain_index
from policies.fairness.bounds import BOUNDS
from policies.types import Cause, Tenant
from tests.simulation.bound_checkers import Exposure, ServiceBound
from tests.simulation.checkers import RunWatch
from tests.simulation.recording import Recorder
from tests.simulation.run_accounts import RunAccounts, ViolationError

WEIGHTS = {"one": 1.0, "other": 1.0, "double": 2.0, "fourfold": 4.0}
CLIENTS = 8  # of each tenant: as many as there are slots, so all wait always
SLOTS = 4  # of each engine
SPEED = 0.1  # 10 ms a token
TOKENS = (10, 30)
PHASE_STREAMS = 200  # before, while and after one engine is away
LOOK_S = 0.05
PROMPT_ERROR_TOKENS = 16  # by which the gateway may take a prompt for too short before it has seen one
JAIN_MIN = 0.95
OPTIONS = {"include_usage": True, "continuous_usage_stats": True}
NAMED = {"trusted_proxies": ["127.0.0.1/32"]}  # whose x-tenant-id names the tenant


class Judged:
    """The checker of VTC's bound, over what the live Scheduler is told and decides."""

    def __init__(self):
        self.violations = []

    def wrap(self, _pool, scheduler):
        accounts = RunAccounts(tenants=())
        exposure = Exposure(accounts, prompt_error_tokens=PROMPT_ERROR_TOKENS)
        self.bound = ServiceBound(accounts, BOUNDS["vtc"], exposure=exposure, every_s=LOOK_S)
        return Recorder(scheduler, RunWatch(accounts, [self._told]))

    def _told(self, entry):
        try:
            self.bound(entry)
        except ViolationError as violation:
            self.violations.append(str(violation))

    @property
    def promised(self):
        """What two tenants that both wait may differ by, in service over weight."""
        allowed = [self.bound.allowed(Tenant(tenant, weight=weight)) for tenant, weight in WEIGHTS.items()]
        return BOUNDS["vtc"].both_wait * max(allowed)


class Clients:
    """Clients of all tenants, each of which asks for one stream after the other."""

    def __init__(self, rig):
        self._rig, self._stopping, self._rng = rig, False, random.Random(7)
        self._tasks = []
        self.received = dict.fromkeys(WEIGHTS, 0.0)
        self.moments = []  # what each tenant has received, in service over weight
        self.streams = self.broken = 0

    async def __aenter__(self):
        self._tasks = [asyncio.create_task(self._ask_on(tenant)) for tenant in WEIGHTS for _ in range(CLIENTS)]
        return self

    async def __aexit__(self, *_):
        self._stopping = True
        await asyncio.gather(*self._tasks)

    async def _ask_on(self, tenant):
        while not self._stopping:
            body = call(stream=True, max_tokens=self._rng.randint(*TOKENS), stream_options=OPTIONS)
            headers, timeout = {"x-tenant-id": tenant}, aiohttp.ClientTimeout(total=120)
            url = self._rig.url + CHAT
            async with self._rig.session.post(url, json=body, headers=headers, timeout=timeout) as response:
                self.broken += not await self._read(response, tenant)
            self.streams += 1

    async def _read(self, response, tenant):
        before = 0
        async for line in response.content:
            if line.startswith(b"data: {") and (usage := json.loads(line[6:]).get("usage")):
                now = usage["prompt_tokens"] + 2 * usage["completion_tokens"]
                self.received[tenant] += now - before
                before = now
        return line == b"\n" and before > 0 and response.status == 200

    async def phase(self):
        """Look at what was received while so many streams end; return Jain's index over that time."""
        begun, streams = len(self.moments), self.streams
        while self.streams < streams + PHASE_STREAMS:
            self.moments.append({tenant: got / WEIGHTS[tenant] for tenant, got in self.received.items()})
            await asyncio.sleep(LOOK_S)
        first, last = self.moments[begun], self.moments[-1]
        return jain_index([last[tenant] - first[tenant] for tenant in WEIGHTS])

    def largest_difference(self):
        """Between two tenants, over any interval."""
        spans = []
        for one, other in combinations(WEIGHTS, 2):
            leads = [moment[one] - moment[other] for moment in self.moments]
            spans.append(max(leads) - min(leads))
        return max(spans)


@pytest.mark.long  # tests/simulation/test_faults.py holds the bound through deaths under a virtual clock
async def test_tenants_stay_within_the_bound_while_an_engine_is_killed_and_comes_back():
    engines, judged = [EngineProcess(speed=SPEED, requests_running_max=SLOTS) for _ in range(2)], Judged()
    try:
        await asyncio.gather(*(engine.start() for engine in engines))
        backends = [{"name": f"b{n}", "url": each.url, "requests_running_max": SLOTS} for n, each in enumerate(engines)]
        tenants = {tenant: {"weight": weight} for tenant, weight in WEIGHTS.items()}
        async with gateway(*backends, tenants=tenants, auth=NAMED, wrap_scheduler=judged.wrap) as rig:
            async with Clients(rig) as clients:
                await until(lambda: rig.snapshot().queued_requests >= (len(WEIGHTS) * CLIENTS - 2 * SLOTS) - 2)
                indices = [await clients.phase()]
                await engines[1].kill()
                indices.append(await clients.phase())
                await engines[1].start()
                await until(lambda: rig.snapshot().backends["b1"].in_flight_requests == SLOTS)
                indices.append(await clients.phase())
            await until(rig.idle)
            assert rig.snapshot().interruptions[Cause.FAILED] > 0
            charged = {tenant: rig.service(tenant) for tenant in WEIGHTS}
    finally:
        await asyncio.gather(*(engine.kill() for engine in engines))
    figures = f"{clients.largest_difference():g} of {judged.promised:g} promised; Jain's index {indices}"
    print(f"two tenants differ by {figures}")  # noqa: T201 - shown by -s
    assert clients.broken == 0
    assert judged.violations == []
    assert charged == clients.received
    assert 0 < judged.bound.spread_max <= judged.promised
    assert clients.largest_difference() <= judged.promised
    assert min(indices) >= JAIN_MIN
