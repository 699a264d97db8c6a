"""What do clients see when a backend is killed, and comes back?

    python tests/benchmarks/backend_faults/bench.py [--rounds 3] [accident] [outage]

The gateway and its clients are this process; the backend is a process of its own (the embedded engine), which gets
SIGKILL.

accident: 17 clients stream one answer after the other from the only backend. It is killed and started again 4 s later.
    How long after it answers again is the next token there, and what part of the rate before is the rate from then on?
outage: calls arrive 76 times a second, 10 s of it while the only backend is away. How many are refused, and how long do
    those wait that are not?

With PYTHONPATH at another tree it measures that one.
"""

import argparse
import asyncio
import contextlib
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median, quantiles

import aiohttp
import uvloop

sys.path.append(str(Path(__file__).resolve().parents[2] / "integration"))
from engine_process import EngineProcess

from gateway.app import open_gateway
from gateway.config import Config
from gateway.store.sqlite import SqliteStore

STREAMS = 17
AWAY_S = {"accident": 4.0, "outage": 10.0}
BEFORE_S = 4.0
AFTER_S = 12.0
ARRIVALS_PER_S = 76
AGAIN_S = 0.25  # after which a client that was refused or cut asks again
MODEL = "tiny"
OPTIONS = {"model": MODEL, "max_model_len": 8192, "block_tokens": 16}  # beside those of EngineProcess


@contextlib.asynccontextmanager
async def gateway(*backends):
    """A session of clients, and where they call."""
    for backend in backends:
        await backend.start()
    entries = [{"name": f"b{number}", "url": backend.url} for number, backend in enumerate(backends)]
    served = await open_gateway(
        Config(listen={"port": 0}, backends=entries, access_log={"enabled": False}, shutdown={"lame_duck_s": 0.0}),
        SqliteStore(None),
    )
    url = await served.start()
    try:
        timeout, connector = aiohttp.ClientTimeout(total=60), aiohttp.TCPConnector(limit=0)
        async with aiohttp.ClientSession(timeout=timeout, connector=connector) as session:
            yield session, url + "/v1/chat/completions"
    finally:
        await served.stop()
        for backend in backends:
            await backend.kill()


@dataclass
class Answer:
    """How one stream went: its status, when its tokens came, whether it was whole."""

    status: int = 0
    token_times: list[float] = field(default_factory=list)
    whole: bool = False


async def stream(session, url, into, *, words=8, tokens):
    """Ask once, and write down what comes as it comes."""
    messages = [{"role": "user", "content": "word " * words}]
    body = {"model": MODEL, "messages": messages, "max_tokens": tokens, "stream": True}
    with contextlib.suppress(aiohttp.ClientError, TimeoutError):
        async with session.post(url, json=body) as response:
            into.status = response.status
            async for line in response.content:
                if b'"content":"' in line and b'"content":""' not in line:
                    into.token_times.append(time.monotonic())
                into.whole = into.whole or b"[DONE]" in line
    return into


async def accident():
    """Seconds from being back to the first token, and the part of the rate before that came after it."""
    backend, answers, ending = EngineProcess(**OPTIONS, speed=0.05), [], False

    async def client(session, url):
        while not ending:
            answers.append(Answer())
            if not (await stream(session, url, answers[-1], tokens=100)).whole:
                await asyncio.sleep(AGAIN_S)

    async with gateway(backend) as (session, url):
        clients = [asyncio.create_task(client(session, url)) for _ in range(STREAMS)]
        await asyncio.sleep(BEFORE_S)
        killed_at = time.monotonic()
        await backend.kill()
        await asyncio.sleep(AWAY_S["accident"])
        await backend.start()
        back_at = time.monotonic()
        await asyncio.sleep(AFTER_S)
        ended_at, ending = time.monotonic(), True
        for task in clients:
            task.cancel()
        await asyncio.gather(*clients, return_exceptions=True)
    times = sorted(at for answer in answers for at in answer.token_times)
    first_at = next(at for at in times if at > back_at)
    rate = sum(at < killed_at and at > killed_at - BEFORE_S / 2 for at in times) / (BEFORE_S / 2)
    after = sum(at >= first_at for at in times) / (ended_at - first_at)
    since_back = sum(at >= first_at for at in times) / (ended_at - back_at)
    return {
        "first token, s after it was back": first_at - back_at,
        "rate from then on": after / rate,
        "rate since it was back": since_back / rate,
    }


async def outage():
    """Calls refused while the backend was away, of how many, and the longest wait of those that were served."""
    backend, answers = EngineProcess(**OPTIONS, speed=2.0), []

    async def call(session, url, arrived_at):
        answer = await stream(session, url, Answer(), tokens=8)
        answers.append((arrived_at, time.monotonic(), answer))

    async def arrivals(session, url, seconds, calls):
        for _ in range(int(seconds * ARRIVALS_PER_S)):
            calls.append(asyncio.create_task(call(session, url, time.monotonic())))
            await asyncio.sleep(1 / ARRIVALS_PER_S)

    async with gateway(backend) as (session, url):
        calls = []
        await arrivals(session, url, 2.0, calls)
        await backend.kill()
        lost_at = time.monotonic()
        await arrivals(session, url, AWAY_S["outage"], calls)
        await backend.start()
        back_at = time.monotonic()
        await arrivals(session, url, 4.0, calls)
        await asyncio.gather(*calls)
    meanwhile = [(end - start, answer) for start, end, answer in answers if lost_at <= start < back_at]
    waits = [seconds for seconds, answer in meanwhile if answer.whole]
    return {
        "arrived while it was away": len(meanwhile),
        "refused (503)": sum(answer.status == 503 for _, answer in meanwhile),
        "not whole": sum(not answer.whole for _, answer in meanwhile),
        "p50 wait, s": median(waits) if waits else 0.0,
        "longest wait, s": max(waits, default=0.0),
        "p99 after it was back, s": quantiles(
            [end - start for start, end, _ in answers if start >= back_at + 1.0], n=100
        )[-1],
    }


MEASURES = {"accident": accident, "outage": outage}


async def main(names, rounds):
    for name in names:
        rows = [await MEASURES[name]() for _ in range(rounds)]
        for key in rows[0]:
            values = " ".join(f"{row[key]:.3f}" if isinstance(row[key], float) else str(row[key]) for row in rows)
            print(f"{name:10} {key:36} {values}", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", choices=[*MEASURES, []], default=[])
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    uvloop.run(main(arguments.names or list(MEASURES), arguments.rounds))
