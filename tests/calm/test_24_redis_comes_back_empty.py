"""Redis is killed and comes back empty: waiting tenants are served alike, and no limit is spent twice."""

import asyncio
import time
from collections import Counter

from gateway_rig import bearer, call, engine, until
from redis_server import RedisServer

from gateway.cluster.checkpoints import CHECKPOINT_S
from tests.calm.replicas import is_together, joined

PHASE_CALLS = 500
DURING_MAX, AFTER_MAX = 0.10, 0.03
LIMIT = 40


async def test_fair_and_within_limits(tmp_path, figure):
    limited = {"requests_per_minute_max": LIMIT}
    with RedisServer(tmp_path) as server:
        async with engine(speed=0.5) as backend:
            entry = {"name": "b0", "url": backend.url, "requests_running_max": 8}
            async with joined(tmp_path, server.url, 2, entry, one={}, other={}, limited=limited) as (rigs, keys):
                taken, stopping, served, statuses = 0, False, Counter(), Counter()

                async def call_on(rig, name):
                    while not stopping:
                        reply = await rig.post(call(max_tokens=8), headers=bearer(keys[name]))
                        statuses[reply.status] += 1
                        served[name] += reply.status == 200

                async def spend(rig):
                    nonlocal taken
                    while not stopping:
                        reply = await rig.post(call(max_tokens=1), headers=bearer(keys["limited"]))
                        taken += reply.status == 200
                        await asyncio.sleep(0.05)

                async def error():
                    before = served.copy()
                    await until(lambda: served.total() - before.total() >= PHASE_CALLS, 60)
                    gained = [served[name] - before[name] for name in ("one", "other")]
                    return abs(gained[0] / sum(gained) - 0.5) / 0.5

                tasks = [
                    asyncio.create_task(call_on(rig, name))
                    for rig in rigs
                    for name in ("one", "other")
                    for _ in range(8 if name == "one" else 24)
                ]
                tasks += [asyncio.create_task(spend(rig)) for rig in rigs]
                began = time.monotonic()
                await until(lambda: min(served["one"], served["other"]) > 20 and taken >= LIMIT, 60)
                await asyncio.sleep(1.5 * CHECKPOINT_S)  # a change of leaders forgets what came after a checkpoint
                await asyncio.to_thread(server.kill)
                restarting = asyncio.create_task(restart_later(server))
                during = await error()
                await restarting
                await until(lambda: all(is_together(rig, 2) for rig in rigs))
                after = await error()
                stopping = True
                await asyncio.gather(*tasks)
                minutes = (time.monotonic() - began) / 60
    allowed = LIMIT * (1 + minutes)  # the limit is a bucket that is filled all the time
    figure(24, "fairness error while Redis is away", during, target="<= 0.1")
    figure(24, "fairness error afterwards", after, target="<= 0.03")
    figure(24, "use of a shared limit per minute", taken / allowed, target="<= 1")
    figure(24, f"calls that failed, of {sum(statuses.values())}", sum(statuses.values()) - statuses[200], target="0")
    assert set(statuses) == {200}
    assert during <= DURING_MAX
    assert after <= AFTER_MAX
    assert taken <= allowed + len(rigs)


async def restart_later(server):
    await asyncio.sleep(1.0)
    await asyncio.to_thread(server.start)
