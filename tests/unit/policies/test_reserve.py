"""What has to be free for a tier that cannot wait for a seat: learnt, given back, and never a way to get more."""

from math import ceil, log
from random import Random

import pytest

from policies.capacity.reserve import ARRIVALS, NONE, RESERVE_S, FloatingReserve, Room
from policies.types import BackendLoad, SloEnvelope, Tenant, Tier

TIGHT, LOOSE = SloEnvelope(ttft_s=0.5), SloEnvelope(ttft_s=60.0)
SEATS = 16
HELD_S = 4.0  # what each request of the flood takes: a seat comes free every quarter of a second


@pytest.mark.parametrize("rho", [0.05, 0.15, 0.4])
def test_what_is_needed_of_arrivals_by_chance_is_what_queueing_theory_says(rho):
    """M/M/1: of arrivals at a part rho of all ends, rho^n find n or more missing before them."""
    rng, reserve, needed = Random(1), FloatingReserve(), []
    now = 0.0
    for _ in range(8_000):
        now += rng.expovariate(1.0 + rho)
        if rng.random() < rho / (1.0 + rho):
            reserve.came(1, 10.0, now)
            needed.append(reserve.needed(now))
        else:
            reserve.ended(1, 10.0, is_roomy=False)
    expected = ceil(log(0.01) / log(rho))
    usual = sorted(each.sequences for each in needed[200:])[len(needed[200:]) // 2]
    assert abs(usual - expected) <= max(1, expected // 4), (usual, expected)
    assert all(each.tokens == 10.0 * each.sequences for each in needed)


def test_what_is_needed_is_the_99th_percentile_of_the_last_200_that_came():
    rng, reserve = Random(2), FloatingReserve()
    found, missing = [], NONE
    for _ in range(700):
        sequences, tokens = rng.choice((1, 1, 2)), rng.choice((16.0, 16.0, 48.5, 1_000.0))
        reserve.came(sequences, tokens, 0.0)
        missing = Room(missing.sequences + sequences, missing.tokens + tokens)
        found = [*found, missing][-ARRIVALS:]
        rank = ceil(0.99 * len(found)) - 1
        assert reserve.needed(0.0) == tuple(sorted(numbers)[rank] for numbers in zip(*found, strict=True))
        if rng.random() < 0.6:
            reserve.ended(1, 50.0, is_roomy=False)
            left = Room(missing.sequences - 1, max(0.0, missing.tokens - 50.0))
            missing = left if left.sequences > 0 else NONE


def test_what_was_taken_of_it_comes_back_with_whatever_ends():
    reserve = FloatingReserve()
    reserve.came(1, 100.0, 0.0)
    reserve.came(2, 50.0, 0.0)
    assert reserve.needed(0.0) == Room(3, 150.0)
    assert reserve.free(0.0) == NONE
    reserve.ended(1, 70.0, is_roomy=False)
    assert reserve.free(0.0) == Room(1, 70.0)
    reserve.ended(1, 10.0, is_roomy=True)
    assert reserve.free(0.0) == Room(3, 150.0), "where there is room for all nothing is missing"


def test_it_is_given_back_when_no_request_comes():
    reserve = FloatingReserve()
    reserve.came(1, 100.0, 0.0)
    assert reserve.needed(RESERVE_S) == Room(1, 100.0)
    assert reserve.needed(RESERVE_S + 0.1) == NONE
    reserve.came(1, 20.0, RESERVE_S + 1.0)
    assert reserve.needed(RESERVE_S + 1.0) == Room(1, 20.0), "and learnt anew"


class Flooded:
    """A flood of `a`, each of which holds its seat for HELD_S, beside chats of `z`: of equal keys `a` is the first."""

    def __init__(self, make_pool, *, chat=TIGHT, weight=1.0, reserve_ratio=0.0):
        self.pool = make_pool(
            tenants=[Tenant("a", tier_id="a-batch"), Tenant("z", tier_id="z-chat")],
            tiers=[Tier("a-batch"), Tier("z-chat", weight=weight, reserve_ratio=reserve_ratio)],
            loads=[BackendLoad("gpu", requests_running_max=SEATS, kv_tokens_max=100_000)],
        )
        self.chat, self.made = chat, 0
        self.ends, self.waited, self.sent_at = [], [], {}
        self.dispatched = {"a": 0, "z": 0}

    def run(self, seconds, *, every_s=None, burst=1):
        """The flood goes on for so long; every so often so many chats come."""
        until, chats_at = self.pool.now + seconds, self.pool.now
        while self.pool.now < until:
            if every_s is not None and self.pool.now >= chats_at:
                chats_at += every_s
                for _ in range(burst if self.queued("z") < SEATS else 0):
                    self.send("z", self.chat, prompt=5)
            while self.queued("a") < SEATS:
                self.send("a", LOOSE, prompt=10)
            for request_id in [each for at, each in self.ends if at <= self.pool.now]:
                self.pool.end(request_id)
            self.ends = [each for each in self.ends if each[0] > self.pool.now]
            for request_id in self.pool.dispatched():
                tenant_id = request_id[0]
                self.dispatched[tenant_id] += 1
                # Not all at once, or seats would not come free one by one.
                held_s = HELD_S * (0.5 + self.made % 16 / 16)
                self.ends.append((self.pool.now + held_s, request_id))
                if tenant_id == "z":
                    self.waited.append(self.pool.now - self.sent_at[request_id])
            self.pool.now += 0.05

    def send(self, tenant_id, envelope, prompt):
        self.made += 1
        request_id = f"{tenant_id}{self.made}"
        self.sent_at[request_id] = self.pool.now
        self.pool.send(tenant_id, request_id, prompt=prompt, envelope=envelope)

    def queued(self, tenant_id):
        return len(self.pool.scheduler._queues.of(tenant_id).requests)

    def reserved(self):
        reserve = self.pool.backend().reserves.get("z-chat")
        return 0 if reserve is None else reserve.sequences


def test_who_cannot_wait_finds_a_seat_beside_a_flood(make_pool):
    flooded = Flooded(make_pool)
    flooded.run(30, every_s=2.0)
    assert 1 <= flooded.reserved() <= 2
    flooded.waited.clear()
    flooded.run(60, every_s=2.0)
    assert max(flooded.waited) == 0.0
    assert flooded.pool.backend().in_flight_requests >= SEATS - 2, "the rest is the flood's"


def test_bursts_find_as_many_seats_as_came_before(make_pool):
    flooded = Flooded(make_pool)
    flooded.run(60, every_s=5.0, burst=3)
    assert flooded.reserved() == 3
    flooded.waited.clear()
    flooded.run(60, every_s=5.0, burst=3)
    assert max(flooded.waited) == 0.0


def test_who_can_wait_for_a_seat_has_none_held(make_pool):
    flooded = Flooded(make_pool, chat=LOOSE)
    flooded.run(60, every_s=2.0)
    assert flooded.reserved() == 0
    assert max(flooded.waited) > 0.0


def test_a_quiet_tiers_seats_are_the_floods_again(make_pool):
    flooded = Flooded(make_pool)
    flooded.run(30, every_s=2.0)
    assert flooded.pool.backend().in_flight_requests < SEATS
    flooded.run(RESERVE_S + 2 * HELD_S)
    assert flooded.reserved() == 0
    assert flooded.pool.backend().in_flight_requests == SEATS


def test_the_operators_reserve_holds_where_it_is_more(make_pool):
    flooded = Flooded(make_pool, reserve_ratio=0.5)
    flooded.run(30, every_s=2.0)
    assert flooded.reserved() == SEATS / 2


@pytest.mark.parametrize("weight", [1.0, 0.2])
def test_a_tier_that_cannot_wait_gets_no_more_than_its_share_for_it(make_pool, weight):
    """Both tiers want more than there is: what is held free for one is no way around the other."""
    flooded = Flooded(make_pool, weight=weight)
    flooded.run(40, every_s=0.05, burst=2)
    flooded.dispatched |= {"a": 0, "z": 0}
    flooded.run(120, every_s=0.05, burst=2)
    # Services: 10 a request of the flood, 5 a chat.
    assert flooded.dispatched["z"] * 5 / weight == pytest.approx(flooded.dispatched["a"] * 10, rel=0.1)


def test_a_tier_that_is_far_ahead_waits_for_its_turn_although_something_is_held_for_it(make_pool):
    flooded = Flooded(make_pool)
    flooded.run(30, every_s=2.0)
    flooded.run(2, every_s=2.0)
    (running, *_) = [request_id for _, request_id in flooded.ends if request_id[0] == "z"]
    flooded.pool.report(running, 5, 5_000)  # an answer worth far more than all that is in flight
    flooded.pool.end(running)
    flooded.ends = [each for each in flooded.ends if each[1] != running]
    sent = flooded.dispatched["z"]
    flooded.run(10, every_s=2.0)
    assert flooded.reserved() >= 1
    assert flooded.dispatched["z"] == sent, "the flood is next, by what both have received"
