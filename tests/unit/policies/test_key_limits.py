"""Limits of an API key hold for its own requests alone, within those of its tenant and its group."""

from dataclasses import replace

import pytest
from pools import Pool

from policies.facts import Parked, Readmitted, WindowsRestored
from policies.placement import RoundRobin
from policies.types import (
    BackendLoad,
    Group,
    KeyLimits,
    LimitKind,
    RateLimit,
    RateLimits,
    Reason,
    Reject,
    Tenant,
    Usage,
    Wait,
)

pytestmark = pytest.mark.every_scheduler

WIDE = BackendLoad("gpu", requests_running_max=8)


def limited(tenant_id="A", *, key="k", group_id=None, **limits):
    return Tenant(tenant_id, group_id=group_id, keys={key: KeyLimits(**limits)})


def one_at_a_time(make_pool, *, loads=(WIDE,), **options):
    return make_pool(tenants=[limited(in_flight_max=1), Tenant("B")], loads=loads, **options)


def send(pool, *request_ids, key="k", tenant="A", **fields):
    for request_id in request_ids:
        pool.send(tenant, request_id, key_id=key, **fields)


def comes_back_and_waits_for(pool, request_id, running_id):
    pool.come_back(request_id)
    pool.now += 5.0
    assert pool.dispatched() == []
    pool.end(running_id)
    assert pool.dispatched() == [request_id]


# -- in flight ----------------------------------------------------------------------------------------------------


def test_a_key_at_its_limit_waits_and_neither_its_tenant_nor_others_wait_for_it(make_pool):
    pool = one_at_a_time(make_pool)
    send(pool, "k1", "k2", "k3")
    send(pool, "other", key="")
    pool.send("B", "b")
    assert sorted(pool.dispatched()) == ["b", "k1", "other"]
    pool.end("k1")
    assert pool.dispatched() == ["k2"]
    assert pool.dispatched() == []
    pool.end("k2")
    assert pool.dispatched() == ["k3"]


def test_what_is_held_is_queued_and_says_why_it_waits(make_pool):
    pool = one_at_a_time(make_pool)
    send(pool, "k1", "k2", body_bytes=7)
    assert pool.dispatched() == ["k1"]
    assert pool.scheduler.snapshot(pool.now).queued_requests == 1
    assert (pool.tenant("A").queued_requests, pool.tenant("A").queued_bytes) == (1, 7)


@pytest.mark.local_scheduler
def test_views_of_what_is_held_name_the_key(make_pool):
    pool = one_at_a_time(make_pool)
    send(pool, "k1", "k2")
    assert pool.dispatched() == ["k1"]
    assert pool.scheduler.waits_for("k2", pool.now) is Wait.KEY_LIMIT
    assert pool.scheduler.wait_views(["k2"], pool.now)["k2"].reason is Wait.KEY_LIMIT
    assert (pool.tenant("A").waits, pool.tenant("A").waiting_spell) == (Wait.KEY_LIMIT, 0)


def test_what_is_held_counts_against_the_queue_and_times_out(make_pool):
    tenant = Tenant("A", queued_requests_max=2, keys={"k": KeyLimits(in_flight_max=1)})
    pool = make_pool(tenants=[tenant], loads=[WIDE], wait_s_max=10.0)
    send(pool, "k1")
    assert pool.dispatched() == ["k1"]
    send(pool, "k2", "k3", "k4")
    assert pool.refused() == {"k4": Reason.TENANT_QUEUE_FULL}
    pool.now += 10.0
    assert pool.refused() == {"k2": Reason.QUEUE_TIMEOUT, "k3": Reason.QUEUE_TIMEOUT}
    pool.end("k1")
    assert pool.dispatched() == []


def test_a_request_that_left_its_queue_lets_the_next_of_its_key_in(make_pool):
    pool = one_at_a_time(make_pool, loads=[BackendLoad("gpu", requests_running_max=1)])
    pool.send("B", "b")
    assert pool.dispatched() == ["b"]
    send(pool, "k1", "k2", "k3")
    assert pool.dispatched() == []
    pool.scheduler.cancel("k2", pool.now)
    pool.scheduler.cancel("k1", pool.now)
    pool.end("b")
    assert pool.dispatched() == ["k3"]


def test_a_held_request_enters_at_the_place_of_its_arrival(make_pool):
    pool = one_at_a_time(make_pool, loads=[BackendLoad("gpu", requests_running_max=1)])
    send(pool, "k1", "k2")
    assert pool.dispatched() == ["k1"]
    pool.now += 1.0
    send(pool, "later", key="")
    pool.end("k1")
    assert pool.dispatched() == ["k2"]


def test_a_request_that_its_backend_rejected_keeps_its_place_under_the_limit(make_pool):
    pool = one_at_a_time(make_pool)
    send(pool, "k1", "k2")
    assert pool.dispatched() == ["k1"]
    pool.come_back("k1")
    pool.now += 5.0
    assert pool.dispatched() == ["k1"]


