"""What do calls wait when the Redis that shares the state of gateways is in trouble?

    python tests/benchmarks/redis_faults/bench.py [--rounds 3] [--seconds 30] [--rate 50]

Two gateways run side by side, each with a Redis of its own that holds a thousand tenants. One Redis is well; the other
is frozen, killed, restarted empty every few seconds, or slow by 200 ms. Whole calls of 8 tokens go to both in turn at a
steady rate, so that what else happens on the machine happens to both. The line "well" has no fault: what it says is
added is chance. Each fault begins within the time that is measured, and ends within it.
"""

import argparse
import asyncio
import contextlib
import json
import os
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median, quantiles

import aiohttp
import uvloop

sys.path[:0] = [str(Path(__file__).parents[2] / "integration")]
from forked import FAIRLEAD, fork  # noqa: E402
from gateway_process import serving  # noqa: E402
from redis_server import RedisServer, slow_proxy  # noqa: E402

TENANTS = 1000
TOKENS = 8
SLOW_S = 0.2
RESTART_EVERY_S = 5.0
# Of the caller, and never reached: gateways share them through Redis.
LIMITS = {"requests_per_minute_max": 100_000, "tokens_per_minute_max": 10_000_000, "tokens_per_day_max": 10**9}
WARM_S = 2.0
AFTER_S = 2.0  # when the fault is over
FAULTS = ("well", "frozen", "killed", "restarted empty", "200 ms slow")


def settings(redis_url):
    return {
        "engine": {"coefficients": "cpu-tiny"},
        "state": {"redis": {"url": redis_url}},
        "auth": {"trusted_proxies": ["127.0.0.1/32"]},
        "tenants": {"alice": LIMITS},
        "health": {},
    }


async def fill(folder, redis_url):
    """Make the tenants that a server forgets when it is restarted."""
    folder.mkdir()
    tenants = {f"t{number}": {"weight": 2} for number in range(TENANTS)}
    folder.joinpath("export.json").write_text(json.dumps({"fairlead_export": 1, "tenants": tenants}))
    folder.joinpath("fairlead.yaml").write_text(json.dumps(settings(redis_url)))  # JSON is YAML
    arguments = "import", "export.json", "-c", "fairlead.yaml"
    process = await fork(FAIRLEAD, *arguments, folder=folder, environment=dict(os.environ))
    await process.communicate()
    assert process.returncode == 0


@dataclass
class Arm:
    """A gateway as a process, and what calls to it took."""

    url: str = ""
    seconds: list[float] = field(default_factory=list)
    failed: int = 0

    @contextlib.asynccontextmanager
    async def serving(self, folder, redis_url):
        folder.mkdir()
        async with serving(folder, settings=settings(redis_url)) as process:
            self.url = process.url
            yield self

    async def ask(self, session, *, measured):
        body = json.dumps({"messages": [{"role": "user", "content": "Hello"}], "max_tokens": TOKENS})
        began = time.perf_counter()
        try:
            async with session.post(f"{self.url}/v1/chat/completions", data=body) as answer:
                is_whole = json.loads(await answer.read())["usage"]["completion_tokens"] == TOKENS
        except (aiohttp.ClientError, TimeoutError, ValueError, KeyError):
            is_whole = False
        if measured:
            self.failed += not is_whole
            self.seconds.append(time.perf_counter() - began)


async def call_on(arms, session, rate, seconds, *, measured):
    """Each is asked `rate` times a second, whatever has been answered, the one between two of the other."""
    loop = asyncio.get_running_loop()
    began, waiting = loop.time(), []
    for number in range(round(2 * rate * seconds)):
        await asyncio.sleep(max(0.0, began + number / (2 * rate) - loop.time()))
        waiting.append(asyncio.create_task(arms[number % 2].ask(session, measured=measured)))
    await asyncio.gather(*waiting)


async def strike(fault, redis, seconds):
    """Do this to the server for so long; it is well when this returns."""
    if fault == "frozen":
        redis.freeze()
        await asyncio.sleep(seconds)
        redis.thaw()
    elif fault == "killed":
        redis.kill()
        await asyncio.sleep(seconds)
        await asyncio.to_thread(redis.start)
    elif fault == "restarted empty":
        for _ in range(max(1, round(seconds / RESTART_EVERY_S))):
            await asyncio.to_thread(redis.restart_empty)
            await asyncio.sleep(RESTART_EVERY_S)


async def one_round(fault, folder, options):
    """The arm that is well and the one with the fault."""
    folder.mkdir()
    async with contextlib.AsyncExitStack() as stack:
        servers = [stack.enter_context(RedisServer(folder)) for _ in range(2)]
        urls = [server.url for server in servers]
        for number, url in enumerate(urls):
            await fill(folder / f"fill-{number}", url)
        if fault == "200 ms slow":
            port = await stack.enter_async_context(slow_proxy(servers[1].port, SLOW_S / 2))
            urls[1] = f"redis://127.0.0.1:{port}/0"
        arms = [
            await stack.enter_async_context(Arm().serving(folder / name, url))
            for name, url in zip(("well", "struck"), urls, strict=True)
        ]
        headers = {"Content-Type": "application/json", "X-Tenant-Id": "alice"}
        timeout = aiohttp.ClientTimeout(total=20)
        session = await stack.enter_async_context(aiohttp.ClientSession(headers=headers, timeout=timeout))
        await call_on(arms, session, options.rate, WARM_S, measured=False)
        await asyncio.gather(
            call_on(arms, session, options.rate, options.seconds + AFTER_S, measured=True),
            strike(fault, servers[1], options.seconds),
        )
    return arms


def ms(arm):
    """p50, p99 and the longest."""
    cut = quantiles(arm.seconds, n=100)
    return cut[49] * 1e3, cut[98] * 1e3, max(arm.seconds) * 1e3


def line(fault, rounds):
    well, struck = ([ms(pair[side]) for pair in rounds] for side in range(2))
    sides = [[f"{median(each[which] for each in side):.1f}" for side in (well, struck)] for which in range(3)]
    p50s, p99s, longest = (" / ".join(pair) for pair in sides)
    added = [there[1] - here[1] for here, there in zip(well, struck, strict=True)]
    pooled = [Arm(seconds=[second for pair in rounds for second in pair[side].seconds]) for side in range(2)]
    calls = len(pooled[1].seconds)
    failed = sum(pair[1].failed for pair in rounds)
    all_added = ms(pooled[1])[1] - ms(pooled[0])[1]
    spread = f"{median(added):+.1f} ({min(added):+.1f} to {max(added):+.1f})"
    return f"| {fault} | {calls} | {failed} | {p50s} | {p99s} | {longest} | {spread} | {all_added:+.1f} |"


async def main(options):
    found = {fault: [] for fault in FAULTS}
    with tempfile.TemporaryDirectory() as folder:
        for number in range(options.rounds):
            for fault in FAULTS:
                found[fault].append(
                    await one_round(fault, Path(folder) / f"{number}-{fault.replace(' ', '-')}", options)
                )
                print(f"round {number + 1}: {line(fault, found[fault][-1:])}", file=sys.stderr)
    print("| Redis | calls | failed | p50, ms: well / struck | p99 | longest | added p99, by round | of all calls |")
    print("|---|---|---|---|---|---|---|---|")
    for fault, rounds in found.items():
        print(line(fault, rounds))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=30.0, help="how long a fault lasts")
    parser.add_argument("--rate", type=float, default=50.0, help="calls a second to each gateway")
    uvloop.run(main(parser.parse_args()))
