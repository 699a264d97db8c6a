"""Several backends: where requests go, what comes back, what vanishes while it still runs requests."""

from collections import Counter
from dataclasses import replace

import pytest

from policies.pool.outage import BACKEND_WAIT_S_MAX
from policies.types import BackendLoad, Outcome, Reason, Tenant

A100 = BackendLoad("a100", requests_running_max=10, kv_tokens_max=10_000)
L4 = BackendLoad("l4", requests_running_max=10, kv_tokens_max=1_000)


def test_a_request_goes_to_the_backend_that_is_least_full_for_its_size(make_pool):
    pool = make_pool(loads=[A100, L4])
    pool.send("A", "first", prompt=500)
    assert pool.placed() == {"first": "a100"}, "both are empty: by id"
    pool.send("A", "second", prompt=500)
    assert pool.placed() == {"second": "l4"}
    pool.send("A", "third", prompt=100)
    assert pool.placed() == {"third": "a100"}, "0.1 of its seats against 0.53 of the other's tokens"


def test_a_request_goes_where_it_fits_although_another_is_less_full(make_pool):
    pool = make_pool(loads=[A100, L4])
    pool.send("A", "a", prompt=3_000)
    pool.send("A", "b", prompt=100)
    assert pool.placed() == {"a": "a100", "b": "l4"}
    pool.send("A", "c", prompt=2_000)
    assert pool.placed() == {"c": "a100"}


def test_a_backend_that_is_not_available_gets_nothing(make_pool):
    pool = make_pool(loads=[BackendLoad("a100", available=False), L4])
    pool.send("A", "a")
    assert pool.placed() == {"a": "l4"}


def test_a_backend_that_vanishes_keeps_its_books_until_its_last_request_has_ended(make_pool):
    pool = make_pool(loads=[A100, L4])
    pool.send("A", "a")
    assert pool.placed() == {"a": "a100"}
    pool.measure(L4)
    assert not pool.backend("a100").available
    pool.send("A", "b")
    assert pool.placed() == {"b": "l4"}
    pool.emit("a", 3)
    pool.end("a")
    assert list(pool.scheduler.snapshot(0.0).backends) == ["l4"]
    assert pool.service("A") == 1 + 2 * 3 + 1


def test_a_backend_that_vanished_and_came_back_still_holds_what_it_held(make_pool):
    pool = make_pool(loads=[A100])
    pool.send("A", "a", prompt=500)
    pool.dispatched()
    pool.measure()
    pool.measure(A100)
    assert pool.backend("a100").available
    assert pool.backend("a100").reserved_tokens == 500
    pool.end("a")
    pool.measure(A100)
    assert pool.backend("a100").reserved_tokens == 0
    assert "a100" in pool.scheduler.snapshot(0.0).backends


def test_a_backend_that_vanished_while_held_is_gone_after_its_request_came_back(make_pool):
    pool = make_pool(loads=[A100])
    pool.send("A", "a")
    pool.dispatched()
    pool.measure()
    pool.come_back("a", hold_s=5.0)
    assert pool.scheduler.snapshot(0.0).backends == {}
    assert pool.poll() == []
    pool.measure(L4)
    assert pool.placed() == {"a": "l4"}


def test_what_came_back_goes_first_and_elsewhere_while_its_backend_is_held(make_pool):
    pool = make_pool(loads=[BackendLoad("x", requests_running_max=1), BackendLoad("y", requests_running_max=1)])
    pool.send("A", "a", prompt=100)
    assert pool.placed() == {"a": "x"}
    pool.send("B", "b", prompt=1)
    assert pool.placed() == {"b": "y"}
    pool.send("B", "b2", prompt=1)
    pool.come_back("a", hold_s=5.0)
    assert pool.placed() == {}, "x is held, y is full"
    pool.end("b")
    assert pool.placed() == {"a": "y"}, "chosen and charged already, though B's counter is far below"
    assert pool.scheduler.next_wakeup() == 5.0
    pool.now = 5.0
    assert pool.placed() == {"b2": "x"}


