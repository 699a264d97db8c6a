"""What every order keeps to. It runs over the table: a new order is tested by being listed."""

from collections.abc import Callable
from functools import partial
from itertools import permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.accounts.ledger import InFlight
from policies.fairness import FAIRNESS, Fairness, ServiceRecord
from policies.fairness.dlpm import REFILL_SERVICE
from policies.fairness.drr import QUANTUM_SERVICE
from policies.fairness.slack import SECOND_KEYS, SLACK_SERVICE, SlackCounter
from policies.queues import ArrivalOrder
from policies.reservation import Reservation
from policies.types import Request, Usage

TENANTS = ("A", "B", "C", "D")
CIRCLES = {"drr"}  # their ties go by place in the circle, which is the order of joining; all others' by id
SERVICE_MIN, SERVICE_MAX = 10.0, 50.0
AHEAD_MAX = max(
    QUANTUM_SERVICE, SLACK_SERVICE, REFILL_SERVICE
)  # the most that an order's own parameter lets a tenant get ahead
RESERVATION = Reservation("default", sequences=1, tokens=1)

ORDERS = {**FAIRNESS, **{f"slack-{key}": partial(SlackCounter, second_key=key) for key in SECOND_KEYS}}

every_order = pytest.mark.parametrize("make", ORDERS.values(), ids=ORDERS.keys())

# One step of a history: which tenant, what happens to it, how much it is charged.
steps = st.lists(
    st.tuples(
        st.sampled_from(TENANTS),
        st.sampled_from(["join", "leave", "queue", "come back", "charge", "serve", "forget"]),
        st.floats(-200, 600, allow_nan=False),
        st.sets(st.sampled_from(TENANTS)),
    ),
    max_size=60,
)


def make_request(request_id: str, tenant_id: str, arrived_at: float = 0.0) -> Request:
    return Request(request_id, tenant_id, "m", arrived_at, 1, 1)


def anyone(_: Request) -> bool:
    return True


class History:
    """Drives an order as a fair queue does, with plain queues beside it that say which tenants wait."""

    def __init__(self, order: Fairness) -> None:
        self.order = order
        self.queues: dict[str, ArrivalOrder] = {}
        self.now = 0.0
        self.made = 0
        self.served: list[Request] = []
        if order.reads_prefixes:
            order.look_up_in(lambda request: hash(request.id) % 4)

    @property
    def waiting(self) -> set[str]:
        return set(self.queues)

    def step(self, tenant_id: str, kind: str, service: float, ineligible: set[str]) -> str | None:
        """The tenant that was picked, where the step is one that serves."""
        self.now += 1.0
        waits = tenant_id in self.queues
        if kind == "join" and not waits:
            self.join(tenant_id)
        elif kind == "leave" and waits:
            self.leave(tenant_id)
        elif kind == "queue" and waits:
            self.queue(tenant_id)
        elif kind == "come back" and waits:
            self.come_back(tenant_id)
        elif kind == "forget" and not waits:
            self.order.forget(tenant_id)
        elif kind == "charge":
            self.order.charged(tenant_id, service, -service / 2)
        elif kind == "serve":
            return self.serve(lambda request: request.tenant_id not in ineligible, abs(service))
        return None

    def queue(self, tenant_id: str, arrived_at: float | None = None) -> None:
        self.made += 1
        request = make_request(f"r{self.made}", tenant_id, self.now if arrived_at is None else arrived_at)
        queue = self.queues.setdefault(tenant_id, ArrivalOrder())
        queue.append(request)
        if self.order.follows_requests:
            self.order.queued(request, queue, self.now)

    def come_back(self, tenant_id: str) -> None:
        """One of the tenant's that was sent is at its head again."""
        mine = [request for request in self.served if request.tenant_id == tenant_id]
        if mine:
            self.served.remove(mine[0])
            queue = self.queues[tenant_id]
            queue.prepend(mine[0])
            if self.order.follows_requests:
                self.order.queued(mine[0], queue, self.now)

    def join(self, tenant_id: str, arrived_at: float | None = None) -> None:
        self.queue(tenant_id, arrived_at)
        self.order.joined(tenant_id, self.queues[tenant_id])

    def leave(self, tenant_id: str) -> None:
        queue = self.queues.pop(tenant_id)
        for request_id in list(queue):
            queue.remove(request_id)
        self.order.left(tenant_id)

    def serve(self, eligible: Callable[[Request], bool], service: float) -> str | None:
        """Send one request, and let another take its place in the queue."""
        picked = self.order.pick(eligible)
        if picked is None:
            return None
        tenant_id = picked.tenant_id
        entry = InFlight(picked, "gpu", RESERVATION, 0.0, 0.0, Usage(1, 0, 1), service=service, dispatched_at=self.now)
        if self.order.follows_requests:
            self.order.dispatched(entry)
        self.order.charged(tenant_id, service, 0.0)
        if self.order.follows_requests:
            self.order.ended(entry, self.now + 0.5)
        self.queue(tenant_id)
        self.queues[tenant_id].remove(picked.id)
        self.served.append(picked)
        return tenant_id


