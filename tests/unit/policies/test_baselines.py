"""The orders and limits VTC is compared with (VTC paper, baselines and App. C.2)."""

import pytest

from policies.accounts.cost import LinearPrice
from policies.admission import WINDOWS, RateLimiter
from policies.fairness import DeficitRoundRobin, Fifo
from policies.queues import ArrivalOrder, PoolQueues
from policies.types import BackendLoad, Reason, Request, Tenant

pytestmark = pytest.mark.every_scheduler


@pytest.mark.parametrize(
    ("window", "accepted"),
    [("sliding", [True, True, False, True, False]), ("fixed", [True, True, False, True, True])],
)
def test_two_requests_a_minute_accept_what_the_worked_example_says(window, accepted):
    rate = RateLimiter(lambda _: 0.0, WINDOWS[window])
    tenant, seen = Tenant("A", requests_per_minute_max=2), []
    for now in (0.0, 10.0, 20.0, 61.0, 65.0):
        request = Request("r", "A", "m", now, 1, 1)
        refusal = rate.check(request, tenant, PoolQueues(), now)
        seen.append(refusal is None)
        if refusal is None:
            rate.admitted(request, tenant, now)
    assert seen == accepted


def test_a_refused_minute_says_when_the_window_has_room_again(make_pool):
    pool = make_pool(tenants=[Tenant("A", requests_per_minute_max=1)])
    pool.send("A", "a1")
    pool.poll()
    pool.now = 20.0
    pool.send("A", "a2")
    (refusal,) = pool.poll()
    assert (refusal.reason, refusal.retry_after_s) == (Reason.RATE_LIMITED, 40.0)


def test_a_refusal_moves_no_counter(make_pool):
    pool = make_pool(tenants=[Tenant("A", requests_per_minute_max=1), Tenant("B")])
    pool.send("B", "b1", prompt=50)
    pool.dispatched()
    pool.send("A", "a1", prompt=7)
    pool.dispatched()
    before = pool.counter("A")
    pool.send("A", "a2", prompt=7)
    assert pool.refused() == {"a2": Reason.RATE_LIMITED}
    assert pool.counter("A") == before


def test_fifo_serves_by_arrival_over_all_tenants(make_pool):
    pool = make_pool(fairness=Fifo, loads=[BackendLoad("gpu", requests_running_max=1)])
    for number, tenant_id in enumerate("AABAC"):
        pool.now = float(number)
        pool.send(tenant_id, f"{tenant_id}{number}")
    order = []
    for _ in range(5):
        (request_id,) = pool.dispatched()
        order.append(request_id)
        pool.end(request_id)
    assert order == ["A0", "A1", "B2", "A3", "C4"]


def test_deficit_round_robin_pays_off_debt_over_the_visits_of_the_worked_example(make_pool):
    orders = []

    def order() -> DeficitRoundRobin:
        orders.append(DeficitRoundRobin(quantum_service=5.0))
        return orders[-1]

    pool = make_pool(fairness=order, price=LinearPrice(1, 1, 2), loads=[BackendLoad("gpu", requests_running_max=4)])
    drr = orders[-1]
    for number in range(6):
        pool.send("A", f"a{number}", prompt=4)
        pool.send("B", f"b{number}", prompt=4)
    assert pool.dispatched() == ["a0", "a1", "b0", "b1"]
    assert (drr.deficit("A"), drr.deficit("B")) == (-3, -3)
    for request_id in ("a0", "a1", "b0", "b1"):
        pool.emit(request_id, 3)
    assert (drr.deficit("A"), drr.deficit("B")) == (-15, -15)
    pool.end("a0")
    assert pool.dispatched() == ["a2"]
    # Four refills of 5: -10, -5, 0 (still not positive), 5; then the prompt of 4 was paid.
    assert drr.deficit("A") == -15 + 4 * 5 - 4
    assert drr.deficit("B") == -15 + 3 * 5


def test_deficit_round_robin_gives_quanta_only_when_a_tenant_sends():
    drr = DeficitRoundRobin(quantum_service=5.0)
    request = Request("r", "A", "m", 0.0, 1, 1)
    drr.joined("A", ArrivalOrder([request]))
    for _ in range(100):
        assert drr.pick(lambda _: True) is request
    assert drr.deficit("A") == 0.0
