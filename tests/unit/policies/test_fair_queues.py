"""Requests that wait for one backend each, chosen on arrival, and requests that only some backends will do for."""

from collections.abc import Sequence

import pytest

from policies.fairness import DeficitRoundRobin, LeastCounterFirst
from policies.fleet.fleet import REFUSED_S_MAX
from policies.placement import ArrivalPlacement, Worker
from policies.prediction import Oracle
from policies.types import BackendLoad, Outcome, Reason, Request, Tenant, Tier, Usage

pytestmark = pytest.mark.every_scheduler

X, Y = BackendLoad("x", requests_running_max=1), BackendLoad("y", requests_running_max=1)
X_ONLY, Y_ONLY = frozenset({"x"}), frozenset({"y"})


class ByName(ArrivalPlacement):
    """A request waits for the backend that its model is named after, if it is there; what is told is kept."""

    def __init__(self) -> None:
        self.told: list[tuple] = []
        self.seen: list[tuple[Worker, ...]] = []

    def assign(self, request: Request, workers: Sequence[Worker]) -> str:
        self.seen.append(tuple(workers))
        ids = [worker.id for worker in workers]
        chosen = request.endpoint if request.endpoint in ids else ids[0]
        self.told.append(("assigned", request.id, chosen))
        return chosen

    def unassigned(self, request: Request, backend_id: str) -> None:
        self.told.append(("unassigned", request.id, backend_id))

    def dispatched(self, request: Request, backend_id: str) -> None:
        self.told.append(("dispatched", request.id, backend_id))

    def returned(self, request: Request, backend_id: str) -> None:
        self.told.append(("returned", request.id, backend_id))

    def ended(self, request: Request, backend_id: str, usage: Usage) -> None:
        self.told.append(("ended", request.id, backend_id, usage.output_tokens))

    def forget(self, tenant_id: str) -> None:
        self.told.append(("forgotten", tenant_id))


@pytest.fixture
def placement():
    return ByName()


@pytest.fixture
def pool(make_pool, placement):
    return make_pool(loads=[X, Y], placement=placement)


def test_a_request_waits_for_its_backend_although_another_is_idle(pool):
    pool.send("A", "a1", endpoint="x")
    pool.send("A", "a2", endpoint="x")
    assert pool.placed() == {"a1": "x"}
    assert pool.poll() == []
    pool.end("a1")
    assert pool.placed() == {"a2": "x"}


def test_every_backend_has_counters_of_its_own_and_the_view_sums_them(make_pool, placement):
    """At x tenant A has had 100 more than B, at y nothing: there it goes first by its id."""
    pool = make_pool(loads=[X, Y], placement=placement, fairness=LeastCounterFirst)
    pool.send("A", "a1", endpoint="x", prompt=100)
    pool.dispatched()
    for tenant_id in "AB":
        for backend_id in "xy":
            pool.send(tenant_id, f"{tenant_id}-{backend_id}", endpoint=backend_id, prompt=10)
    pool.end("a1")
    assert pool.placed() == {"B-x": "x", "A-y": "y"}
    assert pool.counter("A") == 110
    assert pool.service("A") == 110
    assert pool.tenant("A").in_flight_requests == 1


def test_a_limit_of_requests_in_flight_holds_over_all_lanes(make_pool, placement):
    pool = make_pool(tenants=[Tenant("A", in_flight_max=1), Tenant("B")], loads=[X, Y], placement=placement)
    pool.send("A", "a1", endpoint="x")
    pool.send("A", "a2", endpoint="y")
    assert pool.placed() == {"a1": "x"}
    pool.end("a1")
    assert pool.placed() == {"a2": "y"}


@pytest.mark.local_scheduler  # it reads request ids at the placement
def test_deadlines_and_cancelling_reach_every_lane(make_pool, placement):
    pool = make_pool(loads=[X, Y], placement=placement, wait_s_max=10.0)
    for number, backend_id in enumerate("xxyy"):
        pool.send("A", f"a{number}", endpoint=backend_id)
    assert pool.dispatched() == ["a0", "a2"]
    pool.scheduler.cancel("a1", pool.now)
    assert pool.scheduler.next_wakeup() == 10.0
    pool.now = 10.0
    assert pool.refused() == {"a3": Reason.QUEUE_TIMEOUT}
    assert ("unassigned", "a1", "x") in placement.told
    assert ("unassigned", "a3", "y") in placement.told


