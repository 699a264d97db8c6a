"""Bounded queues, the time limit in the queue, honest Retry-After, and when to poll although nothing happened."""

import pytest

from policies.admission import BoundedQueues, DrainEstimate
from policies.admission.retry_after import RETRY_AFTER_S_MAX
from policies.types import BackendLoad, Reason, Reject, Tenant

pytestmark = pytest.mark.every_scheduler

FULL = [BackendLoad("gpu", requests_running_max=1)]


def full_pool(make_pool, **options):
    """One seat, taken by B; whatever arrives waits."""
    pool = make_pool(loads=FULL, **options)
    pool.send("B", "running")
    assert pool.dispatched() == ["running"]
    return pool


def test_a_tenants_queue_is_bounded_in_requests(make_pool):
    pool = full_pool(make_pool, admission=[BoundedQueues(tenant_requests_max=2)])
    for number in range(3):
        pool.send("A", f"a{number}")
    pool.send("B", "b")
    assert pool.refused() == {"a2": Reason.TENANT_QUEUE_FULL}
    assert pool.tenant("A").queued_requests == 2


def test_a_tenants_queue_is_bounded_in_bytes(make_pool):
    pool = full_pool(make_pool, admission=[BoundedQueues(tenant_bytes_max=1000)])
    pool.send("A", "a0", body_bytes=600)
    pool.send("A", "a1", body_bytes=401)
    pool.send("A", "a2", body_bytes=400)
    assert pool.refused() == {"a1": Reason.TENANT_QUEUE_FULL}
    assert pool.tenant("A").queued_bytes == 1000


def test_all_queues_together_are_bounded_in_requests_and_in_bytes(make_pool):
    pool = full_pool(make_pool, admission=[BoundedQueues(requests_max=3, bytes_max=100)])
    pool.send("A", "a0", body_bytes=60)
    pool.send("B", "b0", body_bytes=61)
    pool.send("B", "b1", body_bytes=40)
    pool.send("C", "c0")
    pool.send("C", "c1")
    assert pool.refused() == {"b0": Reason.QUEUE_FULL, "c1": Reason.QUEUE_FULL}


def test_a_tenants_own_limits_go_before_the_defaults_also_when_they_are_zero(make_pool):
    tenants = [Tenant("A", queued_requests_max=3), Tenant("B"), Tenant("C", queued_requests_max=0)]
    pool = full_pool(make_pool, tenants=tenants, admission=[BoundedQueues(tenant_requests_max=1)])
    for tenant_id in "ABC":
        for number in range(3):
            pool.send(tenant_id, f"{tenant_id}{number}")
    assert list(pool.refused()) == ["B1", "B2", "C0", "C1", "C2"]


def test_room_in_a_full_queue_comes_back_when_requests_leave_it(make_pool):
    pool = full_pool(make_pool, admission=[BoundedQueues(tenant_requests_max=1, tenant_bytes_max=10)])
    pool.send("A", "a0", body_bytes=10)
    pool.scheduler.cancel("a0", pool.now)
    pool.send("A", "a1", body_bytes=10)
    pool.end("running")
    assert pool.dispatched() == ["a1"]
    pool.send("A", "a2", body_bytes=10)
    assert pool.poll() == []
    assert pool.scheduler.snapshot(0.0).queued_bytes == 10


@pytest.mark.local_scheduler  # a leader waits for the registry first
def test_an_unknown_tenant_is_refused_and_nothing_is_kept_of_it(make_pool):
    pool = make_pool()
    pool.send("nobody", "x")
    assert pool.refused() == {"x": Reason.TENANT_UNKNOWN}
    assert "nobody" not in pool.scheduler.snapshot(0.0).tenants


@pytest.mark.local_scheduler  # a leader waits for the registry first
def test_a_refusal_is_reported_once_by_the_next_poll(make_pool):
    pool = make_pool()
    pool.send("nobody", "x")
    assert len(pool.poll()) == 1
    assert pool.poll() == []


def test_what_waits_longer_than_the_limit_is_refused_as_late(make_pool):
    pool = full_pool(make_pool, wait_s_max=30.0)
    pool.now = 10.0
    pool.send("A", "a")
    assert pool.scheduler.next_wakeup() == 40.0
    pool.now = 39.9
    assert pool.poll() == []
    pool.now = 40.0
    assert pool.refused() == {"a": Reason.QUEUE_TIMEOUT}
    assert pool.scheduler.next_wakeup() is None


def test_what_waited_while_no_backend_lived_is_refused_for_that(make_pool):
    pool = full_pool(make_pool, wait_s_max=30.0)
    pool.send("A", "a")
    pool.measure(BackendLoad("gpu", requests_running_max=1, available=False))
    pool.now = 30.0
    assert pool.poll() == [Reject("a", Reason.NO_BACKEND, 5.0)]