@every_order
@given(history=steps)
def test_only_tenants_that_wait_and_are_eligible_are_picked_and_one_is_if_there_is_any(make, history):
    course = History(make())
    for tenant_id, kind, service, ineligible in history:
        course.step(tenant_id, kind, service, ineligible)
        candidates = course.waiting - ineligible
        picked = course.order.pick(lambda request, out=ineligible: request.tenant_id not in out)
        if candidates:
            assert picked.tenant_id in candidates
            assert course.queues[picked.tenant_id][picked.id] is picked
        else:
            assert picked is None


@every_order
@given(history=steps)
def test_asking_changes_nothing(make, history):
    asked, left_alone = History(make()), History(make())
    for tenant_id, kind, service, ineligible in history:
        first = asked.order.pick(anyone)
        asked.order.pick(lambda request, out=ineligible: request.tenant_id in out)
        assert asked.order.pick(anyone) == first
        assert asked.step(tenant_id, kind, service, ineligible) == left_alone.step(tenant_id, kind, service, ineligible)
    for tenant_id in TENANTS:
        assert asked.order.service_record(tenant_id) == left_alone.order.service_record(tenant_id)


@every_order
@given(history=steps)
def test_the_same_facts_give_the_same_picks(make, history):
    courses = [History(make()), History(make())]
    for step in history:
        first, second = (course.step(*step) for course in courses)
        assert first == second


@every_order
def test_no_tenant_starves_that_stays_eligible_while_others_come_and_go(make):
    course = History(make())
    for tenant_id in TENANTS:
        course.join(tenant_id)
    # Between two turns of A every other tenant may get what A's largest request and its own cost, or what the order
    # lets it get ahead.
    others = len(TENANTS) - 1
    dispatches_max = others * (max(2 * SERVICE_MAX, AHEAD_MAX + SERVICE_MAX) / SERVICE_MIN + 1)
    since_a = 0
    for number in range(5_000):
        course.now += 1.0
        if number % 7 == 0:  # D leaves and comes back all the time
            course.step("D", "leave" if "D" in course.waiting else "join", 0.0, set())
        absent = TENANTS[1 + number % 3]  # and one of the others may not send just now
        # A's requests are the largest: a careless order would let it pay for that for ever.
        picked = course.order.pick(lambda request, absent=absent: request.tenant_id != absent)
        service = SERVICE_MAX if picked.tenant_id == "A" else SERVICE_MIN
        course.serve(lambda request, absent=absent: request.tenant_id != absent, service)
        since_a = 0 if picked.tenant_id == "A" else since_a + 1
        assert since_a <= dispatches_max


@every_order
def test_backlogged_tenants_of_equal_requests_are_served_equally_often(make):
    course, served = History(make()), dict.fromkeys(TENANTS, 0)
    for tenant_id in TENANTS:
        course.join(tenant_id)
    for _ in range(4 * 400):
        course.now += 1.0
        served[course.serve(anyone, SERVICE_MAX)] += 1
    assert max(served.values()) - min(served.values()) <= AHEAD_MAX / SERVICE_MAX


def picked_in_turn(course: History) -> list[str]:
    """All tenants, in the order in which they are picked when each leaves with its one request."""
    picked = []
    while (request := course.order.pick(anyone)) is not None:
        picked.append(request.tenant_id)
        course.leave(request.tenant_id)
    return picked


