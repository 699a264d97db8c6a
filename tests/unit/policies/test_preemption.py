"""A slot is taken back from a tenant that has received far more than one that waits, as long as nothing was sent."""

import pytest

from policies.fairness import Fifo, LeastCounterFirst
from policies.types import BackendLoad, Dispatch, Preempt, Tenant, Tier

pytestmark = pytest.mark.every_scheduler
ONE_SEAT = [BackendLoad("gpu", requests_running_max=1)]


def far_ahead(make_pool, **options):
    """A has had 1,000 and holds the only seat; B has had nothing."""
    options = {"fairness": LeastCounterFirst, "loads": ONE_SEAT, "preempt_service": 100.0, **options}
    pool = make_pool(**options)
    pool.send("A", "a0", prompt=1_000)
    pool.dispatched()
    pool.end("a0")
    pool.send("A", "a1", prompt=10)
    pool.dispatched()
    return pool


def test_the_youngest_untouched_request_of_the_most_served_is_preempted_and_the_least_served_goes(make_pool):
    pool = far_ahead(make_pool)
    pool.send("B", "b", prompt=10)
    assert pool.poll() == [Preempt("a1")]
    pool.come_back("a1")
    assert pool.dispatched() == ["b"], "what was preempted does not go first"
    pool.end("b")
    assert pool.dispatched() == ["a1"]


def test_what_is_sent_again_is_charged_nothing_more(make_pool):
    pool = far_ahead(make_pool)
    pool.send("B", "b", prompt=10)
    pool.poll()
    pool.come_back("a1")
    pool.dispatched()
    pool.end("b")
    pool.dispatched()
    pool.emit("a1", 5)
    pool.end("a1")
    assert pool.service("A") == 1_000 + 10 + 2 * 5


def test_off_by_default_nothing_is_preempted(make_pool):
    pool = far_ahead(make_pool, preempt_service=None)
    pool.send("B", "b", prompt=10)
    assert pool.poll() == []


def test_within_the_threshold_nothing_is_preempted(make_pool):
    pool = far_ahead(make_pool, preempt_service=1_010.0)
    pool.send("B", "b", prompt=10)
    assert pool.poll() == []


def test_a_request_that_has_produced_a_token_is_not_preempted(make_pool):
    pool = far_ahead(make_pool)
    pool.emit("a1")
    pool.send("B", "b", prompt=10)
    assert pool.poll() == []


def test_where_it_was_too_late_the_answer_is_its_tokens_and_another_may_be_preempted(make_pool):
    pool = far_ahead(make_pool, loads=[BackendLoad("gpu", requests_running_max=2)])
    pool.send("A", "a2", prompt=10)
    pool.dispatched()
    pool.send("B", "b", prompt=10)
    assert pool.poll() == [Preempt("a2")], "the youngest"
    assert pool.poll() == [], "not answered yet"
    pool.emit("a2")
    assert pool.poll() == [Preempt("a1")]


def test_a_preempted_request_whose_client_leaves_is_given_everything_back(make_pool):
    pool = far_ahead(make_pool)
    pool.send("B", "b", prompt=10)
    pool.poll()
    pool.come_back("a1")
    pool.scheduler.cancel("a1", pool.now)
    assert pool.service("A") == pool.rank("A") == 1_000


def test_a_seat_that_the_waiting_request_may_not_have_is_not_taken_back(make_pool):
    pool = make_pool(
        fairness=LeastCounterFirst,
        loads=[BackendLoad(name, requests_running_max=1) for name in "xy"],
        preempt_service=100.0,
    )
    pool.send("A", "a0", prompt=1_000)
    pool.dispatched()
    pool.end("a0")
    pool.send("A", "ax", prompt=10, backend_ids=frozenset("x"))
    pool.send("A", "ay", prompt=10, backend_ids=frozenset("y"))
    pool.dispatched()
    pool.send("B", "b", prompt=10, backend_ids=frozenset("x"))
    assert pool.poll() == [Preempt("ax")]


def test_a_slot_of_a_backend_that_is_gone_helps_no_request(make_pool):
    pool = far_ahead(make_pool)
    pool.send("B", "b", prompt=10)
    pool.measure()
    assert pool.poll() == []


def test_tiers_do_not_take_seats_from_each_other(make_pool):
    pool = far_ahead(
        make_pool,
        tenants=[Tenant("A"), Tenant("B", tier_id="gold")],
        tiers=[Tier("default"), Tier("gold", weight=100.0)],
    )
    pool.send("B", "b", prompt=10)
    assert pool.poll() == []


def test_differences_are_over_weights(make_pool):
    pool = far_ahead(make_pool, tenants=[Tenant("A", weight=100.0), Tenant("B")])
    pool.send("B", "b", prompt=10)
    assert pool.poll() == [], "1,010 over 100 is not more than 100"


def test_an_order_that_is_not_fair_withdraws_nothing(make_pool):
    pool = far_ahead(make_pool, fairness=Fifo)
    pool.send("B", "b", prompt=10)
    assert pool.poll() == []


def test_two_tenants_do_not_push_each_other_out_for_ever(make_pool):
    """The threshold is far below the price of a request; every answer is told at once, as in the world."""
    pool = far_ahead(make_pool, preempt_service=1.0)
    for number in range(3):
        pool.send("B", f"b{number}", prompt=300)
    preempted = 0
    for _ in range(50):
        actions = pool.poll()
        for action in actions:
            if isinstance(action, Preempt):
                pool.come_back(action.request_id)
                preempted += 1
        if not actions:
            break
    assert preempted <= 6
    assert not actions


def test_a_dispatch_says_whether_it_may_be_preempted(make_pool):
    for preempt_service, may_be in ((None, False), (100.0, True)):
        pool = make_pool(preempt_service=preempt_service)
        pool.send("A", "a")
        (action,) = pool.poll()
        assert isinstance(action, Dispatch)
        assert action.may_be_preempted is may_be


def test_a_request_is_preempted_once_at_most(make_pool):
    pool = far_ahead(make_pool, preempt_service=1.0)
    pool.send("B", "b", prompt=1_000)
    assert pool.poll() == [Preempt("a1")]
    pool.come_back("a1")
    assert pool.dispatched() == ["b"]
    pool.emit("b")
    pool.end("b")
    assert pool.dispatched() == ["a1"]
    pool.send("C", "c", prompt=10)
    assert pool.poll() == [], "C is far behind, but this was taken back before"