@pytest.mark.local_scheduler  # it reads request ids at the placement
def test_a_placement_hears_of_a_request_from_its_arrival_to_its_end(pool, placement):
    pool.send("A", "a", endpoint="y", prompt=10)
    pool.dispatched()
    pool.come_back("a")
    pool.dispatched()
    pool.emit("a", 4)
    pool.end("a")
    pool.change(removed=["A"])
    assert placement.told == [
        ("assigned", "a", "y"),
        ("dispatched", "a", "y"),
        ("returned", "a", "y"),
        ("dispatched", "a", "y"),
        ("ended", "a", "y", 4),
        ("forgotten", "A"),
    ]


def test_a_placement_sees_how_many_wait_for_each_backend(pool, placement):
    for number in range(3):
        pool.send("A", f"a{number}", endpoint="x")
    assert [(worker.id, worker.queued_requests) for worker in placement.seen[-1]] == [("x", 2), ("y", 0)]


@pytest.mark.local_scheduler  # it reads request ids at the placement
def test_what_waits_for_a_backend_that_has_gone_waits_for_another_in_the_order_of_arrival(pool, placement):
    for number, backend_id in enumerate("xyxy"):
        pool.now = float(number)
        pool.send("A", f"a{number}", endpoint=backend_id)
    pool.measure(Y)
    assert placement.told[-4:] == [
        ("unassigned", "a0", "x"),
        ("assigned", "a0", "y"),
        ("unassigned", "a2", "x"),
        ("assigned", "a2", "y"),
    ]
    served = []
    for _ in range(4):
        ((request_id, backend_id),) = pool.placed().items()
        assert backend_id == "y"
        served.append(request_id)
        pool.end(request_id)
    assert served == ["a0", "a1", "a2", "a3"]


def test_what_runs_at_a_backend_that_has_gone_is_charged_there_until_it_ends(pool):
    pool.send("A", "a", endpoint="x", prompt=10)
    pool.dispatched()
    pool.measure(Y)
    pool.emit("a", 5)
    assert pool.counter("A") == 20
    pool.end("a")
    pool.measure(Y)
    assert pool.service("A") == 20
    assert pool.counter("A") == 0, "the counters of a backend that is gone are gone with it"


def test_without_any_other_backend_what_waits_stays_and_is_sent_when_it_comes_back(pool):
    pool.measure(X)
    pool.send("A", "a", endpoint="x")
    pool.measure(BackendLoad("x", available=False))
    assert pool.poll() == []
    pool.measure(X)
    assert pool.placed() == {"a": "x"}
    pool.send("A", "b", endpoint="x")
    pool.measure()
    pool.end("a")
    pool.measure(Y)
    assert pool.placed() == {"b": "y"}


@pytest.mark.local_scheduler  # it reads request ids at the placement
def test_a_prepaid_request_takes_along_what_it_was_charged_when_it_waits_for_another_backend(make_pool, placement):
    pool = make_pool(loads=[X, Y], placement=placement, prediction=Oracle())
    pool.send("A", "a", endpoint="x", prompt=10, output_tokens_known=5)
    pool.dispatched()
    pool.come_back("a")
    assert (pool.counter("A"), pool.rank("A")) == (10, 20)
    pool.measure(Y)
    assert (pool.counter("A"), pool.rank("A")) == (10, 20)
    x, y = (
        pool.scheduler._arrangement.fair_queues.all()
        if len(pool.scheduler._arrangement.fair_queues.all()) == 2
        else (None, *pool.scheduler._arrangement.fair_queues.all())
    )
    assert x is None or x.order.service_record(Tenant("A")).rank == 0
    assert y.order.service_record(Tenant("A")).rank == 20
    assert pool.placed() == {"a": "y"}
    pool.emit("a", 5)
    pool.end("a")
    assert pool.rank("A") == pool.counter("A") == pool.service("A") == 20


def test_a_prepaid_request_that_has_moved_may_still_leave_and_gets_all_of_it_back(pool):
    pool.send("A", "a", endpoint="x", prompt=10)
    pool.dispatched()
    pool.come_back("a")
    pool.measure(Y)
    pool.scheduler.cancel("a", pool.now)
    assert pool.service("A") == pool.counter("A") == pool.rank("A") == 0
    assert pool.poll() == []


def test_what_waits_for_a_backend_that_has_refused_for_too_long_waits_for_another(pool):
    for number in range(2):
        pool.send("A", f"a{number}", endpoint="x")
    pool.placed()
    pool.come_back("a0", hold_s=0.5)
    pool.now = 0.5
    assert pool.placed() == {"a0": "x"}
    pool.now = REFUSED_S_MAX
    pool.come_back("a0", hold_s=0.5)
    assert pool.placed() == {"a0": "y"}
    pool.send("B", "b", endpoint="x")
    pool.end("a0")
    assert set(pool.placed()) <= {"a1", "b"}
    assert pool.tenant("B").queued_requests + pool.tenant("A").queued_requests == 1


