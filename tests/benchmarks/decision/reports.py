"""What one report of a backend costs the gateway, in microseconds of CPU.

    python tests/benchmarks/decision/reports.py [--backends 64] [--pools 8 1] [--in-flight 64] [--reports 512]

A backend's /metrics were read and are news: until every pool that they concern has taken them in and decided what they
let in. Every backend runs as many requests as `--in-flight`, half of them with an envelope, streams that go on between
two reports; none of what passes is told before it is asked for. With `--waiting` tenants wait in every pool, and all
backends are full: the decision that follows a report is in the figure, too.

Target: a median of at most 200 us with 64 backends of 64 requests each, in 8 pools or in one.
"""

import argparse
import asyncio
import gc
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import count
from random import Random
from statistics import median, quantiles
from time import process_time_ns
from typing import Any

from backends.metrics import EngineMetrics
from backends.poll import PollTimes
from backends.poll_loop import PollLoop
from backends.pool import BackendPool
from backends.spec import BackendSpec
from gateway.scheduling.dispatcher import Dispatcher
from gateway.scheduling.pools import Pools
from policies.prediction import Oracle
from policies.scheduler import Scheduler
from policies.step_time import StepTime, StepTimeModel
from policies.types import Request, SloEnvelope, Tenant, Usage

TENANTS = 32
OUTPUT_TOKENS = 400
ENVELOPE = SloEnvelope(ttft_s=600.0, tpot_s=0.1)
STEP_TIME = StepTime(StepTimeModel(0.010, 1e-5, 1e-7, 1e-4), error_ratio=0.05, is_sure=True)
KV_TOKENS_MAX, KV_BLOCK_TOKENS = 1_000_000, 16
TURNS = 4  # of the loop, in which a report is passed on and decided on


@dataclass(slots=True)
class Answer:
    """A stream, of which more has passed at each look."""

    request: Request
    produced: Iterator[int]

    def passed(self) -> Usage:
        return Usage(self.request.prompt_tokens, 0, min(next(self.produced), OUTPUT_TOKENS))


class Gateway:
    """As much of one as a report passes through."""

    def __init__(self, *, backends: int, pools: int, in_flight: int) -> None:
        loop = asyncio.get_running_loop()
        self._rng, self._numbers = Random(1), count()
        self._in_flight = in_flight
        self.specs = [
            BackendSpec(f"gpu-{number}", f"http://gpu-{number}", pool=f"pool-{number % pools}", step_time=STEP_TIME)
            for number in range(backends)
        ]
        self.pools = Pools(lambda _pool: Dispatcher(Scheduler(prediction=Oracle(), admission=())))
        self.backends = BackendPool(
            self.specs,
            polls=PollLoop(PollTimes(), clock=loop.time, rng=self._rng),
            on_change=self.pools.changed,
            on_load=self.pools.load_changed,
        )
        self.pools.watch(self.backends)
        self.tasks: set[asyncio.Task[None]] = set()

    async def fill(self, waiting: int) -> None:
        """As many requests run as there are seats, and so many more wait in each pool."""
        for spec in self.specs:
            self.backends[spec.id].health.poll_answered(asyncio.get_running_loop().time())
            self.tell(spec)
        self.pools.changed()
        await turns()
        for pool, dispatcher in self.pools.dispatchers.items():
            backends = sum(spec.pool == pool for spec in self.specs)
            for _ in range(backends * self._in_flight + waiting):
                task = asyncio.ensure_future(self._call(dispatcher))
                self.tasks.add(task)
        while self.running() < len(self.specs) * self._in_flight:  # noqa: ASYNC110 - engines compute prompts at their own pace
            await asyncio.sleep(0.01)

    def running(self) -> int:
        return sum(dispatcher.snapshot(()).in_flight_requests for dispatcher in self.pools.dispatchers.values())

    async def _call(self, dispatcher: Dispatcher) -> None:
        number = next(self._numbers)
        tenant = Tenant(f"tenant-{number % TENANTS}")
        request = Request(
            id=f"request-{number}",
            tenant_id=tenant.id,
            model="model",
            arrived_at=dispatcher.now(),
            prompt_tokens=self._rng.randrange(20, 800),
            output_tokens_max=OUTPUT_TOKENS,
            envelope=ENVELOPE if number % 2 else None,
        )
        async with dispatcher.lease(request, tenant) as lease:
            lease.passed = Answer(request, count(1)).passed
            await asyncio.Event().wait()

    def tell(self, spec: BackendSpec) -> None:
        """This backend's metrics were read."""
        member = self.backends[spec.id]
        member.measured_at = asyncio.get_running_loop().time()
        member.metrics = EngineMetrics(
            requests_running=self._in_flight,
            requests_waiting=0,
            kv_used_ratio=self._rng.uniform(0.1, 0.2),
            kv_tokens_max=KV_TOKENS_MAX,
            kv_block_tokens=KV_BLOCK_TOKENS,
            preemptions_total=0,
        )
        self.backends.settle(member, member.health.state, "")

    async def stop(self) -> None:
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)


async def turns() -> None:
    for _ in range(TURNS):
        await asyncio.sleep(0)


async def measure(reports: int, waiting: int, **size: Any) -> list[float]:
    """Microseconds of CPU of each report, less what the turns of the loop cost by themselves."""
    gateway = Gateway(**size)
    gateway.specs = [replace(spec, requests_running_max=size["in_flight"]) for spec in gateway.specs]
    for spec in gateway.specs:
        gateway.backends.resize(spec)
    await gateway.fill(waiting)
    gc.collect()
    gc.disable()
    costs, turns_us = [], []
    for number in range(reports):
        spec = gateway.specs[number % len(gateway.specs)]
        began = process_time_ns()
        gateway.tell(spec)
        await turns()
        told = process_time_ns()
        await turns()
        turns_us.append((process_time_ns() - told) / 1e3)
        costs.append((told - began) / 1e3)
    gc.enable()
    await gateway.stop()
    idle_us = median(turns_us)
    return [cost - idle_us for cost in costs]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--backends", type=int, default=64)
    parser.add_argument("--pools", type=int, nargs="+", default=[8, 1])
    parser.add_argument("--in-flight", type=int, default=64, help="requests that each backend runs")
    parser.add_argument("--waiting", type=int, nargs="+", default=[0, 32], help="requests that wait in each pool")
    parser.add_argument("--reports", type=int, default=512)
    options = parser.parse_args()
    print("us of CPU per report of one backend")
    print("  ".join(f"{column:>9}" for column in ("backends", "pools", "in flight", "waiting", "p50", "p99", "max")))
    for pools in options.pools:
        for waiting in options.waiting:
            costs = asyncio.run(
                measure(options.reports, waiting, backends=options.backends, pools=pools, in_flight=options.in_flight)
            )
            row = (options.backends, pools, options.backends * options.in_flight, waiting)
            figures = (median(costs), quantiles(costs, n=100)[98], max(costs))
            print("  ".join([f"{each:>9}" for each in row] + [f"{each:>9.0f}" for each in figures]))


if __name__ == "__main__":
    main()
