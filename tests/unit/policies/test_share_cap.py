"""The in-flight share cap phi, and the rule that no request is let past one that does not fit."""

from functools import partial

import pytest

from policies.accounts.cost import LinearPrice
from policies.fairness import DeficitLongestPrefix, DeficitRoundRobin, Fifo, VirtualTokenCounter
from policies.fairness.tree import FairTree
from policies.limit import FixedLimit
from policies.prediction import NoPrediction, Oracle
from policies.queueing.share_cap import InFlightShare, ShareCap
from policies.types import BackendLoad, Tenant, Tier

pytestmark = pytest.mark.every_scheduler


def send_many(pool, tenant_id: str, count: int, **fields) -> None:
    for number in range(count):
        pool.send(tenant_id, f"{tenant_id}{number}", **fields)


def in_flight(pool) -> dict[str, int]:
    tenants = pool.scheduler.snapshot(pool.now).tenants
    return {tenant_id: view.in_flight_requests for tenant_id, view in tenants.items() if view.in_flight_requests}


def test_a_tenant_that_is_alone_has_no_cap(make_pool):
    pool = make_pool(loads=[BackendLoad("gpu", requests_running_max=10)], share_ratio_max=0.5)
    send_many(pool, "A", 12)
    assert len(pool.dispatched()) == 10


# Nothing moves at dispatch: without a cap A, the first by id, would be given everything.
PAID_LATER = LinearPrice(prompt=0, cached_prompt=0, output=2)


def test_of_two_that_wait_neither_gets_more_than_half_of_the_seats_before_it_has_paid(make_pool):
    load = BackendLoad("gpu", requests_running_max=10)
    pool = make_pool(loads=[load], share_ratio_max=0.5, price=PAID_LATER)
    send_many(pool, "A", 20)
    send_many(pool, "B", 20)
    assert pool.dispatched() == [f"A{number}" for number in range(5)] + [f"B{number}" for number in range(5)]


def test_a_tenant_over_its_share_is_passed_over_only_for_what_its_requests_in_flight_may_be_worth(make_pool):
    load = BackendLoad("gpu", requests_running_max=10)
    pool = make_pool(loads=[load], share_ratio_max=0.5, price=PAID_LATER)
    send_many(pool, "A", 20, prompt=10)
    send_many(pool, "B", 20, prompt=10)
    assert len(pool.dispatched()) == 10
    pool.emit("B0", 50)  # A is behind by 100, and its 5 * 10 reserved tokens are worth 2 each
    pool.end("B1")
    assert pool.dispatched() == ["B5"]
    pool.emit("B0", 1)
    pool.end("B2")
    assert pool.dispatched() == ["A5"], "behind by 102: half of the seats are too few for it"


def test_a_tenant_of_long_answers_and_one_of_long_prompts_stay_within_the_bound_of_vtc(make_pool):
    """One token per running request and round: prompts of 40 and 2 tokens against prompts of 2 and 20 tokens."""
    pool = make_pool(
        loads=[BackendLoad("gpu", kv_tokens_max=500, requests_running_max=100)],
        share_ratio_max=0.5,
        prediction=Oracle(),
        admission=(),
    )
    length = {"A": 20, "B": 2}
    running: list[str] = []
    for number in range(1_500):
        pool.send("A", f"A{number}", prompt=2, output_tokens_known=length["A"])
        pool.send("B", f"B{number}", prompt=40, output_tokens_known=length["B"])
    for _ in range(300):
        running += pool.dispatched()
        for request_id in list(running):
            pool.emit(request_id)
            if pool.outputs[request_id] == length[request_id[0]]:
                pool.end(request_id)
                running.remove(request_id)
        assert abs(pool.service("A") - pool.service("B")) <= 2 * (2 * 0.95 * 500), "2U, U = w_q * F"


def test_of_two_that_wait_neither_gets_more_than_half_of_the_tokens(make_pool):
    pool = make_pool(
        loads=[BackendLoad("gpu", kv_tokens_max=1000, requests_running_max=1000)],
        share_ratio_max=0.5,
        price=PAID_LATER,
    )
    send_many(pool, "A", 20, prompt=50)
    send_many(pool, "B", 20, prompt=50)
    order = pool.dispatched()
    assert order[:9] == [f"A{number}" for number in range(9)], "450 of 950"
    assert order[9:18] == [f"B{number}" for number in range(9)]
    assert order[18:] == ["A9"], "both are at their share: the rest of the room is for the next one"


