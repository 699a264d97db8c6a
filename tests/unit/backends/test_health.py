"""The health of backends, fed with evidence and instants."""

import pytest

from backends.health import (
    BACKOFF_S_MAX,
    BACKOFF_S_MIN,
    EJECTED_RATIO_MAX,
    EJECTED_S_MAX,
    EJECTED_S_MIN,
    FAILURES_MAX,
    TRIAL_POLLS,
    BackendHealth,
    Evidence,
    HealthState,
    keep_half,
)


def healthy(backend_id="b", now=0.0):
    health = BackendHealth(backend_id)
    health.poll_answered(now)
    assert health.state is HealthState.HEALTHY
    return health


def broken(health, now, times=FAILURES_MAX):
    """So many accidents, one after the other, the last one now."""
    for ago in reversed(range(times)):
        at = now - ago / 100
        health.report(Evidence.BROKEN, sent_at=at, now=at)


def silent(health, now, times=FAILURES_MAX):
    for _ in range(times):
        health.poll_failed(now)


def test_a_backend_is_not_available_before_it_answered():
    health = BackendHealth("b")
    assert not health.available
    health.poll_answered(0.0)
    assert health.available


def test_a_backend_that_never_answered_is_down_after_as_many_failures_as_any():
    health = BackendHealth("b")
    silent(health, 0.0, FAILURES_MAX - 1)
    assert health.state is HealthState.UNKNOWN
    silent(health, 0.0, 1)
    assert health.state is HealthState.DOWN


def test_failures_in_a_row_take_a_backend_out():
    for fail, state in ((broken, HealthState.EJECTED), (silent, HealthState.DOWN)):
        health = healthy()
        fail(health, 1.0, FAILURES_MAX - 1)
        assert health.state is HealthState.HEALTHY
        fail(health, 2.0, 1)
        assert health.state is state
        assert not health.available


def test_connections_that_are_refused_count_as_polls_that_fail():
    health = healthy()
    health.poll_failed(1.0)
    for _ in range(FAILURES_MAX - 1):
        health.report(Evidence.UNREACHABLE, sent_at=1.0, now=1.0)
    assert health.state is HealthState.DOWN


def test_a_success_in_between_starts_the_count_again():
    health = healthy()
    for second in range(5):
        broken(health, second, FAILURES_MAX - 1)
        health.report(Evidence.SERVED, sent_at=0.0, now=second)
        silent(health, second, FAILURES_MAX - 1)
        health.poll_answered(second)
    assert health.state is HealthState.HEALTHY


def test_a_good_poll_does_not_excuse_broken_answers():
    health = healthy()
    for second in range(FAILURES_MAX):
        health.poll_answered(float(second))
        health.report(Evidence.BROKEN, sent_at=float(second), now=float(second))
    assert health.state is HealthState.EJECTED


def test_a_busy_engine_is_well():
    health = healthy()
    for _ in range(10 * FAILURES_MAX):
        health.report(Evidence.BUSY, sent_at=1.0, now=1.0)
    assert health.state is HealthState.HEALTHY
    broken(health, 1.0, FAILURES_MAX - 1)
    health.report(Evidence.BUSY, sent_at=1.0, now=1.0)
    broken(health, 2.0, 1)
    assert health.state is HealthState.EJECTED, "busy is no success either"


def test_an_ejected_backend_is_on_trial_at_the_first_good_poll_after_its_backoff():
    health = healthy()
    broken(health, 10.0)
    health.poll_answered(10.0 + EJECTED_S_MIN - 0.01)
    assert health.state is HealthState.EJECTED
    health.poll_answered(10.0 + EJECTED_S_MIN)
    assert health.state is HealthState.TRIAL
    assert health.available


def test_a_trial_ends_well_with_one_request():
    health = healthy()
    broken(health, 10.0)
    health.poll_answered(20.0)
    assert health.state is HealthState.TRIAL
    health.report(Evidence.SERVED, sent_at=20.0, now=20.0)
    assert health.state is HealthState.HEALTHY
    broken(health, 21.0, FAILURES_MAX - 1)
    assert health.state is HealthState.HEALTHY, "healthy again means the full patience again"


def test_good_polls_end_the_trial_of_what_was_down_and_not_of_what_answered_them_all_the_time():
    for fail, state in ((silent, HealthState.HEALTHY), (broken, HealthState.TRIAL)):
        health = healthy()
        fail(health, 10.0)
        for _ in range(TRIAL_POLLS + 1):
            health.poll_answered(20.0)
        assert health.state is state


def test_one_failure_ends_a_trial_and_the_backoff_doubles_up_to_its_limit():
    for fail, shortest, longest in ((broken, EJECTED_S_MIN, EJECTED_S_MAX), (silent, BACKOFF_S_MIN, BACKOFF_S_MAX)):
        health, now = healthy(), 10.0
        fail(health, now)
        pauses = []
        for _ in range(7):
            pauses.append(health.retry_at - now)
            now = health.retry_at
            health.poll_answered(now)
            assert health.state is HealthState.TRIAL
            now += 0.5
            fail(health, now, 1)
            assert not health.available
        assert pauses == [min(shortest * 2**times, longest) for times in range(7)]
        assert max(pauses) == longest


