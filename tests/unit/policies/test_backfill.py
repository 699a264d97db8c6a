"""A request that fits nowhere holds one backend, and the others go on elsewhere, as far as it may be passed."""

import pytest

from policies.fairness import Fifo
from policies.prediction import Oracle
from policies.types import BackendLoad, Tenant, Tier

pytestmark = pytest.mark.every_scheduler

ROOM = {"requests_running_max": 100, "kv_tokens_max": 100}
XYZ = [BackendLoad(name, **ROOM) for name in "xyz"]


@pytest.fixture
def full(make_pool):
    """Three backends of 100 tokens with 60 in use by C each: x's will end last, z's first."""

    def make(loads=XYZ, **options):
        tenants = [Tenant(name) for name in "ABCDE"]
        pool = make_pool(tenants=tenants, loads=loads, headroom_ratio_max=1.0, prediction=Oracle(), **options)
        for load, left in zip(loads, (30, 20, 10), strict=False):
            only = frozenset(load.backend_id)
            pool.send("C", load.backend_id, prompt=60 - left, output_tokens_known=left, backend_ids=only)
        assert len(pool.placed()) == len(loads)
        for load in loads:
            pool.emit(load.backend_id)
        return pool

    return make


def test_the_backend_that_will_have_room_first_is_held_and_the_others_go_on_elsewhere(full):
    pool = full()
    pool.send("A", "large", prompt=80, output_tokens_known=0)
    for number in range(4):
        pool.send("BDEB"[number], f"s{number}", prompt=40, output_tokens_known=0)
    assert sorted(pool.placed().values()) == ["x", "y"]
    pool.end("z")
    assert pool.placed()["large"] == "z"


def test_room_that_comes_elsewhere_first_is_taken(full):
    pool = full()
    pool.send("A", "large", prompt=80, output_tokens_known=0)
    pool.send("B", "small", prompt=40, output_tokens_known=0)
    assert pool.placed() == {"small": "x"}
    pool.end("y")
    assert pool.placed() == {"large": "y"}


def test_each_that_fits_nowhere_holds_a_backend_of_its_own(full):
    pool = full()
    pool.send("A", "large", prompt=80, output_tokens_known=0)
    pool.send("B", "large too", prompt=80, output_tokens_known=0)
    for tenant_id in "DE":
        pool.send(tenant_id, f"small-{tenant_id}", prompt=30, output_tokens_known=0)
    assert pool.placed() == {"small-D": "x"}, "z is held for A, y for B"


def passed_by(pool):
    """Service that B is sent while A, with a request of 80 tokens, waits and what B is sent ends at once."""
    pool.send("A", "large", prompt=80, output_tokens_known=0)
    before = pool.service("B")
    for number in range(200):
        pool.send("B", f"b{number}", prompt=25, output_tokens_known=0)
    while placed := pool.placed():
        assert "z" not in placed.values()
        for request_id in placed:
            pool.end(request_id)
    return pool.service("B") - before


def test_it_is_passed_by_no_more_than_what_was_in_flight_at_its_backend_may_be_worth(full):
    """60 tokens at 2 each, and the requests that were sent at that point: two of 25."""
    assert 120 <= passed_by(full()) <= 120 + 2 * 25


def test_with_a_cap_what_the_other_has_in_flight_counts_too(full):
    """Two requests of 25 that are sent by one poll are worth 100 more."""
    assert 120 < passed_by(full(share_ratio_max=0.9)) <= 120 + 100 + 2 * 25


def test_once_it_may_not_be_passed_any_more_it_is_the_next_at_every_backend(full):
    pool = full()
    passed_by(pool)
    pool.send("D", "late", prompt=10, output_tokens_known=0)
    assert pool.placed() == {"late": "x"}, "D is not ahead of A"
    pool.end("x")
    assert pool.placed()["large"] == "x"


def test_a_tenant_with_nothing_in_flight_takes_what_the_request_will_leave_at_its_backend(full):
    pool = full(XYZ[:1])
    pool.send("A", "large", prompt=80, output_tokens_known=0)
    pool.send("B", "too large", prompt=25, output_tokens_known=0)
    pool.send("D", "light", prompt=15, output_tokens_known=0)
    assert pool.placed() == {"light": "x"}, "80 + 15 of 100"
    pool.end("x")
    assert "large" in pool.placed()


def test_a_tenant_with_nothing_in_flight_takes_what_it_gives_back_before_the_request_could_start(full):
    """What runs needs 29 steps more."""
    pool = full(XYZ[:1])
    pool.send("A", "large", prompt=80, output_tokens_known=0)
    pool.send("B", "too long", prompt=5, output_tokens_known=29)
    pool.send("D", "short", prompt=5, output_tokens_known=28)
    assert pool.placed() == {"short": "x"}


def test_one_with_something_in_flight_takes_a_gap_within_what_its_weight_entitles_it_to(full):
    """A and D are there, and C with 60 of 100 tokens: a third for each."""
    pool = full(XYZ[:1])
    pool.send("A", "large", prompt=80, output_tokens_known=0)
    for number in range(3):
        pool.send("D", f"d{number}", prompt=12, output_tokens_known=0)
    assert pool.placed() == {"d0": "x", "d1": "x"}


def test_one_that_holds_more_than_its_part_leaves_the_gaps_to_others(full):
    pool = full(XYZ[:1])
    pool.send("A", "large", prompt=80, output_tokens_known=0)
    pool.send("C", "small", prompt=10, output_tokens_known=0)
    assert pool.placed() == {}


def test_a_tier_may_enter_its_own_reserve_at_a_backend_that_is_held(make_pool):
    pool = make_pool(
        tenants=[Tenant("A"), Tenant("G", tier_id="gold")],
        tiers=[Tier("default"), Tier("gold", reserve_ratio=0.2)],
        loads=XYZ[:1],
        headroom_ratio_max=1.0,
        prediction=Oracle(),
    )
    pool.send("A", "a", prompt=50, output_tokens_known=0)
    pool.send("G", "g", prompt=5, output_tokens_known=0)
    assert len(pool.placed()) == 2
    pool.send("A", "large", prompt=80, output_tokens_known=0)
    for number in range(3):
        pool.send("G", f"g{number}", prompt=15, output_tokens_known=0)
    assert pool.placed() == {"g0": "x"}, "20 tokens are its own, and 5 of them in use"


def test_an_order_that_is_not_fair_lets_no_request_pass(full):
    pool = full(fairness=Fifo)
    pool.send("A", "large", prompt=80, output_tokens_known=0)
    pool.now = 1.0
    pool.send("B", "small", prompt=10, output_tokens_known=0)
    assert pool.placed() == {}


def test_what_is_held_for_a_request_is_forgotten_with_it(full):
    pool = full()
    pool.send("A", "large", prompt=80, output_tokens_known=0)
    pool.send("B", "small", prompt=40, output_tokens_known=0)
    assert len(pool.placed()) == 1
    pool.scheduler.cancel("large", pool.now)
    for tenant_id in "DE":
        pool.send(tenant_id, f"small-{tenant_id}", prompt=40, output_tokens_known=0)
    assert sorted(pool.placed().values()) == ["y", "z"]
