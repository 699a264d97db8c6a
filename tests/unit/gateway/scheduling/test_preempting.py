"""Requests that are preempted, before their client was sent anything or while they are resumable: what the handler of
each sees.
"""

import asyncio

import pytest

from gateway.scheduling.dispatcher import Dispatcher, Preempted
from policies.call_life import Life
from policies.facts import Kept, LoadChanged
from policies.fairness import LeastCounterFirst
from policies.pool.preemption import InterruptRules
from policies.prediction import NoPrediction
from policies.scheduler import Scheduler
from policies.types import BackendLoad, Cause, Outcome, Request, Tenant, Usage


class Calls:
    """One seat; A has had 1,000 tokens. `first` and `second` answer when they are let."""

    def __init__(self) -> None:
        scheduler = Scheduler(
            fairness=LeastCounterFirst, prediction=NoPrediction(), preempt_service=100.0, share_ratio_max=1.0
        )
        self.dispatcher = Dispatcher(scheduler)
        self.dispatcher.told(LoadChanged(self.dispatcher.now(), (BackendLoad("gpu", requests_running_max=1),)))
        self.dispatcher.spent(Tenant("A"), Usage(1000, 0, 0))
        self.sent: list[str] = []
        self.may_answer = asyncio.Event()
        self.preemptions = 0

    async def call(self, tenant_id: str, *, answers_first: bool = False) -> str:
        request = Request(tenant_id.lower(), tenant_id, "m", self.dispatcher.now(), 10, 10)
        async with self.dispatcher.lease(request, Tenant(tenant_id)) as lease:
            while True:
                try:
                    return await lease.unless_preempted(self._send(lease, answers_first=answers_first))
                except Preempted as preempted:
                    self.preemptions += 1
                    await lease.returned(preempted.cause)

    async def _send(self, lease, *, answers_first: bool) -> str:
        self.sent.append(lease.request.id)
        if answers_first:
            lease.answering()
        if lease.request.tenant_id == "A":
            await self.may_answer.wait()
        lease.answering()
        lease.tokens(Usage(10, 0, 1))
        return f"answer to {lease.request.id}"


async def ticks(count: int = 20) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def test_a_request_that_waits_for_its_first_byte_gives_its_seat_up_and_is_sent_again():
    calls = Calls()
    first = asyncio.create_task(calls.call("A"))
    await ticks()
    assert await calls.call("B") == "answer to b"
    calls.may_answer.set()
    assert await first == "answer to a"
    assert calls.sent == ["a", "b", "a"]
    snapshot = calls.dispatcher.snapshot()
    assert snapshot.tenants["A"].service == 1000 + 10 + 2
    assert snapshot.in_flight_requests == snapshot.queued_requests == 0


async def test_once_the_client_is_sent_something_it_is_too_late():
    calls = Calls()
    first = asyncio.create_task(calls.call("A", answers_first=True))
    await ticks()
    second = asyncio.create_task(calls.call("B"))
    await ticks()
    assert not second.done()
    calls.may_answer.set()
    assert await first == "answer to a"
    assert await second == "answer to b"
    assert calls.sent == ["a", "b"]
    assert calls.preemptions == 0


async def test_a_withdrawal_that_comes_before_anything_was_sent_is_not_lost():
    """The request was dispatched, and its task has not run since."""
    calls = Calls()
    request = Request("a", "A", "m", calls.dispatcher.now(), 10, 10)
    async with calls.dispatcher.lease(request, Tenant("A")) as lease:
        lease.preempt(Cause.PREEMPTED)
        with pytest.raises(Preempted):
            await lease.unless_preempted(calls._send(lease, answers_first=False))
        assert calls.sent == []
        await lease.returned(Cause.PREEMPTED)
        calls.may_answer.set()
        assert await lease.unless_preempted(calls._send(lease, answers_first=False)) == "answer to a"


@pytest.mark.interpreted
async def test_a_withdrawal_that_comes_too_late_is_answered_so_that_another_can_be():
    calls = Calls()
    told = []
    first = asyncio.create_task(calls.call("A", answers_first=True))
    await ticks()
    calls.dispatcher._scheduler.told = told.append
    calls.dispatcher.leases["a"].preempt(Cause.PREEMPTED)
    assert [(type(fact), fact.request_id) for fact in told] == [(Kept, "a")]
    calls.may_answer.set()
    assert await first == "answer to a"


async def test_a_client_that_leaves_in_the_instant_of_a_withdrawal_has_left():
    calls = Calls()
    first = asyncio.create_task(calls.call("A"))
    await ticks()
    lease = calls.dispatcher.leases["a"]
    lease.preempt(Cause.PREEMPTED)
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    assert not calls.dispatcher.leases
    assert calls.dispatcher.snapshot().in_flight_requests == 0


async def test_a_client_may_leave_while_its_preempted_request_waits():
    calls = Calls()
    first = asyncio.create_task(calls.call("A"))
    await ticks()
    hold = asyncio.Event()
    second = asyncio.create_task(_hold_a_slot(calls, hold))
    await ticks()
    assert calls.preemptions == 1
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    hold.set()
    await second
    assert calls.dispatcher.snapshot().tenants["A"].service == 1000
    assert not calls.dispatcher.leases


