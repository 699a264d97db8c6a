"""Budgets in money over replicas: they stop at one limit, tell a threshold once, and outlive a restart of all."""

import asyncio
import json
import signal
import time
from contextlib import AsyncExitStack, asynccontextmanager
from decimal import Decimal

import pytest
from admin_rig import within
from founding import FOUNDS
from gateway_process import serving
from gateway_rig import CHAT, FAST, MODEL, PATIENCE_S, call, engine
from redis_server import RedisServer
from replicas_rig import SECRET, Replicas
from webhook_receiver import SECRET as HOOK_SECRET
from webhook_receiver import receiver

LIMIT = 1_000  # EUR, at 1 EUR a token
OUTPUT = 8
PRICE = {"currency": "EUR", "periods": [{"prompt": 1_000_000, "output": 1_000_000}]}
DEAR = {"currency": "EUR", "periods": [{"prompt": "3000000", "output": "3000000"}]}
CLIENTS = 3  # at each replica
IN_FORCE_S = 5.0  # a second, on a quiet machine
SETTLED_S = 1.5  # three looks at budgets


@asynccontextmanager
async def three(folder, server, backend, hook):
    """Three replicas that check keys; the same state again where it was there before."""
    secret = folder / "webhook.secret"
    secret.write_bytes(HOOK_SECRET)
    settings = {
        "auth": {"mode": "keys", "secret": SECRET},
        "state": {"redis": {"url": server.url}},
        "groups": {"research": {"cost_per_day_max": LIMIT}},
        "tenants": {f"tenant-{number}": {"group": "research"} for number in range(3)},
        "prices": {MODEL: PRICE},
        "budgets": {"thresholds": [50, 80, 100], "webhook": {"url": hook.url, "secret_file": str(secret)}},
    }
    async with AsyncExitStack() as stack:

        async def start(number):
            own = folder / str(number)
            own.mkdir(exist_ok=True)
            return await stack.enter_async_context(serving(own, backend, settings=settings, program=FOUNDS))

        made = Replicas(await asyncio.gather(*(start(number) for number in range(3))))
        await made.leader()
        await made.ready()
        yield made


async def key_for(process, tenant):
    status, made = await process.admin("POST", "/admin/v1/keys", {"tenant": tenant})
    assert status == 201, made
    return made["secret"]


async def ask(process, key):
    """Status and reason of a call."""
    headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
    async with process.session.post(
        process.url + CHAT, data=json.dumps(call(max_tokens=OUTPUT)), headers=headers
    ) as answer:
        body = await answer.json()
        return answer.status, body.get("error", {}).get("reason"), body.get("usage", {}).get("total_tokens")


async def first_cost(process, key):
    """What the first call of a new key costs, once the replica knows the key."""
    async with asyncio.timeout(PATIENCE_S):
        while (answer := await ask(process, key))[0] == 401:  # noqa: ASYNC110 - it is a process
            await asyncio.sleep(0.02)
    return answer[2]


async def used(process):
    """What the group has used, in EUR."""
    _, state = await process.admin("GET", "/admin/v1/state/budgets")
    (found,) = [Decimal(each["used"]) for each in state["items"] if each["group"] == "research"]
    return found


async def last_used(process):
    _, keys = await process.admin("GET", "/admin/v1/keys")
    return {each["tenant"]: each["last_used_on"] for each in keys["items"] if each["tenant"]}


async def spend_all(gateways, keys):
    """What calls cost at all replicas, from clients that ask until the budget is spent."""
    costs = []

    async def client(number):
        while True:
            status, reason, tokens = await ask(gateways.processes[number], keys[number])
            if status == 429:
                assert reason == "insufficient_quota"
                return
            assert status == 200
            costs.append(tokens)

    await asyncio.gather(*(client(number) for number in range(3) for _ in range(CLIENTS)))
    return costs


@pytest.fixture
def server(tmp_path):
    with RedisServer(tmp_path) as made:
        yield made


async def test_a_groups_budget_stops_tells_once_and_outlives_a_restart(tmp_path, server):
    async with engine(**{**FAST, "speed": 0.2}) as backend, receiver() as hook:
        async with three(tmp_path, server, backend, hook) as gateways:
            keys = [await key_for(gateways.processes[0], f"tenant-{number}") for number in range(3)]
            costs = [await first_cost(*each) for each in zip(gateways.processes, keys, strict=True)]
            costs += await spend_all(gateways, keys)
            cost = max(costs)

            total = sum(costs)

            async def is_counted():
                return {await used(each) for each in gateways.processes} == {total}

            await within(is_counted, PATIENCE_S)
            assert LIMIT - cost < total < LIMIT + 3 * CLIENTS * cost

            async def is_told():
                return len(hook.events) == 3

            await within(is_told, PATIENCE_S)
            today = time.strftime("%Y-%m-%d", time.gmtime())

            async def is_kept():
                found = [await last_used(each) for each in gateways.processes]
                return found == [{f"tenant-{number}": today for number in range(3)}] * 3

            await within(is_kept, 2 * PATIENCE_S)
            # A corrected price at one replica corrects what the budget has spent at all.
            status, _ = await gateways.processes[1].admin("PATCH", f"/admin/v1/prices/{MODEL}", DEAR)
            assert status == 200

            async def is_corrected():
                return {await used(each) for each in gateways.processes} == {3 * total}

            await within(is_corrected, IN_FORCE_S)
            await asyncio.gather(*(each.end(signal.SIGTERM) for each in gateways.processes))
        async with three(tmp_path, server, backend, hook) as gateways:
            for process, key in zip(gateways.processes, keys, strict=True):
                assert await used(process) == 3 * total
                assert (await ask(process, key))[:2] == (429, "insufficient_quota")
                assert await last_used(process) == {f"tenant-{number}": today for number in range(3)}
            await asyncio.sleep(SETTLED_S)
    told = [(document["data"]["group"], document["data"]["threshold_percent"]) for _, document in hook.events]
    assert sorted(told) == [("research", 50), ("research", 80), ("research", 100)]
    assert hook.attempts == 3
