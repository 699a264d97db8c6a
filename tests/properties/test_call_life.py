"""The table of a call's life, walked side by side with the objects that read it."""

import asyncio
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.cluster.leader.ordered_requests import Sender
from gateway.cluster.leader.pool_order import PoolOrder
from gateway.cluster.wire import Finish, Gone, Has, Submit, Told, wire_id
from gateway.scheduling.dispatcher import Dispatcher
from policies.call_life import ASKED, LEAVING, LIFE, Event, Life, LifeError
from policies.facts import Interrupted, Kept, Returned
from policies.fairness import LeastCounterFirst
from policies.pool.preemption import InterruptRules
from policies.prediction import NoPrediction
from policies.scheduler import Scheduler
from policies.types import BackendLoad, Cause, Dispatch, Outcome, Preempt, Request, Tenant, Usage
from tests.examples import examples

CAUSES = {fact: cause for cause, fact in ASKED.items()}
WALKS = st.lists(st.sampled_from(Event), max_size=40)


def request(id_="a", tenant_id="A"):
    return Request(id_, tenant_id, "m", 0.0, 10, 100, is_resumable=True)


class Scripted:
    """Stands in for a Scheduler, and decides what it is told to."""

    def __init__(self):
        self.actions = []

    def poll(self, now):
        actions, self.actions = self.actions, []
        return actions

    def checkpoint(self):
        return {}

    def __getattr__(self, name):
        return lambda *_, **__: None


class Entry:
    """The InFlight of a Scheduler, which decides itself: what it does not decide does not happen."""

    hears = set(Event) - {Event.PARKED, Event.READMITTED}

    def __init__(self):
        self.scheduler = Scheduler(
            tenants=[Tenant("A"), Tenant("B")],
            fairness=LeastCounterFirst,
            prediction=NoPrediction(),
            preempt_service=100.0,
            share_ratio_max=1.0,
            interrupt_rules=InterruptRules(times_max=1000, drain_s=0.0),
        )
        self.scheduler.spent("A", Usage(10_000, 0, 0), 0.0)
        self.now, self.tokens, self.produced = 0.0, 0, 0
        self.scheduler.submit(request(), 0.0)
        self.dispatch()  # it begins its life there
        self.known = self.scheduler._ledger.in_flight["a"]

    def dispatch(self):
        self.load(BackendLoad("x", requests_running_max=1))
        assert [type(action) for action in self.scheduler.poll(self.now)] == [Dispatch]
        self.produced = self.tokens

    def load(self, *loads):
        self.now += 0.001
        self.scheduler.load_changed(loads, self.now)

    @property
    def life(self):
        ledger = self.scheduler._ledger
        self.known = ledger.in_flight.get("a") or ledger.prepaid.get("a") or self.known
        return self.known.life

    async def do(self, fact):
        cause = LEAVING.get(self.life, Cause.FAILED)
        match fact:
            case Event.DISPATCHED:
                self.dispatch()
            case Event.ANSWERED:
                self.tokens += 1
                self.scheduler.tokens("a", Usage(10, 0, self.tokens), self.now)
            case Event.PREEMPTED:
                self.load(BackendLoad("x", requests_running_max=1))
                self.scheduler.submit(request("b", "B"), self.now)
                actions = self.scheduler.poll(self.now)
                self.scheduler.cancel("b", self.now)
                return [(each.request_id, each.cause) for each in actions] == [("a", Cause.PREEMPTED)]
            case Event.MOVED:
                self.load(BackendLoad("x", available=False, drains=True), BackendLoad("y"))
                (action,) = self.scheduler.poll(self.now)
                assert (action.request_id, action.cause) == ("a", Cause.DRAINED)
            case Event.KEPT:
                self.scheduler.told(Kept(self.now, "a"))
            case Event.RETURNED:
                self.load(BackendLoad("x", available=False))
                before = self.known.request.preemptions
                if self.tokens > self.produced:
                    self.scheduler.interrupted("a", Usage(10, 0, self.tokens), self.now, cause=cause)
                else:
                    self.scheduler.returned("a", self.now, cause=cause)
                assert self.known.request.preemptions - before == (cause is Cause.PREEMPTED)
            case Event.ENDED if self.life is Life.QUEUED:
                self.scheduler.cancel("a", self.now)
            case Event.ENDED:
                self.scheduler.finished("a", Outcome.COMPLETED, self.now)
        return True


