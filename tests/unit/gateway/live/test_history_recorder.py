"""What a process records: amounts of each slot, sums, minutes, gaps and events; and what several put together."""

import time
from types import SimpleNamespace

import pytest

from gateway.live.history import recorder
from gateway.live.history.history import HistoryReader
from gateway.live.history.recorder import HistoryRecorder
from gateway.observability.telemetry import CallTrace
from gateway.others import Others
from gateway.store.base import StoreUnavailable
from policies.types import BackendView, Outcome, Reason, Tenant, TenantView, Usage

START = 1_200_000_000.0  # of an hour, and of its first slot
TENANTS = {"a": Tenant("a", tier_id="gold", group_id="red"), "b": Tenant("b", tier_id="iron")}


class Process:
    """One process with its recorder, whose looks come when told."""

    def __init__(self, name="one"):
        self.now = START
        self.leader = name
        self.served = {}  # service and tokens
        self.oldest_at = {}
        self.queued = {}
        self.backends = {}
        self.recorder = HistoryRecorder(
            {"tiny": "p"}.get,
            find_tenant=TENANTS.get,
            pace_of=lambda _backend: 0.02,
            leader=lambda: self.leader,
            clock=lambda: self.now,
        )
        self.others = Others(name)
        self.reader = HistoryReader(self.recorder, self.others)

    async def look(self, at, *, leads=True, takes_s=0.0):
        """All looks are at times since START, and end `takes_s` later."""
        self.now = START + at
        if leads:
            snapshot = SimpleNamespace(now=self.now, backends=self.backends)
            reading = self.recorder.look("p", snapshot)
            if reading is not None:
                reading.saw({name: self.view(name) for name in self.served})
                reading.ended()
        self.now += takes_s
        await self.recorder.looked()

    def view(self, name):
        service, tokens = self.served[name]
        return TenantView(
            self.queued.get(name, 0), 0, 0, 0, service, 0.0, 0.0,
            used=Usage(tokens, 0, 0), oldest_at=self.oldest_at.get(name),
        )  # fmt: skip

    async def of(self, of, span="15m"):
        kind, name = of.split(":")
        return await self.reader.range(kind, name, span, self.now)

    async def series(self, of, column, span="15m"):
        """What is known, by seconds since START."""
        found = await self.of(of, span)
        values = found.pools["p"].values[column] if found.pools else []
        times = [found.from_s + number * found.step_s - START for number in range(len(values))]
        return {at: value for at, value in zip(times, values, strict=True) if value is not None}


def call(tenant="a", ttft_s=None, cost=None, reason=None, waited_s=None):
    trace = CallTrace("/v1/chat/completions", tenant_id=tenant, tier_id="t", model="tiny", stream=True)
    trace.status, trace.reason, trace.cost = 429 if reason else 200, reason, cost
    trace.outcome = None if reason else Outcome.COMPLETED
    if ttft_s is not None:
        trace.first_token_s = time.perf_counter()
        trace.started_s = trace.first_token_s - ttft_s
    if waited_s is not None:
        trace.queued_s, trace.dispatched_s = 100.0, 100.0 + waited_s
    return trace


def near(value):
    return pytest.approx(value, rel=0.095)


async def test_a_clock_that_is_set_back_is_no_failure():
    process = Process()
    process.served = {"a": (0.0, 0)}
    for at, tokens in ((1, 0), (10, 100), (20, 200), (19.9, 300), (20, 400), (30, 500)):
        process.served["a"] = (1.0 * tokens, tokens)
        await process.look(at)
    assert await process.series("tenant:a", "tokens") == {0: near(100), 10: near(200), 20: near(100)}, "the slot again"


@pytest.mark.parametrize("jump_s", [700, 4_000, 30 * 86_400])
async def test_a_clock_that_jumps_ahead_and_returns_leaves_no_gap_in_what_comes_after(jump_s):
    process = Process()
    process.served = {"a": (0.0, 0)}
    times = [*range(0, 310, 10), *(300 + jump_s + each for each in (0, 10, 70)), *range(310, 720, 10)]
    for number, at in enumerate(times):
        process.served["a"] = (100.0 * number, 100 * number)
        await process.look(at)
    tokens = await process.series("tenant:a", "tokens")
    assert {at for at in tokens if at >= 310} == set(range(310, 710, 10))
    assert all(tokens[at] == near(100) for at in range(320, 710, 10))
    assert {360, 420, 480, 540, 600} <= (await process.series("tenant:a", "tokens", "6h")).keys()


