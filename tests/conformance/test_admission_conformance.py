"""What every admission rule keeps to. A rule is listed here when it is written."""

from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.admission import WINDOWS, BoundedQueues, RateLimiter
from policies.queues import PoolQueues
from policies.types import Request, Tenant

RULES = {
    "bounded queues": lambda: BoundedQueues(tenant_requests_max=3, tenant_bytes_max=100, requests_max=5, bytes_max=200),
    **{f"{name} window": partial(RateLimiter, lambda _: 1.0, window) for name, window in WINDOWS.items()},
}
every_rule = pytest.mark.parametrize("make", RULES.values(), ids=RULES.keys())

LIMITED = Tenant("A", requests_per_minute_max=3, queued_requests_max=3)
arrivals = st.lists(
    st.tuples(st.sampled_from("AB"), st.floats(0.0, 40.0, allow_nan=False), st.integers(0, 60)), max_size=40
)


def make_request(number: int, tenant_id: str = "A", body_bytes: int = 10) -> Request:
    return Request(f"r{number}", tenant_id, "m", 0.0, 1, 1, body_bytes=body_bytes)


def admit(rule, tenant: Tenant, queues: PoolQueues, request: Request, now: float):
    """The refusal; without one the request is queued and counted."""
    rejection = rule.check(request, tenant, queues, now)
    if rejection is None:
        rule.admitted(request, tenant, now)
        queues.append(request, now + 1e9)
    return rejection


@every_rule
@given(arrivals=arrivals)
def test_asking_counts_nothing_and_a_refusal_never_points_to_the_past(make, arrivals):
    asked, left_alone, queues, now = make(), make(), PoolQueues(), 0.0
    tenants = {"A": LIMITED, "B": Tenant("B", requests_per_minute_max=1)}
    for number, (tenant_id, pause_s, body_bytes) in enumerate(arrivals):
        now += pause_s
        request = make_request(number, tenant_id, body_bytes)
        first = asked.check(request, tenants[tenant_id], queues, now)
        assert asked.check(request, tenants[tenant_id], queues, now) == first
        assert left_alone.check(request, tenants[tenant_id], queues, now) == first
        if first is None:
            asked.admitted(request, tenants[tenant_id], now)
            left_alone.admitted(request, tenants[tenant_id], now)
            queues.append(request, now + 1e9)
        else:
            assert first.retry_after_s is None or first.retry_after_s >= 0.0


@every_rule
def test_a_limit_is_reached_and_holds_for_its_tenant_alone(make):
    rule, queues = make(), PoolQueues()
    refusals = [admit(rule, LIMITED, queues, make_request(number), now=1.0) for number in range(5)]
    assert [rejection is None for rejection in refusals] == [True, True, True, False, False]
    assert admit(rule, Tenant("B"), queues, make_request(9, "B"), now=1.0) is None


@every_rule
def test_who_comes_back_after_the_time_that_the_refusal_named_is_let_in(make):
    rule, queues, now = make(), PoolQueues(), 17.0
    for number in range(3):
        assert admit(rule, LIMITED, queues, make_request(number), now + number) is None
    now += 5.0
    rejection = rule.check(make_request(3), LIMITED, queues, now)
    if rejection.retry_after_s is None:
        queues.remove("r0")  # it follows from how the queue drains
        assert rule.check(make_request(3), LIMITED, queues, now) is None
    else:
        assert rule.check(make_request(3), LIMITED, queues, now + rejection.retry_after_s - 1e-3) is not None
        assert rule.check(make_request(3), LIMITED, queues, now + rejection.retry_after_s + 1e-3) is None


@every_rule
def test_a_forgotten_tenant_is_as_one_never_seen(make):
    rule = make()
    for number in range(3):
        rule.admitted(make_request(number), LIMITED, 1.0)
    rule.forget("A")
    rule.forget("never seen")
    assert rule.check(make_request(0), LIMITED, PoolQueues(), 1.0) is None


@every_rule
def test_a_limit_of_zero_lets_no_request_in(make):
    closed = Tenant("A", requests_per_minute_max=0, queued_requests_max=0)
    assert make().check(make_request(0), closed, PoolQueues(), 5.0) is not None


@every_rule
def test_a_limit_that_is_lowered_holds_at_once(make):
    rule, queues = make(), PoolQueues()
    for number in range(3):
        assert admit(rule, LIMITED, queues, make_request(number), now=1.0) is None
    lowered = Tenant("A", requests_per_minute_max=2, queued_requests_max=2)
    assert rule.check(make_request(3), lowered, queues, 1.0) is not None
