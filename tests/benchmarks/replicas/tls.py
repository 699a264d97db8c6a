"""What does mutual TLS between replicas cost a call? CPU of the follower that a client calls, and of the leader.

    python tests/benchmarks/replicas/tls.py [--rounds 25] [--seconds 0.5] [--clients 1,32]

Two pairs of `fairlead serve` take turns, each with a Redis of its own. One speaks mutual TLS, as always. The other is
the same code that speaks plain WebSockets, by a program that takes TLS out before it starts. Clients call the follower
for whole answers of one token of an embedded engine. CPU is that of all threads (/proc/PID/task/*/schedstat). Other
processes on the machine only ever add to it, so the least of many short rounds is printed beside the median.
"""

import argparse
import asyncio
import contextlib
import statistics
import sys
import tempfile
from pathlib import Path

INTEGRATION = Path(__file__).resolve().parents[2] / "integration"
sys.path[:0] = [str(INTEGRATION), str(INTEGRATION / "replicas"), str(INTEGRATION.parents[1])]

from gateway_process import serving  # noqa: E402
from gateway_rig import FAST, engine  # noqa: E402
from redis_server import RedisServer  # noqa: E402
from replicas_rig import SETTINGS, Replicas  # noqa: E402

PLAIN = """
import aiohttp
from gateway.ports import listener
from gateway.shared_order import credentials, order, services

class Plain(listener.Listener):
    def __init__(self, *given, handshakes, **options):
        super().__init__(*given, **options)

services.Listener = Plain
credentials.Credentials.are_of = lambda *_: True
order.open_session = services.open_session = lambda address: (aiohttp.ClientSession(), f"http://{address}")
from gateway.cli import main
main()
"""


def cpu_s(pid: int) -> float:
    """Of all threads of this process until now."""
    return sum(int(each.read_text().split()[0]) for each in Path(f"/proc/{pid}/task").glob("*/schedstat")) / 1e9


@contextlib.asynccontextmanager
async def pair(folder: Path, backend, **options):
    """Two replicas in this folder."""
    with RedisServer(folder.parent) as server:
        given = SETTINGS | {"state": {"redis": {"url": server.url}}}
        async with contextlib.AsyncExitStack() as stack:
            processes = []
            for number in range(2):
                own = folder / str(number)
                own.mkdir(parents=True)
                processes.append(await stack.enter_async_context(serving(own, backend, settings=given, **options)))
            gateways = Replicas(processes)
            await gateways.leader()
            await gateways.ready()
            yield gateways


async def round_of(gateways: Replicas, clients: int, seconds: float) -> tuple[float, float, float]:
    """CPU of the follower and of the leader for a call, in us, and calls a second."""
    leader = await gateways.leader()
    follower = gateways.processes[1 - leader]
    loop, count = asyncio.get_running_loop(), 0
    pids = follower.pid, gateways.pid(leader)
    before = [cpu_s(pid) for pid in pids]
    until = loop.time() + seconds

    async def client() -> None:
        nonlocal count
        while loop.time() < until:
            status = await follower.ask("alice", max_tokens=1)
            assert status == 200, status
            count += 1

    await asyncio.gather(*(client() for _ in range(clients)))
    used = [1e6 * (cpu_s(pid) - at) / count for pid, at in zip(pids, before, strict=True)]
    return used[0], used[1], count / seconds


async def main(rounds: int, seconds: float, loads: list[int]) -> None:
    async with contextlib.AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        backend = await stack.enter_async_context(engine(**FAST, speed=5.0))
        pairs = {
            "TLS": await stack.enter_async_context(pair(folder / "tls", backend)),
            "plain": await stack.enter_async_context(pair(folder / "plain", backend, program=PLAIN)),
        }
        for clients in loads:
            found: dict[str, list[tuple[float, float, float]]] = {name: [] for name in pairs}
            for gateways in pairs.values():
                await round_of(gateways, clients, 1.0)  # all code has run
            for _ in range(rounds):
                for name, gateways in pairs.items():
                    found[name].append(await round_of(gateways, clients, seconds))
            for name, of in found.items():
                follower, leader, calls_s = (sorted(each) for each in zip(*of, strict=True))
                print(
                    f"{clients} clients, {name}: follower {statistics.median(follower):.0f} us a call, at least "
                    f"{follower[0]:.0f}; leader {statistics.median(leader):.0f} us, at least {leader[0]:.0f}; "
                    f"{statistics.median(calls_s):.0f} calls/s, at most {calls_s[-1]:.0f}",
                    flush=True,
                )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--rounds", type=int, default=25)
    parser.add_argument("--seconds", type=float, default=0.5)
    parser.add_argument("--clients", default="1,32", help="calls at once, one load after the other (default 1,32)")
    given = parser.parse_args()
    asyncio.run(main(given.rounds, given.seconds, [int(each) for each in given.clients.split(",")]))
