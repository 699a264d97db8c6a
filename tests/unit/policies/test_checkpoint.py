"""A scheduler that takes up where another ended: a tenant behind stays behind, and none has credit without end."""

from dataclasses import asdict

import pytest

from policies.accounts.checkpoint import (
    SHARED_QUEUE,
    QueueCheckpoint,
    TierCheckpoint,
    divide_queue,
    fit_to_queues,
    keep_levels,
    sum_queues,
    without_lifted_tenants,
)
from policies.fairness import FAIRNESS
from policies.placement import PLACEMENT
from policies.prediction import Oracle
from policies.types import BackendLoad, Tenant, Tier

RETURNING_S = 5.0
ONE_SEAT = [BackendLoad("gpu", requests_running_max=1)]
X, Y = BackendLoad("x", requests_running_max=1), BackendLoad("y", requests_running_max=1)
TIERS = [Tier("default"), Tier("gold")]


def serve(pool, tenant_id, prompt, *, number=0):
    """One request of the tenant, from its arrival to its end."""
    request_id = f"{tenant_id}-{prompt}-{number}"
    pool.send(tenant_id, request_id, prompt=prompt)
    assert pool.dispatched() == [request_id]
    pool.end(request_id)


def again(make_pool, before, *, checkpoint=None, **options):
    """Another process: a pool that knows nothing but these standings."""
    pool = make_pool(**{"loads": ONE_SEAT, **options})
    checkpoint = without_lifted_tenants(before.scheduler.checkpoint()) if checkpoint is None else checkpoint
    pool.scheduler.restored(checkpoint, pool.now, RETURNING_S)
    return pool


def order_of(pool, tenant_ids, *, prompt=10, rounds=3):
    """The order of service, where every tenant sends as many requests at once."""
    for number in range(rounds):
        for tenant_id in tenant_ids:
            pool.send(tenant_id, f"{tenant_id}{number}", prompt=prompt)
    served = ""
    while placed := pool.dispatched():
        served += placed[0][0]
        pool.end(placed[0])
    return served


def unequal(make_pool, **options):
    """A, B and C wait together until A has received 60, B 30 and C 31."""
    pool = make_pool(loads=ONE_SEAT, **options)
    for tenant_id, prompt in (("A", 60), ("B", 30), ("C", 31)):
        pool.send(tenant_id, tenant_id, prompt=prompt)
        pool.send(tenant_id, f"{tenant_id}-waits", prompt=1)
    for tenant_id in "ABC":
        assert pool.dispatched() == [tenant_id]
        pool.end(tenant_id)
    return pool


def test_who_had_received_more_than_others_goes_on_from_there(make_pool):
    pool = again(make_pool, unequal(make_pool))
    assert order_of(pool, "ABC") == "BCBCBCAAA"
    assert order_of(make_pool(loads=ONE_SEAT), "ABC") == "ABCABCABC", "what it would have been"


def test_what_is_restored_is_as_if_all_had_ended_in_the_old_scheduler(make_pool):
    """VTC's lift of one that comes when none waits, told to the new one as a level."""
    old = make_pool(loads=ONE_SEAT)
    serve(old, "A", 500)
    serve(old, "B", 3)
    new = again(make_pool, old)
    for pool in (old, new):
        pool.send("C", "c")
        assert pool.counter("C") == 503.0
        pool.send("A", "a")
        assert pool.dispatched() == ["a"], "500 are fewer than the 503 that C was lifted to, but A was lifted too"


def test_the_tenant_that_comes_first_does_not_lift_the_others_to_its_counter_until_they_have_had_time_to_come_back(
    make_pool,
):
    """A, far ahead, is the first after the restart. B was waiting when the process ended: it did not leave."""
    old = unequal(make_pool)
    for comes_after_s, counter in ((RETURNING_S - 0.1, 30.0), (RETURNING_S, 61.0)):
        pool = again(make_pool, old)
        pool.send("A", "a")
        pool.dispatched()
        pool.send("A", "waits")
        pool.now += comes_after_s
        pool.send("B", "b")
        assert pool.counter("B") == counter


def test_who_left_while_the_old_process_drained_is_not_lifted_for_that(make_pool):
    """The levels are those of when new calls were refused, and the counters those of the end."""
    old = unequal(make_pool)
    serving = old.scheduler.checkpoint()
    for request_id in ("B-waits", "C-waits", "A-waits"):
        assert old.dispatched() == [request_id]
        old.end(request_id)
    ended = old.scheduler.checkpoint()
    assert (serving[SHARED_QUEUE].tiers["default"].level, ended[SHARED_QUEUE].tiers["default"].level) == (30, 61)
    pool = again(make_pool, old, checkpoint=without_lifted_tenants(keep_levels(ended, serving)))
    assert [pool.counter(tenant_id) for tenant_id in "ABC"] == [61, 31, 32]
    assert order_of(pool, "ABC") == "BCBCBCAAA"
    assert keep_levels(ended, {}) == ended


