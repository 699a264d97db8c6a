"""Not asking again is never another answer: a pool that remembers full backends decides as one that does not."""

from dataclasses import replace
from functools import partial
from random import Random

import pytest

from policies.capacity.backend import KV_RULES, BackendCapacity
from policies.fleet.fleet import OPEN, Fleet
from policies.fleet.negative_cache import NegativeCache
from policies.limit import FixedLimit
from policies.step_time import StepTime, StepTimeModel
from policies.types import BackendLoad, Dispatch, Outcome, Request, SloEnvelope, Tenant, Tier, Usage
from tests.examples import examples

LOADS = [BackendLoad(f"gpu-{n:02}", kv_tokens_max=400, kv_block_tokens=16, requests_running_max=6) for n in range(12)]
# A step with a full chunk takes 60 ms: more than that of prompts keeps an engine busy for six requests here.
ENVELOPES = (None, SloEnvelope(ttft_s=0.2), SloEnvelope(ttft_s=5.0, tpot_s=0.2))
STEP_TIME = StepTime(StepTimeModel(base_s=0.010, token_s=0.0005), error_ratio=0.05, is_sure=True)
BUSY_LOADS = [replace(each, kv_tokens_max=1_000, step_tokens_max=100, step_time=STEP_TIME) for each in LOADS]


def history(make_pool, seed: int, loads=LOADS, *, progress: bool = False, **options) -> list[tuple[str, str]]:
    """Requests of all sizes come and go at a pool that is full most of the time. With `progress` they tell of it."""
    rng = Random(seed)
    pool = make_pool(
        tenants=[Tenant("A", tier_id="gold"), Tenant("B"), Tenant("C")],
        tiers=[Tier("gold", reserve_ratio=0.1), Tier("default")],
        loads=loads,
        **options,
    )
    sent, running = [], []
    for number in range(400):
        pool.now += 0.01
        prompt, output_max, envelope = rng.randrange(1, 300), rng.randrange(1, 60), rng.choice(ENVELOPES)
        pool.send(rng.choice("ABC"), f"r{number}", prompt=prompt, output_max=output_max, envelope=envelope)
        if running and rng.random() < 0.8:
            pool.scheduler.finished(running.pop(rng.randrange(len(running))), Outcome.COMPLETED, pool.now)
        for request_id in rng.sample(running, min(len(running), 3)) if progress else ():
            pool.emit(request_id, 4)
        if rng.random() < 0.05:
            pool.measure(*loads)
        dispatches = [(each.request_id, each.backend_id) for each in pool.poll() if isinstance(each, Dispatch)]
        running += [request_id for request_id, _ in dispatches]
        sent += dispatches
    return sent


@pytest.mark.drawn
@pytest.mark.parametrize("loads", [LOADS, BUSY_LOADS], ids=["memory", "prompts"])
@pytest.mark.parametrize("kv_rule", KV_RULES)
@pytest.mark.parametrize("seed", range(examples(6)))
def test_a_pool_sends_the_same_whether_it_remembers_refusals_or_not(make_pool, monkeypatch, seed, kv_rule, loads):
    remembered = history(make_pool, seed, loads, kv_rule=kv_rule)
    assert len(remembered) > 100
    monkeypatch.setattr(NegativeCache, "worth_asking", lambda _self, candidates, *_needed, **_when: candidates)
    monkeypatch.setattr(NegativeCache, "is_refused_still", lambda _self, *_request, **_when: False)
    assert history(make_pool, seed, loads, kv_rule=kv_rule) == remembered


@pytest.mark.drawn
@pytest.mark.parametrize("loads", [LOADS, BUSY_LOADS], ids=["memory", "prompts"])
def test_what_is_known_of_a_request_by_its_id_is_what_asking_anew_finds(make_pool, monkeypatch, loads):
    def histories():
        return [history(make_pool, seed, loads, progress=True) for seed in range(examples(6))]

    by_id = histories()
    monkeypatch.setattr(NegativeCache, "is_refused_still", lambda _self, *_request, **_when: False)
    assert histories() == by_id


def test_by_peak_nothing_is_known_of_a_request_by_its_id(make_pool, monkeypatch):
    """Progress makes room, and no change of a backend tells of it."""
    monkeypatch.delattr(NegativeCache, "is_refused_still")
    assert history(make_pool, 0, progress=True, kv_rule="peak")


