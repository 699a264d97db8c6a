"""What the Dispatcher tells its Scheduler, and when."""

import asyncio

import pytest

from gateway.scheduling.dispatcher import Dispatcher, Rejected
from policies.facts import LoadChanged
from policies.pool.scheduler_parts import DECISIONS_MAX
from policies.prediction import Oracle
from policies.scheduler import Scheduler
from policies.types import BackendLoad, Reason, Request, Tenant, Usage


async def test_a_measurement_is_told_after_the_tokens_that_it_measures():
    """Otherwise the KV tokens of quiet answers look like those of others, and the pool gets smaller by them."""
    dispatcher = Dispatcher(Scheduler(prediction=Oracle()))
    load = BackendLoad("gpu", kv_tokens_max=1000, kv_used_ratio=0.15, requests_running=1)
    dispatcher.told(LoadChanged(dispatcher.now(), (load,)))
    request = Request("r", "a", "m", dispatcher.now(), 100, 200)
    async with dispatcher.lease(request, Tenant("a")) as lease:
        lease.tokens(Usage(100, 0, 1))
        assert lease.quiet_tokens == 200
        lease.passed = lambda: Usage(100, 0, 50)
        for _ in range(3):
            dispatcher.told(LoadChanged(dispatcher.now(), (load,)))
        assert dispatcher.snapshot().backends["gpu"].external_tokens == 0


async def test_what_outgrows_its_prediction_is_told_by_blocks_and_nothing_is_lost():
    """A reservation grows by blocks of KV memory: to tell each token would cost more than to relay it."""
    dispatcher = Dispatcher(Scheduler(prediction=Oracle()))
    dispatcher.told(LoadChanged(dispatcher.now(), (BackendLoad("gpu"),)))
    told, tell_at = [], 0.0
    async with dispatcher.lease(Request("r", "a", "m", dispatcher.now(), 100, 20), Tenant("a")) as lease:
        for output_tokens in range(1, 100):  # as the relay does
            lease.passed = lambda tokens=output_tokens: Usage(100, 0, tokens)
            if output_tokens >= tell_at:
                told.append(output_tokens)
                tell_at = lease.tokens(Usage(100, 0, output_tokens))
            assert dispatcher.snapshot().tenants["a"].used.output_tokens == output_tokens
    assert told == [1, 32, 48, 64, 80, 96], "the first token, then each block after the 20 that were predicted"


async def test_a_call_of_which_nothing_was_told_is_not_charged():
    dispatcher = Dispatcher(Scheduler(prediction=Oracle()))
    dispatcher.told(LoadChanged(dispatcher.now(), (BackendLoad("gpu"),)))
    async with dispatcher.lease(Request("r", "a", "m", dispatcher.now(), 100, 200), Tenant("a")):
        assert dispatcher.snapshot().tenants["a"].rank > 0, "until it ends it is expected to cost something"
    tenant = dispatcher.snapshot().tenants["a"]
    assert (tenant.service, tenant.rank, tenant.counter) == (0, 0, 0)


async def test_the_loop_does_other_things_between_the_decisions_of_a_burst():
    scheduler = Scheduler()
    dispatcher = Dispatcher(scheduler)
    dispatcher.told(LoadChanged(dispatcher.now(), (BackendLoad("gpu"),)))
    waiting, sent, sent_by_tick = 4 * DECISIONS_MAX, [], []
    over = asyncio.Event()

    async def call(number):
        async with dispatcher.lease(Request(f"r{number}", "a", "m", dispatcher.now(), 1, 1), Tenant("a")):
            sent.append(number)
            if len(sent) == waiting:
                over.set()
            await over.wait()

    calls = [asyncio.create_task(call(number)) for number in range(waiting)]
    while not over.is_set():
        before = len(sent)
        await asyncio.sleep(0)
        sent_by_tick.append(len(sent) - before)
    await asyncio.gather(*calls)
    assert sent == list(range(waiting))
    assert [each for each in sent_by_tick if each] == [1, *[DECISIONS_MAX] * 3, DECISIONS_MAX - 1]