def test_by_the_peak_rule_a_share_is_of_what_is_in_flight(make_pool):
    """Each of the long requests holds little while the short ones run."""
    load = BackendLoad("gpu", kv_tokens_max=200, requests_running_max=100)
    pool = make_pool(
        tenants=[Tenant("A"), Tenant("B")],
        loads=[load],
        share_ratio_max=0.5,
        price=PAID_LATER,
        prediction=NoPrediction(),
        sizing=Oracle(),
        headroom_ratio_max=1.0,
        kv_rule="peak",
    )
    for number in range(40):
        for tenant_id in "AB":
            pool.send(tenant_id, f"{tenant_id}{number}", output_tokens_known=5 + 10 * (number % 8))
    pool.dispatched()
    tokens = {each: pool.tenant(each).in_flight_tokens for each in "AB"}
    assert sum(tokens.values()) > 200, "full lengths exceed the cache"
    assert abs(tokens["A"] - tokens["B"]) <= 80, "one request"


def test_when_all_waiting_tenants_are_over_their_share_no_slot_stays_empty(make_pool):
    pool = make_pool(loads=[BackendLoad("gpu", requests_running_max=11)], share_ratio_max=0.25)
    send_many(pool, "A", 20)
    send_many(pool, "B", 20)
    pool.dispatched()
    assert sum(in_flight(pool).values()) == 11


def test_the_cap_is_never_below_what_the_weight_entitles_to(make_pool):
    pool = make_pool(
        tenants=[Tenant("A", weight=4.0), Tenant("B", weight=1.0)],
        loads=[BackendLoad("gpu", requests_running_max=10)],
        share_ratio_max=0.5,
    )
    send_many(pool, "A", 20, prompt=100)
    send_many(pool, "B", 20, prompt=100)
    pool.dispatched()
    assert in_flight(pool) == {"A": 8, "B": 2}


def test_weights_count_over_tenants_and_tiers_that_have_anything_here():
    tiers = [Tier("gold", weight=3.0), Tier("bronze", weight=1.0)]
    cap = ShareCap(0.1, FairTree(VirtualTokenCounter, tiers, lambda _: 0))
    a, b, c = Tenant("a", 2.0, "gold"), Tenant("b", 1.0, "gold"), Tenant("c", 1.0, "bronze")
    for tenant in (a, b, c):
        cap.set_active(tenant, active=True)

    def slots(tenant: Tenant) -> int:
        """How many of 100 seats the tenant may have."""
        return max(count for count in range(1, 101) if cap.allows(tenant, InFlightShare(count, 0, 100, float("inf"))))

    assert (slots(a), slots(b), slots(c)) == (50, 25, 25)
    cap.set_active(c, active=False)
    assert (slots(a), slots(b)) == (66, 33)
    cap.set_active(Tenant("b", 9.0, "bronze"), active=False)
    assert slots(a) == 100


@pytest.mark.parametrize("choices", [1, 5])
def test_a_tenant_with_nothing_in_flight_may_always_send_one(make_pool, choices):
    pool = make_pool(loads=[BackendLoad("gpu", requests_running_max=6)], share_ratio_max=0.01)
    pool.send("A", "a", choices=choices)
    pool.send("B", "b")
    assert sorted(pool.dispatched()) == ["a", "b"]


def test_the_share_is_of_what_may_be_ours_where_others_send_to_the_same_backend(make_pool):
    def load(running: int) -> BackendLoad:
        return BackendLoad("gpu", requests_running_max=20, requests_running=running)

    pool = make_pool(loads=[load(0)], share_ratio_max=0.5, price=PAID_LATER)
    for _ in range(3):
        pool.measure(load(10))
    send_many(pool, "A", 1, prompt=1000)
    send_many(pool, "B", 20)
    pool.dispatched()
    pool.send("A", "late")
    assert in_flight(pool)["B"] == 9, "alone once A had sent its only one"
    for number in range(5):
        pool.end(f"B{number}")
    for number in range(5):
        pool.send("A", f"late{number}")
    pool.dispatched()
    assert in_flight(pool) == {"A": 5, "B": 5}, "half of the 10 seats that are ours, not of 20"


def test_at_its_backend_none_is_let_past_a_request_that_does_not_fit(make_pool):
    pool = make_pool(loads=[BackendLoad("gpu", kv_tokens_max=100, requests_running_max=10)])
    pool.send("C", "running", prompt=50)
    assert pool.dispatched() == ["running"]
    pool.send("A", "large", prompt=60)
    pool.send("B", "small", prompt=40)
    assert pool.dispatched() == [], "A is next by id at equal counters; the smaller request of B would fit"
    pool.end("running")
    assert pool.dispatched() == ["large"]


def test_with_a_cap_of_the_whole_pool_a_tenants_own_running_requests_do_not_let_others_past_it(make_pool):
    pool = make_pool(loads=[BackendLoad("gpu", kv_tokens_max=100, requests_running_max=10)], share_ratio_max=1.0)
    pool.send("A", "running", prompt=50)
    assert pool.dispatched() == ["running"]
    pool.send("A", "large", prompt=60)
    pool.send("B", "small", prompt=40)
    assert pool.dispatched() == []


