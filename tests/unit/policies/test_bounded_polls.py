"""One poll decides a bounded number, and several of one instant decide what one without a bound would."""

from random import Random

import pytest

from policies.fairness import FAIRNESS
from policies.fleet.fleet import Fleet
from policies.pool.backfill import PASSED_MAX
from policies.pool.scheduler_parts import DECISIONS_MAX
from policies.types import BackendLoad, Dispatch, Reason, SloEnvelope, Tenant, Tier, Usage

BACKENDS = [BackendLoad(f"gpu-{n}", kv_tokens_max=3_000, kv_block_tokens=16, requests_running_max=12) for n in range(8)]
ENVELOPES = (None, SloEnvelope(ttft_s=5.0, tpot_s=0.2))


def history(pool, seed: int, bursts: int) -> list[tuple[str, str]]:
    """Bursts of requests of all sizes come and go; some will do with a few of the backends."""
    rng = Random(seed)
    sent: list[tuple[str, str]] = []
    running: list[str] = []
    for burst in range(bursts):
        pool.now += 0.5
        for number in range(rng.randrange(60)):
            ids = frozenset({"gpu-1", "gpu-5"}) if rng.random() < 0.1 else None
            pool.send(
                rng.choice("ABC"),
                f"r{burst}-{number}",
                prompt=rng.randrange(1, 400),
                output_max=rng.randrange(1, 200),
                envelope=rng.choice(ENVELOPES),
                backend_ids=ids,
            )
        for _ in range(min(len(running), rng.randrange(60))):
            pool.end(running.pop(rng.randrange(len(running))))
        dispatches = [each for each in pool.poll() if isinstance(each, Dispatch)]
        running += [each.request_id for each in dispatches]
        sent += [(each.request_id, each.backend_id) for each in dispatches]
    return sent


@pytest.mark.parametrize("bursts", [16, pytest.param(40, marks=pytest.mark.long)])
@pytest.mark.parametrize("fairness", FAIRNESS)
def test_bounded_polls_decide_the_same_as_one_without_a_bound(make_pool, fairness, bursts):
    def decided(**bounds: int) -> list[tuple[str, str]]:
        pool = make_pool(
            tenants=[Tenant("A", weight=2.0, tier_id="gold"), Tenant("B"), Tenant("C")],
            tiers=[Tier("gold", reserve_ratio=0.1), Tier("default")],
            loads=BACKENDS,
            fairness=FAIRNESS[fairness],
            share_ratio_max=0.5,
            **bounds,
        )
        return history(pool, 1, bursts)

    whole = decided(decisions_max=10**9, asked_max=10**9)
    assert len(whole) > 7.5 * bursts
    assert decided(decisions_max=1) == whole
    assert decided(decisions_max=7) == whole
    assert decided(asked_max=1) == whole
    assert decided(asked_max=20) == whole


def test_a_poll_dispatches_no_more_than_its_bound_and_says_that_there_is_more(make_pool):
    pool = make_pool(loads=[BackendLoad("gpu", requests_running_max=1_000)])
    for number in range(3 * DECISIONS_MAX - 1):
        pool.send("A", f"r{number}")
    for expected in (DECISIONS_MAX, DECISIONS_MAX, DECISIONS_MAX - 1):
        assert len(pool.scheduler.poll(pool.now)) == expected
        is_over = expected < DECISIONS_MAX
        assert (pool.scheduler.next_wakeup() is None) == is_over
        assert is_over or pool.scheduler.next_wakeup() == pool.now


def test_a_poll_takes_no_further_request_once_it_has_asked_enough(make_pool):
    """One request more than the bound at most: it may ask all backends."""
    asked_max, many = 40, 64
    loads = [
        BackendLoad(f"gpu-{n:02}", kv_tokens_max=1_000, kv_block_tokens=16, requests_running_max=99)
        for n in range(many)
    ]
    pool = make_pool(tenants=[Tenant(f"t{n}") for n in range(50)], loads=loads, asked_max=asked_max)
    rng = Random(1)
    running, number, asked = [], 0, []
    for _ in range(10):
        pool.now += 1.0
        for _ in range(min(len(running), 100)):
            pool.end(running.pop(rng.randrange(len(running))))
        for _ in range(150):
            number += 1
            pool.send(f"t{rng.randrange(50)}", f"r{number}", prompt=rng.randrange(10, 900), output_max=50)
        is_more = True
        while is_more:
            before = pool.scheduler._fleet.asked
            sent = [each.request_id for each in pool.scheduler.poll(pool.now) if isinstance(each, Dispatch)]
            running += sent
            wakeup_at = pool.scheduler.next_wakeup()
            is_more = wakeup_at is not None and wakeup_at <= pool.now
            assert sent or not is_more, "what is cut short has decided something"
            if sent:
                asked.append(pool.scheduler._fleet.asked - before)
    # A request may ask every backend, and look at each for every request that it would pass.
    assert max(asked) <= asked_max + many * (1 + PASSED_MAX)
    assert sum(each > asked_max for each in asked) > 3, "the bound is reached"