async def test_the_first_request_of_a_tick_is_sent_within_it_where_there_is_room():
    """The turns of the loop between its arrival and its sending are part of the time to its first token."""
    dispatcher = Dispatcher(Scheduler())
    dispatcher.told(LoadChanged(dispatcher.now(), (BackendLoad("gpu", requests_running_max=2),)))
    await asyncio.sleep(0)
    leases = [
        dispatcher.lease(Request(name, "a", "m", dispatcher.now(), 1, 1), Tenant("a")) for name in ("r1", "r2", "r3")
    ]
    entering = [asyncio.create_task(lease.__aenter__()) for lease in leases]
    await asyncio.sleep(0)
    assert [lease.backend_id for lease in leases] == ["gpu", "", ""], "later ones of the tick are decided together"
    await asyncio.sleep(0.01)
    assert [lease.backend_id for lease in leases] == ["gpu", "gpu", ""]
    await leases[0].__aexit__(None, None, None)
    await asyncio.gather(*entering)
    assert leases[2].backend_id == "gpu"
    for lease in leases[1:]:
        await lease.__aexit__(None, None, None)
    assert not dispatcher.leases


async def test_who_leaves_as_it_is_dispatched_is_charged_nothing():
    """Nothing was sent to the backend by then, so the prompt that the dispatch had charged is given back."""
    scheduler = Scheduler()
    dispatcher = Dispatcher(scheduler)
    dispatcher.told(LoadChanged(dispatcher.now(), (BackendLoad("gpu"),)))
    await asyncio.sleep(0)
    # The first request of a tick is dispatched at once; all others at the tick's end, before which they may leave.
    first = dispatcher.lease(Request("first", "b", "m", dispatcher.now(), 1, 1), Tenant("b"))
    entering = asyncio.create_task(first.__aenter__())

    async def call():
        async with dispatcher.lease(Request("r", "a", "m", dispatcher.now(), 100, 10), Tenant("a")):
            raise AssertionError("it left before")

    task = asyncio.create_task(call())
    while scheduler.snapshot(dispatcher.now()).in_flight_requests < 2:  # noqa: ASYNC110 - every tick is looked at
        await asyncio.sleep(0)
    assert dispatcher.snapshot().tenants["a"].service > 0, "the dispatch has charged its prompt"
    assert task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert dispatcher.snapshot().tenants["a"].service == 0
    assert entering.done()
    await first.__aexit__(None, None, None)
    assert not dispatcher.leases


async def test_what_is_rejected_on_its_arrival_gets_its_reason_and_leaves_nothing():
    """Its prompt alone is over the limit of its tenant."""
    dispatcher = Dispatcher(Scheduler())
    dispatcher.told(LoadChanged(dispatcher.now(), (BackendLoad("gpu"),)))
    await asyncio.sleep(0)
    tenant = Tenant("a", tokens_per_minute_max=100)
    with pytest.raises(Rejected) as rejected:
        async with dispatcher.lease(Request("r", "a", "m", dispatcher.now(), 101, 10), tenant):
            raise AssertionError("it was sent")
    assert rejected.value.reason is Reason.REQUEST_TOO_LARGE
    assert not dispatcher.leases


async def test_what_arrives_after_the_end_is_rejected_and_leaves_nothing():
    scheduler = Scheduler()
    dispatcher = Dispatcher(scheduler)
    dispatcher.told(LoadChanged(dispatcher.now(), (BackendLoad("gpu"),)))
    await asyncio.sleep(0)
    dispatcher.close()
    with pytest.raises(Rejected) as rejected:
        async with dispatcher.lease(Request("r", "a", "m", dispatcher.now(), 1, 1), Tenant("a")):
            raise AssertionError("it was sent")
    assert rejected.value.reason is Reason.DRAINING
    found = scheduler.snapshot(dispatcher.now())
    assert (found.in_flight_requests, found.queued_requests, len(dispatcher.leases)) == (0, 0, 0)
    assert not dispatcher._waiting