def test_what_came_back_is_charged_once(make_pool):
    pool = make_pool()
    pool.send("A", "a", prompt=100)
    pool.dispatched()
    pool.come_back("a")
    assert (pool.service("A"), pool.counter("A")) == (100, 100)
    assert pool.dispatched() == ["a"]
    assert (pool.service("A"), pool.counter("A")) == (100, 100)
    pool.emit("a", 5)
    pool.end("a")
    assert (pool.service("A"), pool.counter("A")) == (110, 110)


def test_what_came_back_and_is_cancelled_was_never_worked_for(make_pool):
    pool = make_pool()
    pool.send("A", "a", prompt=100)
    pool.dispatched()
    pool.come_back("a")
    pool.scheduler.cancel("a", pool.now)
    assert (pool.service("A"), pool.counter("A"), pool.rank("A")) == (0, 0, 0)
    assert pool.poll() == []


def test_what_came_back_waits_at_the_head_of_its_tenants_queue_with_the_deadline_it_had(make_pool):
    pool = make_pool(loads=[BackendLoad("gpu", requests_running_max=1)], wait_s_max=60.0)
    pool.send("A", "a")
    pool.send("A", "a2")
    assert pool.dispatched() == ["a"]
    pool.now = 20.0
    pool.come_back("a")
    assert pool.dispatched() == ["a"]
    pool.now = 40.0
    pool.come_back("a", hold_s=100.0)
    assert pool.poll() == []
    assert pool.scheduler.next_wakeup() == 60.0
    pool.now = 60.0
    assert pool.refused() == {"a": Reason.QUEUE_TIMEOUT, "a2": Reason.QUEUE_TIMEOUT}
    assert pool.counter("A") == 0


def test_two_that_came_back_go_in_the_order_in_which_they_came_back(make_pool):
    pool = make_pool()
    pool.send("A", "a1")
    pool.send("B", "b1")
    assert pool.dispatched() == ["a1", "b1"]
    pool.come_back("b1", hold_s=1.0)
    pool.come_back("a1", hold_s=1.0)
    pool.now = 1.0
    assert pool.dispatched() == ["b1", "a1"]


def test_a_tenant_at_its_in_flight_limit_does_not_get_past_it_by_what_came_back(make_pool):
    pool = make_pool(tenants=[Tenant("A", in_flight_max=1)], loads=[BackendLoad("gpu", requests_running_max=9)])
    pool.send("A", "a1")
    assert pool.dispatched() == ["a1"]
    pool.come_back("a1")
    pool.send("A", "a2")
    assert pool.dispatched() == ["a1"]
    pool.end("a1")
    assert pool.dispatched() == ["a2"]


@pytest.mark.parametrize("outcome", list(Outcome))
def test_a_seat_comes_back_on_every_way_out(make_pool, outcome):
    pool = make_pool(loads=[BackendLoad("gpu", requests_running_max=1, kv_tokens_max=1000)])
    pool.send("A", "a", prompt=100)
    pool.send("A", "b", prompt=100)
    assert pool.dispatched() == ["a"]
    pool.end("a", outcome)
    assert (pool.backend().reserved_tokens, pool.backend().in_flight_requests) == (0, 0)
    assert pool.dispatched() == ["b"]


def test_facts_about_requests_that_ended_change_nothing(make_pool):
    pool = make_pool()
    pool.send("A", "a")
    pool.dispatched()
    pool.end("a")
    before = pool.scheduler.snapshot(pool.now)
    pool.emit("a", 3)
    pool.end("a", Outcome.BACKEND_FAILED)
    pool.come_back("a", hold_s=9.0)
    pool.scheduler.cancel("a", pool.now)
    assert pool.scheduler.snapshot(pool.now) == before


