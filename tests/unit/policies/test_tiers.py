"""Tiers above tenants: weights one level up, and the part of a backend that only one tier may enter."""

import pytest

from policies.types import BackendLoad, Tenant, Tier

pytestmark = pytest.mark.every_scheduler


def tenants_of(tier_id: str, count: int) -> list[Tenant]:
    return [Tenant(f"{tier_id}-{number}", tier_id=tier_id) for number in range(count)]


@pytest.mark.parametrize(("gold_tenants", "bronze_tenants"), [(1, 1), (1, 5), (5, 1)])
def test_a_tiers_share_follows_its_weight_whatever_number_of_tenants_it_has(make_pool, gold_tenants, bronze_tenants):
    tenants = tenants_of("gold", gold_tenants) + tenants_of("bronze", bronze_tenants)
    pool = make_pool(
        tenants=tenants,
        tiers=[Tier("gold", weight=3.0), Tier("bronze", weight=1.0)],
        loads=[BackendLoad("gpu", requests_running_max=1)],
    )
    for tenant in tenants:
        for number in range(80):
            pool.send(tenant.id, f"{tenant.id}/{number}", prompt=10)
    served = {"gold": 0, "bronze": 0}
    for _ in range(80):
        (request_id,) = pool.dispatched()
        served[request_id.split("-")[0]] += 1
        pool.end(request_id)
    assert served == {"gold": 60, "bronze": 20}


def test_a_tier_that_comes_back_is_lifted_and_takes_no_revenge(make_pool):
    pool = make_pool(
        tenants=[Tenant("g", tier_id="gold"), Tenant("b", tier_id="bronze")],
        tiers=[Tier("gold"), Tier("bronze")],
        loads=[BackendLoad("gpu", requests_running_max=1)],
    )
    for number in range(30):
        pool.send("b", f"b{number}", prompt=10)
    for _ in range(10):
        pool.end(*pool.dispatched())
    for number in range(10):
        pool.send("g", f"g{number}", prompt=10)
    order = []
    for _ in range(8):
        (request_id,) = pool.dispatched()
        order.append(request_id[0])
        pool.end(request_id)
    assert sorted(order[:2]) == sorted(order[2:4]) == sorted(order[4:6]) == ["b", "g"]


GOLD_RESERVE = [Tier("gold", reserve_ratio=0.25), Tier("bronze")]


def reserved_pool(make_pool, **load):
    load = {"requests_running_max": 8} | load
    return make_pool(
        tenants=[Tenant("g", tier_id="gold"), Tenant("b", tier_id="bronze")],
        tiers=GOLD_RESERVE,
        loads=[BackendLoad("gpu", **load)],
    )


def test_an_idle_reserve_is_kept_free_of_seats_for_other_tiers(make_pool):
    pool = reserved_pool(make_pool)
    for number in range(9):
        pool.send("b", f"b{number}")
    assert len(pool.dispatched()) == 6, "a quarter of 8 seats is kept"
    for number in range(3):
        pool.send("g", f"g{number}")
    assert pool.dispatched() == ["g0", "g1"], "an arrival of the tier finds its slots without a preemption"


def test_an_idle_reserve_is_kept_free_of_tokens_for_other_tiers(make_pool):
    pool = reserved_pool(make_pool, kv_tokens_max=1000, requests_running_max=100)  # 950 may be reserved
    for number in range(10):
        pool.send("b", f"b{number}", prompt=100)
    assert len(pool.dispatched()) == 7, "950 - 237.5 = 712.5"
    for number in range(3):
        pool.send("g", f"g{number}", prompt=100)
    assert pool.dispatched() == ["g0", "g1"]


def test_a_tier_uses_its_reserve_first_and_then_competes_for_the_rest(make_pool):
    pool = reserved_pool(make_pool)
    for number in range(9):
        pool.send("g", f"g{number}")
    assert len(pool.dispatched()) == 8, "its own reserve is not kept from it"


def test_a_used_reserve_is_not_kept_twice(make_pool):
    pool = reserved_pool(make_pool)
    for number in range(2):
        pool.send("g", f"g{number}")
    assert len(pool.dispatched()) == 2
    for number in range(9):
        pool.send("b", f"b{number}")
    assert len(pool.dispatched()) == 6, "8 seats, 2 of them are the reserve in use"


def test_a_reserve_is_rounded_up_to_whole_seats_but_not_by_a_rounding_error(make_pool):
    assert 0.07 * 100 > 7, "the product is off by one unit in the last place"
    pool = make_pool(
        tenants=[Tenant("g", tier_id="gold"), Tenant("b", tier_id="bronze")],
        tiers=[Tier("gold", reserve_ratio=0.07), Tier("bronze")],
        loads=[BackendLoad("gpu", requests_running_max=100)],
    )
    for number in range(100):
        pool.send("b", f"b{number}")
    assert len(pool.dispatched()) == 93


def test_while_one_tier_waits_for_room_another_may_enter_its_own_reserve_and_what_does_not_delay_it(make_pool):
    pool = reserved_pool(make_pool, kv_tokens_max=1000, requests_running_max=100)
    pool.send("b", "running", prompt=400)
    assert pool.dispatched() == ["running"]
    pool.send("b", "large", prompt=600)  # is next, needs 600 of 950 - 400 - 237.5
    for number in range(4):
        pool.send("g", f"g{number}", prompt=100)
    # Both tiers stand at 400, and a tie goes to the smaller id: bronze, which fits nowhere.
    assert pool.dispatched() == ["g0", "g1", "g2"], "two of 100 fit in the reserve of 237.5, one more beside the large"
    assert pool.dispatched() == []
    pool.end("running")
    assert pool.dispatched() == ["large"]
    pool.end("g0")
    assert pool.dispatched() == ["g3"]


def test_a_tier_without_a_reserve_waits_behind_a_blocked_one(make_pool):
    pool = make_pool(
        tenants=[Tenant("g", tier_id="gold"), Tenant("b", tier_id="bronze")],
        tiers=[Tier("gold", weight=100.0), Tier("bronze")],
        loads=[BackendLoad("gpu", kv_tokens_max=1000, requests_running_max=100)],
    )
    pool.send("g", "running", prompt=500)
    assert pool.dispatched() == ["running"]
    pool.send("b", "b0", prompt=10)
    assert pool.dispatched() == ["b0"]
    pool.send("g", "large", prompt=600)
    pool.send("b", "small", prompt=10)
    pool.emit("b0", 10)
    assert pool.dispatched() == [], "gold is next by weight and fits nowhere; no tier takes the room it waits for"


def test_a_new_reserve_and_a_new_weight_count_from_the_next_poll_on(make_pool):
    pool = make_pool(
        tenants=[Tenant("g", tier_id="gold"), Tenant("b", tier_id="bronze")],
        tiers=[Tier("gold"), Tier("bronze")],
        loads=[BackendLoad("gpu", requests_running_max=8)],
    )
    pool.change(tiers=[Tier("gold", reserve_ratio=0.5)])
    for number in range(8):
        pool.send("b", f"b{number}")
    assert len(pool.dispatched()) == 4
    pool.change(tiers=[Tier("gold")])
    assert len(pool.dispatched()) == 4
