"""The order of tenants inside an engine; tests/vllm/test_plugin.py has it inside a vLLM."""

from itertools import islice

import pytest

from backends.vllm_plugin.queue_order import TENANT_ORDERS, TENANTS_MAX, TIERS_MAX, TenantOrder
from backends.vllm_plugin.request_envelope import RequestOwner


class Queue:
    """A TenantOrder with requests named after their tenants: a0, a1, b0 ..."""

    def __init__(self, order="vtc", cached=None):
        self.cached = cached or {}
        self.order = TenantOrder(order, lambda name: self.cached.get(name, 0))
        self.arrivals = 0

    def come(self, owner, *names, prompt_tokens=100):
        for name in names:
            self.arrivals += 1
            self.order.arrived(name, owner, prompt_tokens=prompt_tokens, arrived_at=float(self.arrivals))

    def serve(self, count, *, prompt_tokens=100, output_tokens=0):
        """Choose, begin and end so many, one after the other; return their names."""
        served = []
        for _ in range(count):
            name = next(self.order.choices())
            self.order.begun(name, prompt_tokens - self.cached.get(name, 0))
            self.order.produced(name, output_tokens)
            self.order.forget(name)
            served.append(name)
        return served

    def next(self, count):
        return list(islice(self.order.choices(), count))


A, B = RequestOwner("a"), RequestOwner("b")


def names(tenant, count):
    return [f"{tenant}{number}" for number in range(count)]


def shares(served):
    return {tenant: sum(name.startswith(tenant) for name in served) for tenant in {name[0] for name in served}}


def test_the_tenant_that_received_the_least_begins_next():
    queue = Queue()
    queue.come(A, "a0", "a1")
    queue.come(B, "b0", "b1", prompt_tokens=10)
    assert queue.next(3) == ["a0", "b0", "b1"]


@pytest.mark.parametrize("order", TENANT_ORDERS)
def test_tenants_share_by_weight(order):
    queue = Queue(order)
    queue.come(RequestOwner("a", weight=3.0), *names("a", 200))
    queue.come(B, *names("b", 200))
    served = shares(queue.serve(160, output_tokens=20))
    assert served["a"] == pytest.approx(120, abs=16)


@pytest.mark.parametrize("order", TENANT_ORDERS)
def test_tiers_share_by_weight_however_many_tenants_they_have(order):
    queue = Queue(order)
    queue.come(RequestOwner("a", 1.0, "gold", 3.0), *names("a", 100))
    for tenant in "bcd":
        queue.come(RequestOwner(tenant, 1.0, "free", 1.0), *names(tenant, 100))
    served = shares(queue.serve(80))
    assert served["a"] == pytest.approx(60, abs=4)


def test_a_weight_that_changes_counts_from_the_next_request_on():
    queue = Queue()
    queue.come(RequestOwner("a", 1.0, "gold", 1.0), *names("a", 50))
    queue.come(RequestOwner("b", 1.0, "free", 1.0), *names("b", 50))
    queue.serve(10)
    queue.come(RequestOwner("a", 1.0, "gold", 4.0), "a50")
    assert shares(queue.serve(20))["a"] == pytest.approx(16, abs=2)


@pytest.mark.parametrize(("order", "apart"), [("vtc", 1), ("dlpm", 21)])  # a refill buys 20 prompts
def test_a_tenant_that_comes_back_has_earned_nothing_by_its_absence(order, apart):
    queue = Queue(order)
    queue.come(A, *names("a", 200))
    queue.come(B, "b0")
    queue.serve(101)
    queue.come(B, *(f"b{number}" for number in range(1, 100)))
    served = shares(queue.serve(80))
    assert abs(served["a"] - served["b"]) <= apart


def test_a_deficit_follows_the_cache_until_it_is_spent():
    cached = {f"a{number}": 90 for number in range(100)}
    vtc, dlpm = Queue("vtc", cached), Queue("dlpm", cached)
    for queue in (vtc, dlpm):
        queue.come(B, *names("b", 100))
        queue.come(A, *names("a", 100))
    assert shares(vtc.serve(22))["b"] >= 2
    assert dlpm.serve(100) == names("a", 100), "what is cached first, as long as there is credit"
    assert dlpm.serve(1) == ["b0"]
    dlpm = Queue("dlpm", dict.fromkeys(names("a", 100), 1))
    dlpm.come(B, *names("b", 100))
    dlpm.come(A, *names("a", 100))
    served = shares(dlpm.serve(80))
    assert served["a"] == pytest.approx(40, abs=2), "hardly cached: a refill buys 20 of each"


def test_what_was_chosen_stays_first_and_what_was_not_may_begin_all_the_same():
    queue = Queue()
    queue.come(B, "b0", "b1", "b2")
    assert queue.next(2) == ["b0", "b1"]
    queue.come(A, "a0")
    assert queue.next(3) == ["b0", "b1", "a0"]
    assert not queue.order.has_begun("b0")
    queue.order.begun("b2", 100)  # those before it wait for a grammar
    assert queue.order.has_begun("b2")
    assert queue.next(9) == ["b0", "b1", "a0"]


def test_a_prompt_is_charged_as_it_was_begun_and_not_at_all_if_it_never_was():
    queue = Queue(cached={"a0": 20})
    queue.come(A, "a0", "a1", "a2")
    queue.next(2)
    assert queue.order.rank(A) == 80 + 100
    queue.order.begun("a0", 40)
    assert queue.order.rank(A) == 40 + 100
    queue.order.forget("a1")  # its client left
    queue.order.forget("a2")
    assert queue.order.rank(A) == 40
    queue.order.produced("a0", 5)
    queue.order.forget("a0")
    assert queue.order.rank(A) == 40 + 5 * 2


def test_there_is_an_end_to_tiers_and_tenants():
    queue = Queue()
    for number in range(TENANTS_MAX + 50):
        queue.come(RequestOwner(f"t{number}", tier=f"x{number}"), f"r{number}")
        queue.serve(1)
    assert len(queue.order._tiers) == TIERS_MAX
    assert len(queue.order._tenants) <= TENANTS_MAX + 1
