"""Other policies on a running pool: counters stay, deficits and virtual times start anew, nothing is lost."""

import pytest

from policies.fairness import FAIRNESS
from policies.placement import PLACEMENT
from policies.prediction import Oracle
from policies.types import BackendLoad, PolicyChoice, Reason, Tenant, Tier

X, Y = BackendLoad("x", requests_running_max=1), BackendLoad("y", requests_running_max=1)
ONE_SEAT = [BackendLoad("gpu", requests_running_max=1)]


def switch(pool, **choices):
    choices = {kind: PolicyChoice(each) if isinstance(each, str) else each for kind, each in choices.items()}
    pool.scheduler.policy_changed(**choices, now=pool.now)


def unequal(make_pool, **options):
    """A has received 90, B 30 and C nothing; all three wait, and the seat is taken by A."""
    pool = make_pool(loads=ONE_SEAT, fairness=FAIRNESS["lcf"], **options)
    for tenant_id, prompt in (("A", 50), ("B", 30), ("A", 40)):
        request_id = f"{tenant_id}{prompt}"
        pool.send(tenant_id, request_id, prompt=prompt)
        pool.dispatched()
        if request_id != "A40":
            pool.end(request_id)
    for number in range(2):
        for tenant_id in "ABC":
            pool.send(tenant_id, f"{tenant_id.lower()}{number}", prompt=1)
    return pool


@pytest.mark.parametrize("after", sorted(FAIRNESS))
@pytest.mark.parametrize("before", ["vtc", "drr", "slack"])
def test_counters_stay_and_nothing_is_lost_whatever_order_comes_after_whatever(make_pool, before, after):
    pool = unequal(make_pool)
    switch(pool, fairness=before)
    counters = {tenant_id: pool.counter(tenant_id) for tenant_id in "ABC"}
    switch(pool, fairness=after)
    assert {tenant_id: pool.counter(tenant_id) for tenant_id in "ABC"} == counters == {"A": 90, "B": 30, "C": 0}
    pool.end("A40")
    assert sorted(pool.serve_all()) == ["a0", "a1", "b0", "b1", "c0", "c1"]


def test_joining_the_new_order_lifts_no_tenant_that_waited(make_pool):
    """From the least served up: joining by name, B and C would be lifted to A's 90."""
    pool = unequal(make_pool)
    switch(pool, fairness="vtc")
    pool.end("A40")
    assert pool.serve_all() == ["c0", "c1", "b0", "b1", "a0", "a1"]


def test_tiers_keep_their_counters_too(make_pool):
    tiers = [Tier("default"), Tier("gold")]
    pool = make_pool(
        tenants=[Tenant("A"), Tenant("B", tier_id="gold")], tiers=tiers, loads=ONE_SEAT, fairness=FAIRNESS["lcf"]
    )
    for number in range(3):
        pool.send("A", f"a{number}", prompt=100)
        pool.send("B", f"b{number}", prompt=10)
    assert pool.dispatched() == ["a0"]
    switch(pool, fairness="lcf")
    pool.end("a0")
    assert pool.serve_all()[:3] == ["b0", "b1", "b2"]


def test_deficits_start_as_if_all_had_just_been_refilled(make_pool):
    pool = unequal(make_pool)
    switch(pool, fairness=PolicyChoice("drr", {"quantum_service": 1_000.0}))
    pool.end("A40")
    assert pool.serve_all()[:2] == ["c0", "c1"], "the circle begins with the least served, and A owes nothing"
    pool = unequal(make_pool)
    switch(pool, fairness=PolicyChoice("dlpm", {"quantum_service": 1_000.0}))
    pool.end("A40")
    assert pool.serve_all() == ["a0", "a1", "b0", "b1", "c0", "c1"], "all have credit: by arrival, then by id"


def test_what_is_in_flight_goes_on_being_charged_where_it_runs(make_pool):
    pool = make_pool(loads=ONE_SEAT, prediction=Oracle())
    pool.send("A", "a", prompt=10, output_tokens_known=5)
    pool.dispatched()
    pool.emit("a", 2)
    assert (pool.counter("A"), pool.rank("A")) == (14, 20)
    switch(pool, fairness="drr")
    assert (pool.counter("A"), pool.rank("A")) == (14, 20)
    pool.emit("a", 3)
    pool.end("a")
    assert pool.counter("A") == pool.rank("A") == pool.service("A") == 20


def test_a_prepaid_request_stays_prepaid_and_goes_first(make_pool):
    pool = make_pool(loads=ONE_SEAT, prediction=Oracle())
    pool.send("B", "b", prompt=10, output_tokens_known=5)
    pool.dispatched()
    pool.come_back("b")
    pool.send("A", "a", prompt=1)
    switch(pool, fairness="drr", placement="d2lpm")
    assert pool.dispatched() == ["b"]
    pool.emit("b", 5)
    pool.end("b")
    assert pool.rank("B") == pool.counter("B") == pool.service("B") == 20


