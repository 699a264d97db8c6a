"""The control of checks of times over several processes: the benchmarks' naive relay, in the place of the gateway.

It does nothing but relay, on the same loop and the same library. A busy machine disturbs both, so that what it adds
says how much of what the gateway adds is the machine's.
"""

import asyncio
import contextlib
import os
import sys
from dataclasses import dataclass

import aiohttp
from redis_server import free_port

from tests.calm.table import ROOT

START_S_MAX = 60.0
RELAY = ROOT / "tests/benchmarks/relay/naive_relay.py"
LOOK_S = 0.01  # between two looks at the lag
# The relay with one path more, which tells how late its loop ran what was due, in own time.
MEASURED = f"""
import asyncio, runpy, time
from aiohttp import web
from tests.calm.rig import waited_s

lags, run_app = [], web.run_app

async def look():
    while True:
        before = time.monotonic() - waited_s()
        await asyncio.sleep({LOOK_S})
        lags.append(max(0.0, time.monotonic() - waited_s() - before - {LOOK_S}))

async def looking(app):
    looker = asyncio.create_task(look())
    yield
    looker.cancel()

async def tell(request):
    told = web.json_response(lags)
    lags.clear()
    return told

def run(app, **options):
    app.cleanup_ctx.append(looking)
    app.router.add_get("/lags", tell)
    run_app(app, **options)

web.run_app = run
runpy.run_path({str(RELAY)!r}, run_name="__main__")
"""


@dataclass(frozen=True)
class Naive:
    pid: int
    url: str

    async def lags(self):
        """Seconds by which its loop was late, since this was asked before."""
        async with aiohttp.ClientSession() as session, session.get(f"{self.url}/lags") as answer:
            return await answer.json()


@contextlib.asynccontextmanager
async def naive(backend):
    """A Naive before this backend, in a process of its own."""
    port = free_port()
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", MEASURED, str(port), backend.url, env={**os.environ, "PYTHONPATH": str(ROOT)}
    )
    relay = Naive(process.pid, f"http://127.0.0.1:{port}")
    try:
        async with asyncio.timeout(START_S_MAX):
            while not await _answers(relay):
                assert process.returncode is None
                await asyncio.sleep(0.05)
        yield relay
    finally:
        process.kill()
        await process.wait()


async def _answers(relay):
    with contextlib.suppress(aiohttp.ClientConnectionError):
        await relay.lags()
        return True
    return False
