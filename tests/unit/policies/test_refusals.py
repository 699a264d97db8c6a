"""Not asking again is never another answer: a pool that remembers who is full sends the same as one that does not."""

from random import Random

import pytest

from policies.refusals import Refusals
from policies.types import BackendLoad, Dispatch, Outcome, Tenant, Tier

LOADS = [BackendLoad(f"gpu-{n:02}", kv_tokens_max=400, kv_block_tokens=16, requests_running_max=6) for n in range(12)]


def history(make_pool, seed: int) -> list[tuple[str, str]]:
    """Requests of all sizes come and go at a pool that is full most of the time."""
    rng = Random(seed)
    pool = make_pool(
        tenants=[Tenant("A", tier_id="gold"), Tenant("B"), Tenant("C")],
        tiers=[Tier("gold", reserve_ratio=0.1), Tier("default")],
        loads=LOADS,
    )
    sent, running = [], []
    for number in range(400):
        pool.now += 0.01
        pool.send(rng.choice("ABC"), f"r{number}", prompt=rng.randrange(1, 300), output_max=rng.randrange(1, 60))
        if running and rng.random() < 0.8:
            pool.scheduler.finished(running.pop(rng.randrange(len(running))), Outcome.COMPLETED, pool.now)
        if rng.random() < 0.05:
            pool.measure(*LOADS)
        dispatches = [(each.request_id, each.backend_id) for each in pool.poll() if isinstance(each, Dispatch)]
        running += [request_id for request_id, _ in dispatches]
        sent += dispatches
    return sent


@pytest.mark.parametrize("seed", range(5))
def test_a_pool_sends_the_same_whether_it_remembers_refusals_or_not(make_pool, monkeypatch, seed):
    remembered = history(make_pool, seed)
    assert len(remembered) > 100
    monkeypatch.setattr(Refusals, "worth_asking", lambda _self, _reservation, candidates: candidates)
    assert history(make_pool, seed) == remembered


def test_once_all_are_full_only_those_that_changed_are_asked(make_pool, monkeypatch):
    asked = []
    worth_asking = Refusals.worth_asking

    def spied(self, reservation, candidates):
        asked.append(len(found := worth_asking(self, reservation, candidates)))
        return found

    monkeypatch.setattr(Refusals, "worth_asking", spied)
    pool = make_pool(loads=LOADS)
    for number in range(30):
        pool.send("A", f"r{number}", prompt=280, output_max=16)
    assert len(pool.dispatched()) == len(LOADS)
    asked.clear()
    pool.scheduler.finished("r3", Outcome.COMPLETED, pool.now)
    assert len(pool.dispatched()) == 1
    assert asked == [1, 1]
