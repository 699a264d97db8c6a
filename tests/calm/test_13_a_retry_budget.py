"""Refused connections are retried elsewhere, and no more than a fifth of what runs is a retry at any time."""

import asyncio
from contextlib import AsyncExitStack

from gateway_rig import answer, gateway, scripted

from gateway.forwarding.retry_budget import RETRIES_MIN, RETRIES_RATIO_MAX

CALLS = 80
ROUNDS = 5


async def test_one_of_four_backends_refuses_all_connections(figure):
    async def act(reader, writer):
        await asyncio.sleep(0.2)  # so that calls and retries run at the same time
        return await answer()(reader, writer)

    async with AsyncExitStack() as stack:
        backends = [await stack.enter_async_context(scripted(act)) for _ in range(4)]
        async with gateway(*backends) as rig:
            budget = rig.gateway._handlers._generation._budget
            refused, beyond, most = refuse(rig, budget)
            statuses = []
            for _ in range(ROUNDS):
                replies = await asyncio.gather(*(rig.post() for _ in range(CALLS)))
                statuses += [reply.status for reply in replies]
            assert statuses == [200] * (CALLS * ROUNDS)
            assert refused
            figure(13, "calls answered 200", len(statuses), target="all of 400")
            figure(13, "retries relative to all calls", len(refused) / len(statuses), target="<= 0.2")
            figure(
                13,
                "retries at the same time, relative to running calls",
                max(most),
                target=f"<= 0.2, or {RETRIES_MIN} calls",
            )
            assert not beyond
            assert len(refused) <= RETRIES_RATIO_MAX * len(statuses)
            assert len(set(refused)) == len(refused), "one retry a call"
            assert (budget.running, budget.retrying) == (0, 0)


def refuse(rig, budget):
    """Have one backend refuse every connection, while its health is not known yet: polls are a minute apart. Returns
    calls that were refused, moments beyond the budget, and the shares of retries.
    """
    refused, beyond, shares = [], [], [0.0]
    upstream = rig.gateway._clients.by_id["b3"].upstream
    dead_open = upstream.open
    upstream._port = 1  # nothing listens there

    async def opened(method, target, headers, body, **options):
        refused.append(headers["x-request-id"])
        return await dead_open(method, target, headers, body, **options)

    upstream.open = opened
    enter = budget.enter

    async def entered():
        await enter()
        shares.append(budget.retrying / budget.running)
        if budget.retrying > max(RETRIES_MIN, RETRIES_RATIO_MAX * budget.running):
            beyond.append((budget.retrying, budget.running))

    budget.enter = entered
    return refused, beyond, shares