@pytest.mark.parametrize("name", ["newcomer", "A"])
def test_the_tenant_that_comes_first_after_the_restart_has_no_credit_without_end(make_pool, name):
    """A had 60 long ago, and a newcomer nothing; B has been served 10,000 since."""
    old = make_pool(loads=ONE_SEAT)
    serve(old, "A", 60)
    for number in range(10):
        serve(old, "B", 1_000, number=number)
    new = again(make_pool, old, tenants=[Tenant("B"), Tenant("A"), Tenant("newcomer")])
    for number in range(5):
        new.send(name, f"first{number}", prompt=100)
    new.send("B", "b", prompt=1)
    served = [new.dispatched()[0]]
    new.end(served[0])
    served += new.dispatched()
    assert sorted(served) == ["b", "first0"]


def test_a_tenant_that_is_made_known_later_goes_on_too_and_is_kept_until_then(make_pool):
    """In open mode tenants come by themselves; a second restart before they do forgets nothing."""
    first = again(make_pool, unequal(make_pool), tenants=[])
    second = again(make_pool, first, tenants=[])
    second.change(Tenant("B"), Tenant("A"), Tenant("C"))
    assert order_of(second, "ABC") == "BCBCBCAAA"


def test_a_tenant_that_is_removed_before_it_has_come_back_is_forgotten(make_pool):
    pool = again(make_pool, unequal(make_pool), tenants=[])
    pool.change(removed=["A"])
    pool.change(Tenant("B"), Tenant("A"), Tenant("C"))
    assert order_of(pool, "ABC", rounds=1) == "ABC"


def test_tiers_go_on_where_they_were(make_pool):
    tenants = [Tenant("A"), Tenant("B", tier_id="gold")]
    old = make_pool(tenants=tenants, tiers=TIERS, loads=ONE_SEAT)
    for tenant_id, prompt in (("A", 100), ("B", 10)):
        pool_waits = (prompt, 1)
        for number, each in enumerate(pool_waits):
            old.send(tenant_id, f"{tenant_id}{number}", prompt=each)
    assert [old.dispatched(), old.end("A0"), old.dispatched(), old.end("B0")][::2] == [["A0"], ["B0"]]
    new = again(make_pool, old, tenants=tenants, tiers=TIERS)
    assert order_of(new, "AB") == "BBBAAA"


def test_what_was_predicted_of_requests_that_ended_with_the_process_is_no_debt(make_pool):
    old = make_pool(loads=ONE_SEAT, prediction=Oracle())
    old.send("A", "a", prompt=10, output_tokens_known=50)
    assert old.dispatched() == ["a"]
    old.emit("a", 3)
    assert old.rank("A") == 110
    new = again(make_pool, old, prediction=Oracle())
    new.send("A", "again", prompt=1)
    assert new.counter("A") == 16, "the prompt, and what was decoded"


def test_who_would_be_lifted_anyhow_is_not_kept(make_pool):
    old = make_pool(loads=ONE_SEAT)
    for tenant_id, prompt in (("A", 10), ("B", 20), ("C", 30)):
        serve(old, tenant_id, prompt)
    (fair_queue,) = without_lifted_tenants(old.scheduler.checkpoint()).values()
    assert fair_queue.tiers["default"] == TierCheckpoint(counter=60.0, level=60.0, tenants={})


def test_who_is_never_lifted_is_kept(make_pool):
    """Least counter first knows no lift: a tenant that was away keeps what it has not received."""
    old = make_pool(loads=ONE_SEAT, fairness=FAIRNESS["lcf"])
    serve(old, "A", 10)
    serve(old, "B", 20)
    new = again(make_pool, old, fairness=FAIRNESS["lcf"])
    assert [new.counter(tenant_id) for tenant_id in "ABC"] == [10, 20, 0]


@pytest.mark.parametrize("fairness", sorted(FAIRNESS))
@pytest.mark.parametrize("placement", sorted(PLACEMENT))
def test_every_order_and_placement_goes_on_from_its_own_standings(make_pool, fairness, placement):
    options = {"loads": [X, Y], "fairness": FAIRNESS[fairness]}
    old = make_pool(placement=PLACEMENT[placement](), **options)
    for number in range(6):
        old.send("ABC"[number % 3], f"r{number}", prompt=10 * (1 + number % 3), prefix=(1, 2), prefix_block_tokens=4.0)
    for request_id in [each for each in old.placed() for _ in old.emit(each, 5) or [None]]:
        old.end(request_id)
    new = again(make_pool, old, placement=PLACEMENT[placement](), **options)
    assert without_lifted_tenants(new.scheduler.checkpoint()) == without_lifted_tenants(old.scheduler.checkpoint())
    assert len(order_of_all(new)) == 9