@pytest.mark.parametrize("name", sorted(ORDERS.keys() - CIRCLES))
def test_ties_go_by_tenant_id_in_whatever_order_tenants_joined(name):
    for joining in permutations(TENANTS):
        course = History(ORDERS[name]())
        for tenant_id in joining:
            course.join(tenant_id, arrived_at=0.0)
        if course.order.reads_prefixes:
            course.order.look_up_in(lambda _: 3)
        assert picked_in_turn(course) == list(TENANTS)


@pytest.mark.parametrize("name", sorted(CIRCLES))
def test_ties_go_by_place_in_the_circle(name):
    for joining in permutations(TENANTS):
        course = History(ORDERS[name]())
        for tenant_id in joining:
            course.join(tenant_id, arrived_at=0.0)
        assert picked_in_turn(course) == list(joining)


@every_order
def test_a_tenant_never_seen_stands_at_zero_and_looking_does_not_make_an_account(make):
    order = History(make()).order
    assert order.service_record("A") == ServiceRecord(0.0, 0.0)
    order.forget("A")
    assert order.pick(anyone) is None


@every_order
def test_charges_add_up_whether_or_not_the_order_looks_at_them(make):
    course = History(make())
    course.order.charged("A", 10.0, 30.0)
    course.join("A")
    course.order.charged("A", 2.0, -10.0)
    course.leave("A")
    course.order.charged("A", -1.0, -20.0)
    assert course.order.service_record("A") == ServiceRecord(11.0, 0.0)
    assert course.order.service_record("A").rank == 11.0


@every_order
@given(history=steps, charge=st.tuples(st.floats(0, 600), st.floats(-600, 600)))
def test_to_be_served_at_once_is_to_join_be_charged_and_leave(make, history, charge):
    at_once, in_turn = History(make()), History(make())
    for step in history:
        at_once.step(*step)
        in_turn.step(*step)
    if at_once.order.follows_requests:
        return
    for tenant_id in sorted(at_once.waiting):  # it is told of where none waits
        at_once.leave(tenant_id)
        in_turn.leave(tenant_id)
    at_once.order.served_at_once(TENANTS[0], *charge)
    in_turn.order.joined(TENANTS[0], ArrivalOrder())
    in_turn.order.charged(TENANTS[0], *charge)
    in_turn.order.left(TENANTS[0])
    for tenant_id in TENANTS:  # each is lifted to those before
        at_once.join(tenant_id)
        in_turn.join(tenant_id)
        assert at_once.order.service_record(tenant_id) == in_turn.order.service_record(tenant_id)


@every_order
@given(history=steps)
def test_the_heads_are_what_is_picked_without_the_tenants_before(make, history):
    walked, picked = History(make()), History(make())
    for step in history:
        walked.step(*step)
        picked.step(*step)
    passed: set[str] = set()
    heads = []
    for request in walked.order.heads(passed):
        assert request == picked.order.pick(anyone, passed)
        heads.append(request.tenant_id)
        passed.add(request.tenant_id)
    assert sorted(heads) == sorted(walked.waiting)
    assert walked.order.pick(anyone) == picked.order.pick(anyone)


@every_order
def test_an_account_moves_to_another_order_as_it_is(make):
    before, after = make(), History(make())
    before.charged("A", 70.0, 5.0)
    after.order.adopt("A", before.service_record("A"))
    assert after.order.service_record("A") == ServiceRecord(70.0, 5.0)
    after.join("A")
    assert after.order.pick(anyone).tenant_id == "A"


@every_order
def test_a_forgotten_tenant_that_comes_back_is_a_new_one(make):
    course = History(make())
    for _ in range(50):
        course.join("A")
        course.order.charged("A", 10.0, 1.0)
        assert course.order.pick(anyone).tenant_id == "A"
        course.leave("A")
        course.order.forget("A")
        assert course.order.service_record("A") == ServiceRecord()
    assert course.order.pick(anyone) is None


@every_order
def test_one_that_comes_back_before_its_rank_was_asked_for_is_ranked_as_if_it_had_been(make):
    asked, left_alone = History(make()), History(make())
    for history in (asked, left_alone):
        for tenant_id, kind in [("B", "join"), ("A", "join"), ("A", "serve"), ("B", "come back")]:
            if history is asked:
                history.order.pick(anyone)
            history.step(tenant_id, kind, 0.0, set())
    assert asked.step("A", "serve", 0.0, set()) == left_alone.step("A", "serve", 0.0, set())
