"""Equinox's dual counter and Justitia's tags: their formulas, as far as they are published."""

import pytest
from orders import Orderly

from policies.fairness import AgentTags, DualCounter
from policies.fairness.experimental.justitia import call_cost


class KnownCosts:
    """What an agent will cost is written in the limit of its first call."""

    def predicted(self, request):
        return float(request.output_tokens_max)

    def ended(self, tenant_id, cost):
        """What an agent has cost changes nothing."""


class KnownAgents(AgentTags):
    def __init__(self, **options):
        super().__init__(**options)
        self.costs = KnownCosts()


def agents(kv_tokens=100.0, iterations_per_s=1.0, idle_s=10.0, kind=KnownAgents) -> Orderly:
    return Orderly(kind(kv_tokens=kv_tokens, iterations_per_s=iterations_per_s, idle_s=idle_s))


def tag_of_next(pool: Orderly, cost: int) -> float:
    """The tag of an agent of this cost that comes now: the virtual time, and its cost."""
    pool.send("Z1", output_max=cost, program="z")
    return pool.order.tag(pool.queues["Z"]["Z1"])


def test_the_cost_of_a_call_is_the_memory_it_holds_over_time():
    assert call_cost(100, 50) == 6275
    assert call_cost(10, 4) == 50


@pytest.mark.interpreted
def test_the_worked_example_of_tags_comes_out():
    """M = 100; A (100) and B (50) arrive at 0, C (50) after half an iteration."""
    pool = agents()
    pool.send("A1", output_max=100, program="a")
    pool.send("B1", output_max=50, program="b")
    assert pool.next() == "B1"
    pool.now = 0.5
    pool.send("C1", output_max=50, program="c")
    assert [pool.order.tag(pool.queues[name][f"{name}1"]) for name in "ABC"] == [100, 50, 75]
    assert pool.everything() == ["B1", "C1", "A1"]


@pytest.mark.interpreted
def test_virtual_time_is_in_token_iterations_whatever_the_pace_of_the_engine():
    """The unit trap: half an iteration takes 5 ms on an engine of 100 iterations per second."""
    pool = agents(iterations_per_s=100.0)
    pool.send("A1", output_max=100)
    pool.send("B1", output_max=100)
    pool.now = 0.005
    assert tag_of_next(pool, cost=50) == pytest.approx(25 + 50)


@pytest.mark.interpreted
def test_virtual_time_stands_still_while_no_tenant_is_present():
    pool = agents(idle_s=2.0)
    pool.send("A1", output_max=1, program="a")
    pool.dispatch()
    pool.now = 1.0
    pool.end("A1", 5)
    pool.now = 50.0
    assert tag_of_next(pool, cost=7) == 300 + 7, "a was present until it had been idle for 2 s"


@pytest.mark.interpreted
def test_an_agent_keeps_its_tag_while_it_goes_on_and_gets_a_new_one_after_it_was_idle():
    pool = agents(idle_s=10.0)
    pool.send("A1", output_max=70, program="a")
    tag = pool.order.tag(pool.queues["A"]["A1"])
    pool.dispatch()
    pool.now = 1.0
    pool.end("A1", 5)
    pool.now = 10.9
    pool.send("A2", output_max=9, program="a")
    assert pool.order.tag(pool.queues["A"]["A2"]) == tag
    pool.dispatch()
    pool.end("A2", 5)
    pool.now = 20.9
    pool.send("A3", output_max=9, program="a")
    assert pool.order.tag(pool.queues["A"]["A3"]) == 20.9 * 100 + 9


@pytest.mark.interpreted
def test_the_agent_with_the_smallest_tag_is_given_all_that_it_can_use():
    pool = agents()
    for number in range(3):
        pool.send(f"A{number}", output_max=90, program="a")
        pool.send(f"B{number}", output_max=50, program="b")
    assert pool.everything() == ["B0", "B1", "B2", "A0", "A1", "A2"]


@pytest.mark.interpreted
def test_two_agents_of_one_tenant_are_two():
    pool = agents()
    pool.send("A1", output_max=90, program="long")
    pool.send("A2", output_max=10, program="short")
    pool.send("A3", output_max=99, program="long")
    assert pool.everything() == ["A2", "A1", "A3"]


@pytest.mark.interpreted
def test_a_request_that_leaves_the_queue_unsent_lets_its_agent_end():
    pool = agents(idle_s=1.0)
    pool.send("A1", output_max=10, program="a")
    request = pool.queues["A"]["A1"]
    pool.drop("A1")
    pool.order.dropped(request, 0.0)
    pool.now = 9.0
    assert tag_of_next(pool, cost=7) == 100 + 7


def test_what_agents_of_a_tenant_have_cost_is_expected_of_the_next():
    pool = agents(kind=AgentTags, idle_s=1.0)
    pool.send("A1", prompt=10, output_max=1_000, program="first")
    assert pool.order.tag(pool.queues["A"]["A1"]) == call_cost(10, 256)
    pool.dispatch(service=1.0)
    pool.end("A1", 4)
    pool.now = 1.0
    pool.send("A2", prompt=500, output_max=1_000, program="second")
    assert pool.order.tag(pool.queues["A"]["A2"]) == 100 + 50