def test_a_changed_limit_holds_from_then_on_and_one_that_is_lifted_lets_all_in(make_pool):
    pool = make_pool(tenants=[Tenant("A")], loads=[BackendLoad("gpu", requests_running_max=1)])
    send(pool, "k1", "k2", "k3", "k4")
    assert pool.dispatched() == ["k1"]
    pool.change(limited(in_flight_max=1))
    pool.measure(WIDE)
    assert pool.dispatched() == []
    pool.change(limited(in_flight_max=2))
    assert pool.dispatched() == ["k2"]
    pool.change(Tenant("A"))
    assert pool.dispatched() == ["k3", "k4"]


def test_a_limit_of_zero_lets_nothing_in_and_a_removed_tenants_held_requests_are_rejected(make_pool):
    pool = make_pool(tenants=[limited(in_flight_max=0)], loads=[WIDE])
    send(pool, "k1", "k2")
    assert pool.dispatched() == []
    pool.change(removed=["A"])
    assert pool.refused() == {"k1": Reason.TENANT_UNKNOWN, "k2": Reason.TENANT_UNKNOWN}
    assert "A" not in pool.scheduler.snapshot(pool.now).tenants


def test_what_a_removed_tenant_has_in_flight_counts_when_the_tenant_is_back_with_a_limit(make_pool):
    pool = make_pool(tenants=[Tenant("A")], loads=[WIDE])
    send(pool, "k1")
    assert pool.dispatched() == ["k1"]
    pool.change(removed=["A"])
    pool.change(limited(in_flight_max=1))
    send(pool, "k2")
    assert pool.dispatched() == []
    pool.end("k1")
    assert pool.dispatched() == ["k2"]


@pytest.mark.local_scheduler
def test_a_scheduler_that_takes_over_counts_what_runs_and_holds_what_waits(make_pool):
    pool = one_at_a_time(make_pool)
    before = one_at_a_time(make_pool)
    send(before, "k1", "k2")
    (sent,) = [action for action in before.poll() if not isinstance(action, Reject)]
    requests = {each: before.scheduler._ledger.in_flight[each].request for each in [sent.request_id]}
    pool.scheduler.adopted(requests["k1"], "gpu", Usage(1, 0, 0), pool.now)
    pool.scheduler.told(Readmitted(pool.now, before.scheduler._queues.get("k2")))
    assert pool.dispatched() == []
    pool.end("k1")
    assert pool.dispatched() == ["k2"]


def test_what_was_held_is_rejected_at_once_where_it_finds_no_queue_when_it_may_enter(make_pool):
    pool = one_at_a_time(make_pool, placement=RoundRobin())
    send(pool, "k1", "k2")
    assert pool.dispatched() == ["k1"]
    pool.measure()
    assert pool.dispatched() == []
    pool.end("k1")
    assert pool.refused() == {"k2": Reason.NO_BACKEND}


@pytest.mark.local_scheduler
def test_what_has_entered_the_order_is_held_where_another_scheduler_has_sent_as_many_of_its_key(make_pool):
    before = one_at_a_time(make_pool)
    send(before, "k1")
    (sent,) = before.poll()
    pool = one_at_a_time(make_pool)
    send(pool, "k2")
    pool.scheduler.adopted(before.scheduler._ledger.in_flight[sent.request_id].request, "gpu", Usage(1, 0, 0), pool.now)
    assert pool.dispatched() == []
    pool.end("k1")
    assert pool.dispatched() == ["k2"]


@pytest.mark.local_scheduler
def test_what_comes_back_is_held_where_another_scheduler_has_sent_as_many_of_its_key(make_pool):
    pool = one_at_a_time(make_pool)
    send(pool, "k1")
    assert pool.dispatched() == ["k1"]
    adopted = replace(pool.scheduler._ledger.in_flight["k1"].request, id="k2")
    pool.scheduler.adopted(adopted, "gpu", Usage(1, 0, 0), pool.now)
    comes_back_and_waits_for(pool, "k1", "k2")


@pytest.mark.local_scheduler
def test_what_was_away_is_held_where_another_scheduler_has_sent_as_many_of_its_key(make_pool):
    pool = one_at_a_time(make_pool, loads=[BackendLoad("gpu", requests_running_max=1)])
    pool.send("B", "b")
    assert pool.dispatched() == ["b"]
    send(pool, "k1")
    assert pool.dispatched() == []
    request = pool.scheduler._queues.get("k1")
    pool.scheduler.told(Parked(pool.now, "k1"))
    pool.scheduler.adopted(replace(request, id="k2"), "gpu", Usage(1, 0, 0), pool.now)
    pool.scheduler.told(Readmitted(pool.now, request))
    pool.end("b")
    pool.measure(WIDE)
    assert pool.dispatched() == []
    pool.end("k2")
    assert pool.dispatched() == ["k1"]


def test_what_comes_back_after_its_keys_limit_was_lowered_is_held(make_pool):
    pool = make_pool(tenants=[limited(in_flight_max=2)], loads=[WIDE])
    send(pool, "k1", "k2")
    assert pool.dispatched() == ["k1", "k2"]
    pool.change(limited(in_flight_max=1))
    comes_back_and_waits_for(pool, "k1", "k2")