def test_what_expires_at_once_is_refused_by_several_polls(make_pool):
    pool = make_pool(loads=[BackendLoad("gpu", requests_running_max=1)], wait_s_max=10.0)
    for number in range(2 * DECISIONS_MAX + 2):
        pool.send("A", f"r{number}")
    assert pool.dispatched() == ["r0"]
    pool.now = pool.scheduler.next_wakeup()
    for expected in (DECISIONS_MAX, DECISIONS_MAX, 1):
        refused = pool.scheduler.poll(pool.now)
        assert [each.reason for each in refused] == [Reason.QUEUE_TIMEOUT] * expected
    assert pool.scheduler.next_wakeup() is None


def test_a_fact_between_two_polls_of_an_instant_is_seen_by_the_second(make_pool):
    pool = make_pool(
        tenants=[Tenant("A", tier_id="gold"), Tenant("B")],
        tiers=[Tier("gold", reserve_ratio=0.5), Tier("default")],
        loads=[BackendLoad("gpu", kv_tokens_max=1_000, requests_running_max=99)],
        decisions_max=2,
    )
    pool.send("A", "a0", prompt=100, output_max=10)
    assert pool.dispatched() == ["a0"]
    pool.send("B", "large", prompt=800, output_max=10)
    pool.send("B", "small", prompt=10, output_max=10)
    for number in range(1, 3):
        pool.send("A", f"a{number}", prompt=100, output_max=10)
    assert [each.request_id for each in pool.scheduler.poll(pool.now)] == ["a1", "a2"], "the large one has no room"
    pool.scheduler.cancel("large", pool.now)
    assert [each.request_id for each in pool.scheduler.poll(pool.now)] == ["small"]


def test_nothing_is_taken_back_while_there_is_more_to_decide(make_pool):
    """What waits may yet be sent without that."""
    tiers = [Tier("default"), Tier("batch", preemptible=True, priority=-1)]
    pool = make_pool(
        tenants=[Tenant("A"), Tenant("C"), Tenant("B", tier_id="batch")],
        tiers=tiers,
        loads=[BackendLoad("x", requests_running_max=1), BackendLoad("y", requests_running_max=1)],
        preempt_service=0.0,
        decisions_max=1,
    )
    pool.send("B", "b", prompt=500)
    assert len(pool.scheduler.poll(pool.now)) == 1
    pool.send("A", "a")
    pool.send("C", "c")
    (action,) = pool.scheduler.poll(pool.now)
    assert isinstance(action, Dispatch), "one of them has room without it"


@pytest.mark.interpreted
def test_a_poll_of_an_instant_in_which_all_was_decided_looks_for_no_room(make_pool, monkeypatch):
    pool = make_pool(loads=[BackendLoad("gpu", kv_tokens_max=1_000, requests_running_max=99)])
    for number in range(30):
        pool.send("ABC"[number % 3], f"r{number}", prompt=300, output_max=10)
    assert len(pool.dispatched()) == 3
    asked, refuses = [], Fleet.still_refuses  # of each request that a round looks at

    def counted(self, request, *args, **more):
        asked.append(request.id)
        return refuses(self, request, *args, **more)

    monkeypatch.setattr(Fleet, "still_refuses", counted)
    assert pool.scheduler.poll(pool.now) == []
    assert asked == []
    for tell in (
        lambda: pool.send("A", "late", prompt=300),
        lambda: pool.scheduler.cancel("r5", pool.now),
        lambda: pool.emit("r0"),
        lambda: pool.scheduler.spent("B", Usage(1, 0, 1), pool.now),
        lambda: pool.measure(BackendLoad("gpu", kv_tokens_max=1_000, requests_running_max=99)),
        lambda: setattr(pool, "now", pool.now + 0.1),
    ):
        tell()
        asked.clear()
        assert pool.scheduler.poll(pool.now) == []
        assert asked
