"""Rejections by turns of the event loop: few in each, tenant after tenant, and none for clients that have left."""

import asyncio
from collections import Counter

from gateway.http.rejection_turns import REJECTS_MAX, RejectionTurns

MANY = 50


def waiting(turns, tenant_id, sent, count=MANY):
    """Calls of this tenant that are rejected at once; `sent` gets its id as each is sent."""

    async def reject():
        await turns.wait(tenant_id)
        sent.append(tenant_id)

    return [asyncio.create_task(reject()) for _ in range(count)]


async def test_a_rejection_alone_does_not_wait():
    turns, sent = RejectionTurns(), []
    for number in range(MANY):
        (task,) = waiting(turns, "a", sent, 1)
        await asyncio.sleep(0)
        assert len(sent) == number + 1
        await asyncio.sleep(0)
        await task


async def test_no_turn_sends_more_than_its_share_and_all_are_sent():
    turns, sent = RejectionTurns(), []
    tasks = waiting(turns, "a", sent)
    most = 0
    while len(sent) < MANY:
        before = len(sent)
        await asyncio.sleep(0)
        most = max(most, len(sent) - before)
    assert most <= 2 * REJECTS_MAX  # a task that may go on does so in the turn after
    await asyncio.gather(*tasks)


async def test_a_tenant_with_one_rejection_does_not_wait_behind_another_with_many():
    turns, sent = RejectionTurns(), []
    tasks = waiting(turns, "greedy", sent)
    await asyncio.sleep(0)
    tasks += waiting(turns, "modest", sent, 1)
    await asyncio.gather(*tasks)
    assert sent.index("modest") < 4 * REJECTS_MAX
    assert Counter(sent) == {"greedy": MANY, "modest": 1}


async def test_those_that_have_left_take_no_turn():
    turns, sent = RejectionTurns(), []
    gone = waiting(turns, "a", sent)
    await asyncio.sleep(0)
    for task in gone[REJECTS_MAX:]:
        task.cancel()
    await asyncio.gather(*gone, return_exceptions=True)
    tasks = waiting(turns, "b", sent, REJECTS_MAX)
    for _ in range(4):
        await asyncio.sleep(0)
    assert sent.count("b") == REJECTS_MAX
    await asyncio.gather(*tasks)
