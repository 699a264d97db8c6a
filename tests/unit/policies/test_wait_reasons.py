"""What people are told of the queue: why a request waits, which tenants waited all the time, a tenant's counter."""

from math import inf

import pytest

from policies.types import BackendLoad, PolicyChoice, Tenant, Wait

ONE_SEAT = [BackendLoad("gpu", requests_running_max=1)]


def reason(pool, request_id):
    return pool.scheduler.waits_for(request_id, pool.now)


def spell(pool, tenant_id="A"):
    return pool.tenant(tenant_id).waiting_spell


def test_what_does_not_wait_waits_for_nothing(make_pool):
    pool = make_pool()
    pool.send("A", "a")
    pool.dispatched()
    assert reason(pool, "a") is None
    assert reason(pool, "never-seen") is None


def test_the_next_request_waits_for_room_and_so_does_the_head_of_every_tenant_behind(make_pool):
    pool = make_pool(loads=ONE_SEAT)
    for request_id, tenant_id in (("a0", "A"), ("a1", "A"), ("a2", "A"), ("b", "B")):
        pool.send(tenant_id, request_id)
    pool.dispatched()
    assert [reason(pool, each) for each in ("a1", "a2", "b")] == [Wait.NO_ROOM, Wait.OWN_QUEUE, Wait.NO_ROOM]


def test_a_tenant_at_its_limit_waits_for_itself_although_there_is_room(make_pool):
    pool = make_pool(tenants=[Tenant("A", in_flight_max=1)])
    pool.send("A", "a0")
    pool.send("A", "a1")
    pool.dispatched()
    assert reason(pool, "a1") is Wait.TENANT_LIMIT
    pool.end("a0")
    assert pool.dispatched() == ["a1"]


def test_what_comes_back_waits_until_the_backend_takes_requests_again(make_pool):
    pool = make_pool(loads=ONE_SEAT)
    pool.send("A", "a")
    pool.dispatched()
    pool.come_back("a", hold_s=1.0)
    assert pool.poll() == []
    assert reason(pool, "a") is Wait.BACKENDS_HELD
    pool.now = 1.0
    assert pool.dispatched() == ["a"]


def test_where_all_backends_have_left_that_is_the_reason(make_pool):
    pool = make_pool(loads=ONE_SEAT)
    pool.send("A", "a0")
    pool.send("A", "a1")
    pool.dispatched()
    pool.measure(BackendLoad("gpu", available=False))
    assert reason(pool, "a1") is Wait.NO_BACKEND


def test_a_tenant_waits_in_one_spell_while_its_queue_is_never_empty(make_pool):
    pool = make_pool(loads=ONE_SEAT)
    for number in range(3):
        pool.send("A", f"a{number}")
    pool.dispatched()
    first = spell(pool)
    assert first > 0
    pool.end("a0")
    pool.dispatched()
    assert spell(pool) == first
    pool.end("a1")
    pool.dispatched()
    assert spell(pool) == 0, "all that it sent was taken"
    pool.send("A", "a3")
    assert spell(pool) > first


def test_a_tenant_at_its_limit_does_not_wait_and_begins_anew_after(make_pool):
    pool = make_pool(tenants=[Tenant("A", in_flight_max=1)])
    for number in range(3):
        pool.send("A", f"a{number}")
    first = spell(pool)
    pool.dispatched()
    assert spell(pool) == 0
    pool.end("a0")
    assert spell(pool) > first


def test_a_change_of_policy_begins_anew(make_pool):
    pool = make_pool(loads=ONE_SEAT)
    pool.send("A", "a0")
    pool.send("A", "a1")
    pool.dispatched()
    before = spell(pool)
    pool.scheduler.policy_changed(fairness=PolicyChoice("drr"), now=pool.now)
    assert spell(pool) > before


def test_a_snapshot_of_some_tenants_is_that_of_all_without_the_others(make_pool):
    pool = make_pool()
    pool.send("A", "a", prompt=7)
    pool.dispatched()
    whole, part = (pool.scheduler.snapshot(pool.now, ids) for ids in (None, ["A", "unknown"]))
    assert part.tenants == {"A": whole.tenants["A"]}
    assert part.backends == {}
    overview = pool.scheduler.snapshot(pool.now, ())
    assert (overview.tenants, overview.backends) == ({}, whole.backends)


def test_a_counter_is_that_of_the_snapshot_and_0_for_a_stranger(make_pool):
    pool = make_pool()
    pool.send("A", "a", prompt=7)
    pool.dispatched()
    assert pool.scheduler.counter("A") == pool.counter("A") == 7
    assert pool.scheduler.counter("unknown") == 0


@pytest.mark.parametrize(("kv_tokens_max", "price"), [(1000, 1900.0), (None, inf)])
def test_what_may_be_in_flight_is_worth_as_many_outputs_as_fit(make_pool, kv_tokens_max, price):
    pool = make_pool(loads=[BackendLoad("gpu", kv_tokens_max=kv_tokens_max)], headroom_ratio_max=0.95)
    assert pool.scheduler.snapshot(pool.now).service_in_flight_max == price