def test_a_late_request_is_refused_although_its_seat_has_just_become_free(make_pool):
    pool = full_pool(make_pool, wait_s_max=30.0)
    pool.send("A", "a")
    pool.now = 31.0
    pool.end("running")
    assert pool.refused() == {"a": Reason.QUEUE_TIMEOUT}


def test_a_client_that_goes_leaves_the_queue_at_once(make_pool):
    pool = full_pool(make_pool)
    pool.send("A", "a0")
    pool.send("A", "a1")
    pool.scheduler.cancel("a0", pool.now)
    pool.end("running")
    assert pool.dispatched() == ["a1"]
    assert pool.service("A") == 1, "nothing was charged for the one that left"


def test_cancelling_what_is_not_known_changes_nothing(make_pool):
    pool = full_pool(make_pool)
    before = pool.scheduler.snapshot(0.0)
    pool.scheduler.cancel("never seen", 0.0)
    assert pool.scheduler.snapshot(0.0) == before


def test_a_client_that_left_before_its_dispatch_was_known_frees_its_slot_and_pays_nothing(make_pool):
    """The decision and the disconnect cross on their way between two processes."""
    pool = full_pool(make_pool)
    assert pool.scheduler.snapshot(0.0).in_flight_requests
    pool.scheduler.cancel("running", 0.0)
    snapshot = pool.scheduler.snapshot(0.0)
    assert snapshot.in_flight_requests == 0
    assert {view.service for view in snapshot.tenants.values()} == {0.0}
    pool.scheduler.cancel("running", 0.0)
    assert pool.scheduler.snapshot(0.0) == snapshot


def test_there_is_nothing_to_wake_up_for_without_a_queue(make_pool):
    pool = make_pool()
    assert pool.scheduler.next_wakeup() is None
    pool.send("A", "a")
    pool.dispatched()
    pool.come_back("a", hold_s=7.0)
    assert pool.scheduler.next_wakeup() == 7.0
    pool.scheduler.cancel("a", pool.now)
    assert pool.scheduler.next_wakeup() is None


def drain(pool, seconds: float, count: int) -> None:
    """Every `seconds` the running request ends and one of A's takes its seat."""
    running = "running"
    for _ in range(count):
        pool.now += seconds
        pool.end(running)
        (running,) = pool.dispatched()


def test_retry_after_is_the_time_in_which_the_tenants_queue_drains(make_pool):
    pool = full_pool(make_pool, admission=[BoundedQueues(tenant_requests_max=20)])
    for number in range(20):
        pool.send("A", f"a{number}")
    drain(pool, seconds=3.0, count=10)
    for number in range(11):
        pool.send("A", f"more{number}")
    (refusal,) = pool.poll()
    assert (refusal.request_id, refusal.reason) == ("more10", Reason.TENANT_QUEUE_FULL)
    assert refusal.retry_after_s == pytest.approx(20 * 3.0)


def test_an_idle_hour_does_not_make_retry_after_longer():
    estimate = DrainEstimate()
    for number in range(10):
        estimate.dispatched("A", arrived_at=0.0, queued=10 - number, now=float(number))
    estimate.dispatched("A", arrived_at=3600.0, queued=5, now=3601.0)
    wait_s = estimate.wait_s("A", tenant_queued=5, queued=5, head_arrived_at=3600.0, now=3601.0)
    assert wait_s == pytest.approx(5.0, rel=0.1)


def test_many_dispatches_at_one_instant_count_as_many():
    estimate = DrainEstimate()
    for second in range(0, 100, 10):
        for _ in range(20):
            estimate.dispatched("A", arrived_at=0.0, queued=1000, now=float(second))
    wait_s = estimate.wait_s("A", tenant_queued=100, queued=1000, head_arrived_at=0.0, now=95.0)
    assert wait_s == pytest.approx(100 * 10 / 20, rel=0.15)


def test_retry_after_grows_while_nothing_moves_up_to_its_limit():
    estimate = DrainEstimate()
    for second in range(10):
        estimate.dispatched("A", arrived_at=0.0, queued=10, now=float(second))

    def wait_s(now: float) -> float:
        return estimate.wait_s("A", tenant_queued=3, queued=10, head_arrived_at=0.0, now=now)

    waits = [wait_s(float(now)) for now in (9, 20, 60, 120)]
    assert waits == sorted(waits)
    assert waits[-1] > 100
    assert wait_s(10_000.0) == RETRY_AFTER_S_MAX


def test_a_tenant_that_was_never_served_is_told_by_the_pace_of_the_whole_queue():
    estimate = DrainEstimate()
    for number in range(50):
        estimate.dispatched("B", arrived_at=0.0, queued=40, now=number * 0.5)
    wait_s = estimate.wait_s("A", tenant_queued=1, queued=40, head_arrived_at=20.0, now=24.5)
    assert wait_s == pytest.approx(40 * 0.5, rel=0.05)


def test_where_nothing_was_served_yet_retry_after_is_a_second():
    assert DrainEstimate().wait_s("A", tenant_queued=0, queued=0, head_arrived_at=0.0, now=0.0) == 1.0
