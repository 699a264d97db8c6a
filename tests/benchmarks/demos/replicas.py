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

from failures_rig import SLOTS, Cluster, Load  # noqa: E402
from redis_server import RedisServer  # noqa: E402

SPEED = 0.1  # a step of 10 ms
KILL_AT, START_AT = 1 / 4, 1 / 2  # parts of the time
WINDOW = 5  # seconds of the ratio


async def main(seconds: int) -> None:
    async with contextlib.AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        server = stack.enter_context(RedisServer(folder))
        print("three replicas start ...", flush=True)
        cluster = await stack.enter_async_context(Cluster(folder, server, speed=SPEED))
        load = await stack.enter_async_context(Load(cluster))
        await watch(cluster, load, seconds)


async def watch(cluster: Cluster, load: Load, seconds: int) -> None:
    print("  s    gold  bronze  ratio  leader  epoch  failed  most", flush=True)
    killed, starting = None, None
    last: Counter[str] = Counter()
    window: deque[Counter[str]] = deque(maxlen=WINDOW)
    began_at = time.monotonic()
    for second in range(1, seconds + 1):
        await asyncio.sleep(max(0.0, began_at + second - time.monotonic()))
        now = tokens_of(load)
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
    tokens = tokens_of(load)
    print(
        f"in all {tokens['gold']} and {tokens['bronze']} tokens, {tokens['gold'] / tokens['bronze']:.2f} : 1", end="; "
    )
    print(f"{failed(load)} calls failed; at most {max(load.most.values())} of {SLOTS} ran at a backend")


def tokens_of(load: Load) -> Counter[str]:
    """Output tokens of each tenant until now."""
    tokens = Counter[str]()
    for each in load.calls:
        tokens[each.tenant] += each.output_tokens
    return tokens


def failed(load: Load) -> int:
    return sum(each.status != 200 for each in load.calls)


async def line(cluster: Cluster, load: Load, window: Sequence[Counter[str]], leader: int | None) -> str:
    """The figures of the last second."""
    ratio = sum(each["gold"] for each in window) / max(1, sum(each["bronze"] for each in window))
    epoch = None if leader is None else await cluster.value(leader, "fairlead_cluster_epoch")
    leads = "-" if leader is None or epoch is None else f"{leader}  {epoch:>5.0f}"
    rates = f"{window[-1]['gold']:>7} {window[-1]['bronze']:>7}"
    return f"{rates}  {ratio:5.2f}  {leads:>13}  {failed(load):>6}  {max(load.most.values()):>4}"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--seconds", type=int, default=24, help="how long to watch (default 24)")
    asyncio.run(main(parser.parse_args().seconds))
