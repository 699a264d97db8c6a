"""Limits and budgets of groups of a gateway of several workers: one for all of them."""

import asyncio
from contextlib import AsyncExitStack

from gateway_rig import FAST, MODEL, engine
from workers_rig import workers

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
