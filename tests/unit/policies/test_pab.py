"""The prefill admission budget, by the worked example of its specification, and what follows from what it means."""

from dataclasses import replace
from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.batching.pab import DueDecode, prefill_admission_budget
from policies.step_time.model import StepTimeModel

MODEL = StepTimeModel(base_s=0.010, token_s=0.0003, context_token_s=0.5e-6)
TARGETS = {"ttft_s": 0.5, "tpot_s": 0.05}
DECODES = [DueDecode(0.10, 1000), DueDecode(0.30, 2000), DueDecode(0.60, 4000)]


def test_the_worked_example():
    budget = prefill_admission_budget(MODEL, DECODES, owed_tokens=600, **TARGETS)
    assert budget == pytest.approx(718.80, abs=0.005)


def test_without_decodes_one_step_is_paid_for():
    budget = prefill_admission_budget(MODEL, [], owed_tokens=0, **TARGETS)
    assert budget == pytest.approx((0.5 - 0.010) / 0.0003005)


def test_a_decode_that_is_due_after_the_window_costs_nothing():
    at_ease = [DueDecode(0.5, 4000)]
    assert prefill_admission_budget(MODEL, at_ease, owed_tokens=0, **TARGETS) == prefill_admission_budget(
        MODEL, [], owed_tokens=0, **TARGETS
    )


def test_more_owed_than_fits_is_a_negative_budget():
    assert prefill_admission_budget(MODEL, DECODES, owed_tokens=2000, **TARGETS) < 0


decodes = st.lists(st.builds(DueDecode, st.floats(-1, 1), st.integers(0, 10_000)), max_size=8)


@given(decodes=decodes, more=st.builds(DueDecode, st.floats(-1, 1), st.integers(0, 10_000)))
def test_a_decode_more_never_adds(decodes, more):
    def budget(running):
        return prefill_admission_budget(MODEL, running, owed_tokens=0, **TARGETS)

    assert budget([*decodes, more]) <= budget(decodes) + MODEL.base_s / 0.0003


def test_a_decode_that_is_due_at_no_time_runs_in_every_step():
    aimless = DueDecode(inf, 5000.0)
    cost_s = MODEL.step_s(new_tokens=1, context_tokens=5000, requests=1) - MODEL.base_s
    slower = replace(MODEL, base_s=MODEL.base_s + cost_s)
    budget = prefill_admission_budget(MODEL, [*DECODES, aimless], owed_tokens=0, **TARGETS)
    assert budget == pytest.approx(prefill_admission_budget(slower, DECODES, owed_tokens=0, **TARGETS))
    assert budget < prefill_admission_budget(MODEL, DECODES, owed_tokens=0, **TARGETS)


def test_a_decode_that_is_late_costs_what_one_that_is_due_now_does():
    late, due = ([DueDecode(slack_s, 1000)] for slack_s in (-60.0, 0.0))
    assert prefill_admission_budget(MODEL, late, owed_tokens=0, **TARGETS) == prefill_admission_budget(
        MODEL, due, owed_tokens=0, **TARGETS
    )
