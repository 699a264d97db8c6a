"""Deficit longest prefix match: the worked example, its pitfalls, its bound."""

from random import Random

import pytest
from orders import Orderly

from policies.accounts.cost import LinearPrice
from policies.fairness import DeficitLongestPrefix
from policies.types import Usage

pytestmark = pytest.mark.every_scheduler


def dlpm(quantum: float, **options) -> Orderly:
    return Orderly(DeficitLongestPrefix(quantum, **options))


def deficits(pool: Orderly) -> tuple[float, float]:
    return pool.order.deficit("A"), pool.order.deficit("B")


def test_the_worked_example_comes_out_step_by_step():
    """K = 10, memory for three. By match: A1 (6 to extend), A2 (6), A3 (2), B1 (5), B2 (4). B2 waits from the
    beginning: were it to come when B has nothing waiting, the 1 that B has left would be gone.
    """
    pool = dlpm(10.0)
    for request_id, cached in (("A1", 4), ("A2", 3), ("A3", 2), ("B1", 1), ("B2", 0)):
        pool.send(request_id, cached=cached)
    assert deficits(pool) == (0, 0)
    assert pool.dispatch(6) == "A1", "both had nothing left: refilled to 10"
    assert deficits(pool) == (4, 10)
    assert pool.dispatch(6) == "A2"
    assert deficits(pool) == (-2, 10)
    assert pool.dispatch(5) == "B1", "A3 matches better and is skipped"
    assert deficits(pool) == (-2, 5)
    for tenant_id in "AAB":
        pool.order.charged(tenant_id, 2 * 2.0, 0.0)
    assert deficits(pool) == (-10, 1)
    assert pool.dispatch(4) == "B2", "B has credit: no tenant is refilled, and A3 is skipped again"
    assert deficits(pool) == (-10, -3)
    assert pool.dispatch(2) == "A3", "refilled twice: 0 is not positive"
    assert deficits(pool) == (8, -3), "a tenant with nothing waiting is not refilled"


def test_the_rule_never_idles_the_engine():
    """The worked example with unlimited memory: the second pass refills A from -2 to 8."""
    pool = dlpm(10.0)
    for request_id, cached in (("A1", 4), ("A2", 3), ("A3", 2), ("B1", 1)):
        pool.send(request_id, cached=cached)
    assert pool.dispatch(6) == "A1"
    assert pool.dispatch(6) == "A2"
    assert pool.dispatch(5) == "B1"
    assert pool.dispatch(2) == "A3"
    assert deficits(pool) == (6, 5)


def test_debt_is_not_forgiven_at_a_rejoin():
    pool = dlpm(10.0)
    pool.send("A1")
    pool.dispatch(50)
    assert pool.order.deficit("A") == -40
    pool.send("A2")
    assert pool.order.deficit("A") == -40


def test_credit_is_not_kept_while_away():
    pool = dlpm(100.0)
    pool.send("A1")
    pool.dispatch(10)
    assert pool.order.deficit("A") == 90
    pool.send("A2")
    assert pool.order.deficit("A") == 0


def test_by_default_a_match_is_followed_for_two_thousand_units_of_service():
    """A quantum without end would follow the cache for ever: longest prefix match, which promises nothing."""
    pool = Orderly(DeficitLongestPrefix())
    for number in range(5):
        pool.send(f"A{number}", cached=9)
    pool.send("B0", cached=0)
    assert [pool.dispatch(500) for _ in range(5)] == ["A0", "A1", "A2", "A3", "B0"]


def test_who_only_runs_does_not_keep_others_from_a_refill():
    pool = dlpm(10.0)
    pool.send("A1")
    pool.send("B1")
    assert pool.dispatch(1) == "A1"
    assert pool.order.deficit("A") == 9
    pool.order.charged("B", 15.0, 0.0)
    assert pool.next() == "B1"


def test_a_tenant_with_credit_that_may_not_go_leaves_the_way_to_the_one_that_owes_least_and_saves_up_nothing():
    pool = dlpm(10.0)
    for request_id in ("A1", "B1", "B2", "C1"):
        pool.send(request_id)
    pool.dispatch(1, eligible=lambda request: request.tenant_id == "A")
    pool.send("A2")
    pool.order.charged("A", -5.0, 0.0)
    pool.order.charged("B", 20.0, 0.0)
    pool.order.charged("C", 30.0, 0.0)
    before = pool.order.deficit("A")
    assert before > 0
    assert pool.dispatch(1, eligible=lambda request: request.tenant_id != "A") == "B1"
    assert pool.order.deficit("A") == before


def test_above_the_limit_of_lookups_deficits_are_enforced_all_the_same():
    pool = dlpm(10.0)
    for number in range(500):
        pool.send(f"A{number}", cached=9)
        pool.send(f"B{number}")
    served = {"A": 0, "B": 0}
    for _ in range(400):
        served[pool.dispatch(5)[0]] += 1
    assert abs(served["A"] - served["B"]) <= 2 * (5 + 10) / 5


@pytest.mark.parametrize("quantum", [1.0, 30.0, 500.0])
def test_backlogged_tenants_keep_within_the_bound_whatever_is_cached(quantum):
    """One engine of M = 100 tokens; U = max(w_e L_in, w_q M) = 200."""
    rng, pool = Random(3), dlpm(quantum)
    received, running, number = {"A": 0.0, "B": 0.0, "C": 0.0}, [], 0
    bound = 2 * (200 + quantum)
    for _ in range(3_000):
        for tenant_id in "ABC":
            while len(pool.queues.get(tenant_id, ())) < 5:
                number += 1
                pool.send(f"{tenant_id}{number}", cached=rng.randrange(20) if tenant_id == "A" else 0)
        while len(running) < 5:
            extend = float(rng.randrange(1, 20))
            request_id = pool.dispatch(extend)
            received[request_id[0]] += extend
            running.append(request_id)
        for request_id in running:
            pool.order.charged(request_id[0], 2.0, 0.0)
            received[request_id[0]] += 2.0
        running = [request_id for request_id in running if rng.random() > 0.1]
        assert max(received.values()) - min(received.values()) <= bound


def test_a_small_quantum_tends_to_the_least_served_and_a_large_one_to_the_longest_prefix():
    small, large = dlpm(1e-3), dlpm(1e9)
    for pool in (small, large):
        for number in range(4):
            pool.send(f"A{number}", cached=9)
            pool.send(f"B{number}")
    assert [each[0] for each in small.everything(10)] == list("ABABABAB")
    assert [each[0] for each in large.everything(10)] == list("AAAABBBB")


def test_in_a_pool_a_deficit_is_charged_for_what_is_not_cached_and_for_every_token(make_pool):
    orders = []

    def order() -> DeficitLongestPrefix:
        orders.append(DeficitLongestPrefix(100.0))
        return orders[-1]

    pool = make_pool(fairness=order, price=LinearPrice(prompt=1, cached_prompt=0, output=2))
    warm = {"prefix": (1, 2), "prefix_block_tokens": 16.0}
    pool.send("A", "a1", prompt=40, **warm)
    pool.dispatched()
    assert orders[-1].deficit("A") == 60
    pool.send("B", "b1", prompt=40, **warm)
    pool.dispatched()
    assert orders[-1].deficit("B") == 92
    pool.scheduler.tokens("b1", Usage(40, 32, 3), pool.now)
    pool.poll()
    assert orders[-1].deficit("B") == 92 - 6
