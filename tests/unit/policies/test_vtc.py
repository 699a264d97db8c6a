"""Virtual Token Counter: Sheng et al., OSDI '24, Alg. 2-4; the numbers are worked by hand."""

import pytest

from policies.accounts.cost import LinearPrice
from policies.fairness import LeastCounterFirst, VirtualTokenCounter
from policies.prediction import ExponentialAverage, LastFiveMean
from policies.queues import ArrivalOrder
from policies.types import BackendLoad, Request, Tenant

pytestmark = pytest.mark.every_scheduler


def queue_of(tenant_id: str) -> ArrivalOrder:
    return ArrivalOrder([Request("r", tenant_id, "m", 0.0, 1, 1)])


def anyone(_: Request) -> bool:
    return True


def test_the_worked_example_of_algorithm_2_comes_out_step_by_step(make_pool):
    pool = make_pool()  # w_p=1, w_q=2, two requests run at once
    pool.send("A", "a1", prompt=10)
    pool.send("A", "a2", prompt=10)
    pool.send("B", "b1", prompt=4)
    assert pool.dispatched() == ["a1", "b1"]
    assert (pool.counter("A"), pool.counter("B")) == (10, 4)
    pool.emit("a1", 3)
    pool.emit("b1", 3)
    pool.end("b1")
    assert (pool.counter("A"), pool.counter("B")) == (16, 10)
    pool.send("B", "b2", prompt=4)
    assert pool.counter("B") == 16, "lifted to the least waiting counter"
    assert pool.dispatched() == ["a2"], "a tie goes to the smaller id"
    assert (pool.counter("A"), pool.counter("B")) == (26, 16)
    pool.emit("a1", 2)
    pool.emit("a2", 2)
    pool.end("a1")
    assert (pool.counter("A"), pool.counter("B")) == (34, 16)
    assert pool.dispatched() == ["b2"]
    assert (pool.counter("A"), pool.counter("B")) == (34, 20)
    pool.emit("a2", 5)
    pool.emit("b2", 5)
    pool.end("a2")
    pool.end("b2")
    assert (pool.counter("A"), pool.counter("B")) == (44, 30)
    pool.send("C", "c1")
    assert pool.counter("C") == 30, "none waited: lifted to the tenant that left the queue last, as it is now"


def test_a_finished_request_costs_exactly_its_prompt_and_every_emitted_token(make_pool):
    pool = make_pool()
    pool.send("A", "a1", prompt=10)
    pool.dispatched()
    pool.emit("a1", 7)
    pool.end("a1")
    assert pool.service("A") == 10 + 2 * 7


def test_counters_do_not_move_while_the_pool_is_idle():
    vtc = VirtualTokenCounter()
    vtc.charged("A", 50.0, 0.0)
    vtc.joined("A", queue_of("A"))
    vtc.left("A")
    assert vtc.service_record("A").counter == 50.0


def test_a_returning_tenant_is_lifted_to_the_least_waiting_counter_not_to_a_running_one():
    vtc = VirtualTokenCounter()
    vtc.charged("running", 5.0, 0.0)
    for tenant_id, counter in (("B", 20.0), ("C", 30.0)):
        vtc.charged(tenant_id, counter, 0.0)
        vtc.joined(tenant_id, queue_of(tenant_id))
        vtc.charged(tenant_id, counter - vtc.service_record(tenant_id).counter, 0.0)
    vtc.joined("A", queue_of("A"))
    assert vtc.service_record("A").counter == 20.0


def test_a_lift_never_lowers_a_counter():
    vtc = VirtualTokenCounter()
    vtc.charged("A", 70.0, 0.0)
    vtc.joined("B", queue_of("B"))
    vtc.joined("A", queue_of("A"))
    assert vtc.service_record("A").counter == 70.0


def test_least_counter_first_gives_credit_for_absence():
    lcf = LeastCounterFirst()
    lcf.charged("B", 100.0, 0.0)
    lcf.joined("B", queue_of("B"))
    lcf.joined("A", queue_of("A"))
    assert lcf.service_record("A").counter == 0.0
    assert lcf.pick(anyone).tenant_id == "A"


def test_a_key_that_rose_or_fell_while_waiting_decides_by_what_it_is_now():
    vtc = VirtualTokenCounter()
    for tenant_id in ("A", "B", "C"):
        vtc.joined(tenant_id, queue_of(tenant_id))
    vtc.charged("A", 10.0, 0.0)
    vtc.charged("B", 5.0, 0.0)
    assert vtc.pick(anyone).tenant_id == "C"
    vtc.charged("C", 20.0, 0.0)
    assert vtc.pick(anyone).tenant_id == "B"
    vtc.charged("A", -8.0, 0.0)
    assert vtc.pick(anyone).tenant_id == "A"
    assert vtc.pick(lambda request: request.tenant_id != "A").tenant_id == "B"
    assert vtc.pick(anyone).tenant_id == "A", "passing over a tenant once does not lose it"