async def test_a_slot_has_what_was_served_and_ended_in_it():
    process = Process()
    process.served = {"a": (500.0, 1000), "b": (1.0, 1)}
    await process.look(1)  # what was before counts for nothing
    process.served = {"a": (800.0, 1600), "b": (101.0, 101)}
    process.oldest_at = {"b": START + 4}
    for ttft_s in (0.1, 0.2, 0.3):
        process.recorder.ended(call(ttft_s=ttft_s, cost=2 * 10**11, waited_s=1.5))
    process.recorder.ended(call(reason=Reason.QUEUE_FULL))
    await process.look(10)
    process.served["a"] = (900.0, 1700)
    await process.look(15)  # the slot goes on: nothing is read
    await process.look(20)
    assert await process.series("tenant:a", "tokens") == {0: near(600), 10: near(100)}
    assert await process.series("tenant:a", "share") == {0: near(0.75), 10: 1.0}
    assert await process.series("tenant:b", "share") == {0: near(0.25), 10: 0.0}
    assert await process.series("tenant:b", "wait_s") == {0: near(6), 10: near(16)}
    assert await process.series("tenant:a", "wait_s") == {0: near(1.5), 10: 0.0}
    assert await process.series("tenant:a", "ttft_s") == {0: near(0.3)}, "where no stream began there is none"
    assert await process.series("tenant:a", "refused") == {0: 1, 10: 0}
    assert await process.series("tenant:a", "cost") == {0: near(0.6), 10: 0.0}
    assert await process.series("pool:p", "tokens") == {0: near(700), 10: near(100)}
    assert await process.series("group:red", "tokens") == {0: near(600), 10: near(100)}
    assert await process.series("tier:iron", "tokens") == {0: near(100), 10: 0}
    assert (await process.of("tenant:c")).pools == {}


async def test_what_is_queued_is_what_the_last_reading_of_the_slot_says_and_of_a_minute_the_most():
    process = Process()
    process.served = {"a": (1.0, 1), "b": (1.0, 1)}
    await process.look(1)
    for slot in range(1, 7):
        process.queued = {"a": 8 * slot, "b": 2} if slot < 4 else {}
        process.oldest_at = dict.fromkeys(process.queued, process.now - 1)
        process.recorder.look("late", SimpleNamespace(now=process.now, backends={}))  # this pool's slot is not over yet
        await process.look(10 * slot)
        await process.look(10 * slot + 0.1)
    assert await process.series("tier:iron", "queued") == {0: 2, 10: 2, 20: 2, 30: 0, 40: 0, 50: 0}
    assert await process.series("pool:p", "queued") == {0: near(10), 10: near(18), 20: near(26), 30: 0, 40: 0, 50: 0}
    assert "queued" not in (await process.of("tenant:a")).pools["p"].values
    assert await process.series("group:red", "queued", "6h") == {0: near(24)}


async def test_a_minute_is_made_of_its_tenths_by_what_was_served_in_each():
    process = Process()
    await process.look(0.5)
    for slot in range(1, 13):
        service = process.served.get("a", (0.0, 0))[0] + (90 if slot == 2 else 1)
        process.served = {"a": (service, int(service)), "b": (9.0 * slot, 9 * slot)}
        if slot in (2, 3):
            process.recorder.ended(call(ttft_s=0.1 * slot, reason=None))
        process.recorder.ended(call(reason=Reason.QUEUE_FULL))
        await process.look(10 * slot)
    assert await process.series("tenant:a", "tokens", "6h") == {0: near(95), 60: near(6)}
    assert await process.series("tenant:a", "share", "6h") == {0: near(95 / 149), 60: near(0.1)}
    assert await process.series("tenant:a", "ttft_s", "6h") == {0: near(0.25)}
    assert await process.series("tenant:a", "refused", "6h") == {0: near(6), 60: near(6)}
    minute = await process.reader.minute(START + 70)
    assert minute.is_recorded
    assert minute.at == START + 60
    rows = {(row.kind, row.name): row.values for row in minute.rows}
    assert rows["tenant", "b"]["tokens"] == near(54)
    assert rows.keys() == {
        ("pool", "p"),
        ("tier", "gold"),
        ("tier", "iron"),
        ("group", "red"),
        ("tenant", "a"),
        ("tenant", "b"),
    }
    assert not (await process.reader.minute(START + 120)).is_recorded, "it is not over"


async def test_a_long_gap_of_looks_is_a_gap_and_what_came_late_counts_by_its_time():
    process = Process()
    await process.look(0)
    process.served = {"a": (100.0, 100)}
    await process.look(10)
    process.served = {"a": (900.0, 900)}
    await process.look(90)  # 80 s in which 800 were served
    assert await process.series("tenant:a", "tokens") == {0: near(100), 80: near(100)}
    process.recorder.replaced()  # other Schedulers, which count from zero
    process.served = {"a": (70.0, 70)}
    await process.look(100)
    process.served = {"a": (90.0, 90)}
    await process.look(110)
    assert await process.series("tenant:a", "tokens") == {0: near(100), 80: near(100), 90: 0, 100: near(20)}


