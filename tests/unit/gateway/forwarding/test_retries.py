"""How many retries run at once, and how long a backend is left alone that asks for it."""

import asyncio

import pytest

from gateway.forwarding import retry_budget
from gateway.forwarding.asked_hold import HOLD_S_MAX, retry_after_s
from gateway.forwarding.retry_budget import RETRIES_MIN, RETRIES_RATIO_MAX, RetryBudget


@pytest.mark.parametrize(
    ("headers", "wait_s"),
    [
        ({}, None),
        ({"retry-after": "7"}, 7.0),
        ({"retry-after": " 7 "}, 7.0),
        ({"retry-after": "0"}, 0.0),
        ({"retry-after": "-7"}, None),
        ({"retry-after": "7.5"}, None),
        ({"retry-after": "soon"}, None),
        ({"retry-after": "²"}, None),
        ({"retry-after": "9" * 400}, HOLD_S_MAX),
        ({"retry-after": "3600"}, HOLD_S_MAX),
        ({"retry-after": "Fri, 31 Dec 1999 23:59:59 GMT"}, None),
        ({"retry-after": "Fri, 31 Dec 1999 23:59:59 GMT", "date": "Fri, 31 Dec 1999 23:59:50 GMT"}, 9.0),
        ({"retry-after": "Fri, 31 Dec 1999 23:59:59 GMT", "date": "Fri, 31 Dec 1999 23:59:59 GMT"}, 0.0),
        ({"retry-after": "Fri, 31 Dec 1999 23:59:59 GMT", "date": "Sat, 01 Jan 2000 23:59:59 GMT"}, 0.0),
        ({"retry-after": "Fri, 31 Dec 1999 23:59:59 GMT", "date": "yesterday"}, None),
    ],
)
def test_a_backend_is_left_alone_as_long_as_it_says(headers, wait_s):
    assert retry_after_s(headers) == wait_s


async def run_retries(budget, number, answered):
    """So many calls that are retried, and are answered when `answered` is set. Returns the most at once."""
    most = 0

    async def retry():
        nonlocal most
        await budget.enter()
        most = max(most, budget.retrying)
        await answered.wait()
        budget.leave()

    budget.running = number
    async with asyncio.TaskGroup() as group:
        for _ in range(number):
            group.create_task(retry())
        await asyncio.sleep(0.01)
        waited = number - budget.retrying
        answered.set()
    return most, waited


async def test_a_fifth_of_what_runs_may_be_retries_and_the_others_wait_for_those():
    budget = RetryBudget()
    most, waited = await run_retries(budget, 100, asyncio.Event())
    assert most == int(RETRIES_RATIO_MAX * 100)
    assert waited == 100 - most
    assert budget.retrying == 0


async def test_of_few_calls_a_few_may_be_retries():
    most, waited = await run_retries(RetryBudget(), 4, asyncio.Event())
    assert (most, waited) == (RETRIES_MIN, 4 - RETRIES_MIN)


async def test_one_that_waits_and_leaves_takes_no_place():
    budget = RetryBudget()
    async with asyncio.TaskGroup() as group:
        answered = asyncio.Event()

        async def retry():
            await budget.enter()
            await answered.wait()
            budget.leave()

        tasks = [group.create_task(retry()) for _ in range(RETRIES_MIN + 2)]
        await asyncio.sleep(0.01)
        tasks[RETRIES_MIN].cancel()
        await asyncio.sleep(0)
        answered.set()
    assert budget.retrying == 0
    assert not tasks[-1].cancelled()


async def test_one_that_leaves_as_it_gets_a_place_passes_it_on(monkeypatch):
    """A client with many calls ends: those of others that wait may not have to wait until they are given up."""
    monkeypatch.setattr(retry_budget, "WAIT_S_MAX", 15.0)
    budget = RetryBudget()
    async with asyncio.TaskGroup() as group:
        for _ in range(RETRIES_MIN):
            await budget.enter()
        leaving = [group.create_task(budget.enter()) for _ in range(RETRIES_MIN)]
        staying = group.create_task(budget.enter())
        await asyncio.sleep(0.01)
        for each in leaving:
            budget.leave()
            each.cancel()
        await asyncio.wait_for(staying, 5.0)
    assert budget.retrying == 1


async def test_a_retry_that_waits_too_long_is_given_up(monkeypatch):
    monkeypatch.setattr(retry_budget, "WAIT_S_MAX", 0.01)
    budget = RetryBudget()
    budget.retrying = RETRIES_MIN
    with pytest.raises(TimeoutError):
        await budget.enter()
    assert budget.retrying == RETRIES_MIN
