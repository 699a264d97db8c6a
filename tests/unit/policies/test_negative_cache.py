"""Not asking again is never another answer: a pool that remembers who is full sends the same as one that does not."""

from dataclasses import replace
from random import Random

import pytest

from policies.capacity.backend import KV_RULES
from policies.fleet.negative_cache import NegativeCache
from policies.step_time import StepTime, StepTimeModel
from policies.types import BackendLoad, Dispatch, Outcome, SloEnvelope, Tenant, Tier

LOADS = [BackendLoad(f"gpu-{n:02}", kv_tokens_max=400, kv_block_tokens=16, requests_running_max=6) for n in range(12)]
# A step with a full chunk takes 60 ms: more than that of prompts keeps an engine busy for six requests here.
ENVELOPES = (None, SloEnvelope(ttft_s=0.2), SloEnvelope(ttft_s=5.0, tpot_s=0.2))
STEP_TIME = StepTime(StepTimeModel(base_s=0.010, token_s=0.0005), error_ratio=0.05, is_sure=True)
BUSY_LOADS = [replace(each, kv_tokens_max=1_000, step_tokens_max=100, step_time=STEP_TIME) for each in LOADS]


def history(make_pool, seed: int, loads=LOADS, **options) -> list[tuple[str, str]]:
    """Requests of all sizes come and go at a pool that is full most of the time."""
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
        if rng.random() < 0.05:
            pool.measure(*loads)
        dispatches = [(each.request_id, each.backend_id) for each in pool.poll() if isinstance(each, Dispatch)]
        running += [request_id for request_id, _ in dispatches]
        sent += dispatches
    return sent


@pytest.mark.parametrize("loads", [LOADS, BUSY_LOADS], ids=["memory", "prompts"])
@pytest.mark.parametrize("kv_rule", KV_RULES)
@pytest.mark.parametrize("seed", range(5))
def test_a_pool_sends_the_same_whether_it_remembers_refusals_or_not(make_pool, monkeypatch, seed, kv_rule, loads):
    remembered = history(make_pool, seed, loads, kv_rule=kv_rule)
    assert len(remembered) > 100
    monkeypatch.setattr(NegativeCache, "worth_asking", lambda _self, candidates, *_needed, **_when: candidates)
    assert history(make_pool, seed, loads, kv_rule=kv_rule) == remembered


@pytest.fixture
def asked(monkeypatch):
    """How many backends were asked, each time that somebody looked for room."""
    found, worth_asking = [], NegativeCache.worth_asking

    def spied(self, *args, **when):
        worth = worth_asking(self, *args, **when)
        found.append(len(worth))
        return worth

    monkeypatch.setattr(NegativeCache, "worth_asking", spied)
    return found


def test_once_all_are_full_only_those_that_changed_are_asked(make_pool, asked):
    pool = make_pool(loads=LOADS)
    for number in range(30):
        pool.send("A", f"r{number}", prompt=280, output_max=16)
    assert len(pool.dispatched()) == len(LOADS)
    asked.clear()
    pool.scheduler.finished("r3", Outcome.COMPLETED, pool.now)
    assert len(pool.dispatched()) == 1
    assert asked == [1, 1]


def test_who_is_busy_with_prompts_is_asked_again_when_he_is_not(make_pool, asked):
    pool = make_pool(loads=BUSY_LOADS)
    for number in range(24):  # each keeps its engine busy for two steps and a half
        pool.send("A", f"r{number}", prompt=250, output_max=16)
    assert len(pool.dispatched()) == len(LOADS)
    asked.clear()
    assert pool.dispatched() == []
    assert asked == [0]
    pool.now = pool.scheduler.next_wakeup()
    assert len(pool.dispatched()) == len(LOADS)