@pytest.mark.parametrize(("output_tokens", "is_refused"), [(16.0, False), (16.5, True), (17.0, True), (300.0, True)])
def test_a_request_is_refused_unasked_where_its_blocks_are_more_than_are_free_anywhere(output_tokens, is_refused):
    fleet = Fleet(1.0, "sum")
    fleet.live([replace(LOADS[0], kv_tokens_max=1_008)], lambda _: (), 0.0)
    first = Request("first", "A", "m", 0.0, prompt_tokens=400, output_tokens_max=8)
    candidates = fleet.open_at(0.0)
    assert fleet.slot(first, "default", candidates, OPEN, output_tokens=8.0, home="") is not None
    request = Request("r", "A", "m", 0.0, prompt_tokens=576, output_tokens_max=300)
    told = {"is_closed": False, "closed": ()}
    assert fleet.still_refuses(request, "default", output_tokens, **told) == is_refused, "592 of 1,008 - 416"


@pytest.fixture
def asked(monkeypatch):
    """How many backends were asked, each time that room was looked for."""
    found, chosen = [], Fleet._chosen

    def spied(self, request, asked, *args):
        found.append(len(asked))
        return chosen(self, request, asked, *args)

    monkeypatch.setattr(Fleet, "_chosen", spied)
    return found


@pytest.mark.interpreted
def test_once_all_are_full_only_those_that_changed_are_asked(make_pool, asked):
    pool = make_pool(loads=LOADS)
    for number in range(30):
        pool.send("A", f"r{number}", prompt=280, output_max=16)
    assert len(pool.dispatched()) == len(LOADS)
    asked.clear()
    pool.scheduler.finished("r3", Outcome.COMPLETED, pool.now)
    assert len(pool.dispatched()) == 1
    assert asked == [1]


def test_who_is_busy_with_prompts_is_asked_again_when_he_is_not(make_pool, asked):
    pool = make_pool(loads=BUSY_LOADS)
    for number in range(24):  # each keeps its engine busy for two steps and a half
        pool.send("A", f"r{number}", prompt=250, output_max=16)
    assert len(pool.dispatched()) == len(LOADS)
    asked.clear()
    wakeup_at = pool.scheduler.next_wakeup()
    pool.now += (wakeup_at - pool.now) / 2
    assert pool.dispatched() == []
    assert asked == []
    pool.now = wakeup_at
    assert len(pool.dispatched()) == len(LOADS)


def test_a_request_that_needs_all_that_is_free_is_sent(make_pool):
    load = BackendLoad("gpu", kv_tokens_max=800, kv_block_tokens=16, requests_running_max=9)
    pool = make_pool(loads=[load], headroom_ratio_max=1.0)
    for name in ("first", "second", "third"):
        pool.send("A", name, prompt=400)
    assert len(pool.dispatched()) == 2
    pool.scheduler.finished("first", Outcome.COMPLETED, pool.now)
    assert len(pool.dispatched()) == 1


@pytest.mark.interpreted
def test_a_rejected_request_is_compared_only_with_backends_that_have_changed(make_pool, monkeypatch):
    pool = make_pool(loads=LOADS)
    for number in range(40):
        pool.send("ABC"[number % 3], f"r{number}", prompt=280 + number, output_max=16)
    sent = pool.dispatched()
    assert len(sent) == len(LOADS)
    compared, has_room, room = [], BackendCapacity.has_room, BackendCapacity.room

    def counted(self, reservation, *, reserve_only):
        compared.append(self.id)
        return has_room(self, reservation, reserve_only=reserve_only)

    def room_counted(self, tier_id):
        compared.append(self.id)
        return room(self, tier_id)

    monkeypatch.setattr(BackendCapacity, "has_room", counted)
    monkeypatch.setattr(BackendCapacity, "room", room_counted)
    pool.scheduler.tokens(sent[0], Usage(280, 0, 1), pool.now)  # its first token: room may have come there
    assert pool.dispatched() == []
    assert len(set(compared)) == 1
    assert len(compared) <= 3, "once for each tenant's next request"


def test_a_backend_without_a_slot_is_not_asked_because_it_changed(make_pool, asked):
    pool = make_pool(loads=LOADS[:2], limit=partial(FixedLimit, 2))
    for number, prompt in enumerate((280, 9, 9)):  # memory keeps more from the first backend, the limit from the other
        pool.send("A", f"r{number}", prompt=prompt, output_max=16)
    assert [each.backend_id for each in pool.poll()] == ["gpu-00", "gpu-01", "gpu-01"]
    pool.send("A", "next", prompt=280, output_max=16)
    assert pool.dispatched() == []
    asked.clear()
    for request_id in ("r1", "r2"):
        pool.emit(request_id, 1)  # its first token: room may have come there
        assert pool.dispatched() == []
    assert asked == []
