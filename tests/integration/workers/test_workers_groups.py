"""Groups, budgets in money and aliases of a gateway of several workers: one for all of them."""

import asyncio
from contextlib import AsyncExitStack

from gateway_rig import FAST, MODEL, PATIENCE_S, engine
from workers_rig import workers

from gateway.config.aliases import AliasSection
from gateway.scheduling.alias_table import AliasTable

BIG, SMALL = "big", "small"
TENANTS = ("t0", "t1", "t2")
PRICE = {"currency": "EUR", "periods": [{"prompt": 1_000_000, "output": 1_000_000}]}


async def test_limits_and_money_of_a_group_are_one_for_all_workers(tmp_path):
    groups = {"rare": {"requests_per_minute_max": 4}, "poor": {"cost_per_day_max": 50}}
    tenants = {"a": {"group": "rare"}, "b": {"group": "rare"}, "c": {"group": "poor"}, "d": {"group": "poor"}}
    async with (
        engine(**FAST) as backend,
        workers(tmp_path, backend, groups=groups, tenants=tenants, prices={MODEL: PRICE}) as gateway,
        AsyncExitStack() as stack,
    ):
        leader, follower = gateway.pids
        a, b, c, d = [
            await stack.enter_async_context(gateway.clients(tenant, pid))
            for tenant, pid in (("a", leader), ("b", follower), ("c", leader), ("d", follower))
        ]
        statuses = await asyncio.gather(*(each.ask(max_tokens=1) for _ in range(4) for each in (a, b)))
        assert sorted(statuses) == [200] * 4 + [429] * 4
        statuses = [await each.ask(max_tokens=8) for _ in range(4) for each in (c, d)]
        answered = statuses.index(429)
        assert 2 <= answered <= 4, "an answer costs more than 12 EUR, and less than 25"
        assert statuses == [200] * answered + [429] * (8 - answered)


async def test_an_alias_is_the_same_at_all_workers_and_a_change_is_in_force_at_all(tmp_path):
    half = {"models": [BIG], "sticky": "tenant", "split": {BIG: 50, SMALL: 50}}
    expected = AliasTable({"chat": AliasSection.model_validate(half)})
    async with (
        engine(**{**FAST, "model": BIG}) as big,
        engine(**{**FAST, "model": SMALL}) as small,
        workers(
            tmp_path, big, small, aliases={"chat": half}, listen={"port": 0, "show_backend": True}
        ) as gateway,
        AsyncExitStack() as stack,
    ):  # fmt: skip
        sides = {
            (tenant, pid): await stack.enter_async_context(gateway.clients(tenant, pid))
            for tenant in TENANTS
            for pid in gateway.pids
        }

        async def served(client):
            async with client.streaming(model="chat", max_tokens=2) as answer:
                assert b'"model":"chat"' in await answer.read()
                return answer.status, answer.headers["x-fairlead-model"]

        for (tenant, _), client in sides.items():
            assert await served(client) == (200, expected.order("chat", tenant=tenant, session=None)[0])
        status, _ = await gateway.process.admin("PATCH", "/admin/v1/aliases/chat", {"split": {BIG: 0, SMALL: 1}})
        assert status == 200
        async with asyncio.timeout(PATIENCE_S):
            while {await served(client) for client in sides.values()} != {(200, SMALL)}:
                pass
