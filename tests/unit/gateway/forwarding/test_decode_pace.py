"""A backend's pace is learnt from answers that ended, and says how far one is that was not seen."""

import pytest

from gateway.forwarding.answers.decode_pace import TOKEN_S_AT_FIRST, DecodePace


def test_before_anything_ended_a_middling_pace_is_taken():
    assert DecodePace().tokens_after(10 * TOKEN_S_AT_FIRST) == pytest.approx(11)


def test_streams_teach_the_first_token_and_those_after_it():
    pace = DecodePace()
    pace.streamed(tokens=101, first_s=0.5, duration_s=1.5)
    assert pace.tokens_after(0.4) == 1
    assert pace.tokens_after(0.5 + 0.2) == pytest.approx(21)


def test_whole_answers_alone_teach_tokens_over_time():
    pace = DecodePace()
    for tokens in (10, 100, 1000):
        pace.whole(tokens=tokens, duration_s=tokens * 0.05)
    assert pace.tokens_after(5.0) == pytest.approx(101)


def test_a_pace_that_changed_is_followed():
    pace = DecodePace()
    for token_s in [0.01] * 20 + [0.1] * 40:
        pace.whole(tokens=100, duration_s=100 * token_s)
    assert pace.tokens_after(1.0) == pytest.approx(11, rel=0.1)


@pytest.mark.parametrize("duration_s", [0.0, 0.2])
def test_an_answer_that_came_at_once_makes_no_pace_of_zero_time_dangerous(duration_s):
    pace = DecodePace()
    pace.streamed(tokens=1, first_s=0.2, duration_s=duration_s)
    pace.whole(tokens=50, duration_s=duration_s)
    assert pace.tokens_after(1.0) >= 1