async def test_without_preemption_a_request_is_sent_as_it_always_was():
    dispatcher = Dispatcher(Scheduler())
    dispatcher.told(LoadChanged(dispatcher.now(), (BackendLoad("gpu", requests_running_max=1),)))
    async with dispatcher.lease(Request("r", "A", "m", dispatcher.now(), 1, 1), Tenant("A")) as lease:
        assert lease.life is Life.FIXED
        lease.preempt(Cause.PREEMPTED)
        assert await lease.unless_preempted(asyncio.sleep(0, "sent")) == "sent"


async def _hold_a_slot(calls: Calls, hold: asyncio.Event) -> None:
    request = Request("b", "B", "m", calls.dispatcher.now(), 10, 10)
    async with calls.dispatcher.lease(request, Tenant("B")) as lease:
        lease.tokens(Usage(10, 0, 1))
        await hold.wait()


class Stream:
    """A handler that relays tokens until its request ends, wherever it is sent to."""

    def __init__(self, dispatcher: Dispatcher) -> None:
        self.dispatcher = dispatcher
        self.tokens = 0
        self.sent_to: list[str] = []
        self.goes_on = asyncio.Event()

    async def call(self, *, loses_ids_after: int | None = None) -> str:
        request = Request("s", "A", "m", self.dispatcher.now(), 10, 100, is_resumable=True)
        async with self.dispatcher.lease(request, Tenant("A")) as lease:
            lease.passed = lambda: Usage(10, 0, self.tokens) if self.tokens else None
            while True:
                self.sent_to.append(lease.backend_id)
                try:
                    return await lease.unless_preempted(self._relay(lease, loses_ids_after))
                except Preempted as preempted:
                    await lease.returned(preempted.cause, usage=Usage(10, 0, self.tokens))

    async def _relay(self, lease, loses_ids_after: int | None) -> str:
        for _ in range(5):
            self.tokens += 1
            lease.answering()
            lease.tokens(Usage(10, 0, self.tokens))
            if self.tokens == loses_ids_after:
                lease.is_resumable = False
        await self.goes_on.wait()
        return f"{self.tokens} tokens"


def draining_pool() -> Dispatcher:
    dispatcher = Dispatcher(Scheduler(interrupt_rules=InterruptRules(drain_s=0.0), prediction=NoPrediction()))
    dispatcher.told(LoadChanged(dispatcher.now(), (BackendLoad("x"),)))
    return dispatcher


def drain(dispatcher: Dispatcher) -> None:
    dispatcher.told(LoadChanged(dispatcher.now(), (BackendLoad("x", available=False, drains=True), BackendLoad("y"))))


async def test_a_resumable_request_moves_in_the_middle_of_its_answer_and_is_charged_once():
    stream = Stream(draining_pool())
    call = asyncio.create_task(stream.call())
    await ticks()
    drain(stream.dispatcher)
    await ticks()
    assert stream.sent_to == ["x", "y"]
    assert stream.dispatcher.snapshot().tenants["A"].used == Usage(10, 0, 10)
    stream.goes_on.set()
    assert await call == "10 tokens"
    assert stream.dispatcher.snapshot().tenants["A"].used == Usage(10, 0, 10)
    assert not stream.dispatcher.leases


async def test_one_that_cannot_be_continued_any_more_stays():
    stream = Stream(draining_pool())
    call = asyncio.create_task(stream.call(loses_ids_after=5))
    await ticks()
    drain(stream.dispatcher)
    await ticks()
    assert stream.sent_to == ["x"]
    stream.goes_on.set()
    assert await call == "5 tokens"


async def test_what_a_client_got_is_charged_where_its_next_backend_sends_nothing():
    dispatcher = draining_pool()
    request = Request("s", "A", "m", dispatcher.now(), 10, 100, is_resumable=True)
    async with dispatcher.lease(request, Tenant("A")) as lease:
        lease.tokens(Usage(10, 0, 5))
        dispatcher.told(LoadChanged(dispatcher.now(), (BackendLoad("y"),)))
        await lease.returned(Cause.FAILED, usage=Usage(10, 0, 5))
        assert lease.prefilled() == Usage(10, 0, 5)
        lease.outcome = Outcome.BACKEND_FAILED
    assert dispatcher.snapshot().tenants["A"].used == Usage(10, 0, 5)


@pytest.mark.parametrize("waits", [True, False])
async def test_a_client_that_leaves_after_the_cut_has_paid_for_what_it_got(waits):
    """While its request waits again, or in the instant of the next dispatch."""
    stream = Stream(draining_pool())
    call = asyncio.create_task(stream.call())
    await ticks()
    lease = stream.dispatcher.leases["s"]
    lease.preempt(Cause.DRAINED)
    if waits:
        stream.dispatcher.told(LoadChanged(stream.dispatcher.now(), (BackendLoad("x", available=False),)))
        await ticks()
    else:
        for _ in range(50):
            await asyncio.sleep(0)
            if lease.is_continued and "s" not in stream.dispatcher._waiting:
                break
        assert not lease.backend_id, "its task has not run since"
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert stream.dispatcher.snapshot().tenants["A"].used == Usage(10, 0, 5)
    assert stream.dispatcher.snapshot().in_flight_requests == 0
    assert not stream.dispatcher.leases
