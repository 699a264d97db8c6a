"""Three replicas that share one order, watched second by second while their leader is killed and comes back.

    python tests/benchmarks/demos/replicas.py [--seconds 24]

A real Redis, two embedded engines, and two tenants, of weight 4 and of weight 1, that enter at different replicas and
always want more than they get. Each line: tokens per second of each tenant, their ratio over the last five seconds,
the leader and its epoch, calls that failed, and the most that ever ran at a backend, whose limit is 4. Clients behave
as behind a balancer: they call a replica that is ready. What fails is what the killed replica had in hand.
"""

import argparse
import asyncio
import contextlib
import sys
import tempfile
import time
from collections import Counter, deque
from collections.abc import Sequence
from pathlib import Path

INTEGRATION = Path(__file__).resolve().parents[2] / "integration"
sys.path[:0] = [str(INTEGRATION), str(INTEGRATION / "replicas"), str(INTEGRATION.parents[1])]

from failures_rig import READY_S, SLOTS, Cluster, Load  # noqa: E402
from redis_server import RedisServer  # noqa: E402

WEIGHTS = {"gold": 4, "bronze": 1}
ENTERS_AT = {"gold": (0, 2), "bronze": (1, 2)}  # the second where the first is not ready
CLIENTS = 24  # of each tenant: three times what the backends run
TOKENS = 16
SPEED = 0.1  # a step of 10 ms
KILL_AT, START_AT = 1 / 4, 1 / 2  # parts of the time
WINDOW = 5  # seconds of the ratio


async def main(seconds: int) -> None:
    tenants = {tenant: {"weight": weight} for tenant, weight in WEIGHTS.items()}
    async with contextlib.AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        server = stack.enter_context(RedisServer(folder))
        print("three replicas start ...", flush=True)
        cluster = await stack.enter_async_context(
            Cluster(folder, server, speed=SPEED, tenants=tenants, scheduling={"share_ratio_max": 1.0})
        )
        load = await stack.enter_async_context(Weighted(cluster))
        await watch(cluster, load, seconds)


class Weighted(Load):
    """Two tenants, each with clients that call the first of its replicas that is ready."""

    @property
    def entered(self):
        return [first for first, _ in ENTERS_AT.values()]

    def make_clients(self):
        return [self._call_ready(tenant) for tenant in WEIGHTS for _ in range(CLIENTS)]

    @property
    def failed(self) -> int:
        return sum(each.status != 200 for each in self.calls)

    def tokens(self) -> Counter[str]:
        """What each tenant was served until now."""
        return Counter({tenant: TOKENS * count for tenant, count in self._answered().items()})

    def _answered(self) -> Counter[str]:
        return Counter(each.tenant for each in self.calls if each.status == 200)

    async def _call_ready(self, tenant: str) -> None:
        while not self.is_ending:
            number = next((each for each in ENTERS_AT[tenant] if self.ready[each]), None)
            if number is None:
                await asyncio.sleep(READY_S)
            else:
                await self.call(number, tenant, max_tokens=TOKENS)


async def watch(cluster: Cluster, load: Weighted, seconds: int) -> None:
    print("  s    gold  bronze  ratio  leader  epoch  failed  most", flush=True)
    killed, starting = None, None
    last: Counter[str] = Counter()
    window: deque[Counter[str]] = deque(maxlen=WINDOW)
    began_at = time.monotonic()
    for second in range(1, seconds + 1):
        await asyncio.sleep(max(0.0, began_at + second - time.monotonic()))
        now = load.tokens()
        window.append(now - last)
        last = now
        leader = await cluster.leader()
        print(f"{second:>3} {await line(cluster, load, window, leader)}", flush=True)
        if second == round(seconds * KILL_AT) and leader is not None:
            killed = leader
            await cluster.kill(killed)
            print(f"    replica {killed}, which leads, is killed", flush=True)
        elif second == round(seconds * START_AT) and killed is not None:
            print(f"    replica {killed} is started again", flush=True)
            starting = asyncio.create_task(cluster.start(killed))
    if starting is not None:
        await starting
    tokens = load.tokens()
    print(
        f"in all {tokens['gold']} and {tokens['bronze']} tokens, {tokens['gold'] / tokens['bronze']:.2f} : 1", end="; "
    )
    print(f"{load.failed} calls failed; at most {max(load.most.values())} of {SLOTS} ran at a backend")


async def line(cluster: Cluster, load: Weighted, window: Sequence[Counter[str]], leader: int | None) -> str:
    """The figures of the last second."""
    ratio = sum(each["gold"] for each in window) / max(1, sum(each["bronze"] for each in window))
    epoch = None if leader is None else await cluster.value(leader, "fairlead_cluster_epoch")
    leads = "-" if leader is None or epoch is None else f"{leader}  {epoch:>5.0f}"
    rates = f"{window[-1]['gold']:>7} {window[-1]['bronze']:>7}"
    return f"{rates}  {ratio:5.2f}  {leads:>13}  {load.failed:>6}  {max(load.most.values()):>4}"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--seconds", type=int, default=24, help="how long to watch (default 24)")
    asyncio.run(main(parser.parse_args().seconds))
