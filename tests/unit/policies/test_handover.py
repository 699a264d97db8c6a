"""Requests that come from another scheduler of the pool, or wait outside of its queue."""

from dataclasses import replace

import pytest

from policies.facts import Kept, Parked, Readmitted, TakenOver, Undelivered, WindowsRestored
from policies.fairness import LeastCounterFirst
from policies.placement import PLACEMENT, LeastReserved
from policies.types import NO_USAGE, BackendLoad, Dispatch, Preempt, Reason, ReplicaShare, Request, Tenant, Usage

GPU = BackendLoad("gpu", requests_running_max=4, requests_running=0, measured_at=0.0)


def request(request_id="r", tenant_id="A", **fields):
    return Request(request_id, tenant_id, "m", 0.0, **{"prompt_tokens": 10, "output_tokens_max": 100, **fields})


def test_an_adopted_request_takes_its_slot_beyond_the_limit_and_pays_only_what_follows(make_pool):
    pool = make_pool(loads=[replace(GPU, requests_running_max=1)])
    pool.scheduler.adopted(request("a"), "gpu", Usage(10, 0, 5), 0.0)
    pool.scheduler.adopted(request("b"), "gpu", Usage(10, 0, 0), 0.0)
    assert pool.backend().in_flight_requests == 2
    assert pool.service("A") == 0.0
    pool.scheduler.tokens("a", Usage(10, 0, 8), 1.0)
    assert pool.service("A") == 2 * 3
    pool.send("B", "waits")
    assert pool.dispatched() == []
    pool.end("a")
    pool.end("b")
    assert pool.dispatched() == ["waits"]
    assert pool.service("A") == 2 * 3


def test_what_was_adopted_at_a_backend_that_is_gone_runs_to_its_end(make_pool):
    pool = make_pool()
    pool.scheduler.adopted(request("a"), "gone", NO_USAGE, 0.0)
    assert not pool.backend("gone").available
    pool.end("a")
    assert "gone" not in pool.scheduler.snapshot(0.0).backends


def test_an_adopted_request_may_be_returned_and_is_not_charged_again(make_pool):
    pool = make_pool(placement=LeastReserved())
    pool.scheduler.adopted(request("a"), "gpu", Usage(10, 0, 0), 0.0)
    pool.come_back("a")
    assert pool.dispatched() == ["a"]
    assert pool.service("A") == 0.0


def test_after_a_handover_nothing_is_sent_before_a_measurement_which_sets_the_external_load_at_once(make_pool):
    pool = make_pool(loads=[GPU])
    pool.now = 1.0
    pool.scheduler.adopted(request("a"), "gpu", NO_USAGE, pool.now)
    pool.scheduler.told(TakenOver(pool.now))
    pool.send("A", "b")
    pool.send("A", "c")
    assert pool.dispatched() == []
    pool.measure(replace(GPU, requests_running=4, measured_at=0.5))  # older than the adoption
    assert pool.dispatched() == []
    pool.measure(replace(GPU, requests_running=3, measured_at=1.5))
    assert pool.backend().external_requests == 2
    assert pool.dispatched() == ["b"]


def test_a_backend_that_is_found_after_a_handover_is_measured_first_too(make_pool):
    pool = make_pool(loads=[])
    pool.scheduler.told(TakenOver(1.0))
    pool.send("A", "b")
    pool.now = 2.0
    pool.measure(replace(GPU, requests_running=4, measured_at=2.0))
    assert pool.backend().external_requests == 4


def test_an_undelivered_dispatch_goes_first_again_and_is_no_mark_on_the_backend(make_pool):
    pool = make_pool(loads=[replace(GPU, requests_running_max=1)])
    pool.send("A", "a")
    pool.send("B", "b")
    assert pool.dispatched() == ["a"]
    pool.scheduler.told(Undelivered(pool.now, "a"))
    assert pool.dispatched() == ["a"]
    assert pool.service("A") == 1
    pool.now = 3.0  # longer than a backend that refuses everything counts as serving
    assert pool.scheduler._fleet.serves("gpu", pool.now)


def test_a_parked_request_blocks_nothing_and_returns_to_its_place(make_pool):
    pool = make_pool(loads=[replace(GPU, requests_running_max=1)])
    for request_id in ("running", "first", "second"):
        pool.send("A", request_id)
        pool.now += 1.0
    parked = pool.scheduler._queues.get("first")
    assert pool.dispatched() == ["running"]
    pool.scheduler.told(Parked(pool.now, "first"))
    assert pool.scheduler.snapshot(pool.now).queued_requests == 1
    pool.end("running")
    assert pool.dispatched() == ["second"]
    pool.send("A", "third")
    pool.scheduler.told(Readmitted(pool.now, parked))
    assert pool.serve_all() == []
    pool.end("second")
    assert pool.serve_all() == ["first", "third"]


def test_a_parked_request_that_was_returned_keeps_what_it_prepaid(make_pool):
    pool = make_pool(loads=[replace(GPU, requests_running_max=1)])
    pool.send("A", "a", prompt=10)
    pool.dispatched()
    pool.come_back("a")
    kept = pool.scheduler._queues.get("a")
    pool.scheduler.told(Parked(pool.now, "a"))
    assert pool.service("A") == 10
    pool.scheduler.told(Readmitted(pool.now, kept))
    assert pool.dispatched() == ["a"]
    assert pool.service("A") == 10


@pytest.mark.parametrize("is_prepaid", [False, True])
def test_a_parked_request_may_end_and_is_then_refunded(make_pool, is_prepaid):
    pool = make_pool(loads=[replace(GPU, requests_running_max=1)])
    pool.send("A", "a", prompt=10)
    if is_prepaid:
        pool.dispatched()
        pool.come_back("a")
    pool.scheduler.told(Parked(pool.now, "a"))
    pool.scheduler.cancel("a", pool.now)
    assert pool.service("A") == 0.0
    assert pool.rank("A") == 0.0
    pool.send("A", "a")  # its id is free again
    assert pool.dispatched() == ["a"]