def test_a_long_healthy_time_is_rewarded_with_the_shortest_backoff():
    def next_pause(healthy_s):
        health = healthy()
        broken(health, 10.0)
        health.poll_answered(20.0)
        health.report(Evidence.SERVED, sent_at=20.0, now=20.0)
        broken(health, 20.0 + healthy_s)
        return health.retry_at - (20.0 + healthy_s)

    assert next_pause(1.0) == 2 * EJECTED_S_MIN
    assert next_pause(BACKOFF_S_MAX + 1.0) == EJECTED_S_MIN


def test_an_ejected_backend_that_falls_silent_is_down():
    health = healthy()
    broken(health, 1.0)
    silent(health, 1.0)
    assert health.state is HealthState.DOWN


def test_an_ejected_backend_that_was_restarted_is_tried_as_one_that_was_down():
    health = healthy()
    broken(health, 1.0)
    silent(health, 2.0)
    health.poll_answered(2.0 + BACKOFF_S_MIN)
    assert health.state is HealthState.TRIAL


def test_a_backend_that_is_down_comes_back_by_a_trial():
    health = healthy()
    silent(health, 1.0)
    health.poll_answered(1.0 + BACKOFF_S_MIN)
    assert health.state is HealthState.TRIAL


def test_the_last_backend_that_answers_is_not_ejected():
    first, second, dead = healthy("a"), healthy("b"), BackendHealth("c")
    silent(dead, 0.0)
    broken(second, 1.0)
    keep_half([first, second, dead], 1.0)
    assert (first.state, second.state) == (HealthState.HEALTHY, HealthState.EJECTED)
    broken(first, 1.5)
    keep_half([first, second, dead], 1.5)
    assert second.state is HealthState.TRIAL, "the one that was ejected longest ago has had most time to recover"
    assert (first.state, dead.state) == (HealthState.EJECTED, HealthState.DOWN)


def test_an_ejected_backend_is_taken_back_when_the_others_go_down():
    ejected, other = healthy("a"), healthy("b")
    broken(ejected, 1.0)
    silent(other, 1.0)
    keep_half([ejected, other], 1.0)
    assert ejected.available


def test_a_pool_whose_backends_are_all_down_stays_down():
    healths = [healthy("a"), healthy("b")]
    for health in healths:
        silent(health, 1.0)
    keep_half(healths, 1.0)
    assert not any(h.available for h in healths)


def test_of_equals_the_first_by_id_are_taken_back():
    healths = [healthy(backend_id) for backend_id in ("c", "a", "b")]
    for health in healths:
        broken(health, 1.0)
    keep_half(healths, 1.0)
    assert sorted(h.backend_id for h in healths if h.available) == ["a", "b"]


@pytest.mark.parametrize("number", range(1, 10))
def test_never_more_than_half_of_those_that_answer_are_ejected(number):
    healths = [healthy(str(each)) for each in range(number)]
    dead = BackendHealth("dead")
    silent(dead, 0.0)
    for second in range(1, 40):
        for health in healths:
            if health.available:
                broken(health, float(second))
            keep_half([*healths, dead], float(second))
            ejected = sum(each.state is HealthState.EJECTED for each in healths)
            assert ejected <= EJECTED_RATIO_MAX * number
    assert ejected == number // 2


def test_one_accident_is_one_failure_however_many_streams_it_breaks():
    health = healthy()
    for stream in range(17):
        health.report(Evidence.BROKEN, sent_at=float(stream), now=20.0 + stream / 1000)
    assert health.state is HealthState.HEALTHY
    broken(health, 21.0, FAILURES_MAX - 1)
    assert health.state is HealthState.EJECTED, "three accidents are three"


def test_the_only_backend_that_dies_with_many_streams_is_not_waited_for_longer_than_after_one():
    health = healthy()
    for stream in range(17):
        health.report(Evidence.BROKEN, sent_at=float(stream), now=20.0)
        keep_half([health], 20.0)
    silent(health, 20.5)
    assert health.state is HealthState.DOWN
    assert health.retry_at == 20.5 + BACKOFF_S_MIN


def test_streams_that_break_one_after_the_other_while_polls_are_answered_are_as_many_accidents():
    health = healthy()
    for number in range(FAILURES_MAX):
        health.poll_answered(10.0 + number)
        health.report(Evidence.BROKEN, sent_at=0.0, now=10.5 + number)
    assert health.state is HealthState.EJECTED


def test_what_was_sent_before_a_backend_came_back_says_nothing_of_it():
    """Its host vanished: streams to it break when the host is back, and not before."""
    health = healthy()
    silent(health, 10.0)
    health.poll_answered(20.0)
    health.poll_answered(21.0)
    health.report(Evidence.BROKEN, sent_at=9.0, now=22.0)
    assert health.state is HealthState.TRIAL
    health.report(Evidence.BROKEN, sent_at=21.0, now=22.0)
    assert health.state is HealthState.EJECTED


def test_a_backend_that_is_back_before_its_time_serves_where_there_is_no_other():
    health, other = healthy("a"), healthy("b")
    silent(health, 1.0)
    health.poll_answered(1.0 + BACKOFF_S_MIN / 2)
    assert keep_half([health, other], 1.5) == []
    assert not health.available
    silent(other, 1.6)
    assert keep_half([health, other], 1.6) == [health]
    assert health.state is HealthState.TRIAL
