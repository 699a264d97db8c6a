"""Latency against an envelope, by both definitions of time per output token."""

import pytest

from backends.simulation.answer_pace import AnswerPace
from policies.types import Request, SloEnvelope
from tests.evidence.slo_measures import is_inside

ENVELOPE = SloEnvelope(ttft_s=0.5, tpot_s=0.1)


def paced(*times: float, envelope: SloEnvelope = ENVELOPE) -> AnswerPace:
    pace = AnswerPace(Request("r", "t", "m", 0.0, 1, 100, envelope=envelope))
    for at in times:
        pace.emitted(1, at)
    return pace


def test_both_readings_are_the_largest_over_the_tokens():
    pace = paced(0.1, 0.4, 0.5, 0.6)
    assert pace.timeliness.timing().tpot_s == pytest.approx(0.3)  # the second token, since the first
    assert pace.tpot_envelope_s == pytest.approx(0.1 / 3)  # the last, since 0.5


def test_an_answer_inside_its_envelope_may_have_a_second_token_that_is_slow():
    pace = paced(0.1, 0.55, 0.6)
    assert pace.timeliness.timing().tpot_s == pytest.approx(0.45)
    assert is_inside(ENVELOPE, ttft_s=0.1, tpot_envelope_s=pace.tpot_envelope_s)


def test_one_token_behind_its_deadline_is_outside_however_early_the_last_one_is():
    late = paced(0.1, 0.61, 0.62, 0.63)
    assert late.tpot_envelope_s == pytest.approx(0.11)
    assert not is_inside(ENVELOPE, ttft_s=0.1, tpot_envelope_s=late.tpot_envelope_s)


@pytest.mark.parametrize(("ttft_s", "is_in"), [(0.5, True), (0.51, False), (None, False)])
def test_a_first_token_has_its_own_target(ttft_s, is_in):
    assert is_inside(ENVELOPE, ttft_s=ttft_s, tpot_envelope_s=None) is is_in


def test_tokens_told_at_once_are_read_as_if_told_one_by_one():
    one_by_one, at_once = paced(0.3, 0.4, 0.5, 0.6, 0.7), paced(0.3)
    at_once.emitted(4, 0.7)
    assert at_once.timeliness.timing().tpot_s == pytest.approx(one_by_one.timeliness.timing().tpot_s)
    assert at_once.tpot_envelope_s == pytest.approx(one_by_one.tpot_envelope_s)
    assert at_once.timeliness.timing().tokens_in_time == one_by_one.timeliness.timing().tokens_in_time == 5


def test_without_a_target_for_the_first_token_the_others_are_due_from_when_it_came():
    pace = paced(7.0, 7.1, 7.3, envelope=SloEnvelope(tpot_s=0.1))
    assert pace.tpot_envelope_s == pace.timeliness.timing().tpot_s == pytest.approx(0.15)


def test_a_first_token_that_is_late_does_not_make_the_others_late():
    assert paced(2.0, 2.1, 2.2).tpot_envelope_s == pytest.approx(0.1)
