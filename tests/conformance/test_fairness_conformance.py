"""What every order of tenants keeps to. It runs over the table: a new order is tested by being listed."""

from collections.abc import Callable
from itertools import permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.fairness import FAIRNESS, Fairness, Standing
from policies.fairness.drr import QUANTUM_SERVICE
from policies.types import Request

TENANTS = ("A", "B", "C", "D")
CIRCLES = {"drr"}  # their ties go by place in the circle, which is the order of joining; all others' by id
SERVICE_MIN, SERVICE_MAX = 10.0, 50.0

every_order = pytest.mark.parametrize("make", FAIRNESS.values(), ids=FAIRNESS.keys())

# One step of a history: which tenant, what happens to it, how much it is charged.
steps = st.lists(
    st.tuples(
        st.sampled_from(TENANTS),
        st.sampled_from(["join", "leave", "advance", "charge", "serve", "forget"]),
        st.floats(-200, 600, allow_nan=False),
        st.sets(st.sampled_from(TENANTS)),
    ),
    max_size=60,
)


def head(tenant_id: str, arrived_at: float = 0.0) -> Request:
    return Request(f"{tenant_id}@{arrived_at}", tenant_id, "m", arrived_at, 1, 1)


def anyone(_: str) -> bool:
    return True


class History:
    """Drives an order as the scheduler does, with a plain set beside it that says who waits."""

    def __init__(self, order: Fairness) -> None:
        self.order = order
        self.waiting: set[str] = set()
        self.now = 0.0

    def step(self, tenant_id: str, kind: str, service: float, ineligible: set[str]) -> str | None:
        """What was picked, where the step is one that serves."""
        self.now += 1.0
        waits = tenant_id in self.waiting
        if kind == "join" and not waits:
            self.waiting.add(tenant_id)
            self.order.joined(tenant_id, head(tenant_id, self.now))
        elif kind == "leave" and waits:
            self.leave(tenant_id)
        elif kind == "advance" and waits:
            self.order.advanced(tenant_id, head(tenant_id, self.now))
        elif kind == "forget" and not waits:
            self.order.forget(tenant_id)
        elif kind == "charge":
            self.order.charged(tenant_id, service, -service / 2)
        elif kind == "serve":
            return self.serve(lambda name: name not in ineligible, abs(service))
        return None

    def leave(self, tenant_id: str) -> None:
        self.waiting.remove(tenant_id)
        self.order.left(tenant_id)

    def serve(self, eligible: Callable[[str], bool], service: float) -> str | None:
        picked = self.order.pick(eligible)
        if picked is not None:
            self.order.charged(picked, service, 0.0)
            self.order.advanced(picked, head(picked, self.now))
        return picked


@every_order
@given(history=steps)
def test_only_tenants_that_wait_and_are_eligible_are_picked_and_somebody_is_if_there_is_one(make, history):
    course = History(make())
    for tenant_id, kind, service, ineligible in history:
        course.step(tenant_id, kind, service, ineligible)
        assert course.order.waiting_count() == len(course.waiting)
        candidates = course.waiting - ineligible
        picked = course.order.pick(lambda name, out=ineligible: name not in out)
        assert picked in candidates if candidates else picked is None


@every_order
@given(history=steps)
def test_asking_changes_nothing(make, history):
    asked, left_alone = History(make()), History(make())
    for tenant_id, kind, service, ineligible in history:
        first = asked.order.pick(anyone)
        asked.order.pick(lambda name, out=ineligible: name in out)
        assert asked.order.pick(anyone) == first
        assert asked.step(tenant_id, kind, service, ineligible) == left_alone.step(tenant_id, kind, service, ineligible)
    for tenant_id in TENANTS:
        assert asked.order.standing(tenant_id) == left_alone.order.standing(tenant_id)


@every_order
@given(history=steps)
def test_the_same_facts_give_the_same_picks(make, history):
    courses = [History(make()), History(make())]
    for step in history:
        first, second = (course.step(*step) for course in courses)
        assert first == second


