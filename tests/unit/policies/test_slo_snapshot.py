"""A snapshot says which tenants are short of time, and how many of their requests kept their envelopes."""

import pytest

from policies.pool.snapshot import REQUESTS_SHOWN_MAX
from policies.types import Attainment, BackendLoad, Outcome, RequestView, SloEnvelope, Tenant, Tier, Timing

pytestmark = pytest.mark.every_scheduler

ENVELOPE = SloEnvelope(ttft_s=1.0, tpot_s=0.1)
TIERS = (Tier("default"), Tier("gold"))
TENANTS = (Tenant("A", tier_id="gold"), Tenant("B", tier_id="gold"), Tenant("C"))


def one_slot(make_pool, **options):
    return make_pool(tenants=TENANTS, tiers=TIERS, loads=[BackendLoad("gpu", requests_running_max=1)], **options)


@pytest.mark.local_scheduler  # it reads request ids in a snapshot
def test_slack_is_shown_of_what_runs_and_what_waits_the_least_first(make_pool):
    pool = one_slot(make_pool)
    pool.send("A", "a1", envelope=ENVELOPE)
    pool.poll()
    pool.now = 0.5
    pool.send("B", "b1", envelope=ENVELOPE)
    pool.send("C", "c1")
    pool.emit("a1", 3)
    pool.now = 1.0
    snapshot = pool.scheduler.snapshot(pool.now)
    assert list(snapshot.requests) == ["a1", "b1"]
    assert snapshot.requests["a1"] == RequestView("A", "gpu", 3, pytest.approx(0.3))
    assert snapshot.requests["b1"] == RequestView("B", None, 0, pytest.approx(0.5))
    assert snapshot.tenants["A"].slack_s_min == pytest.approx(0.3)
    assert snapshot.tenants["C"].slack_s_min is None
    assert snapshot.tiers["gold"].slack_s_min == pytest.approx(0.3)
    assert snapshot.tiers["default"].slack_s_min is None


def test_a_tier_is_the_sum_of_its_tenants(make_pool):
    pool = one_slot(make_pool)
    for number in range(3):
        pool.send("AB"[number % 2], f"r{number}", prompt=10)
    pool.poll()
    tiers = pool.scheduler.snapshot(pool.now).tiers
    assert (tiers["gold"].queued_requests, tiers["gold"].in_flight_requests, tiers["gold"].service) == (2, 1, 10)
    assert (tiers["default"].queued_requests, tiers["default"].in_flight_requests) == (0, 0)


def test_the_list_of_requests_has_an_end(make_pool):
    pool = one_slot(make_pool)
    for number in range(REQUESTS_SHOWN_MAX + 50):
        pool.send("A", f"r{number}", envelope=ENVELOPE)
        pool.now += 0.001
    assert len(pool.scheduler.snapshot(pool.now).requests) == REQUESTS_SHOWN_MAX


def test_attainment_is_counted_when_a_request_ends_or_is_refused_and_goes_with_its_tenant(make_pool):
    pool = one_slot(make_pool, wait_s_max=5.0)
    pool.send("A", "a1", envelope=ENVELOPE)
    pool.poll()
    pool.send("A", "a2", envelope=ENVELOPE)
    pool.emit("a1", 2)
    pool.scheduler.finished("a1", Outcome.COMPLETED, pool.now, Timing(0.1, 0.2, 0.05, 2, 2))
    pool.poll()
    pool.send("A", "a3", envelope=ENVELOPE)
    pool.send("C", "c2")
    pool.now = 20.0
    assert set(pool.refused()) == {"a3", "c2"}
    expected = Attainment(1, 1, 0, 1, 1, 2, 2, refused=1)
    snapshot = pool.scheduler.snapshot(pool.now)
    assert snapshot.tenants["A"].attainment == snapshot.attainment["gold"] == expected
    assert snapshot.tenants["C"].attainment == Attainment(), "it has no envelope"
    pool.end("a2")
    pool.change(removed=["A"])
    pool.poll()
    snapshot = pool.scheduler.snapshot(pool.now)
    assert "A" not in snapshot.tenants
    assert snapshot.attainment["gold"] == expected