@pytest.mark.local_scheduler
def test_what_waits_for_a_process_that_is_away_is_let_in_when_that_is_back_and_there_is_room(make_pool):
    pool = one_at_a_time(make_pool)
    send(pool, "k1", "k2", "k3")
    assert pool.dispatched() == ["k1"]
    held = pool.scheduler._queues.get("k2")
    pool.scheduler.told(Parked(pool.now, "k2"))
    pool.end("k1")
    assert pool.dispatched() == ["k3"]
    pool.scheduler.told(Readmitted(pool.now, held))
    assert pool.dispatched() == []
    pool.end("k3")
    assert pool.dispatched() == ["k2"]


# -- per minute ---------------------------------------------------------------------------------------------------


def test_requests_per_minute_of_a_key_hold_for_it_alone(make_pool):
    pool = make_pool(tenants=[limited(requests_per_minute_max=2)], loads=[WIDE])
    send(pool, "k1", "k2", "k3")
    send(pool, "other", key="other")
    (rejection,) = [action for action in pool.poll() if isinstance(action, Reject)]
    assert (rejection.request_id, rejection.reason) == ("k3", Reason.RATE_LIMITED)
    assert (rejection.limit, rejection.retry_after_s) == (LimitKind.REQUESTS, 60.0)


def test_tokens_per_minute_of_a_key_are_settled_by_what_was_used(make_pool):
    pool = make_pool(tenants=[limited(tokens_per_minute_max=100)], loads=[WIDE])
    send(pool, "k1", prompt=60)
    assert pool.dispatched() == ["k1"]
    pool.report("k1", 30, 0)
    pool.end("k1")
    send(pool, "k2", prompt=60)
    assert pool.dispatched() == ["k2"]
    send(pool, "k3", prompt=60)
    send(pool, "k4", prompt=101)
    assert pool.refused() == {"k3": Reason.RATE_LIMITED, "k4": Reason.REQUEST_TOO_LARGE}


def test_a_call_that_was_never_queued_counts_for_its_key(make_pool):
    pool = make_pool(tenants=[limited(requests_per_minute_max=1)], loads=[WIDE])
    pool.scheduler.spent("A", Usage(1, 0, 0), pool.now, "k")
    send(pool, "k1")
    assert pool.refused() == {"k1": Reason.RATE_LIMITED}


def test_the_limit_that_has_room_last_says_when_to_retry(make_pool):
    tenant = Tenant("A", requests_per_minute_max=1, keys={"k": KeyLimits(requests_per_minute_max=1)})
    pool = make_pool(tenants=[tenant], loads=[WIDE])
    send(pool, "a1", key="")
    pool.now += 20.0
    pool.scheduler.spent("A", Usage(1, 0, 0), pool.now, "k")
    pool.now += 10.0
    send(pool, "k1")
    (rejection,) = [action for action in pool.poll() if isinstance(action, Reject)]
    assert rejection.retry_after_s == 50.0


def test_a_call_is_told_the_tightest_limit_of_its_key_tenant_and_group(make_pool):
    tenants = [
        Tenant(
            "A",
            requests_per_minute_max=5,
            group_id="g",
            keys={"k": KeyLimits(requests_per_minute_max=3), "wide": KeyLimits(requests_per_minute_max=50)},
        ),
        Tenant("B", group_id="g"),
    ]
    pool = make_pool(tenants=tenants, groups=[Group("g", requests_per_minute_max=9)], loads=[WIDE])
    send(pool, "k1")
    send(pool, "a1", key="wide")
    pool.send("B", "b1")
    assert len(pool.dispatched()) == 3

    def told(tenant_id, key_id):
        limits = pool.scheduler.rate_limits(tenant_id, pool.now, key_id)
        assert limits.tokens is None
        return limits.requests.limit, limits.requests.remaining

    assert told("A", "k") == (3, 2)
    assert told("A", "wide") == (5, 3)
    assert told("A", "") == (5, 3)
    assert told("B", "") == (9, 6)
    for number in range(5):
        pool.send("B", f"b-{number}")
    pool.poll()
    assert told("A", "k") == (9, 1), "the group's has less left"


def test_a_key_whose_limits_were_removed_begins_anew_with_later_ones(make_pool):
    pool = make_pool(tenants=[limited(requests_per_minute_max=1)], loads=[WIDE])
    send(pool, "k1")
    assert pool.dispatched() == ["k1"]
    pool.change(Tenant("A"))
    assert pool.scheduler.rate_limits("A", pool.now, "k") == RateLimits()
    pool.change(limited(requests_per_minute_max=1))
    assert pool.scheduler.rate_limits("A", pool.now, "k").requests == RateLimit(1, 1, 0.0)


@pytest.mark.local_scheduler
def test_the_next_scheduler_counts_what_a_key_has_booked():
    tenants = [limited(requests_per_minute_max=1)]
    pool, after = Pool(tenants=tenants), Pool(tenants=tenants)
    send(pool, "k1")
    assert pool.dispatched() == ["k1"]
    after.scheduler.told(WindowsRestored(after.now, pool.scheduler.parts.admission_rules.windows(pool.now)))
    send(after, "k2")
    assert after.refused() == {"k2": Reason.RATE_LIMITED}
