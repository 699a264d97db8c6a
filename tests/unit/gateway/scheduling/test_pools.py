"""What one report of a backend makes the gateway look at: its own pool, and what runs at that backend."""

import asyncio
from collections import Counter
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from random import Random

import pytest

from backends.catalog import ModelCard
from backends.metrics import EngineMetrics
from backends.poll import PollTimes
from backends.poll_loop import PollLoop
from backends.pool import BackendPool
from backends.spec import BackendSpec
from gateway.scheduling.dispatcher import Dispatcher
from gateway.scheduling.pools import Pools
from policies.facts import LoadChanged, Measured, Progressed
from policies.prediction import Oracle
from policies.scheduler import Scheduler
from policies.types import BackendLoad, Request, Tenant, Usage
from tests.examples import examples
from tests.simulation.recording import Recorder

SPECS = [BackendSpec(f"gpu-{number}", f"http://gpu-{number}", pool=f"pool-{number % 2}") for number in range(4)]


class Gateway:
    """Two pools of two backends each, that are told of by hand, and all facts that their schedulers are told."""

    def __init__(self):
        loop = asyncio.get_running_loop()
        self.facts = []
        self.pools = Pools(self._dispatcher)
        self.backends = BackendPool(
            SPECS,
            polls=PollLoop(PollTimes(), clock=loop.time, rng=Random(1)),
            on_change=self.pools.changed,
            on_load=self.pools.load_changed,
        )
        self.pools.watch(self.backends)
        self.looked_at = Counter()

    def _dispatcher(self, pool):
        return Dispatcher(Recorder(Scheduler(prediction=Oracle()), lambda entry: self.facts.append((pool, entry))))

    async def begin(self):
        for spec in SPECS:
            card = ModelCard(f"model-{spec.pool}", None, None, None, {"id": f"model-{spec.pool}"})
            self.backends.catalog.update(spec.id, (card,))
            self.backends[spec.id].health.poll_answered(0.0)
            self.report(spec.id)
        self.pools.changed()
        await asyncio.sleep(0.01)

    def report(self, backend_id, **metrics):
        """Its metrics were read: one request runs there and there is news of nothing else."""
        member = self.backends._backends[backend_id]
        member.measured_at = asyncio.get_running_loop().time()
        member.metrics = replace(EngineMetrics(requests_running=1, requests_waiting=0), **metrics)
        self.backends.settle(member, member.health.state, "")

    @asynccontextmanager
    async def running(self, requests):
        """So many requests run in each pool."""
        async with AsyncExitStack() as stack:
            for pool in ("pool-0", "pool-1"):
                dispatcher, _ = self.pools.routes.find(f"model-{pool}")
                for number in range(requests):
                    request = Request(f"{pool}-{number}", "a", "m", dispatcher.now(), 100, 200)
                    lease = await stack.enter_async_context(dispatcher.lease(request, Tenant("a")))
                    lease.passed = self._passed(lease)
            await asyncio.sleep(0.01)
            self.facts.clear()
            self.looked_at.clear()
            yield

    def _passed(self, lease):
        def passed():
            self.looked_at[lease.backend_id] += 1
            return Usage(100, 0, self.looked_at[lease.backend_id])

        return passed


@pytest.fixture
async def gateway():
    gateway = Gateway()
    await gateway.begin()
    return gateway


async def test_a_report_concerns_its_pool_and_what_runs_at_its_backend(gateway):
    async with gateway.running(8):
        gateway.report("gpu-2")
        await asyncio.sleep(0.01)
        assert gateway.looked_at == {"gpu-2": 4}
        told = [(pool, type(entry)) for pool, entry in gateway.facts]
        assert Counter(told)["pool-0", Progressed] == 4
        assert Counter(told)["pool-0", Measured] == 1
        assert {pool for pool, _ in told} == {"pool-0"}
        assert ("pool-0", LoadChanged) not in told


async def test_a_report_that_says_nothing_new_is_not_told(gateway):
    async with gateway.running(1):
        member = gateway.backends._backends["gpu-0"]
        gateway.backends.settle(member, member.health.state, "")
        await asyncio.sleep(0.01)
        assert not gateway.facts
        assert not gateway.looked_at


async def test_routes_stay_until_there_are_other_backends_or_models(gateway):
    route, holders = gateway.pools.routes.find("model-pool-0"), gateway.pools.routes.holders("model-pool-0")
    assert holders is None
    gateway.report("gpu-0")
    await asyncio.sleep(0.01)
    assert gateway.pools.routes.find("model-pool-0") is route
    gateway.backends.retire("gpu-0")
    await asyncio.sleep(0.01)
    assert gateway.pools.routes.find("model-pool-0") is not route
    assert gateway.pools.dispatchers["pool-0"].snapshot().backends.keys() == {"gpu-2"}


async def test_a_backend_that_is_drained_or_comes_back_is_told_to_its_pool_alone(gateway):
    async with gateway.running(1):
        for draining in (True, False):
            gateway.facts.clear()
            gateway.backends.drain("gpu-1", draining=draining)
            await asyncio.sleep(0.01)
            measured = [(pool, entry.load) for pool, entry in gateway.facts if isinstance(entry, Measured)]
            assert [(pool, load.backend_id, load.available) for pool, load in measured] == [
                ("pool-1", "gpu-1", not draining)
            ]


@pytest.mark.drawn
@pytest.mark.parametrize("seed", range(examples(20)))
def test_one_backend_measured_is_the_whole_set_with_the_others_as_they_were(seed):
    """The same random facts, told to the one scheduler by backend and to the other all at once: equal decisions."""
    rng, now = Random(seed), 0.0
    by_backend, at_once = (Scheduler(tenants=[Tenant(name) for name in "abc"], admission=()) for _ in range(2))
    loads = {name: BackendLoad(name, requests_running_max=3, kv_tokens_max=2_000, measured_at=0.0) for name in "xyz"}
    running, decided = [], 0
    for scheduler in (by_backend, at_once):
        scheduler.load_changed(list(loads.values()), now)
    for number in range(300):
        now += rng.random()
        match rng.randrange(4):
            case 0:
                request = Request(f"r{number}", rng.choice("abc"), "m", now, rng.randrange(400), rng.randrange(1, 400))
                for scheduler in (by_backend, at_once):
                    scheduler.submit(request, now)
            case 1 if running:
                request_id = rng.choice(running)
                for scheduler in (by_backend, at_once):
                    scheduler.tokens(request_id, Usage(100, 0, number), now)
            case 2 if running:
                request_id = running.pop(rng.randrange(len(running)))
                for scheduler in (by_backend, at_once):
                    scheduler.finished(request_id, "completed", now)
            case 3:
                name = rng.choice("xyz")
                loads[name] = replace(
                    loads[name],
                    available=rng.random() < 0.8,
                    requests_running=rng.randrange(5),
                    kv_used_ratio=rng.random(),
                    preemptions_total=number // 50,
                    measured_at=now,
                )
                by_backend.measured(loads[name], now)
                at_once.load_changed(list(loads.values()), now)
        actions = by_backend.poll(now)
        assert actions == at_once.poll(now)
        assert by_backend.next_wakeup() == at_once.next_wakeup()
        assert by_backend.snapshot(now).backends == at_once.snapshot(now).backends
        running += [action.request_id for action in actions if hasattr(action, "backend_id")]
        decided += len(actions)
    assert decided > 30
