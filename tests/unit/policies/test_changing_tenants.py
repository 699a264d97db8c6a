"""Tenants and tiers that change while requests wait and run."""

import pytest

from policies.prediction import TenantQuantile
from policies.types import BackendLoad, Outcome, Reason, Tenant, Tier

ROOMY = [BackendLoad("gpu", requests_running_max=4)]


def test_a_new_tenant_is_served(make_pool):
    pool = make_pool(tenants=[])
    pool.change(Tenant("new"))
    pool.send("new", "n")
    assert pool.dispatched() == ["n"]


def test_a_new_weight_counts_from_now_on_and_keeps_the_counter(make_pool):
    pool = make_pool(loads=ROOMY)
    pool.send("A", "a", prompt=100)
    pool.dispatched()
    pool.change(Tenant("A", weight=4.0))
    assert pool.counter("A") == 100
    pool.emit("a", 10)
    assert pool.counter("A") == 100 + 20 / 4
    assert pool.service("A") == 120


@pytest.mark.parametrize("weight", [0.3, 4.0, 7.0])
@pytest.mark.parametrize("moved", [False, True])
@pytest.mark.parametrize("ending", [*Outcome, None])
def test_a_change_leaves_nothing_outstanding_behind_however_the_request_ends(make_pool, weight, moved, ending):
    tiers = [Tier("default", weight=3.0), Tier("gold", weight=0.7)]
    pool = make_pool(loads=ROOMY, tiers=tiers, prediction=TenantQuantile())
    for number in range(3):
        pool.send("A", f"a{number}", prompt=10)
    pool.dispatched()
    pool.emit("a0", 3)
    pool.come_back("a1")
    pool.change(Tenant("A", weight=weight, tier_id="gold" if moved else "default"))
    pool.change(tiers=[Tier("default", weight=11.0), Tier("gold", weight=1.3)])
    pool.dispatched()
    for number in range(3):
        if ending is None:
            pool.come_back(f"a{number}")
            pool.scheduler.cancel(f"a{number}", pool.now)
        else:
            pool.end(f"a{number}", ending)
    assert pool.rank("A") == pytest.approx(pool.counter("A"), abs=1e-9)
    (fair_queue,) = pool.scheduler._arrangement.fair_queues.all()
    for tier in tiers:
        assert fair_queue.order.root.order.service_record(tier.id).outstanding == pytest.approx(0, abs=1e-9)


def test_a_waiting_tenant_that_changes_tier_stands_at_its_level_as_before_and_goes_on_waiting(make_pool):
    pool = make_pool(tiers=[Tier("default"), Tier("gold")], loads=[BackendLoad("gpu", requests_running_max=1)])
    pool.send("A", "a0", prompt=50)
    assert pool.dispatched() == ["a0"]
    pool.send("A", "a1")
    pool.change(Tenant("A", tier_id="gold"))
    assert pool.counter("A") == 0, "it was not ahead of any tenant"
    pool.end("a0")
    assert pool.dispatched() == ["a1"]


def test_a_lower_in_flight_limit_holds_for_what_comes_next(make_pool):
    pool = make_pool(loads=ROOMY)
    for number in range(5):
        pool.send("A", f"a{number}")
    assert len(pool.dispatched()) == 4
    pool.change(Tenant("A", in_flight_max=1))
    pool.end("a0")
    pool.end("a1")
    assert pool.dispatched() == []
    pool.end("a2")
    pool.end("a3")
    assert pool.dispatched() == ["a4"]


def test_a_lifted_in_flight_limit_lets_waiting_requests_go(make_pool):
    pool = make_pool(tenants=[Tenant("A", in_flight_max=1)], loads=ROOMY)
    for number in range(3):
        pool.send("A", f"a{number}")
    assert len(pool.dispatched()) == 1
    pool.change(Tenant("A"))
    assert len(pool.dispatched()) == 2


def test_a_removed_tenants_queue_is_refused_and_what_runs_goes_on(make_pool):
    pool = make_pool(loads=[BackendLoad("gpu", requests_running_max=1)])
    for number in range(3):
        pool.send("A", f"a{number}", prompt=10)
    assert pool.dispatched() == ["a0"]
    pool.change(removed=["A"])
    assert pool.refused() == {"a1": Reason.TENANT_UNKNOWN, "a2": Reason.TENANT_UNKNOWN}
    pool.emit("a0", 5)
    assert pool.service("A") == 20
    pool.end("a0")
    assert "A" not in pool.scheduler.snapshot(0.0).tenants


def test_a_removed_tenant_sends_nothing_more_though_it_still_has_something_in_flight(make_pool):
    pool = make_pool()
    pool.send("A", "a0")
    pool.dispatched()
    pool.change(removed=["A"])
    pool.send("A", "a1")
    assert pool.refused() == {"a1": Reason.TENANT_UNKNOWN}


def test_a_removed_idle_tenant_is_forgotten_at_once_and_an_unknown_one_is_no_error(make_pool):
    pool = make_pool()
    pool.change(removed=["A", "never seen"])
    assert "A" not in pool.scheduler.snapshot(0.0).tenants


def test_a_tenant_whose_prepaid_request_waits_can_be_removed(make_pool):
    pool = make_pool()
    pool.send("A", "a0", prompt=10)
    pool.dispatched()
    pool.come_back("a0")
    pool.change(removed=["A"])
    assert pool.refused() == {"a0": Reason.TENANT_UNKNOWN}
    assert "A" not in pool.scheduler.snapshot(0.0).tenants
    assert pool.poll() == []


