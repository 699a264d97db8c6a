"""Sixteen followers with ten thousand queued calls: what a change of leaders and a frozen follower cost them.

    python tests/benchmarks/replicas/many.py [--followers 16] [--calls 10000]

Seventeen `fairlead serve`, a real Redis and two embedded engines. Each follower is sent the same part of the calls, of
five tenants of weights 4, 1, 1, 1 and 1. When all are queued, a follower is frozen for 10 s, then the leader is killed.
For each: the longest time in which no call was begun at a backend, the most that ran at one, and the longest turn of
the loop of a process (fairlead_event_loop_lag_seconds). The ratio is that of the calls of gold to those of another
tenant.
"""

import argparse
import asyncio
import contextlib
import re
import signal
import sys
import tempfile
from collections import Counter
from pathlib import Path

INTEGRATION = Path(__file__).resolve().parents[2] / "integration"
sys.path[:0] = [str(INTEGRATION), str(INTEGRATION / "replicas"), str(INTEGRATION.parents[1])]

from failures import LONG_S  # noqa: E402
from failures_rig import WHOLE, Cluster, Load  # noqa: E402
from redis_server import RedisServer  # noqa: E402

TENANTS = {"gold": {"weight": 4}, **{f"bronze{number}": {} for number in range(4)}}
SPEED = 0.15  # of the engines: so slow that all tenants have calls queued all the time
FROZEN_AFTER_S = 5.0


class Queued(Load):
    """Each client calls once."""

    def make_clients(self):
        return []

    async def _spend(self, home: int) -> None:
        """There is no budget."""

    async def served(self, replicas=None, calls=12):
        """Nothing is awaited: the queue is filled from outside."""

    async def fill(self, followers: list[int], calls: int) -> None:
        tenants = list(TENANTS)
        for each in range(calls):
            number = followers[each % len(followers)]
            self._ask_all([self._once(number, tenants[each // len(followers) % len(tenants)])])
            if each % 100 == 0:
                await asyncio.sleep(0.02)

    async def _once(self, number: int, tenant: str) -> None:
        await self.call(number, tenant, **WHOLE)

    async def during(self, what: str, seconds: float, running: list[int]) -> None:
        """Print what there was in this time from now on, with the turns of these processes."""
        self.most.clear()
        self.idle_s, before = 0.0, len(self.calls)
        await asyncio.sleep(seconds)
        lags = [await longest_turn_s(self.cluster, number) for number in running]
        known = [each for each in lags if each is not None]
        served = Counter(each.tenant for each in self.calls[before:] if each.status == 200)
        ratio = served["gold"] * (len(TENANTS) - 1) / (served.total() - served["gold"])
        print(
            f"{what}: none begun for at most {self.idle_s:.2f} s, at most {max(self.most.values())} at a backend, "
            f"{len(self.calls) - before} ended, {ratio:.2f} : 1, turns since the start up to {max(known):.3f} s",
            flush=True,
        )

    async def queued(self) -> int:
        """The calls that wait in the leader's queue."""
        leader = await self.cluster.led(self.among)
        counts = await self.cluster.processes[leader].metric("fairlead_pool_queued_requests")
        return int(sum(counts.values()))


async def longest_turn_s(cluster: Cluster, number: int) -> float | None:
    """The least bound that no turn of this process's loop was longer than; None: it does not run."""
    if cluster.url(number) is None:
        return None
    _, text = await cluster.processes[number].admin("GET", "/metrics")
    buckets = re.findall(r'^fairlead_event_loop_lag_seconds_bucket{le="(\S+)"} (\S+)$', text, re.MULTILINE)
    most = float(buckets[-1][1])
    return next(float(bound) for bound, count in buckets if float(count) == most)


async def main(followers: int, calls: int) -> None:
    async with contextlib.AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        server = stack.enter_context(RedisServer(folder))
        cluster = await stack.enter_async_context(
            Cluster(folder, server, count=followers + 1, speed=SPEED, tenants=TENANTS, prices={})
        )
        load = await stack.enter_async_context(Queued(cluster))
        leader = await cluster.led()
        numbers = [number for number in cluster.numbers if number != leader]
        await load.fill(numbers, calls)
        while (waiting := await load.queued()) + len(load.calls) < calls * 0.99:  # noqa: ASYNC110 - they are processes
            await asyncio.sleep(0.2)
        print(f"{waiting} calls wait at {followers} followers, {len(load.calls)} have ended", flush=True)
        await load.during("nothing", FROZEN_AFTER_S, list(cluster.numbers))
        cluster.send(numbers[0], signal.SIGSTOP)
        frozen = asyncio.create_task(load.during("a follower is frozen for 10 s", LONG_S, [leader, *numbers[1:]]))
        load.among = [leader, *numbers[1:]]
        await asyncio.sleep(LONG_S - 0.5)
        cluster.send(numbers[0], signal.SIGCONT)
        await frozen
        load.among = numbers
        await cluster.kill(leader)
        await load.during("the leader is killed", LONG_S, numbers[1:])
        print(f"{await load.queued()} calls wait", flush=True)
        print(f"{sum(each.status != 200 for each in load.calls)} failed", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--followers", type=int, default=16)
    parser.add_argument("--calls", type=int, default=10_000)
    given = parser.parse_args()
    asyncio.run(main(given.followers, given.calls))
