"""What people are told of a backend's steps is what its limit goes by, and telling moves nothing."""

from dataclasses import replace

import pytest

from policies.capacity.backend import BackendCapacity, Clock
from policies.limit.knee import knee_s
from policies.pool.snapshot import backend_view
from policies.reservation import Reservation
from policies.step_time import StepTime, StepTimeModel
from policies.types import BackendLoad, SloEnvelope

# An empty step takes 10 ms, a decode 1 ms, a prompt token 1 ms: a full chunk of 100 tokens 110 ms.
MODEL = StepTimeModel(base_s=0.010, token_s=0.001)
KNOWN = StepTime(MODEL, error_ratio=0.05, is_sure=True)
LOAD = BackendLoad("gpu", step_tokens_max=100, step_time=KNOWN)


def running(load=LOAD, *, tpots=(), prompt=0):
    """A backend on which these decode, and a prompt of so many tokens is computed."""
    clock = Clock()
    capacity = BackendCapacity(load, clock=clock)
    for tpot_s in tpots:
        envelope = None if tpot_s is None else SloEnvelope(10.0, tpot_s)
        decode = Reservation("t", 1, 1, output_tokens=20.0, prompt_tokens=1, envelope=envelope)
        capacity.take(decode)
        decode.produced_tokens = 1
        capacity.started(decode)
    if prompt:
        capacity.take(Reservation("t", 1, prompt, output_tokens=20.0, prompt_tokens=prompt))
    return capacity, clock


def test_the_predicted_step_stands_beside_the_tightest_target_of_what_runs():
    capacity, _ = running(tpots=[1.0, 0.040, None])
    steps = backend_view(capacity).steps
    assert (steps.step_s, steps.step_s_max) == (pytest.approx(0.013), 0.040)


def test_where_no_envelope_is_set_the_knee_is_the_limit_if_there_is_one():
    capacity, _ = running(tpots=[None])
    assert backend_view(capacity).steps.step_s_max == knee_s(MODEL)
    no_base = replace(LOAD, step_time=replace(KNOWN, model=StepTimeModel(base_s=0.0, token_s=0.001)))
    assert backend_view(running(no_base)[0]).steps.step_s_max is None


@pytest.mark.parametrize("prompt", [0, 1, 60, 98, 99, 980, 1234])
def test_a_budget_that_no_engine_reports_is_the_one_that_placement_reckons_with(prompt):
    capacity, _ = running(tpots=[0.5, 0.5], prompt=prompt)
    steps = backend_view(capacity).steps
    assert steps.budget_tokens == pytest.approx(capacity.budget_tokens(1.0))
    assert steps.prefill_s == pytest.approx(capacity.work.prefill_s(prompt))


def test_a_budget_that_is_reported_is_told_as_it_is_less_what_was_sent_since():
    capacity, _ = running(replace(LOAD, pab_tokens=500.0, batching="fair", pab_dispatches={}), prompt=120)
    assert backend_view(capacity).steps.budget_tokens == 380.0


def test_a_model_that_limits_nothing_is_told_but_not_its_steps():
    unsure = StepTime(MODEL, error_ratio=0.9, is_sure=False)
    view = backend_view(running(replace(LOAD, step_time=unsure))[0])
    assert (view.step_time, view.steps) == (unsure, None)
    view = backend_view(running(replace(LOAD, step_time=None))[0])
    assert (view.step_time, view.steps) == (None, None)


def test_looking_moves_no_clock_of_what_is_computed():
    looked_at, left_alone = running(tpots=[0.1], prompt=1000), running(tpots=[0.1], prompt=1000)
    for now in (0.1, 0.25, 0.7):
        for _, clock in (looked_at, left_alone):
            clock.now = now
        assert backend_view(looked_at[0]).steps.prefill_s == pytest.approx(looked_at[0].work.ready_at - now)
    # To the last bit: a replay that is not looked at decides the same.
    assert looked_at[0].work.owed_tokens(0.9) == left_alone[0].work.owed_tokens(0.9)