def order_of_all(pool):
    for number in range(9):
        pool.send("ABC"[number % 3], f"n{number}")
    return pool.serve_all()


def fair_queue_of(counter, **tenants):
    return QueueCheckpoint(counter, {"default": TierCheckpoint(counter, 0.0, tenants)})


def test_each_backends_queue_takes_up_its_own_and_one_that_comes_later_does_too(make_pool):
    checkpoint = {"x": fair_queue_of(9.0, A=9.0), "y": fair_queue_of(7.0, B=7.0)}
    pool = again(make_pool, None, checkpoint=checkpoint, loads=[X], placement=PLACEMENT["round-robin"]())
    assert [pool.counter(tenant_id) for tenant_id in "ABC"] == [9.0, 0.0, 0.0]
    assert pool.scheduler.checkpoint() == checkpoint, "nothing is lost of a backend that is not there yet"
    pool.measure(X, Y)
    assert [pool.counter(tenant_id) for tenant_id in "ABC"] == [9.0, 7.0, 0.0]
    assert pool.scheduler.checkpoint() == checkpoint


def test_queues_of_backends_become_one_by_their_sums_and_one_becomes_several_in_equal_parts():
    one = {SHARED_QUEUE: fair_queue_of(16.0, A=12.0, B=4.0)}
    several = {"x": fair_queue_of(9.0, A=12.0), "y": fair_queue_of(7.0, B=4.0)}
    assert fit_to_queues(several, [SHARED_QUEUE]) == one
    assert fit_to_queues(one, ["x", "y"]) == {
        "x": fair_queue_of(8.0, A=6.0, B=2.0),
        "y": fair_queue_of(8.0, A=6.0, B=2.0),
    }
    assert fit_to_queues(several, ["x", "z"]) == several
    assert fit_to_queues({}, [SHARED_QUEUE]) == {SHARED_QUEUE: QueueCheckpoint()}


def test_a_tenant_that_one_queue_does_not_know_is_at_that_queues_level():
    knows = QueueCheckpoint(0.0, {"default": TierCheckpoint(0.0, 1.0, {"A": 5.0})})
    others = QueueCheckpoint(0.0, {"default": TierCheckpoint(0.0, 30.0, {})})
    (fair_queue,) = fit_to_queues({"x": knows, "y": others}, [SHARED_QUEUE]).values()
    assert asdict(fair_queue.tiers["default"]) == {"counter": 0.0, "level": 31.0, "tenants": {"A": 35.0}, "groups": {}}


def test_a_switch_while_no_tenant_waits_leaves_none_credit_either(make_pool):
    """The new order knows no tenant that was last to leave; what it is told is the level."""
    pool = make_pool(loads=ONE_SEAT)
    serve(pool, "A", 60)
    serve(pool, "B", 500)
    pool.scheduler.policy_changed(placement=None, fairness=None, prediction=None, now=pool.now)
    pool.send("C", "c")
    assert pool.counter("C") == 560.0
    assert pool.dispatched() == ["c"]
    pool.end("c")


def test_it_is_told_before_anything_is_here(make_pool):
    pool = make_pool(loads=ONE_SEAT)
    pool.send("A", "a")
    for _ in ("waits", "runs"):
        with pytest.raises(AssertionError, match="before anything waits or runs"):
            pool.scheduler.restored({}, pool.now)
        pool.dispatched()


def test_counters_of_groups_are_summed_and_parted_like_those_of_tiers():
    groups = {"g": TierCheckpoint(8.0, 2.0, {"A": 6.0}), "h": TierCheckpoint(4.0)}
    one = QueueCheckpoint(2.0, {"default": TierCheckpoint(10.0, 4.0, {"B": 6.0}, groups)})
    assert sum_queues([divide_queue(one, 2)] * 2) == one
    other = QueueCheckpoint(0.0, {"default": TierCheckpoint(2.0, 1.0)})
    summed = sum_queues([one, other]).tiers["default"].groups
    assert summed["h"].counter == 5.0, "where a group is missing, it is at the level"
    assert summed["g"].tenants == {"A": 6.0 + 0.0}


def test_a_group_is_kept_only_where_it_or_a_tenant_of_it_is_above_the_level():
    groups = {
        "low": TierCheckpoint(1.0, 2.0, {"A": 2.0}),
        "ahead": TierCheckpoint(5.0),
        "of A": TierCheckpoint(0.0, 1.0, {"A": 3.0}),
    }
    checkpoint = {SHARED_QUEUE: QueueCheckpoint(0.0, {"default": TierCheckpoint(0.0, 4.0, {}, groups)})}
    kept = without_lifted_tenants(checkpoint)[SHARED_QUEUE].tiers["default"].groups
    assert set(kept) == {"ahead", "of A"}
