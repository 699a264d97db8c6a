"""Limits per minute that replicas share, over minutes of virtual time: never much more than the limit, and all of it
wherever the calls come in.
"""

import pytest
from shared_limits import ANSWER_S, SharedLimits

from policies.types import Tenant

REPLICAS = 3
LARGEST = 220  # tokens of a call: a prompt of at most 200, and 20 of its answer
EVEN, SKEWED, ONE = (1, 1, 1), (8, 1, 1), (1, 0, 0)
TENANTS = {
    "600 requests": Tenant("A", requests_per_minute_max=600),
    "10 requests": Tenant("A", requests_per_minute_max=10),
    "1 request": Tenant("A", requests_per_minute_max=1),
    "60,000 tokens": Tenant("A", tokens_per_minute_max=60_000),
    "600 requests and 60,000 tokens": Tenant("A", requests_per_minute_max=600, tokens_per_minute_max=60_000),
}
MINUTES = 3


def used_up(tenant, weights, *, per_s, seed=1, replicas=REPLICAS, minutes=MINUTES, **options):
    """What is let in while more comes than may."""
    shared = SharedLimits(tenant, replicas=replicas, seed=seed, **options)
    shared.traffic(per_s=per_s, weights=weights)
    shared.run(60 * minutes)
    return shared


@pytest.mark.parametrize("per_s", [30, 150])
@pytest.mark.parametrize("weights", [EVEN, SKEWED, ONE], ids=["even", "skewed", "one"])
@pytest.mark.parametrize("tenant", TENANTS.values(), ids=TENANTS.keys())
def test_no_minute_has_more_than_a_call_of_each_other_replica_too_many(tenant, weights, per_s):
    shared = used_up(tenant, weights, per_s=per_s)
    requests, tokens = shared.most_in_a_minute()
    assert requests <= (tenant.requests_per_minute_max or requests) + REPLICAS - 1
    assert tokens <= (tenant.tokens_per_minute_max or tokens) + (REPLICAS - 1) * LARGEST


@pytest.mark.parametrize("weights", [EVEN, SKEWED, ONE], ids=["even", "skewed", "one"])
@pytest.mark.parametrize("tenant", [TENANTS["600 requests"], TENANTS["60,000 tokens"]], ids=["requests", "tokens"])
def test_a_large_limit_is_passed_by_less_than_a_percent_and_used_up_wherever_calls_come_in(tenant, weights):
    shared = used_up(tenant, weights, per_s=30)
    limit, kind = (600, 0) if tenant.requests_per_minute_max else (60_000, 1)
    assert shared.most_in_a_minute()[kind] <= 1.01 * limit
    assert shared.rate(after_s=60)[kind] >= 0.99 * limit


def test_a_burst_at_all_replicas_at_once_after_a_pause_is_held_as_well():
    shared = SharedLimits(TENANTS["600 requests"], replicas=REPLICAS)
    for _ in range(4):
        for number in range(3_000):
            shared.at(shared.now + 5 + number * 1e-4, lambda number=number: shared.call(number % REPLICAS, 20))
        shared.run(61)
    requests, _ = shared.most_in_a_minute()
    assert 600 - REPLICAS <= requests <= 600 + REPLICAS - 1


def test_a_tenant_that_was_quiet_is_let_in_at_once_at_any_replica():
    """A part of an untouched limit needs no meeting."""
    shared = SharedLimits(TENANTS["600 requests"], replicas=REPLICAS)
    shared.run(1)
    assert [shared.call(replica, 20) for replica in range(REPLICAS) for _ in range(200)] == [True] * 600
    assert not shared.call(0, 20)


def test_ten_replicas_use_up_a_limit_at_one_of_them():
    shared = used_up(TENANTS["600 requests"], (1,) + (0,) * 9, per_s=30, replicas=10)
    assert shared.rate(after_s=60)[0] >= 0.95 * 600
    assert shared.most_in_a_minute()[0] <= 600


def test_what_was_reserved_and_not_used_is_given_back_to_all():
    tenant = Tenant("A", tokens_per_minute_max=10_000)
    shared = SharedLimits(tenant, replicas=REPLICAS, output=0, expected=900)
    shared.run(1)
    taken = [shared.call(replica, 100) for replica in range(REPLICAS) for _ in range(20)]
    assert 9 <= sum(taken) <= 10 + REPLICAS - 1
    shared.run(ANSWER_S + 3)
    assert sum(shared.call(1, 100) for _ in range(20)) >= 1


def test_cut_off_from_the_others_a_replica_keeps_to_its_fair_share():
    shared = SharedLimits(TENANTS["600 requests"], replicas=REPLICAS)
    for replica in shared.all:
        replica.sharing.is_cut_off = True
    assert [sum(shared.call(replica, 20) for _ in range(300)) for replica in range(REPLICAS)] == [200] * 3
    assert shared.all[0].limiter.limits(shared.tenant, shared.now).requests.remaining == 0
    shared = SharedLimits(TENANTS["1 request"], replicas=REPLICAS)
    for replica in shared.all:
        replica.sharing.is_cut_off = True
    assert [shared.call(replica, 20) for replica in range(REPLICAS)] == [True] * 3, "never below one"


def test_who_shares_with_nobody_decides_as_if_alone():
    alone, unshared = SharedLimits(TENANTS["10 requests"], replicas=1), SharedLimits(TENANTS["10 requests"], replicas=1)
    unshared.all[0].sharing.replicas = 0
    for shared in (alone, unshared):
        shared.traffic(per_s=5, weights=(1,))
        shared.run(180)
    assert alone.accepted
    assert [at for at, _ in alone.accepted] == pytest.approx([at for at, _ in unshared.accepted])


def test_a_limit_that_is_lowered_holds_at_all_replicas_at_once():
    shared = SharedLimits(TENANTS["600 requests"], replicas=REPLICAS)
    shared.run(1)
    assert sum(shared.call(replica, 20) for replica in range(REPLICAS) for _ in range(20)) == 60
    shared.run(1)
    shared.tenant = Tenant("A", requests_per_minute_max=60)
    assert not any(shared.call(replica, 20) for replica in range(REPLICAS))


def test_a_refusal_says_when_the_others_will_have_left_room():
    shared = SharedLimits(TENANTS["10 requests"], replicas=2)
    shared.run(1)
    while shared.call(0, 20):
        shared.run(1)
    refusal = shared.refusal(1)
    assert 1.0 <= refusal.retry_after_s <= 60.0
    shared.run(61)
    assert shared.call(1, 20)


def test_what_a_replica_let_in_that_is_gone_counts_for_its_minute():
    shared = SharedLimits(TENANTS["10 requests"], replicas=2)
    shared.run(1)
    for _ in range(30):
        shared.call(0, 20)
        shared.run(0.3)
    left = shared.all[1].sharing
    heard = {"gw0": shared.words("gw0")}
    left.replicas = 1
    assert not shared.call(1, 20)
    left.propose("gw1", heard, shared.now)
    left.agreed()
    assert not shared.call(1, 20)
    left.propose("gw1", {}, shared.now)
    left.agreed()
    assert shared.call(1, 20)
