"""Aliases over replicas: every replica gives a caller the same model, and a change at one is in force at all."""

import asyncio
import json
import time
from contextlib import asynccontextmanager
from functools import partial

from admin_rig import within
from founding import FOUNDS
from gateway_rig import CHAT, FAST, PATIENCE_S, call, engine
from redis_server import RedisServer
from replicas_rig import replicas

from gateway.config.aliases import AliasSection
from gateway.scheduling.alias_table import AliasTable

BIG, SMALL = "org/big-v2", "small"
HALF = {"models": [BIG], "sticky": "tenant", "split": {BIG: 50, SMALL: 50}}
FEW = {"models": [BIG], "sticky": "tenant", "split": {BIG: 90, SMALL: 10}}
TENANTS = [f"tenant-{number}" for number in range(40)]
IN_FORCE_S = 2.0
# On a busy machine a copy is not sent within a quarter of a second, and would be dropped.
SENDS_LATE = f"from gateway.forwarding import shadows; shadows.DISPATCH_S_MAX = {PATIENCE_S}; {FOUNDS}"


def expected(alias):
    """The model of each tenant."""
    table = AliasTable({"chat": AliasSection.model_validate(alias)})
    return {tenant: table.order("chat", tenant=tenant, session=None)[0] for tenant in TENANTS}


@asynccontextmanager
async def three(folder, chat, **settings):
    """Three replicas before a backend of each model, with one alias."""
    with RedisServer(folder) as server:
        async with (
            engine(**{**FAST, "model": BIG}) as big,
            engine(**{**FAST, "model": SMALL}) as small,
            replicas(
                folder, server, 3,
                {"name": "big", "url": big.url, "requests_running_max": 64},
                {"name": "small", "url": small.url, "requests_running_max": 64},
                aliases={"chat": chat}, listen={"port": 0, "show_backend": True}, program=SENDS_LATE, **settings,
            ) as gateways,
        ):  # fmt: skip
            await gateways.ready()
            for process in gateways.processes:
                await within(partial(are_served, process), PATIENCE_S)
            yield gateways


async def are_served(process):
    """Whether this replica knows a backend of each model: it is ready with one, and a copy of a call waits for none."""
    async with process.session.get(process.url + "/v1/models", headers={"Authorization": "Bearer k"}) as answer:
        return {BIG, SMALL} <= {each["id"] for each in (await answer.json())["data"]}


async def ask(process, tenant):
    """Status, the model in the answer, and the model that served."""
    headers = {"Authorization": "Bearer k", "X-Tenant-Id": tenant, "Content-Type": "application/json"}
    body = json.dumps(call(model="chat", max_tokens=2))
    async with process.session.post(process.url + CHAT, data=body, headers=headers) as answer:
        return answer.status, (await answer.json()).get("model"), answer.headers.get("x-fairlead-model")


async def models(process):
    """The model that served each tenant at one replica."""
    answers = await asyncio.gather(*(ask(process, tenant) for tenant in TENANTS))
    assert {each[:2] for each in answers} == {(200, "chat")}
    return {tenant: served for tenant, (_, _, served) in zip(TENANTS, answers, strict=True)}


async def test_a_caller_has_one_model_at_all_replicas_and_a_change_under_load_fails_no_call(tmp_path):
    async with three(tmp_path, HALF) as gateways:
        before, after = expected(HALF), expected(FEW)
        assert [await models(each) for each in gateways.processes] == [before] * 3
        failed, answered, ends = [], 0, asyncio.Event()

        async def load(process, tenants):
            nonlocal answered
            while not ends.is_set():
                for tenant in tenants:
                    status, model, served = await ask(process, tenant)
                    answered += 1
                    if (status, model) != (200, "chat") or served not in {before[tenant], after[tenant]}:
                        failed.append((status, model, served))

        tasks = [
            asyncio.create_task(load(process, TENANTS[number::3]))
            for process in gateways.processes
            for number in range(3)
        ]
        try:
            await asyncio.sleep(0.5)
            leader = await gateways.leader()
            changed_at = time.monotonic()
            status, _ = await gateways.processes[(leader + 1) % 3].admin("PATCH", "/admin/v1/aliases/chat", FEW)
            assert status == 200
            moved = next(tenant for tenant in TENANTS if before[tenant] != after[tenant])
            async with asyncio.timeout(PATIENCE_S):
                for process in gateways.processes:
                    while (await ask(process, moved))[2] != after[moved]:
                        pass
            assert time.monotonic() - changed_at < IN_FORCE_S
            assert [await models(each) for each in gateways.processes] == [after] * 3
        finally:
            ends.set()
            await asyncio.gather(*tasks)
        assert failed == []
        assert answered > 100
    moves = [(before[tenant], after[tenant]) for tenant in TENANTS if before[tenant] != after[tenant]]
    assert set(moves) == {(SMALL, BIG)}, "a higher weight takes callers, and gives none away"


async def test_a_copy_is_counted_once_and_charged_to_no_tenant(tmp_path):
    chat = {"models": [BIG], "shadow": {"model": SMALL, "in_flight_max": 16}}
    async with three(tmp_path, chat, tenants={"tenant-0": {"tokens_per_day_max": 100_000}}) as gateways:
        leader = await gateways.leader()
        calls = 5
        for _ in range(calls):
            for process in gateways.processes:
                assert (await ask(process, "tenant-0"))[0] == 200

        async def counted(kind):
            found = [await each.metric("fairlead_alias_calls_total") for each in gateways.processes]
            return [sum(value for labels, value in each.items() if f'kind="{kind}"' in labels) for each in found]

        async with asyncio.timeout(PATIENCE_S):
            while not sum(await counted("shadow")):  # noqa: ASYNC110 - it is a process
                await asyncio.sleep(0.1)
        await asyncio.sleep(0.5)  # for all others
        assert await counted("served") == [calls] * 3
        copies = await counted("shadow")
        assert 1 <= copies.pop(leader) <= calls, "a copy that would have to wait is dropped"
        assert copies == [0, 0]
        found = {}
        async with asyncio.timeout(2 * PATIENCE_S):
            while found.get(("tenant-0", BIG)) != 3 * calls:
                status, usage = await gateways.processes[leader].admin("GET", "/admin/v1/usage")
                assert status == 200
                found = {(each["tenant"], each["model"]): each["requests"] for each in usage["items"]}
                await asyncio.sleep(0.2)
        assert found == {("tenant-0", BIG): 3 * calls}