def test_a_backend_that_vanished_and_came_back_empty_is_a_new_one_and_not_held(make_pool):
    pool = make_pool(loads=[A100])
    pool.send("A", "a")
    pool.dispatched()
    pool.come_back("a", hold_s=60.0)
    pool.measure()
    assert pool.scheduler.next_wakeup() == BACKEND_WAIT_S_MAX, "the deadline alone"
    pool.measure(A100)
    assert pool.placed() == {"a": "a100"}


def test_a_backend_that_vanished_for_a_moment_while_it_runs_something_stays_held(make_pool):
    pool = make_pool(loads=[A100])
    pool.send("A", "a")
    pool.send("A", "b")
    pool.dispatched()
    pool.come_back("b", hold_s=60.0)
    pool.measure()
    pool.measure(A100)
    assert pool.placed() == {}
    assert pool.scheduler.next_wakeup() == 60.0
    pool.now = 60.0
    assert pool.placed() == {"b": "a100"}


def test_a_backend_that_measures_nothing_is_as_fast_as_its_latest_requests(make_pool):
    loads = BackendLoad("x"), BackendLoad("y")
    pool = make_pool(loads=loads)

    def serve(seconds_at_y: float) -> Counter[str]:
        """Twenty requests, of a second each at x."""
        for number in range(20):
            pool.send("A", str(number))
        placed = pool.placed()
        begun_at = pool.now
        for seconds, backend_id in sorted([(1.0, "x"), (seconds_at_y, "y")]):
            pool.now = begun_at + seconds
            for request_id in [each for each, at in placed.items() if at == backend_id]:
                pool.emit(request_id, 5)
                pool.end(request_id)
        return Counter(placed.values())

    for _ in range(10):
        serve(seconds_at_y=3.0)
    pool.measure(*loads)  # as when one of them was away and is back
    assert serve(seconds_at_y=3.0) == {"x": 15, "y": 5}
    for _ in range(40):
        serve(seconds_at_y=1.0)
    assert serve(seconds_at_y=1.0) == {"x": 10, "y": 10}


@pytest.mark.parametrize("is_continued", [False, True])
def test_a_backend_that_hung_is_as_fast_as_before_once_it_is_back(make_pool, is_continued):
    x, y = (BackendLoad(name, requests_running_max=32) for name in "xy")
    pool = make_pool(loads=[x, y])

    def sent(count: int) -> dict[str, str]:
        for number in range(count):
            pool.send("A", f"{number} at {pool.now}")
        return pool.placed()

    def end_after(seconds: float, placed: dict[str, str]) -> None:
        pool.now += seconds
        for request_id in placed:
            pool.emit(request_id, 5)
            pool.end(request_id)

    for _ in range(10):
        end_after(1.0, sent(20))
    placed = sent(20)
    hung = [request_id for request_id, at in placed.items() if at == "y"]
    end_after(1.0, {request_id: at for request_id, at in placed.items() if at == "x"})
    pool.now += 60.0
    for request_id in hung:
        pool.emit(request_id, 2)
        if is_continued:
            pool.cut(request_id, hold_s=1.0)
        else:
            pool.end(request_id, Outcome.BACKEND_FAILED)
    end_after(1.0, pool.placed())
    pool.measure(x, y)
    assert Counter(sent(20).values()) == {"x": 10, "y": 10}


def test_what_ends_together_is_added_up_once_before_the_next_decision(make_pool, monkeypatch):
    """It takes a third of a millisecond where a pool has 1,000 backends."""

    class Usable(dict):
        def items(self):
            added.append(1)
            return super().items()

    pool, added = make_pool(loads=[replace(A100, backend_id=f"b{number}") for number in range(4)]), []
    limits = pool.scheduler._fleet.limits
    pool.poll()
    monkeypatch.setattr(limits, "_usable", Usable(limits._usable))
    for number in range(8):
        pool.send("A", f"r{number}")
    placed = pool.placed()
    assert not added
    pool.now += 1.0
    for request_id in placed:
        pool.emit(request_id, 3)
        pool.end(request_id)
    assert not added
    pool.poll()
    pool.poll()
    assert len(added) == 1