class Ordered:
    """The OrderedRequest of a leader, for which it is all one whether a backend has begun to answer."""

    hears = set(Event) - {Event.ANSWERED}

    def __init__(self):
        self.scheduler, self.sender = Scripted(), Sender("m1")
        self.order = PoolOrder("p", self.scheduler, {"A": Tenant("A")}.get)
        self.tell(Submit(1, request(), 0.0))
        self.id = wire_id("m1", 1)
        self.known = self.order.known.get(self.id)

    def tell(self, message):
        self.order.take(self.sender, message, 0.0, 0.0)

    @property
    def life(self):
        return self.known.life

    async def do(self, fact):
        match fact:
            case Event.DISPATCHED:
                self.scheduler.actions = [Dispatch(self.id, "x")]
                self.order.decide(0.0)
            case Event.PREEMPTED | Event.MOVED:
                self.scheduler.actions = [Preempt(self.id, CAUSES[fact])]
                self.order.decide(0.0)
            case Event.KEPT:
                self.tell(Told(1, Kept(0.0, "a")))
            case Event.RETURNED:
                cause = LEAVING.get(self.life, Cause.FAILED)
                before = self.known.asked.preemptions
                stopped = Interrupted(0.0, "a", Usage(10, 0, 1), cause=cause)
                self.tell(Told(1, Returned(0.0, "a") if cause is Cause.FAILED else stopped))
                assert self.known.asked.preemptions - before == (cause is Cause.PREEMPTED)
            case Event.PARKED:
                self.sender.is_away = True
                self.order.chores.park(self.sender)
                self.order.chores.work(10, 0.0)
            case Event.READMITTED:
                self.sender.is_away = False
                self.tell(Has(1, self.known.asked, 0.0))
            case Event.ENDED:
                waits = self.life in (Life.QUEUED, Life.PARKED)
                self.tell(Gone(1, 1) if waits else Finish(1, Outcome.COMPLETED, entry=1))
        return True


class Leased:
    """The Lease of a call."""

    hears = set(Event) - {Event.PARKED, Event.READMITTED}

    def __init__(self):
        self.scheduler = Scripted()
        self.dispatcher = Dispatcher(self.scheduler)
        self.lease = self.dispatcher.lease(request(), Tenant("A"))
        self.waits = asyncio.create_task(self.lease.__aenter__())
        self.tokens = 0

    @property
    def life(self):
        return self.lease.life

    async def decide(self, *actions):
        self.scheduler.actions = list(actions)
        self.dispatcher._deciding.soon()
        for _ in range(5):
            await asyncio.sleep(0)

    async def do(self, fact):
        lease, before = self.lease, self.life
        match fact:
            case Event.DISPATCHED:
                await self.decide()
                await self.decide(Dispatch("a", "x", may_be_preempted=True))
                await self.waits
            case Event.ANSWERED:
                lease.answering()
            case Event.KEPT if before in LEAVING:
                return False  # it says itself when it is too late
            case Event.KEPT:
                await lease.unless_preempted(asyncio.sleep(0))
            case Event.PREEMPTED | Event.MOVED:
                await self.decide(Preempt("a", CAUSES[fact]))
            case Event.RETURNED:
                self.tokens += 1
                cause = LEAVING.get(before, Cause.FAILED)
                usage = Usage(10, 0, self.tokens) if self.tokens % 2 else None
                self.waits = asyncio.create_task(lease.returned(cause, usage=usage))
                await self.decide()
            case Event.ENDED if before is Life.QUEUED:
                await self.decide()
                self.waits.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await self.waits
                if self.life is not Life.ENDED:  # it was dispatched before
                    await lease.__aexit__(asyncio.CancelledError, asyncio.CancelledError(), None)
            case Event.ENDED:
                await lease.__aexit__(None, None, None)
        return True


@pytest.mark.interpreted
@pytest.mark.parametrize("make", [Entry, Ordered, Leased])
@settings(max_examples=examples(600), deadline=None, database=None, derandomize=True)
@given(walk=WALKS)
def test_what_reads_the_table_stands_where_the_table_says(make, walk):
    async def walked():
        walker = make()
        life = walker.life
        for fact in walk:
            if fact not in walker.hears or (life, fact) not in LIFE or not await walker.do(fact):
                continue
            life = LIFE[life, fact]
            assert walker.life is life, fact
        if life is not Life.ENDED and await walker.do(Event.ENDED):
            assert walker.life is Life.ENDED

    asyncio.run(walked())


@pytest.mark.parametrize(("life", "fact"), sorted(set(product(Life, Event)) - set(LIFE)))
def test_what_is_impossible_is_an_error_that_says_so(life, fact):
    with pytest.raises(LifeError, match=f"a call that is {life} cannot be {fact}"):
        LIFE[life, fact]


def test_every_state_is_reached_and_each_but_the_last_may_end():
    assert {Life.QUEUED, *LIFE.values()} == set(Life)
    assert {life for life, fact in LIFE if fact is Event.ENDED} == set(Life) - {Life.ENDED}
    assert Life.ENDED not in {life for life, _ in LIFE}


async def test_a_lease_that_has_ended_does_not_return():
    leased = Leased()
    await leased.do(Event.DISPATCHED)
    await leased.do(Event.ENDED)
    with pytest.raises(LifeError, match="a call that is ended cannot be returned"):
        await leased.lease.returned(Cause.FAILED)


async def test_a_preemption_before_the_task_knows_of_its_dispatch_is_answered():
    leased = Leased()
    told = []
    leased.scheduler.told = told.append
    await leased.decide()
    await leased.decide(Dispatch("a", "x", may_be_preempted=True), Preempt("a"))
    await leased.waits
    assert [(type(fact), fact.request_id) for fact in told] == [(Kept, "a")]
