"""Learning max_num_seqs from scrapes."""

from dataclasses import replace

from backends.metrics import EngineMetrics
from backends.running_limit import KV_USED_RATIO_MAX, PROBE_S, RunningLimit

FULL = EngineMetrics(
    engines=1, requests_running=32, requests_waiting=5, requests_waiting_for_capacity=5, kv_used_ratio=0.4
)


def observed(*scrapes):
    limit = RunningLimit()
    for second, scrape in enumerate(scrapes):
        limit.observe(scrape, now=float(second))
    return limit


def full(running, finished, **changes):
    return replace(FULL, requests_running=running, requests_finished_total=finished, **changes)


def test_the_number_at_which_others_wait_while_seats_change_hands_is_the_limit():
    assert observed(full(32, 100)).limit(0.0) is None
    assert observed(full(32, 100), full(32, 103)).limit(1.0) == 32


def test_a_constant_number_without_turnover_proves_nothing():
    """A long prompt is being prefilled, and the others wait for the step's token budget."""
    assert observed(*[full(11, 100)] * 10).limit(9.0) is None


def test_turnover_may_take_several_scrapes_and_seats_may_be_empty_in_between():
    assert observed(full(32, 100), full(32, 100), full(30, 102), full(32, 104)).limit(3.0) == 32


def test_the_most_seen_running_counts():
    assert observed(full(30, 100), full(31, 101), full(32, 102), full(30, 103), full(31, 104)).limit(4.0) is None


def test_requests_that_wait_for_memory_prove_nothing():
    scrapes = [full(32, f, kv_used_ratio=KV_USED_RATIO_MAX) for f in (100, 103)]
    assert observed(*scrapes).limit(1.0) is None


def test_requests_that_wait_for_something_else_than_room_prove_nothing():
    scrapes = [full(32, f, requests_waiting_for_capacity=0) for f in (100, 103)]
    assert observed(*scrapes).limit(1.0) is None


def test_the_observations_have_to_follow_each_other():
    free = full(32, 102, requests_waiting=0, requests_waiting_for_capacity=0)
    unknown = EngineMetrics()
    for between in (free, unknown):
        assert observed(full(32, 100), between, full(32, 103)).limit(2.0) is None


def test_a_server_that_counts_neither_reasons_nor_ends_is_believed_at_the_second_scrape():
    plain = EngineMetrics(requests_running=8, requests_waiting=1)
    assert observed(plain, plain).limit(1.0) == 8


def test_a_limit_is_forgotten_when_more_is_seen_running():
    assert observed(full(32, 100), full(32, 103), full(33, 104)).limit(2.0) is None


def test_one_more_is_tried_now_and_then():
    limit = observed(full(32, 100), full(32, 103))
    assert limit.limit(1.0 + PROBE_S - 0.1) == 32
    assert limit.limit(1.0 + PROBE_S) == 33


def test_a_trial_that_waits_confirms_the_limit():
    limit = observed(full(32, 100), full(32, 103))
    now = 2.0 + PROBE_S
    limit.observe(full(32, 200, requests_waiting=1, requests_waiting_for_capacity=1), now=now)
    assert limit.limit(now) == 32
    assert limit.limit(now + PROBE_S) == 33


def test_a_trial_that_runs_refutes_the_limit():
    limit = observed(full(32, 100), full(32, 103))
    limit.observe(full(33, 200, requests_waiting=0, requests_waiting_for_capacity=0), now=40.0)
    assert limit.limit(40.0) is None


def test_a_restart_with_fewer_seats_is_learnt():
    assert observed(full(32, 100), full(32, 103), full(16, 2), full(16, 3)).limit(3.0) == 16


def test_a_server_without_measurements_keeps_its_limit():
    assert observed(full(32, 100), full(32, 103), EngineMetrics()).limit(2.0) == 32