def test_a_backend_that_has_produced_a_token_has_not_refused_for_too_long(pool):
    pool.send("A", "a0", endpoint="x")
    pool.placed()
    pool.come_back("a0")
    pool.placed()
    pool.now = REFUSED_S_MAX / 2
    pool.emit("a0")
    pool.end("a0")
    pool.send("A", "a1", endpoint="x")
    pool.placed()
    pool.now = REFUSED_S_MAX + 0.1
    pool.come_back("a1")
    assert pool.placed() == {"a1": "x"}


def test_a_change_of_weight_or_tier_reaches_every_lane(make_pool, placement):
    pool = make_pool(
        tiers=[Tier("default"), Tier("gold", weight=2.0)], loads=[X, Y], placement=placement, prediction=Oracle()
    )
    for number, backend_id in enumerate("xyxy"):
        pool.send("A", f"a{number}", endpoint=backend_id, prompt=10, output_tokens_known=5)
    assert pool.dispatched() == ["a0", "a1"]
    pool.change(Tenant("A", weight=2.0, tier_id="gold"))
    assert pool.rank("A") == 20 / 2, "in each lane it was alone in its tier, at its level: it takes no counter along"
    for request_id in ("a0", "a1"):
        pool.emit(request_id, 5)
        pool.end(request_id)
    assert pool.counter("A") == pool.rank("A") == 20 / 2
    assert pool.dispatched() == ["a2", "a3"]


@pytest.mark.local_scheduler  # it reads the queues
def test_a_call_that_was_never_queued_is_charged_to_all_lanes_in_equal_parts(pool):
    pool.scheduler.spent("A", Usage(30, 0, 0), pool.now)
    assert pool.service("A") == pool.counter("A") == 30
    assert [
        fair_queue.order.service_record(Tenant("A")).counter
        for fair_queue in pool.scheduler._arrangement.fair_queues.all()
    ] == [
        15,
        15,
    ]


def test_a_tenant_is_forgotten_in_every_lane(pool):
    pool.send("A", "a", endpoint="x")
    pool.send("A", "b", endpoint="y")
    pool.dispatched()
    pool.change(removed=["A"])
    pool.end("a")
    assert "A" in pool.scheduler.snapshot(0.0).tenants
    pool.end("b", Outcome.CLIENT_DISCONNECTED)
    assert "A" not in pool.scheduler.snapshot(0.0).tenants


def test_shares_in_flight_are_of_what_one_backend_holds_where_each_has_its_lane(make_pool, placement):
    loads = [BackendLoad(name, requests_running_max=4) for name in "xy"]
    pool = make_pool(loads=loads, placement=placement, share_ratio_max=0.5)
    for number in range(8):
        pool.send("A", f"a{number}", endpoint="x")
        pool.send("B", f"b{number}", endpoint="x")
    placed = pool.placed()
    assert sorted(placed) == ["a0", "a1", "b0", "b1"]


# -- requests that only some backends will do for ------------------------------------------------------------------


def test_a_request_goes_only_to_backends_that_will_do_for_it(make_pool):
    pool = make_pool(loads=[X, Y])
    pool.send("A", "a", backend_ids=Y_ONLY)
    assert pool.placed() == {"a": "y"}


def test_a_request_for_backends_that_are_not_there_is_refused_at_once(make_pool):
    pool = make_pool(loads=[X, BackendLoad("y", available=False)])
    pool.send("A", "a", backend_ids=Y_ONLY)
    pool.send("A", "b", backend_ids=frozenset({"z"}))
    assert pool.refused() == {"a": Reason.NO_BACKEND, "b": Reason.NO_BACKEND}


def test_others_go_on_at_the_remaining_backends_while_a_request_waits_for_its_own(make_pool):
    pool = make_pool(loads=[X, Y])
    pool.send("A", "a0", backend_ids=X_ONLY)
    pool.send("A", "a1", backend_ids=X_ONLY)
    pool.send("B", "b0")
    assert pool.placed() == {"a0": "x", "b0": "y"}
    pool.send("B", "b1")
    pool.end("b0")
    assert pool.placed() == {"b1": "y"}
    pool.end("a0")
    assert pool.placed() == {"a1": "x"}