def test_a_tenant_at_its_in_flight_limit_does_not_wait_and_blocks_no_other(make_pool):
    pool = make_pool(
        tenants=[Tenant("A", in_flight_max=2), Tenant("B")],
        loads=[BackendLoad("gpu", requests_running_max=10)],
    )
    send_many(pool, "A", 4)
    send_many(pool, "B", 4)
    pool.dispatched()
    assert in_flight(pool) == {"A": 2, "B": 4}
    pool.end("A0")
    assert pool.dispatched() == ["A2"]


def test_a_tenant_leaves_its_in_flight_limit_without_credit_for_the_time_at_it(make_pool):
    pool = make_pool(
        tenants=[Tenant("A", in_flight_max=1), Tenant("B")],
        loads=[BackendLoad("gpu", requests_running_max=2)],
    )
    send_many(pool, "A", 5, prompt=10)
    send_many(pool, "B", 30, prompt=10)
    assert pool.dispatched() == ["A0", "B0"]
    for number in range(10):
        pool.end(f"B{number}")
        assert pool.dispatched() == [f"B{number + 1}"]
    assert (pool.counter("A"), pool.counter("B")) == (10, 110)
    pool.end("A0")
    assert pool.counter("A") == 110, "lifted like one that was away"


def test_first_come_first_served_passes_over_no_request(make_pool):
    load = BackendLoad("gpu", requests_running_max=10)
    pool = make_pool(loads=[load], share_ratio_max=0.5, fairness=Fifo)
    send_many(pool, "A", 20)
    pool.now = 1.0
    send_many(pool, "B", 20)
    assert pool.dispatched() == [f"A{number}" for number in range(10)]


def test_a_tenant_over_its_share_is_not_passed_over_further_because_another_tiers_tenant_is_passed_over_too(make_pool):
    """The prompts of G are worth much, so its tier may be passed over for long; those of A are not."""
    pool = make_pool(
        tenants=[Tenant("G", tier_id="gold"), Tenant("A"), Tenant("B")],
        tiers=[Tier("default"), Tier("gold")],
        loads=[BackendLoad("gpu", requests_running_max=8)],
        share_ratio_max=0.3,
        price=PAID_LATER,
    )
    send_many(pool, "G", 20, prompt=10_000)
    send_many(pool, "A", 20, prompt=10)
    assert len(pool.dispatched()) == 8, "four of each: there are two tiers of equal weight"
    pool.measure(BackendLoad("gpu", requests_running_max=10))
    pool.emit("A0", 1)  # the tier of A is ahead from now on
    send_many(pool, "B", 30, prompt=10)
    sent = pool.dispatched()
    for _ in range(20):
        for request_id in sent:
            pool.emit(request_id, 10)
            pool.end(request_id)
        sent = pool.dispatched()
        assert pool.service("B") - pool.service("A") <= 2 * (4 * 10 + 10 + 10)


@pytest.mark.parametrize("order", [DeficitRoundRobin, DeficitLongestPrefix])
def test_deficits_say_how_far_one_may_be_passed_over_whatever_it_received_while_the_other_was_away(make_pool, order):
    pool = make_pool(
        fairness=lambda: order(quantum_service=50.0),
        loads=[BackendLoad("gpu", requests_running_max=4)],
        share_ratio_max=0.5,
        price=PAID_LATER,
    )
    for number in range(50):
        pool.send("A", f"alone{number}")
        assert pool.dispatched() == [f"alone{number}"]
        pool.emit(f"alone{number}", 100)
        pool.end(f"alone{number}")
    send_many(pool, "A", 250)
    assert len(pool.dispatched()) == 4
    pool.measure(BackendLoad("gpu", requests_running_max=5))
    before = pool.service("A")
    send_many(pool, "B", 250)
    for _ in range(200):
        for request_id in pool.dispatched():
            pool.emit(request_id, 10)
            pool.end(request_id)
    in_flight_worth = 2 * pool.tenant("A").in_flight_tokens
    assert pool.service("B") - (pool.service("A") - before) <= 50 + in_flight_worth + 20


def test_a_share_is_of_what_may_run_and_not_of_the_seats_that_there_are(make_pool):
    load = BackendLoad("gpu", requests_running_max=100)
    pool = make_pool(loads=[load], share_ratio_max=0.5, price=PAID_LATER, limit=partial(FixedLimit, 10))
    send_many(pool, "A", 20)
    send_many(pool, "B", 20)
    assert pool.dispatched() == [f"A{number}" for number in range(5)] + [f"B{number}" for number in range(5)]
