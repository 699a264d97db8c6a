"""While no backend is there: what waits and what arrives is kept for a while, by every placement, in every bound."""

import pytest

from policies.admission import BoundedQueues
from policies.placement import ARRIVAL_PLACEMENT, LATE_PLACEMENT
from policies.types import BackendLoad, Outcome, Reason, Reject, SloEnvelope, Tier

WELL = BackendLoad("gpu", requests_running_max=2)
LOST = BackendLoad("gpu", requests_running_max=2, available=False)
OTHER = BackendLoad("other", requests_running_max=2)
PLACEMENTS = {"before all": LATE_PLACEMENT["least-reserved"], "before each": ARRIVAL_PLACEMENT["round-robin"]}


@pytest.fixture(params=PLACEMENTS.values(), ids=PLACEMENTS)
def pool(make_pool, request):
    """A pool whose only backend serves two and has been lost with one of them at 10 s, while a third waits."""
    pool = make_pool(loads=[WELL], placement=request.param(), backend_wait_s_max=15.0)
    for name in ("a0", "a1", "a2"):
        pool.send("A", name)
    assert pool.dispatched() == ["a0", "a1"]
    pool.now = 10.0
    pool.end("a0", Outcome.BACKEND_FAILED)
    pool.measure(LOST)
    return pool


def test_what_waits_and_what_arrives_is_served_when_a_backend_is_back_in_time(pool):
    pool.now = 12.0
    pool.send("B", "b")
    assert pool.poll() == []
    pool.now = 24.9
    pool.come_back("a1")
    assert pool.poll() == []
    pool.measure(WELL)
    assert len(pool.serve_all()) == 3
    assert pool.scheduler.next_wakeup() is None


def test_what_waited_is_refused_so_long_after_the_backend_was_lost_and_what_came_later_as_much_later(pool):
    pool.now = 12.0
    pool.send("B", "b")
    pool.poll()
    pool.now = 14.0
    pool.come_back("a1")
    pool.measure(LOST)  # told again: nothing new
    pool.poll()
    for now, gone in ((25.0, "a2"), (27.0, "b"), (29.0, "a1")):
        assert pool.scheduler.next_wakeup() == now
        pool.now = now - 0.1
        assert pool.poll() == []
        pool.now = now
        assert pool.poll() == [Reject(gone, Reason.NO_BACKEND, 5.0)]
    assert pool.scheduler.next_wakeup() is None
    assert pool.service("B") == pool.rank("A") == 0


def test_what_may_go_to_another_pool_does_not_wait_for_a_backend(make_pool):
    pool = make_pool(loads=[WELL], backend_wait_s_max=15.0)
    for name in ("a0", "a1"):
        pool.send("A", name)
    pool.send("A", "stays")
    pool.send("A", "goes", may_pass_on=True)
    assert pool.dispatched() == ["a0", "a1"]
    pool.measure(LOST)
    assert pool.refused() == {"goes": Reason.NO_BACKEND}
    pool.send("A", "later", may_pass_on=True)
    assert pool.refused() == {"later": Reason.NO_BACKEND}
    pool.measure(WELL)
    pool.end("a0")
    assert pool.dispatched() == ["stays"]


def test_the_time_begins_anew_with_every_outage_and_is_over_with_it(pool):
    pool.now = 20.0
    pool.measure(BackendLoad("gpu", requests_running_max=1))
    pool.poll()
    pool.now = 100.0
    assert pool.poll() == []
    pool.measure(LOST)
    pool.now = 114.9
    assert pool.poll() == []
    pool.now = 115.0
    assert pool.refused() == {"a2": Reason.NO_BACKEND}


def test_who_leaves_meanwhile_is_not_refused_and_nor_is_its_namesake(pool):
    pool.scheduler.cancel("a2", pool.now)
    pool.now = 20.0
    pool.send("B", "a2")
    pool.now = 25.0
    assert pool.poll() == []
    assert pool.scheduler.next_wakeup() == 35.0


def test_the_bounds_of_the_queue_hold_and_none_waits_longer_than_any_may(make_pool):
    pool = make_pool(loads=[LOST], admission=[BoundedQueues(tenant_requests_max=2)], wait_s_max=10.0)
    for name in ("a0", "a1", "a2"):
        pool.send("A", name)
    assert pool.refused() == {"a2": Reason.TENANT_QUEUE_FULL}
    pool.now = 10.0
    assert pool.refused() == {"a0": Reason.NO_BACKEND, "a1": Reason.NO_BACKEND}


def test_who_is_not_waited_for_after_its_first_token_is_due_is_refused_then(make_pool):
    pool = make_pool(loads=[LOST], tiers=[Tier("default", rejects_misses=True)])
    pool.send("A", "a", envelope=SloEnvelope(ttft_s=2.0))
    assert pool.poll() == []
    pool.now = 2.0
    assert pool.refused() == {"a": Reason.NO_BACKEND}


def test_what_only_some_backends_will_do_for_waits_with_the_others_and_is_refused_when_those_are_back_alone(make_pool):
    """It would keep back what its tenant sends after it."""
    pool = make_pool(loads=[LOST])
    pool.send("A", "a0", backend_ids=frozenset({"gpu"}))
    pool.send("A", "a1")
    assert pool.poll() == []
    pool.measure(LOST, OTHER)
    (refusal, sent) = pool.poll()
    assert refusal == Reject("a0", Reason.NO_BACKEND, 5.0)
    assert (sent.request_id, sent.backend_id) == ("a1", "other")


def test_a_tenant_that_is_gone_meanwhile_is_told_so(pool):
    pool.change(removed=["A"])
    assert pool.refused() == {"a2": Reason.TENANT_UNKNOWN}
    pool.now = 25.0
    assert pool.poll() == []


def test_where_nothing_is_waited_for_a_request_is_refused_at_once(make_pool):
    pool = make_pool(loads=[LOST], backend_wait_s_max=0.0)
    pool.send("A", "a")
    (refusal,) = pool.poll()
    assert (refusal.reason, refusal.retry_after_s) == (Reason.NO_BACKEND, 5.0)


def test_what_would_wait_for_one_backend_of_none_is_refused_at_once(make_pool):
    pool = make_pool(loads=[], placement=PLACEMENTS["before each"]())
    pool.send("A", "a")
    assert pool.refused() == {"a": Reason.NO_BACKEND}