def test_the_parked_requests_of_a_removed_tenant_are_rejected(make_pool):
    pool = make_pool(loads=[replace(GPU, requests_running_max=1)])
    pool.send("A", "a")
    pool.scheduler.told(Parked(pool.now, "a"))
    pool.change(removed=["A"])
    assert pool.refused() == {"a": "tenant_unknown"}


def test_a_request_that_waited_elsewhere_is_admitted_once_and_pays_once(make_pool):
    pool = make_pool(tenants=[Tenant("A", queued_requests_max=1, requests_per_minute_max=1)])
    pool.send("A", "own")
    pool.scheduler.told(Readmitted(pool.now, request("a"), prepaid=Usage(10, 0, 0)))
    assert sorted(pool.dispatched()) == ["a", "own"]
    assert pool.service("A") == 1  # for its own alone


def test_a_request_that_waited_elsewhere_has_its_old_deadline(make_pool):
    pool = make_pool(loads=[replace(GPU, requests_running_max=1)], wait_s_max=5.0)
    pool.send("A", "running")
    pool.dispatched()
    pool.now = 4.0
    pool.scheduler.told(Readmitted(pool.now, request("a")))
    assert pool.scheduler.next_wakeup() == 5.0


def test_after_a_preemption_that_came_too_late_the_next_may_be_preempted(make_pool):
    pool = make_pool(loads=[replace(GPU, requests_running_max=2)], preempt_service=1.0, fairness=LeastCounterFirst)
    pool.scheduler.spent("A", Usage(1000, 0, 0), 0.0)
    pool.send("A", "a")
    pool.send("A", "b")
    pool.dispatched()
    pool.send("B", "c")
    assert pool.poll() == [Preempt("b")]
    assert pool.poll() == []
    pool.scheduler.told(Kept(pool.now, "b"))
    assert pool.poll() == [Preempt("a")]


def test_what_was_admitted_within_the_minute_counts_in_the_next_scheduler(make_pool):
    limited = Tenant("A", requests_per_minute_max=3, tokens_per_minute_max=1000)
    before, after = make_pool(tenants=[limited]), make_pool(tenants=[limited])
    for at in range(3):
        before.now = float(at)
        before.send("A", f"r{at}")
    windows = before.scheduler.parts.admission_rules.windows(2.5)
    after.now = 100.0
    after.scheduler.told(WindowsRestored(after.now, windows))
    after.send("A", "one more")
    assert after.refused() == {"one more": "rate_limited"}
    after.now = 100.0 + 60.0 - 2.5 + 0.01  # the first of them is a minute old
    after.send("A", "later")
    assert after.dispatched() == ["later"]


def test_dispatches_are_numbered_by_backend_and_sender(make_pool):
    pool = make_pool(loads=[GPU])
    for request_id, sender in (("a", "one"), ("b", "two"), ("c", "one")):
        pool.send("A", request_id, sender=sender)
    actions = [action for action in pool.poll() if isinstance(action, Dispatch)]
    assert {action.request_id: action.number for action in actions} == {"a": 1, "b": 1, "c": 2}


def test_three_replicas_without_word_of_each_other_fill_a_backend_and_share_what_strangers_leave(make_pool):
    """Each takes what the others may run for theirs, and what exceeds that for external load."""

    def settle(strangers):
        pools = [make_pool(loads=[]) for _ in range(3)]
        for pool in pools:
            for number in range(40):
                pool.send("A", f"r{number}")
        for at in range(12):
            running = sum(pool.scheduler.snapshot(0.0).in_flight_requests for pool in pools) + strangers
            for number, pool in enumerate(pools):
                pool.now = float(at)
                share = ReplicaShare(3, number)
                load = BackendLoad("gpu", requests_running_max=30, requests_running=running, share=share)
                pool.measure(load)
                pool.poll()
        return [pool.backend().in_flight_requests for pool in pools]

    assert settle(0) == [10, 10, 10]
    assert sum(settle(6)) <= 30


@pytest.mark.parametrize("placement", sorted(PLACEMENT))
def test_an_interrupted_request_of_another_scheduler_is_rejected_where_no_backend_was_ever_known(make_pool, placement):
    pool = make_pool(loads=[], placement=PLACEMENT[placement](), backend_wait_s_max=0.0)
    pool.scheduler.told(Readmitted(0.0, request("a"), Usage(10, 0, 5), usage=Usage(10, 0, 8)))
    assert pool.refused() == {"a": Reason.NO_BACKEND}
    pool.measure(GPU)
    pool.send("A", "b")
    assert pool.dispatched() == ["b"]


@pytest.mark.local_scheduler
@pytest.mark.parametrize("placement", sorted(PLACEMENT))
def test_an_interrupted_request_that_is_back_goes_elsewhere_where_its_backend_has_gone_meanwhile(make_pool, placement):
    one, other = (replace(GPU, backend_id=each, requests_running_max=1) for each in ("one", "other"))
    pool = make_pool(loads=[one], placement=PLACEMENT[placement]())
    pool.send("A", "a", is_resumable=True)
    assert pool.dispatched() == ["a"]
    pool.send("B", "waits")
    pool.cut("a", tokens=3)
    cut = pool.scheduler._queues.get("a")
    pool.scheduler.told(Parked(pool.now, "a"))
    pool.measure(other)
    pool.scheduler.told(Readmitted(pool.now, cut))
    assert pool.dispatched() == ["a"]
    pool.end("a")
    assert pool.dispatched() == ["waits"]