@pytest.mark.interpreted
def test_an_agent_that_goes_on_beyond_its_cost_is_tagged_anew():
    pool = agents(idle_s=10.0)
    pool.send("A1", prompt=10, output_max=50, program="a")  # 50 token-iterations, as 4 tokens will cost
    pool.dispatch(service=1.0)
    pool.end("A1", 4)
    pool.now = 1.0
    pool.send("A2", prompt=10, output_max=50, program="a")
    assert pool.order.tag(pool.queues["A"]["A2"]) == 100 + 50


@pytest.mark.interpreted
def test_a_program_that_never_ends_is_not_always_first():
    """Beside it come agents of the same cost, more than can be served: it is one of them, and gets the share of one."""
    pool = agents(kv_tokens=100.0, idle_s=10.0)
    order = []
    for number in range(40):
        pool.now = number * 0.5
        pool.send(f"A{number}", prompt=10, output_max=50, program="for ever")
        pool.send(f"B{number}", prompt=10, output_max=50, program=f"b{number}")
        order.append(pool.dispatch(service=1.0))
        pool.end(order[-1], 4)
    assert 1 <= sum(name.startswith("A") for name in order[-30:]) <= 15


def equinox(**options) -> Orderly:
    return Orderly(DualCounter(**options))


def test_both_counters_are_predicted_at_dispatch_and_trued_up_at_the_end():
    pool = equinox(alpha=0.7, beta=0.3, delta=0.1, output_weight=4.0, ttft_target_s=2.0)
    pool.send("A1", prompt=100)
    pool.now = 4.0
    pool.dispatch(service=1.0, expected=50.0)
    assert pool.order.counters("A") == (pytest.approx((100 + 4 * 50) / (1 + 0.1 * 4.0 / 2.0)), 0.0)
    entry = pool.entries["A1"]
    entry.first_token_at = 6.0
    pool.now = 8.0
    pool.end("A1", 30)
    # 6 s to the first token over a target of 2, and 30 tokens in 2 s on an engine that was half full.
    expected = ((100 + 4 * 30) / (1 + 0.1 * 3.0), 30 / 2.0 * 0.5)
    assert pool.order.counters("A") == (pytest.approx(expected[0]), pytest.approx(expected[1]))


def test_what_was_not_served_counts_for_nothing():
    pool = equinox()
    pool.send("A1", prompt=100)
    pool.dispatch(service=1.0, expected=50.0)
    pool.entries["A1"].service = 0.0
    pool.end("A1", 0)
    assert pool.order.counters("A") == (pytest.approx(0), pytest.approx(0))


def test_a_request_that_came_back_counts_once():
    pool = equinox()
    pool.send("A1", prompt=100)
    pool.dispatch(service=1.0)
    before = pool.order.counters("A")
    entry = pool.entries["A1"]
    entry.is_prepaid = True
    pool.order.dispatched(entry)
    assert pool.order.counters("A") == before


def test_the_least_score_of_both_counters_goes_first():
    pool = equinox(alpha=0.5, beta=0.5, delta=0.0, output_weight=1.0)
    for request_id, prompt in (("A1", 100), ("B1", 10), ("A2", 1), ("B2", 1)):
        pool.send(request_id, prompt=prompt)
    assert pool.dispatch(service=1.0) == "A1"
    assert pool.dispatch(service=1.0) == "B1"
    for request_id, output in (("A1", 20), ("B1", 60)):
        pool.entries[request_id].first_token_at = 0.0
        pool.now = 1.0
        pool.end(request_id, output)
    assert pool.order.counters("A") == (pytest.approx(120), pytest.approx(20 * 0.5))
    assert pool.order.counters("B") == (pytest.approx(70), pytest.approx(60 * 0.5))
    # A: 0.5 * 120/120 + 0.5 * 10/30 = 0.667; B: 0.5 * 70/120 + 0.5 * 30/30 = 0.792.
    assert pool.next() == "A2"


def test_the_weights_of_the_counters_decide_what_matters():
    for alpha, beta, first in ((1.0, 0.0, "B2"), (0.0, 1.0, "A2")):
        pool = equinox(alpha=alpha, beta=beta, delta=0.0, output_weight=1.0)
        for request_id, prompt in (("A1", 100), ("B1", 10), ("A2", 1), ("B2", 1)):
            pool.send(request_id, prompt=prompt)
        for request_id, output in (("A1", 20), ("B1", 60)):
            pool.dispatch(service=1.0, eligible=lambda request, name=request_id: request.id == name)
            pool.entries[request_id].first_token_at = pool.now
            pool.now += 1.0
            pool.end(request_id, output)
        assert pool.next() == first


def test_a_tenant_that_comes_back_is_lifted_in_both_counters():
    pool = equinox(delta=0.0)
    pool.send("A1", prompt=100)
    pool.send("A2", prompt=100)
    pool.dispatch(service=1.0)
    pool.send("B1", prompt=1)
    assert pool.order.counters("B") == pool.order.counters("A")


def test_weights_of_tenants_divide_both_counters():
    counters = []
    for weight in (1.0, 4.0):
        pool = equinox(delta=0.0)
        pool.send("A1", prompt=100)
        pool.dispatch(service=1.0, weight=weight)
        counters.append(pool.order.counters("A").user)
    assert counters == [100, 25]