@every_order
def test_nobody_starves_who_stays_eligible_while_others_come_and_go(make):
    course = History(make())
    for tenant_id in TENANTS:
        course.step(tenant_id, "join", 0.0, set())
    # Between two turns of A every other tenant may get what A's largest request and its own cost, or a quantum.
    others = len(TENANTS) - 1
    dispatches_max = others * (max(2 * SERVICE_MAX, QUANTUM_SERVICE + SERVICE_MAX) / SERVICE_MIN + 1)
    since_a = 0
    for number in range(5_000):
        if number % 7 == 0:  # D leaves and comes back all the time
            course.step("D", "leave" if "D" in course.waiting else "join", 0.0, set())
        absent = TENANTS[1 + number % 3]  # and one of the others may not send just now
        # A's requests are the largest: a careless order would let it pay for that for ever.
        picked = course.order.pick(lambda name, absent=absent: name != absent)
        course.now += 1.0
        course.order.charged(picked, SERVICE_MAX if picked == "A" else SERVICE_MIN, 0.0)
        course.order.advanced(picked, head(picked, course.now))
        since_a = 0 if picked == "A" else since_a + 1
        assert since_a <= dispatches_max


@every_order
def test_backlogged_tenants_of_equal_requests_are_served_equally_often(make):
    course, served = History(make()), dict.fromkeys(TENANTS, 0)
    for tenant_id in TENANTS:
        course.step(tenant_id, "join", 0.0, set())
    for _ in range(4 * 100):
        course.now += 1.0
        served[course.serve(anyone, SERVICE_MAX)] += 1
    quantum_dispatches = QUANTUM_SERVICE / SERVICE_MAX
    assert max(served.values()) - min(served.values()) <= quantum_dispatches


@pytest.mark.parametrize("name", sorted(FAIRNESS.keys() - CIRCLES))
def test_ties_go_by_tenant_id_in_whatever_order_tenants_joined(name):
    for joining in permutations(TENANTS):
        order, picked = FAIRNESS[name](), []
        for tenant_id in joining:
            order.joined(tenant_id, head(tenant_id))
        while (tenant_id := order.pick(anyone)) is not None:
            picked.append(tenant_id)
            order.left(tenant_id)
        assert picked == list(TENANTS)


@pytest.mark.parametrize("name", sorted(CIRCLES))
def test_ties_go_by_place_in_the_circle(name):
    for joining in permutations(TENANTS):
        order, picked = FAIRNESS[name](), []
        for tenant_id in joining:
            order.joined(tenant_id, head(tenant_id))
        while (tenant_id := order.pick(anyone)) is not None:
            picked.append(tenant_id)
            order.left(tenant_id)
        assert picked == list(joining)


@every_order
def test_a_tenant_never_seen_stands_at_zero_and_looking_does_not_make_an_account(make):
    order = make()
    assert order.standing("A") == Standing(0.0, 0.0)
    order.forget("A")
    assert order.pick(anyone) is None
    assert order.waiting_count() == 0


@every_order
def test_charges_add_up_whether_or_not_the_order_looks_at_them(make):
    order = make()
    order.charged("A", 10.0, 30.0)
    order.joined("A", head("A"))
    order.charged("A", 2.0, -10.0)
    order.left("A")
    order.charged("A", -1.0, -20.0)
    assert order.standing("A") == Standing(11.0, 0.0)
    assert order.standing("A").key == 11.0


@every_order
def test_an_account_moves_to_another_order_as_it_is(make):
    before, after = make(), make()
    before.charged("A", 70.0, 5.0)
    after.adopt("A", before.standing("A"))
    assert after.standing("A") == Standing(70.0, 5.0)
    after.joined("A", head("A"))
    assert after.pick(anyone) == "A"


@every_order
def test_a_forgotten_tenant_that_comes_back_is_a_new_one(make):
    order = make()
    for repeat in range(50):
        order.joined("A", head("A", float(repeat)))
        order.charged("A", 10.0, 1.0)
        assert order.pick(anyone) == "A"
        order.left("A")
        order.forget("A")
        assert order.standing("A") == Standing()
    assert order.pick(anyone) is None