def test_a_backend_is_kept_for_a_request_that_does_not_fit_there_yet(make_pool):
    """Three backends' worth of small requests do not starve the large one that only x will do for."""
    x = BackendLoad("x", requests_running_max=10, kv_tokens_max=100)
    y = BackendLoad("y", requests_running_max=10, kv_tokens_max=100)
    pool = make_pool(loads=[x, y], headroom_ratio_max=1.0, prediction=Oracle())
    pool.send("B", "b0", prompt=60, output_tokens_known=0, backend_ids=X_ONLY)
    pool.send("B", "b1", prompt=60, output_tokens_known=0)
    assert pool.placed() == {"b0": "x", "b1": "y"}
    pool.send("A", "large", prompt=80, output_tokens_known=0, backend_ids=X_ONLY)
    for tenant_id in "CB":
        pool.send(tenant_id, f"{tenant_id}s", prompt=30, output_tokens_known=0)
    assert pool.placed() == {"Bs": "y"}, "x is kept for A, which was next"
    pool.end("b0")
    assert pool.placed() == {"large": "x"}


def test_a_tier_with_a_reserve_may_enter_it_at_a_backend_that_is_kept_for_another_tiers_request(make_pool):
    load = {"requests_running_max": 10, "kv_tokens_max": 100}
    pool = make_pool(
        tenants=[Tenant("A"), Tenant("G", tier_id="gold")],
        tiers=[Tier("default"), Tier("gold", reserve_ratio=0.2)],
        loads=[BackendLoad("x", **load), BackendLoad("y", **load)],
        headroom_ratio_max=1.0,
        prediction=Oracle(),
    )
    pool.send("A", "a0", prompt=70, output_tokens_known=0, backend_ids=X_ONLY)
    pool.send("A", "a1", prompt=70, output_tokens_known=0, backend_ids=X_ONLY)
    assert pool.placed() == {"a0": "x"}
    pool.send("G", "g0", prompt=15, output_tokens_known=0, backend_ids=X_ONLY)
    pool.send("G", "g1", prompt=15, output_tokens_known=0, backend_ids=X_ONLY)
    assert pool.placed() == {"g0": "x"}, "its reserve has room for one"


def test_what_waits_for_backends_that_have_all_left_is_refused_and_frees_its_tenant(make_pool):
    pool = make_pool(loads=[X, Y])
    pool.send("A", "a0", backend_ids=X_ONLY)
    pool.send("A", "a1", backend_ids=X_ONLY)
    pool.send("A", "a2")
    assert pool.placed() == {"a0": "x"}
    pool.measure(Y)
    actions = pool.poll()
    assert [(action.request_id, getattr(action, "reason", None)) for action in actions] == [
        ("a1", Reason.NO_BACKEND),
        ("a2", None),
    ]


def test_a_request_that_comes_back_from_its_only_backend_that_has_left_is_refused_and_charged_nothing(make_pool):
    pool = make_pool(loads=[X, Y])
    pool.send("A", "a", prompt=10, backend_ids=X_ONLY)
    pool.placed()
    pool.measure(Y)
    pool.come_back("a")
    assert pool.refused() == {"a": Reason.NO_BACKEND}
    assert pool.service("A") == pool.rank("A") == 0


def test_a_restricted_request_is_assigned_only_among_its_own(pool, placement):
    pool.send("A", "a", endpoint="x", backend_ids=Y_ONLY)
    assert [worker.id for worker in placement.seen[-1]] == ["y"]
    assert pool.placed() == {"a": "y"}


def test_a_restricted_request_does_not_move_to_a_backend_that_will_not_do(pool):
    pool.send("A", "a", endpoint="x", backend_ids=X_ONLY)
    pool.measure(Y)
    assert pool.refused() == {"a": Reason.NO_BACKEND}


def test_a_circle_of_tenants_takes_no_turn_for_a_request_that_came_back(make_pool):
    orders = []

    def order() -> DeficitRoundRobin:
        orders.append(DeficitRoundRobin(quantum_service=5.0))
        return orders[-1]

    pool = make_pool(fairness=order, loads=[X])
    pool.send("A", "a0", prompt=4)
    pool.send("A", "a1", prompt=4)
    pool.send("B", "b0", prompt=4)
    assert pool.dispatched() == ["a0"]
    assert orders[-1].deficit("A") == 1
    pool.come_back("a0")
    assert pool.dispatched() == ["a0"]
    assert orders[-1].deficit("A") == 1
    assert orders[-1].deficit("B") == 0
