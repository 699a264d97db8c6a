"""The forecast of what a KV pool will hold, by the probability that answers go on."""

from random import Random

import pytest

from policies.capacity.kv_use.expected import ExpectedOverTime
from policies.reservation import Reservation


def reservation(prompt=100, output=200, produced=0, sequences=1, limit=1_000):
    return Reservation(
        "default",
        sequences,
        prompt + output * sequences,
        output_tokens=float(output * sequences),
        produced_tokens=produced * sequences,
        output_tokens_max=float(limit * sequences),
    )


def learnt(rng, count=400, output=200):
    """A pool that has seen answers of 1 to 400 tokens, whatever was predicted."""
    pool = ExpectedOverTime()
    for _ in range(count):
        member = reservation(output=output)
        pool.add(member)
        member.produced_tokens = rng.randint(1, 400)
        pool.remove(member)
    pool.measured(1)
    return pool


def test_before_anything_is_known_requests_that_come_together_reach_their_full_lengths_together():
    pool = ExpectedOverTime()
    members = [reservation() for _ in range(10)]
    for member in members:
        pool.add(member)
    pool.measured(1)
    assert pool.tokens() >= sum(member.tokens for member in members)


def test_what_is_held_now_is_what_was_produced():
    pool = ExpectedOverTime()
    for produced in (0, 50, 250):
        pool.add(reservation(produced=produced))
    pool.measured(1)
    assert pool.tokens_now() == 100 + 150 + (100 + 200)  # the last one has outgrown its 200


def test_what_answers_grow_by_beyond_what_most_of_them_reach_is_not_reserved():
    """A slot holds 100 + 133 in the long run: the mean age of an answer of 1 to 400 that runs is 133."""
    pool = learnt(Random(1))
    for _ in range(20):
        pool.add(reservation())
    assert 20 * 220 < pool.tokens() < 20 * 260


def test_an_end_leaves_room_for_about_one_newcomer_whenever_it_comes():
    rng = Random(2)
    pool = learnt(rng)
    ages = [0, 50, 100, 150, 200, 250]
    members = [reservation(produced=rng.choice(ages)) for _ in range(60)]
    for member in members:
        pool.add(member)
    pool.measured(1)
    full = pool.tokens()
    for member in members[:30]:
        pool.remove(member)
        assert pool.tokens_with(reservation()) <= 1.03 * full
        pool.add(reservation())
    assert pool.tokens() == pytest.approx(full, rel=0.1)


def test_answers_that_may_hardly_go_on_beyond_their_prediction_reserve_less():
    pools = {60: ExpectedOverTime(), 1_000: ExpectedOverTime()}
    for limit, pool in pools.items():
        for _ in range(10):
            pool.add(reservation(prompt=1, output=50, limit=limit))
    assert pools[60].tokens() < pools[1_000].tokens()


def test_what_came_and_went_leaves_nothing_behind():
    rng, pool = Random(4), ExpectedOverTime()
    running = []
    for _ in range(300):
        if running and rng.random() < 0.5:
            pool.remove(running.pop(rng.randrange(len(running))))
        else:
            running.append(reservation(rng.randint(1, 300), rng.randint(1, 300), sequences=rng.randint(1, 3)))
            pool.add(running[-1])
        if rng.random() < 0.3 and running:
            rng.choice(running).produced_tokens += rng.randint(1, 30)
            pool.moved(rng.choice(running))
        if rng.random() < 0.1:
            pool.measured(16)
            pool.tokens()
    while running:
        pool.remove(running.pop())
    assert pool.tokens() == pytest.approx(0.0, abs=1e-6)
