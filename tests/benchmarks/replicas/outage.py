"""Replicas that share one order while Redis is away for a minute: what two tenants of weights 4 and 1 have of it.

    python tests/benchmarks/replicas/outage.py [--replicas 3] [--seconds 60] [OUTAGE ...]

For each outage so many `fairlead serve`, a real Redis and two embedded engines are started, and two tenants that enter
at different replicas always want more than they get (tests/integration/replicas/failures_rig.py). A line of figures per
outage: the shares and the throughput while Redis is away, beside a quarter of that time before and after, the epochs
before and after, and what failed or was forgotten.
"""

import argparse
import asyncio
import contextlib
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple

HERE = Path(__file__).resolve()
INTEGRATION = HERE.parents[2] / "integration"
sys.path[:0] = [str(INTEGRATION), str(INTEGRATION / "replicas"), str(HERE.parents[1] / "demos"), str(HERE.parents[3])]

import redis  # noqa: E402
from failures_rig import SLOTS, Cluster, Load  # noqa: E402
from redis_server import RedisServer  # noqa: E402
from replicas import SPEED, failed, tokens_of  # noqa: E402

SETTLE_S: Final = 5.0  # until queues are full


class Outage(NamedTuple):
    """How Redis goes away, and how it comes back."""

    goes: Callable[[RedisServer], object]
    returns: Callable[[RedisServer], object]


def command(*words: str) -> Callable[[RedisServer], object]:
    """Have the server carry out this command."""

    def carried_out(server: RedisServer) -> object:
        with contextlib.closing(redis.Redis.from_url(server.url)) as client:
            return client.execute_command(*words)

    return carried_out


OUTAGES: Final = {
    "killed": Outage(RedisServer.kill, RedisServer.start),
    "frozen": Outage(RedisServer.freeze, RedisServer.thaw),
    "emptied": Outage(command("FLUSHALL"), lambda _server: None),
    "replaced by an empty one": Outage(RedisServer.restart_empty, lambda _server: None),
    "read-only": Outage(command("REPLICAOF", "127.0.0.1", "1"), command("REPLICAOF", "NO", "ONE")),
    "out of memory": Outage(command("CONFIG", "SET", "maxmemory", "1"), command("CONFIG", "SET", "maxmemory", "0")),
}


async def measured(name: str, replicas: int, seconds: float) -> str:
    outage = OUTAGES[name]
    async with contextlib.AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        server = stack.enter_context(RedisServer(folder))
        cluster = await stack.enter_async_context(Cluster(folder, server, count=replicas, speed=SPEED))
        load = await stack.enter_async_context(Load(cluster))
        await asyncio.sleep(SETTLE_S)
        before = await served(load, seconds / 4)
        epochs = [await cluster.value(0, "fairlead_cluster_epoch")]
        outage.goes(server)
        during = await served(load, seconds)
        alone = sum([bool(await cluster.value(number, "fairlead_replicas_cut_off")) for number in cluster.numbers])
        outage.returns(server)
        after = await served(load, seconds / 4)
        epochs.append(await cluster.value(0, "fairlead_cluster_epoch"))
        figures = await load.end()
    rates = [sum(each.values()) for each in (before, during, after)]
    ratios = ", ".join(f"{each['gold'] / each['bronze']:.3f} : 1" for each in (before, during, after))
    return (
        f"Redis is {name} for {seconds:.0f} s, {replicas} replicas: before, meanwhile and after {ratios}, "
        f"throughput {rates[1] / rates[0]:.3f} of before, {alone} alone in the end, epochs {epochs}, "
        f"{failed(load)} calls failed, "
        f"{figures.forgotten_s:.2f} s of charges forgotten, no answer for at most {figures.gap_s:.2f} s, "
        f"at most {max(figures.most.values())} of {SLOTS} in flight at a backend"
    )


async def served(load: Load, seconds: float) -> Counter[str]:
    """Tokens a second of each tenant within this time."""
    before, since = tokens_of(load), time.monotonic()
    await asyncio.sleep(seconds)
    spent_s = time.monotonic() - since
    return Counter({tenant: count / spent_s for tenant, count in (tokens_of(load) - before).items()})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("outages", nargs="*", metavar="OUTAGE", help=f"one of: {'; '.join(OUTAGES)} (default: all)")
    parser.add_argument("--replicas", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=60.0)
    given = parser.parse_args()
    for name in given.outages or OUTAGES:
        print(asyncio.run(measured(name, given.replicas, given.seconds)), flush=True)


if __name__ == "__main__":
    main()