async def test_looks_at_thousands_of_tenants_are_far_apart_and_all_slots_in_between_have_their_mean():
    """Also across two blocks of a ring, and where they begin within a slot."""
    process = Process()
    process.backends = {"b0": BackendView(True, 4, 8, 800, 1600, 0, 0)}
    process.served = {"a": (0.0, 0)}
    await process.look(0)
    await process.look(595)
    process.served = {"a": (400.0, 400)}
    for _ in range(20):
        process.recorder.ended(call(reason=Reason.QUEUE_FULL))
    await process.look(641)
    slots = (590, 600, 610, 620, 630)
    found = await process.series("tenant:a", "tokens")
    assert {at: found[at] for at in slots} == dict.fromkeys(slots, near(80))
    assert sum((await process.series("tenant:a", "refused")).values()) == near(20)
    in_flight = await process.series("backend:b0", "in_flight")
    assert {at: in_flight[at] for at in slots} == dict.fromkeys(slots, near(4))


async def test_a_slot_that_ends_while_all_are_looked_at_has_what_was_served_in_it():
    process = Process()
    await process.look(0)
    process.served = {"a": (100.0, 100)}
    await process.look(9.9, takes_s=0.2)  # the look came before the end of the slot, and read nothing
    await process.look(11)
    process.served = {"a": (300.0, 300)}
    await process.look(20)
    assert await process.series("tenant:a", "tokens") == {0: near(100), 10: near(200)}


async def test_backends_are_means_of_looks_and_their_loss_is_an_event():
    process = Process()
    for second in range(11):
        up = second < 5
        process.backends = {"b0": BackendView(up, 2 if up else 0, 4, 800, 1600, 0, 0)}
        await process.look(second)
    assert await process.series("backend:b0", "available") == {0: near(5 / 11)}
    assert await process.series("backend:b0", "in_flight") == {0: near(10 / 11)}
    assert await process.series("backend:b0", "kv_tokens_limit") == {0: near(1600)}
    assert await process.series("backend:b0", "step_s") == {0: near(0.02)}
    assert [(each.at - START, each.kind, each.name, each.what) for each in (await process.of("pool:p")).events] == [
        (5, "backend", "b0", "not_available")
    ]


async def test_processes_put_together_what_each_recorded_also_after_a_change_of_the_leader():
    """The new leader has the shares from then on, the one of before those of until then; each has its own calls."""
    one, two = Process("one"), Process("two")
    two.leader = "one"

    async def ask_all(names, service, body):
        processes = {"one": one, "two": two}
        return [await processes[name].others.services[service](body) for name in names], []

    for process, other in ((one, "two"), (two, "one")):
        process.others.names = lambda other=other: [other]
        process.others.ask_all = ask_all
    await one.look(0)
    await two.look(0, leads=False)
    one.served = {"a": (300.0, 300), "b": (100.0, 100)}
    one.recorder.ended(call(reason=Reason.QUEUE_FULL))
    two.recorder.ended(call(reason=Reason.QUEUE_FULL))
    two.recorder.ended(call(ttft_s=0.5))
    await one.look(10)
    await two.look(10, leads=False)
    one.leader = two.leader = "two"
    await two.look(11)
    two.served = {"a": (40.0, 40)}
    await one.look(20, leads=False)
    await two.look(20)
    for process in (one, two):
        assert await process.series("tenant:a", "share") == {0: near(0.75), 10: 1.0}
        assert await process.series("tenant:a", "refused") == {0: 2, 10: 0}
        assert await process.series("tenant:a", "ttft_s") == {0: near(0.5)}
        assert [(each.kind, each.name) for each in (await process.of("pool:p")).events] == [("leader", "two")]

    async def nothing(names, _service, _body):
        return [], list(names)

    two.others.ask_all = nothing  # the leader of before is gone: what it knew is lost, and said to be missing
    assert await two.series("tenant:a", "share") == {0: 0.0, 10: 1.0}
    assert (await two.of("tenant:a")).missing == ["one"]


async def test_a_call_that_belongs_to_no_pool_or_tenant_is_not_counted():
    process = Process()
    await process.look(0)
    for trace in (call(), call(), call()):
        process.recorder.ended(trace)
    lost = call()
    lost.model = "none"
    process.recorder.ended(lost)
    anonymous = call()
    anonymous.tenant_id = None
    process.recorder.ended(anonymous)
    assert process.recorder._pools["p"].uses.by_name.keys() == {"a"}
    with pytest.raises(StoreUnavailable):
        await process.others.ask("x", "history")


async def test_names_beyond_the_limit_take_no_room_in_a_slot_and_count_in_sums(monkeypatch):
    monkeypatch.setattr(recorder, "NAMES_MAX", 2)
    process = Process()
    await process.look(1)
    for name in ("b", "c", "a", "d", "e"):
        process.recorder.ended(call(name, reason=Reason.QUEUE_FULL))
    uses = process.recorder._pools["p"].uses
    assert (len(uses.by_name), len(uses.beyond)) == (2, 2), "one tenant's tier and group, and no tier"
    await process.look(10)
    assert await process.series("pool:p", "refused") == {0: 5}
    assert await process.series("group:red", "refused") == {0: 1}
    assert await process.series("tenant:b", "refused") == {0: 1}
    assert (await process.of("tenant:a")).pools == {}
