"""Tokens per minute: reserved at once, settled to what was used, and told honestly."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.admission import WINDOWS, RateLimiter
from policies.admission.rate_window import WINDOW_S, SlidingWindow
from policies.prediction import LastFiveMean
from policies.queues import PoolQueues
from policies.types import BackendLoad, Outcome, RateLimit, RateLimits, Reason, Request, Tenant, Usage

pytestmark = pytest.mark.every_scheduler

ROOMY = [BackendLoad("gpu", requests_running_max=100)]
every_window = pytest.mark.parametrize("window", WINDOWS.values(), ids=WINDOWS.keys())


class TenTokens:
    """Every answer is expected to have ten tokens."""

    def predict(self, request):
        return min(10.0, request.output_tokens_max)

    def observed(self, request, output_tokens): ...

    def forget(self, tenant_id): ...


def limited_pool(make_pool, tokens_max=100, requests_max=None, **options):
    tenant = Tenant("A", tokens_per_minute_max=tokens_max, requests_per_minute_max=requests_max)
    options = {"loads": ROOMY, "sizing": TenTokens(), **options}
    pool = make_pool(tenants=[tenant, Tenant("B")], **options)
    pool.now = 120.0
    return pool


def tokens_left(pool):
    return pool.scheduler.rate_limits("A", pool.now).tokens.remaining


def test_requests_of_one_instant_cannot_pass_the_limit_together(make_pool):
    pool = limited_pool(make_pool)
    for number in range(4):
        pool.send("A", f"a{number}", prompt=20)
    pool.send("B", "b", prompt=1000)
    assert pool.refused() == {"a3": Reason.RATE_LIMITED}
    assert tokens_left(pool) == 100 - 3 * 30


def test_what_is_expected_is_no_more_than_the_request_allows(make_pool):
    pool = limited_pool(make_pool)
    pool.send("A", "a", prompt=20, output_max=3)
    assert tokens_left(pool) == 77


def test_an_answer_that_ended_has_used_what_it_used(make_pool):
    pool = limited_pool(make_pool)
    pool.send("A", "a", prompt=20)
    pool.dispatched()
    pool.now = 130.0
    pool.report("a", prompt=25, output=2, cached=24)
    assert tokens_left(pool) == 70, "until it has ended the reservation stands"
    pool.end("a")
    assert tokens_left(pool) == 73, "cached tokens are tokens"
    assert pool.scheduler.rate_limits("A", 130.0).tokens.reset_s == 50.0, "since it was admitted"


def test_what_was_used_beyond_the_reservation_counts_from_the_end_on(make_pool):
    pool = limited_pool(make_pool)
    pool.send("A", "a", prompt=20)
    pool.dispatched()
    pool.now = 150.0
    pool.report("a", prompt=20, output=85)
    pool.end("a")
    assert tokens_left(pool) == 0
    pool.now = 180.5  # what was reserved has left the minute, the other 75 have not
    assert tokens_left(pool) == 25
    pool.send("A", "b", prompt=16)
    assert pool.poll()[0].retry_after_s == 150 + WINDOW_S - pool.now


@pytest.mark.parametrize("is_too_late", [False, True])
def test_a_request_that_leaves_the_queue_gives_its_reservation_back(make_pool, is_too_late):
    pool = limited_pool(make_pool, loads=[BackendLoad("gpu", requests_running_max=1)], wait_s_max=20.0)
    pool.send("B", "b")
    pool.dispatched()
    pool.send("A", "a", prompt=40)
    pool.poll()
    assert tokens_left(pool) == 50
    if is_too_late:
        pool.now += 20.0
        assert pool.refused() == {"a": Reason.QUEUE_TIMEOUT}
    else:
        pool.scheduler.cancel("a", pool.now)
    assert tokens_left(pool) == 100


@pytest.mark.parametrize(
    ("outcome", "output", "used"),
    [
        (Outcome.CLIENT_DISCONNECTED, 4, 24),
        (Outcome.CLIENT_DISCONNECTED, 0, 20),  # the backend had its prompt
        (Outcome.BACKEND_FAILED, 4, 24),
        (Outcome.BACKEND_FAILED, 0, 0),
    ],
)
def test_an_answer_that_was_cut_short_has_used_what_was_received(make_pool, outcome, output, used):
    pool = limited_pool(make_pool)
    pool.send("A", "a", prompt=20)
    pool.dispatched()
    if output:
        pool.report("a", prompt=20, output=output)
    pool.end("a", outcome)
    assert tokens_left(pool) == 100 - used


def test_a_request_that_its_backend_would_not_take_keeps_its_reservation_until_it_is_over(make_pool):
    pool = limited_pool(make_pool)
    pool.send("A", "a", prompt=20)
    pool.dispatched()
    pool.come_back("a", hold_s=5.0)
    assert tokens_left(pool) == 70
    pool.scheduler.cancel("a", pool.now)
    assert tokens_left(pool) == 100


def test_a_prompt_over_the_whole_limit_is_refused_for_that_and_reserves_nothing(make_pool):
    pool = limited_pool(make_pool, requests_max=5)
    pool.send("A", "a", prompt=101)
    assert pool.refused() == {"a": Reason.REQUEST_TOO_LARGE}
    assert pool.scheduler.rate_limits("A", pool.now).requests.remaining == 5
    assert tokens_left(pool) == 100


def test_a_long_expected_answer_takes_the_whole_minute_and_is_not_refused_for_good(make_pool):
    pool = limited_pool(make_pool)
    pool.send("A", "a", prompt=95)
    assert pool.dispatched() == ["a"]
    assert tokens_left(pool) == 0


def test_retry_after_is_when_the_later_of_both_limits_has_room(make_pool):
    pool = limited_pool(make_pool, requests_max=2)
    pool.send("A", "a", prompt=5)
    pool.now = 130.0
    pool.send("A", "b", prompt=70)
    pool.poll()
    pool.now = 140.0
    pool.send("A", "c", prompt=20)
    (refusal,) = pool.poll()
    assert refusal.retry_after_s == 130.0 + WINDOW_S - 140.0, "a's request leaves at 180, b's tokens at 190"


def test_the_fixed_minute_is_the_clocks(make_pool):
    pool = limited_pool(make_pool, admission=[RateLimiter(lambda _: 10.0, WINDOWS["fixed"])])
    pool.now = 179.0
    pool.send("A", "a", prompt=80)
    pool.dispatched()
    pool.send("A", "b", prompt=1)
    assert pool.poll()[0].retry_after_s == 1.0
    pool.now = 180.0
    pool.send("A", "c", prompt=80)
    assert pool.dispatched() == ["c"], "twice the limit around a boundary"
    pool.end("a")  # gives nothing back to a minute it is not in
    assert tokens_left(pool) == 10


def test_calls_that_are_never_queued_count_too(make_pool):
    pool = limited_pool(make_pool, requests_max=5)
    pool.scheduler.spent("A", Usage(30, 0, 5), pool.now)
    limits = pool.scheduler.rate_limits("A", pool.now)
    assert (limits.tokens.remaining, limits.requests.remaining) == (65, 4)


def test_limits_are_told_as_they_stand_and_only_where_there_are_any(make_pool):
    pool = limited_pool(make_pool, requests_max=3)
    fresh = RateLimits(RateLimit(3, 3, 0.0), RateLimit(100, 100, 0.0))
    assert pool.scheduler.rate_limits("A", pool.now) == fresh
    assert pool.scheduler.rate_limits("B", pool.now) == RateLimits()
    assert pool.scheduler.rate_limits("nobody", pool.now) == RateLimits()
    pool.send("A", "a", prompt=20)
    pool.now += 20.0
    assert pool.scheduler.rate_limits("A", pool.now) == RateLimits(RateLimit(3, 2, 40.0), RateLimit(100, 70, 40.0))


def test_a_limit_that_is_lowered_leaves_nothing_rather_than_less(make_pool):
    pool = limited_pool(make_pool)
    pool.send("A", "a", prompt=60)
    pool.change(Tenant("A", tokens_per_minute_max=50))
    assert tokens_left(pool) == 0


def test_reservations_follow_what_was_learnt_of_the_tenant(make_pool):
    pool = limited_pool(make_pool, tokens_max=1000, sizing=LastFiveMean())
    pool.send("A", "a", prompt=1)
    pool.dispatched()
    pool.report("a", prompt=1, output=80)
    pool.end("a")
    pool.send("A", "b", prompt=1)
    assert tokens_left(pool) == 1000 - 81 - 81


calls = st.lists(
    st.tuples(st.floats(0.0, 30.0), st.integers(1, 60), st.integers(0, 60), st.booleans()), min_size=1, max_size=60
)


@every_window
@given(calls=calls)
def test_what_was_admitted_in_a_minute_never_passes_the_limit_where_nothing_was_underestimated(window, calls):
    limiter, limit = RateLimiter(lambda request: request.output_tokens_max, window), 100
    tenant = Tenant("A", tokens_per_minute_max=limit)
    now, admitted = 0.0, []
    for number, (pause_s, prompt, output, ends_at_once) in enumerate(calls):
        now += pause_s
        request = Request(f"r{number}", "A", "m", now, prompt, output)
        refusal = limiter.check(request, tenant, PoolQueues(), now)
        if refusal is not None:
            assert 0.0 <= refusal.retry_after_s <= WINDOW_S + 1e-6
            continue
        limiter.admitted(request, tenant, now)
        used = min(prompt + output, limit)
        if ends_at_once:
            used = prompt
            limiter.settled(request.id, used, now)
        admitted.append((now, used))
        if window is SlidingWindow:
            in_window = sum(used for at, used in admitted if now < at + WINDOW_S)
        else:
            in_window = sum(used for at, used in admitted if at // WINDOW_S == now // WINDOW_S)
        assert in_window <= limit
        assert limiter.limits(tenant, "", now).tokens.remaining == limit - in_window


@every_window
@given(calls=calls)
def test_books_of_a_tenant_that_waits_a_minute_are_empty(window, calls):
    limiter, tenant = RateLimiter(lambda _: 7.0, window), Tenant("A", tokens_per_minute_max=100)
    now = 0.0
    for number, (pause_s, prompt, output, is_settled) in enumerate(calls):
        now += pause_s
        request = Request(f"r{number}", "A", "m", now, prompt, output)
        limiter.admitted(request, tenant, now)
        if is_settled:
            limiter.settled(request.id, prompt + output, now + 1.0)
    now += WINDOW_S + 1.5
    assert limiter.limits(tenant, "", now).tokens == RateLimit(100, 100, 0.0)