def test_weights_divide_the_charge_and_the_order_of_ten_dispatches_is_the_worked_one(make_pool):
    weights = {"1": 1.0, "2": 2.0, "3": 3.0, "4": 4.0}
    pool = make_pool(
        tenants=[Tenant(tenant_id, weight=weight) for tenant_id, weight in weights.items()],
        loads=[BackendLoad("gpu", requests_running_max=10)],
    )
    for tenant_id in weights:
        for number in range(10):
            pool.send(tenant_id, f"{tenant_id}-{number}", prompt=768)
    order = [request_id.split("-")[0] for request_id in pool.dispatched()]
    assert order == ["1", "2", "3", "4", "4", "3", "2", "4", "3", "4"]
    assert {tenant_id: pool.counter(tenant_id) for tenant_id in weights} == dict.fromkeys(weights, 768)


def test_prediction_with_the_codes_average_is_charged_and_refunded_as_worked(make_pool):
    pool = make_pool(prediction=ExponentialAverage())
    expectations = [  # prompt, output, key at dispatch, key at the end
        (10, 8, 10, 26),
        (10, 3, 52, 42),
        (10, 9, 66, 70),
    ]
    for number, (prompt, output, at_dispatch, at_end) in enumerate(expectations):
        request_id = f"r{number}"
        pool.send("A", request_id, prompt=prompt)
        assert pool.dispatched() == [request_id]
        assert pool.rank("A") == at_dispatch
        pool.emit(request_id, output)
        pool.end(request_id)
        assert pool.rank("A") == pool.counter("A") == at_end


def test_a_prediction_with_half_tokens_is_charged_beyond_itself_only_for_the_excess(make_pool):
    pool = make_pool(prediction=LastFiveMean())
    for number, output in enumerate((8, 3)):
        pool.send("A", f"r{number}", prompt=10)
        pool.dispatched()
        pool.emit(f"r{number}", output)
        pool.end(f"r{number}")
    before = pool.rank("A")
    pool.send("A", "r2", prompt=10)
    pool.dispatched()
    assert pool.rank("A") == before + 10 + 2 * 5.5
    pool.emit("r2", 5)
    assert pool.rank("A") == before + 10 + 2 * 5.5
    pool.emit("r2")
    assert pool.rank("A") == before + 10 + 2 * 6


def test_a_refund_is_bounded_by_the_requests_own_limit(make_pool):
    pool = make_pool(prediction=ExponentialAverage())
    pool.send("A", "long", prompt=1)
    pool.dispatched()
    pool.emit("long", 90)
    pool.end("long")
    before = pool.rank("A")
    pool.send("A", "short", prompt=1, output_max=10)
    pool.dispatched()
    assert pool.rank("A") == before + 1 + 2 * 10


def test_the_worked_example_of_prediction_and_reservation_at_the_gateway(make_pool):
    """F = 30 tokens, w = (1, 2), every request predicted at its limit of 5."""

    class AtLimit:
        def predict(self, request: Request) -> float:
            return float(request.output_tokens_max)

        def observed(self, request: Request, output_tokens: int) -> None: ...

        def forget(self, tenant_id: str) -> None: ...

    pool = make_pool(
        prediction=AtLimit(),
        loads=[BackendLoad("gpu", kv_tokens_max=30, requests_running_max=100)],
        headroom_ratio_max=1.0,
        price=LinearPrice(1, 1, 2),
    )
    for request_id in ("a1", "a2", "a3"):
        pool.send("A", request_id, prompt=5, output_max=5)
    pool.send("B", "b1", prompt=5, output_max=5)
    assert pool.dispatched() == ["a1", "b1", "a2"]
    assert (pool.rank("A"), pool.rank("B")) == (30, 15)
    pool.emit("a1", 2)
    pool.end("a1")
    assert pool.rank("A") == 24
    assert pool.scheduler.snapshot(0.0).backends["gpu"].reserved_tokens == 20
    assert pool.dispatched() == ["a3"]


@pytest.mark.parametrize("tenants", [2, 3, 5])
def test_backlogged_tenants_of_equal_weight_get_equal_service_whatever_their_lengths(make_pool, tenants):
    names = [f"t{number}" for number in range(tenants)]
    pool = make_pool(tenants=[Tenant(name) for name in names], loads=[BackendLoad("gpu", requests_running_max=1)])
    for number, name in enumerate(names):
        for repeat in range(200):
            pool.send(name, f"{name}-{repeat}", prompt=1 + number)
    for _ in range(200):
        (request_id,) = pool.dispatched()
        pool.emit(request_id, 3 + 5 * (int(request_id[1]) % 2))
        pool.end(request_id)
    services = [pool.service(name) for name in names]
    largest_request = tenants + 2 * 8
    assert max(services) - min(services) <= largest_request


def test_a_tenant_that_is_served_at_once_is_lifted_to_those_that_wait():
    order = VirtualTokenCounter()
    order.joined("a", ArrivalOrder())
    order.charged("a", 5.0, 0.0)
    order.served_at_once("b", 1.0, 0.0)
    assert order.service_record("b").counter == 6.0
