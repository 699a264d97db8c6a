"""What a backend counts of its steps says how far an answer is that was not seen, whatever else runs."""

import pytest

from backends.metrics import EngineMetrics, EngineSteps
from backends.step_counts import COUNTS_MAX, StepCounts


def metrics(*steps, running=1, drafts=None, accepted=None):
    engines = tuple(
        EngineSteps(
            engine=str(number),
            steps_total=each,
            step_tokens_total=0,
            generation_tokens_total=0,
            requests_running=running,
            kv_used_tokens=0.0,
            kv_block_tokens=16,
        )
        for number, each in enumerate(steps)
    )
    return EngineMetrics(
        requests_running=running, engine_steps=engines, drafts_total=drafts, draft_tokens_accepted_total=accepted
    )


def counts(*scrapes):
    found = StepCounts()
    for at, scrape in scrapes:
        found.scraped(scrape, at=at)
    return found


def test_a_step_is_a_token_of_every_sequence_that_ran_through_it():
    found = counts((0.0, metrics(100)), (1.0, metrics(150)), (2.0, metrics(300)))
    assert found.tokens_between(0.0, 2.0) == 200
    assert found.tokens_between(0.5, 1.5) == pytest.approx(25 + 75)


def test_since_the_last_scrape_it_goes_on_as_fast_as_before():
    assert counts((0.0, metrics(0)), (1.0, metrics(50))).tokens_between(0.0, 1.2) == pytest.approx(60)


def test_what_an_idle_backend_did_until_it_is_asked_again_it_did_for_what_it_was_sent():
    found = counts((0.0, metrics(7, running=0)))
    found.sent("a", 0.9)
    found.sent("b", 0.95)
    found.scraped(metrics(47), at=1.0)
    assert found.tokens_between(0.9, 1.0) == 40


@pytest.mark.parametrize(("ended_at", "tokens"), [(0.95, 100), (1.2, 50)])
def test_a_backend_is_idle_only_once_what_it_was_sent_has_ended(ended_at, tokens):
    """Of 100 steps after a scrape that shows no request, some are of the first one, if that had not begun by then."""
    found = counts((0.0, metrics(7)))
    found.sent("a", 0.9)
    if ended_at < 1.0:
        found.ended("a")
    found.scraped(metrics(17, running=0), at=1.0)
    found.ended("a")
    found.sent("b", 1.5)
    found.scraped(metrics(117), at=2.0)
    assert found.tokens_between(1.5, 2.0) == tokens


def test_nothing_is_done_after_the_end_of_what_ran_last():
    found = counts((0.0, metrics(0)), (1.0, metrics(50)), (1.25, metrics(60, running=0)))
    assert found.tokens_between(0.0, 1.05) == 60
    assert found.tokens_between(0.0, 9.0) == 60


def test_tokens_that_were_guessed_and_accepted_come_on_top_of_the_steps():
    found = counts((0.0, metrics(0, drafts=10, accepted=10)), (1.0, metrics(10, drafts=30, accepted=50)))
    assert found.tokens_between(0.0, 1.0) == pytest.approx(10 * (1 + 40 / 20))


def test_of_several_engines_those_count_that_worked():
    assert counts((0.0, metrics(0, 0, 5)), (1.0, metrics(40, 60, 5))).tokens_between(0.0, 1.0) == 50


@pytest.mark.parametrize("after", [metrics(3), metrics(100, 100), EngineMetrics()], ids=["restarted", "more", "silent"])
def test_another_server_than_before_has_counted_nothing_yet(after):
    assert counts((0.0, metrics(50)), (1.0, after)).tokens_between(0.0, 1.0) is None


def test_before_the_first_scrape_and_after_silence_nothing_is_known():
    assert StepCounts().tokens_between(0.0, 1.0) is None
    found = counts((1.0, metrics(0)), (2.0, metrics(10)))
    assert found.tokens_between(0.5, 2.0) is None
    found.silent()
    assert found.tokens_between(1.0, 2.0) is None
    assert not found.is_counting


def test_long_ago_is_remembered_roughly_in_little_memory():
    found = counts(*((number / 4, metrics(number * 10)) for number in range(20 * COUNTS_MAX)))
    assert len(found._at) <= COUNTS_MAX
    assert found.tokens_between(0.0, 5 * COUNTS_MAX - 0.25) == 10 * (20 * COUNTS_MAX - 1)
