"""How long does the gateway's other work keep the event loop, which relays the tokens of all streams meanwhile?

    python tests/benchmarks/turns/bench.py [--tenants 1000 10000] [--rounds 3]

Every tenant has been served, and has an account, counters and a record of calls. Then each kind of work is done
--rounds times: reading /metrics, a checkpoint, the documents of the admin API. The figures are the longest turn of the
loop, in CPU time of its thread without garbage collections, which are told besides. The goal is TURN_MS_MAX.
"""

import argparse
import asyncio
import gc
import sys
import tempfile
import time
from pathlib import Path

import uvloop

sys.path[:0] = [str(Path(__file__).parents[2] / "integration")]
TURN_MS_MAX = 5.0
SERIES_MAX = 1000  # of tenants in /metrics: the most that may be configured
DOCUMENTS = ("state", "state/tenants", "tenants", "usage", "requests?state=ended", "backends", "audit", "cluster")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tenants", type=int, nargs="+", default=[1000, 10_000])
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    for tenants in options.tenants:
        with tempfile.TemporaryDirectory(prefix="fairlead-bench-") as folder:
            uvloop.run(bench(Path(folder), tenants, options.rounds))


async def bench(folder, tenants, rounds):
    from admin_rig import admin  # noqa: PLC0415 - they take seconds, which --help does not wait for
    from gateway_rig import MODEL, scripted, until  # noqa: PLC0415

    from gateway.serve import _spare_collections  # noqa: PLC0415

    async with (
        scripted() as backend,
        admin(
            folder,
            {"url": backend.url, "requests_running_max": 1},
            state=folder / "state.db",
            metrics={"tenants_max": min(tenants, SERIES_MAX)},
        ) as api,
    ):
        await until(lambda: api.rig.gateway.pools.routes.find(MODEL))
        waiting = serve_all(api.rig.gateway, tenants)
        await asyncio.sleep(1.0)
        _spare_collections()
        print(f"{tenants} tenants: the longest turn of the loop, ms (garbage collection besides)")
        for name, work in works(api).items():
            found = [await longest_turn(work) for _ in range(rounds)]
            turn_ms, collection_ms = (max(each[i] for each in found) * 1e3 for i in (0, 1))
            print(f"  {name:36} {turn_ms:7.1f} ({collection_ms:.1f}){'  over' * (turn_ms > TURN_MS_MAX)}", flush=True)
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)


def serve_all(gateway, count):
    """Charge each tenant, end a call of each, and have each wait with another: the tasks that wait."""
    from gateway_rig import MODEL  # noqa: PLC0415

    from gateway.observability.telemetry import CallTrace  # noqa: PLC0415
    from policies.types import Outcome, Request, Tenant, Usage  # noqa: PLC0415

    dispatcher, _ = gateway.pools.routes.find(MODEL)
    waiting = []

    async def hold(request, tenant):
        async with dispatcher.lease(request, tenant):
            await asyncio.sleep(1e6)

    for number in range(count):
        tenant = Tenant(f"team-{number:05}", weight=1.0 + number % 3)
        dispatcher.spent(tenant, Usage(100, 20, 50 + number % 7))
        trace = CallTrace("/v1/chat/completions", tenant_id=tenant.id, tier_id="default", model=MODEL)
        trace.request, trace.outcome = Request(f"r{number}", tenant.id, MODEL, 0.0, 1, 1), Outcome.COMPLETED
        trace.queued_s = trace.dispatched_s = trace.started_s
        trace.status, trace.usage = 200, Usage(10, 1, 8)
        gateway.metrics.calls.ended(trace)
        request = Request(f"w{number}", tenant.id, MODEL, dispatcher.now(), 1, 1)
        waiting.append(asyncio.create_task(hold(request, tenant)))
    return waiting


def works(api):
    """What to do, by name."""
    gateway = api.rig.gateway

    async def read(path):
        reply = await api.get(f"/{path}")
        assert reply.status == 200, (path, reply)

    async def scrape():
        await asyncio.sleep(0.6)  # the next look is a new one
        await gateway.metrics.exposition()

    def get(path):
        return lambda: read(path)

    return {
        "nothing, for a second": lambda: asyncio.sleep(1.0),
        "/metrics": scrape,
        "a checkpoint": gateway._management._memory.write,
        **{f"GET /admin/v1/{path}": get(path) for path in DOCUMENTS},
    }


async def longest_turn(work):
    """Seconds of the longest turn, and of all garbage collections, while this is done."""
    collected, began = [0.0], [0.0]

    def note(phase, _info):
        if phase == "start":
            began[0] = time.thread_time()
        else:
            collected[0] += time.thread_time() - began[0]

    gc.callbacks.append(note)
    try:
        longest, doing = 0.0, asyncio.ensure_future(work())
        while not doing.done():
            before, last = collected[0], time.thread_time()
            await asyncio.sleep(0)
            longest = max(longest, time.thread_time() - last - (collected[0] - before))
        await doing
    finally:
        gc.callbacks.remove(note)
    return longest, collected[0]


if __name__ == "__main__":
    main()