@pytest.mark.parametrize("after", sorted(PLACEMENT))
@pytest.mark.parametrize("before", sorted(PLACEMENT))
def test_every_placement_may_follow_every_other_while_requests_wait_run_and_come_back(make_pool, before, after):
    pool = make_pool(loads=[X, Y])
    switch(pool, placement=before)
    for number in range(8):
        pool.now += 1.0
        pool.send("ABC"[number % 3], f"r{number}", prompt=10, prefix=(1, 2), prefix_block_tokens=4.0)
    running = list(pool.placed())
    assert running
    switch(pool, placement=after)
    pool.come_back(running[0])
    switch(pool, fairness="vtc")
    for request_id in running[1:]:
        pool.emit(request_id, 2)
        pool.end(request_id)
    assert len(pool.serve_all()) == 9 - len(running)
    total = 8 * 10 + 2 * 2 * len(running[1:])
    assert sum(pool.service(tenant_id) for tenant_id in "ABC") == total
    assert sum(pool.rank(tenant_id) for tenant_id in "ABC") == pytest.approx(sum(map(pool.counter, "ABC")))
    assert pool.scheduler.snapshot(pool.now).in_flight_requests == 0


def test_counters_are_shared_out_over_the_queues_of_backends_and_summed_when_they_are_one_again(make_pool):
    pool = make_pool(loads=[X, Y])
    for tenant_id, prompt in (("A", 80), ("B", 20)):
        pool.send(tenant_id, tenant_id, prompt=prompt)
        pool.dispatched()
        pool.end(tenant_id)
    before = [pool.counter(tenant_id) for tenant_id in "ABC"]
    switch(pool, placement="round-robin")
    assert [pool.counter(tenant_id) for tenant_id in "ABC"] == before
    assert [
        fair_queue.order.service_record(Tenant("A")).counter
        for fair_queue in pool.scheduler._arrangement.fair_queues.all()
    ] == [
        40,
        40,
    ]
    switch(pool, placement="least-reserved")
    assert [pool.counter(tenant_id) for tenant_id in "ABC"] == before


def test_what_waits_while_no_backend_is_known_is_refused_by_a_switch_to_queues_per_backend(make_pool):
    pool = make_pool(loads=[X])
    pool.send("A", "a")
    pool.measure()
    switch(pool, placement="round-robin")
    assert pool.refused() == {"a": Reason.NO_BACKEND}


def test_what_waits_for_a_backend_that_is_only_not_available_stays(make_pool):
    pool = make_pool(loads=[X])
    pool.send("A", "a")
    pool.measure(BackendLoad("x", available=False))
    switch(pool, placement="round-robin")
    assert pool.poll() == []
    pool.measure(X)
    assert pool.placed() == {"a": "x"}


def test_another_prediction_orders_and_sizes_what_comes_next(make_pool):
    pool = make_pool(loads=[BackendLoad("gpu", kv_tokens_max=100, requests_running_max=9)], headroom_ratio_max=1.0)
    pool.send("A", "a", prompt=10, output_tokens_known=50)
    pool.dispatched()
    assert (pool.rank("A"), pool.backend().reserved_tokens) == (10, 10)
    switch(pool, prediction="oracle")
    pool.send("A", "b", prompt=10, output_tokens_known=50)
    pool.dispatched()
    assert (pool.rank("A"), pool.backend().reserved_tokens) == (10 + 10 + 100, 10 + 60)


def test_sizing_may_be_another_predictor_and_stays_when_only_the_prediction_changes(make_pool):
    pool = make_pool(loads=[BackendLoad("gpu", kv_tokens_max=1_000, requests_running_max=9)], headroom_ratio_max=1.0)
    switch(pool, prediction="none", sizing="oracle")
    switch(pool, prediction="last-five")
    pool.send("A", "a", prompt=10, output_tokens_known=50)
    pool.dispatched()
    assert (pool.rank("A"), pool.backend().reserved_tokens) == (10, 60)


@pytest.mark.parametrize(
    ("choice", "words"),
    [
        ({"fairness": "nonsense"}, "there are vtc, slack"),
        ({"fairness": PolicyChoice("drr", {"quantum": 5})}, "quantum"),
        ({"prediction": "nonsense"}, "there are none"),
        ({"placement": "nonsense"}, "there are least-reserved"),
    ],
)
def test_a_policy_or_parameter_that_does_not_exist_changes_nothing(make_pool, choice, words):
    pool = unequal(make_pool)
    with pytest.raises(ValueError, match=words):
        switch(pool, **choice)
    pool.end("A40")
    assert pool.serve_all() == ["c0", "c1", "b0", "b1", "a0", "a1"]


def test_a_cap_on_shares_in_flight_goes_on_counting_what_was_in_flight(make_pool):
    pool = make_pool(loads=[BackendLoad("gpu", requests_running_max=4)], share_ratio_max=0.5)
    for number in range(4):
        pool.send("A", f"a{number}")
    pool.dispatched()
    pool.send("A", "a4")
    pool.send("B", "b0", prompt=1)
    switch(pool, fairness="vtc")
    pool.end("a0")
    assert pool.dispatched() == ["b0"]
    assert pool.tenant("A").in_flight_requests == 3