def test_a_request_of_a_removed_tenant_that_comes_back_is_still_served_and_then_forgotten(make_pool):
    pool = make_pool()
    pool.send("A", "a0")
    pool.dispatched()
    pool.change(removed=["A"])
    pool.come_back("a0")
    assert pool.dispatched() == ["a0"]
    pool.end("a0")
    assert "A" not in pool.scheduler.snapshot(0.0).tenants


def test_a_tenant_that_is_added_again_while_something_runs_was_never_gone(make_pool):
    pool = make_pool()
    pool.send("A", "a0", prompt=10)
    pool.dispatched()
    pool.change(removed=["A"])
    pool.change(Tenant("A", weight=2.0))
    pool.send("A", "a1")
    assert pool.dispatched() == ["a1"]
    pool.end("a0")
    pool.end("a1")
    assert pool.service("A") == 11


def test_a_tenant_that_is_added_again_after_it_was_forgotten_starts_anew_but_without_credit(make_pool):
    pool = make_pool()
    pool.send("A", "a0", prompt=10)
    pool.dispatched()
    pool.change(removed=["A"])
    pool.end("a0")
    pool.send("B", "b0", prompt=500)
    pool.dispatched()
    pool.send("B", "b1")
    pool.change(Tenant("A"))
    pool.send("A", "a1")
    assert pool.service("A") == 0
    assert pool.counter("A") == pool.counter("B") == 510


def test_a_tenant_may_be_removed_and_added_again_many_times_while_others_wait(make_pool):
    pool = make_pool(loads=[BackendLoad("gpu", requests_running_max=1)])
    pool.send("B", "running")
    pool.dispatched()
    pool.send("B", "b")
    for number in range(20):
        pool.change(Tenant("A"))
        pool.send("A", f"a{number}")
        pool.change(removed=["A"])
    assert len(pool.refused()) == 20
    pool.end("running")
    assert pool.dispatched() == ["b"]


def tiers_of(pool):
    (fair_queue,) = pool.scheduler._arrangement.fair_queues.all()
    return set(pool.scheduler.snapshot(pool.now).tiers), fair_queue.order.tier_ids


def test_a_removed_tier_goes_with_the_last_of_its_tenants(make_pool):
    tiers = [Tier("default"), Tier("gold", reserve_ratio=0.5)]
    pool = make_pool(tenants=[Tenant("A"), Tenant("B", tier_id="gold")], tiers=tiers)
    pool.send("B", "b")
    pool.dispatched()
    pool.scheduler.tenants_changed(removed=["B"], tiers_removed=["gold"], now=pool.now)
    assert tiers_of(pool) == ({"default", "gold"}, {"default", "gold"}), "what runs is of it yet"
    pool.end("b")
    assert tiers_of(pool) == ({"default"}, {"default"})
    for number in range(3):
        pool.send("A", f"a{number}")
    assert pool.dispatched() == ["a0", "a1"], "and its reserve is for all tiers"


def test_a_tier_whose_tenants_move_at_the_same_time_goes_at_once(make_pool):
    pool = make_pool(tenants=[Tenant("A", tier_id="gold")], tiers=[Tier("default"), Tier("gold")])
    pool.scheduler.tenants_changed(tiers_removed=["gold", "unknown"], now=pool.now)
    pool.change(Tenant("A"))
    assert tiers_of(pool) == ({"default"}, {"default"})


@pytest.mark.parametrize("back", [{"tiers": [Tier("gold")]}, {"changed": [Tenant("A", weight=2.0, tier_id="gold")]}])
def test_a_removed_tier_that_is_needed_again_was_never_gone(make_pool, back):
    pool = make_pool(tenants=[Tenant("A", tier_id="gold")], tiers=[Tier("default"), Tier("gold")])
    pool.send("A", "a", prompt=50)
    pool.dispatched()
    pool.end("a")
    pool.scheduler.tenants_changed(tiers_removed=["gold"], now=pool.now)
    pool.scheduler.tenants_changed(**back, now=pool.now)
    pool.change(removed=["A"])
    assert "gold" in tiers_of(pool)[0]


def test_a_tier_that_is_made_again_begins_with_nothing_and_is_lifted_like_any(make_pool):
    pool = make_pool(tenants=[Tenant("A"), Tenant("B", tier_id="gold")], tiers=[Tier("default"), Tier("gold")])
    pool.scheduler.tenants_changed(removed=["B"], tiers_removed=["gold"], now=pool.now)
    pool.change(Tenant("B", tier_id="gold"), tiers=[Tier("gold")])
    for number in range(4):
        pool.send("A", f"a{number}", prompt=100)
    pool.dispatched()
    (fair_queue,) = pool.scheduler._arrangement.fair_queues.all()
    assert fair_queue.order.root.order.service_record("gold").counter == 0
    pool.send("B", "b", prompt=1)
    assert fair_queue.order.root.order.service_record("gold").counter == 200


def test_a_tenant_as_it_was_before_its_tier_went_changes_nothing(make_pool):
    """A call that was on its way knows it so."""
    pool = make_pool(tenants=[Tenant("A", tier_id="gold")], tiers=[Tier("default"), Tier("gold")])
    pool.change(Tenant("A", weight=3.0))
    pool.scheduler.tenants_changed(tiers_removed=["gold"], now=pool.now)
    pool.change(Tenant("A", tier_id="gold"), Tenant("new", tier_id="gold"))
    pool.send("A", "a")
    pool.send("new", "n")
    actions = {action.request_id: action for action in pool.poll()}
    assert actions["n"].reason is Reason.TENANT_UNKNOWN
    assert actions["a"].backend_id == "gpu"
