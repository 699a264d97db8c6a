"""The learner of step times: numbers in, coefficients out."""

import math
import random
from dataclasses import astuple, replace
from statistics import median

import pytest

from policies.step_time import Observation, StepTime, StepTimeLearner, StepTimeModel, fit_all
from policies.step_time.fit import not_negative
from policies.step_time.learner import ERRORS_KEPT
from policies.step_time.window import AGE_MAX, KIND_ROWS_MAX, ROWS_MAX, ObservationWindow

CPU = StepTimeModel(0.95e-3, 9e-6, 0.05e-6, 35e-6)
GPU = StepTimeModel(9.9e-3, 86e-6, 0.084e-6)


def step(rng, *, prompts=True):
    """The inputs of one step: decodes of some requests, and now and then a piece of a prompt."""
    requests = rng.randint(1, 32)
    context = sum(rng.randint(50, 2000) for _ in range(requests))
    prompt = rng.randint(16, 1024) if prompts and rng.random() < 0.1 else 0
    return requests + prompt, context + prompt, requests + (prompt > 0)


def observed(model, rng, *, steps=1, noise=0.05, prompts=True):
    """So many steps of an engine, whose times differ by about `noise` from the model."""
    seconds = new = context = requests = 0.0
    for _ in range(steps):
        n, c, r = step(rng, prompts=prompts)
        seconds += model.step_s(new_tokens=n, context_tokens=c, requests=r) * math.exp(rng.gauss(0.0, noise))
        new, context, requests = new + n, context + c, requests + r
    return Observation(seconds, steps, new, context, requests)


def errors(learnt, model, *, seed=9, count=200):
    """Relative errors of what is predicted for steps without noise."""
    rng = random.Random(seed)
    seen = [observed(model, rng, noise=0.0) for _ in range(count)]
    return sorted(abs(each.predicted_s(learnt) / each.seconds - 1.0) for each in seen)


def taught(model, *, count, seed=1, start=None, **seen):
    rng, learner = random.Random(seed), StepTimeLearner(start)
    for _ in range(count):
        learner.observe(observed(model, rng, **seen))
    return learner


@pytest.mark.parametrize("model", [CPU, GPU])
@pytest.mark.parametrize("steps", [1, 25])
def test_an_engine_is_learnt_from_steps_and_from_sums_of_steps(model, steps):
    told = taught(model, count=400, steps=steps).step_time
    assert median(errors(told.model, model)) < 0.02
    assert told.is_sure
    assert told.error_ratio < 0.06


def test_without_noise_the_coefficients_come_out_as_they_are():
    told = taught(CPU, count=200, noise=0.0).step_time.model
    assert astuple(told) == pytest.approx(astuple(CPU), rel=0.02)


def test_nothing_is_believed_before_there_are_as_many_observations_as_coefficients():
    assert taught(CPU, count=3).step_time is None
    assert taught(CPU, count=5).step_time is not None
    assert not taught(CPU, count=5).step_time.is_sure


def test_what_is_configured_is_believed_until_something_is_seen():
    start = StepTime(CPU, error_ratio=0.1, is_sure=True)
    assert StepTimeLearner(start).step_time == start


def test_a_wrong_configuration_is_unlearnt():
    start = StepTime(StepTimeModel(*(10 * each for each in astuple(CPU))), error_ratio=0.1, is_sure=True)
    learner = taught(CPU, count=60, start=start)
    assert median(errors(learner.step_time.model, CPU)) < 0.05


def test_no_coefficient_is_negative_where_the_data_would_have_it_so():
    rng, learner = random.Random(3), StepTimeLearner()
    for _ in range(300):
        seen = observed(CPU, rng)
        # the longer the context, the shorter the step
        learner.observe(replace(seen, seconds=seen.seconds - 0.02e-6 * min(seen.context_token_steps, 20_000)))
        assert learner.step_time is None or min(astuple(learner.step_time.model)) >= 0.0


def test_pauses_are_not_learnt_from():
    rng, learner = random.Random(4), StepTimeLearner()
    for number in range(400):
        seen = observed(CPU, rng)
        learner.observe(replace(seen, seconds=seen.seconds + 0.5) if number % 10 == 9 else seen)
    assert learner.changes_total == 0
    assert median(errors(learner.step_time.model, CPU)) < 0.02


def test_smaller_disturbances_are_outvoted():
    rng, learner = random.Random(5), StepTimeLearner()
    for _ in range(400):
        seen = observed(CPU, rng)
        learner.observe(replace(seen, seconds=seen.seconds * rng.choice([1, 1, 1, 2.0])))
    assert median(errors(learner.step_time.model, CPU)) < 0.05


@pytest.mark.parametrize("other", [GPU, StepTimeModel(0.3e-3, 3e-6, 0.02e-6, 10e-6), replace(CPU, token_s=40e-6)])
@pytest.mark.parametrize(("steps", "error_max"), [(1, 0.04), (16, 0.12), (24, 0.2)])
def test_another_engine_is_learnt_within_500_steps(other, steps, error_max):
    rng, learner = random.Random(6), StepTimeLearner()
    for _ in range(300):
        learner.observe(observed(CPU, rng, steps=steps))
    assert learner.changes_total == 0
    for _ in range(500 // steps):
        learner.observe(observed(other, rng, steps=steps))
    assert median(errors(learner.step_time.model, other)) < error_max
    assert learner.step_time.is_sure


@pytest.mark.parametrize("times", [0.2, 4.0])
def test_another_engine_is_noticed_however_noisy_the_machine(times):
    rng, learner = random.Random(6), StepTimeLearner()
    for _ in range(400):
        learner.observe(observed(CPU, rng, noise=0.5))
    assert learner.step_time.error_ratio > 0.25
    other = StepTimeModel(*(times * each for each in astuple(CPU)))
    for _ in range(100):
        learner.observe(observed(other, rng, noise=0.5))
    assert median(errors(learner.step_time.model, other)) < 0.3


def test_an_engine_that_slows_down_little_by_little_is_followed():
    rng, learner = random.Random(7), StepTimeLearner()
    for number in range(1500):
        slower = StepTimeModel(*(each * (1 + number / 1500) for each in astuple(CPU)))
        learner.observe(observed(slower, rng, steps=8))
    told = learner.step_time
    now = StepTimeModel(*(each * 2 for each in astuple(CPU)))
    assert median(errors(told.model, now)) < 0.15
    assert told.is_sure


def test_what_decoding_alone_cannot_tell_apart_stays_as_it_was_learnt():
    rng, learner = random.Random(8), StepTimeLearner()
    for _ in range(300):
        learner.observe(observed(CPU, rng, steps=8))
    for _ in range(4 * ROWS_MAX):
        learner.observe(observed(CPU, rng, steps=8, prompts=False))
    prompt = Observation(0.0, 1, 1024, 1024, 1)
    assert prompt.predicted_s(learner.step_time.model) == pytest.approx(prompt.predicted_s(CPU), rel=0.25)


def test_a_step_of_one_request_is_remembered_through_a_long_rush():
    rng, learner = random.Random(8), StepTimeLearner()
    for number in range(3000):
        requests = 32 if number > 300 else rng.choice([1, 4, 32])
        prompt = rng.choice([0, 0, 200])
        context = requests * rng.randint(100, 1000)
        seconds = CPU.step_s(new_tokens=requests + prompt, context_tokens=context, requests=requests)
        learner.observe(Observation(seconds * rng.uniform(0.9, 1.1), 1, requests + prompt, context, requests))
    alone = learner.step_time.model.step_s(new_tokens=1, context_tokens=300, requests=1)
    assert alone == pytest.approx(CPU.step_s(new_tokens=1, context_tokens=300, requests=1), rel=0.05)


def test_work_of_another_kind_is_no_other_engine():
    rng, learner = random.Random(8), StepTimeLearner()
    for number in range(300):
        requests = rng.randint(1, 4) if number < 200 else rng.randint(24, 32)
        prompt = rng.choice([0, 8]) if number < 200 else rng.randint(500, 1000)
        context = requests * rng.randint(100, 2000)
        seconds = CPU.step_s(new_tokens=requests + prompt, context_tokens=context, requests=requests)
        learner.observe(Observation(seconds * rng.uniform(0.9, 1.1), 1, requests + prompt, context, requests))
    assert learner.changes_total == 0
    assert median(errors(learner.step_time.model, CPU)) < 0.05


def test_after_a_disturbance_what_was_known_is_known_again_at_once():
    rng, learner = random.Random(8), StepTimeLearner()
    for number in range(330):
        seen = observed(CPU, rng, steps=8)
        disturbed = 300 <= number < 318
        learner.observe(replace(seen, seconds=seen.seconds * (2.5 if disturbed else 1.0)))
    assert learner.changes_total == 1
    assert median(errors(learner.step_time.model, CPU)) < 0.02, "too soon to have been learnt anew"
    assert learner.step_time.is_sure


@pytest.mark.parametrize(("pauses", "pause_s"), [(1, 5.0), (3, 5.0), (6, 5.0), (8, 2.0)])
def test_while_the_first_steps_compile_nothing_wrong_is_learnt_for_long(pauses, pause_s):
    rng, learner = random.Random(4), StepTimeLearner()
    for number in range(60):
        seen = observed(CPU, rng, steps=8)
        learner.observe(replace(seen, seconds=seen.seconds + pause_s) if number < pauses else seen)
    assert median(errors(learner.step_time.model, CPU)) < 0.05
    assert learner.step_time.is_sure


@pytest.mark.parametrize(("noise", "is_sure"), [(0.1, True), (0.6, False)])
def test_whose_predictions_are_off_by_more_than_a_quarter_is_not_sure(noise, is_sure):
    told = taught(CPU, count=300, noise=noise).step_time
    assert (told.error_ratio <= 0.25, told.is_sure) == (is_sure, is_sure)


def test_of_every_kind_the_latest_are_remembered_and_in_all_so_many():
    window = ObservationWindow()
    for number in range(10 * ROWS_MAX):
        window.add((1.0, 2.0 ** (number % 40), 1.0, float(number)))
        assert len(window) == len(list(window)) <= ROWS_MAX
    latest = sorted(requests for *_, requests in window)
    assert latest == list(range(9 * ROWS_MAX, 10 * ROWS_MAX))
    for number in range(2 * AGE_MAX):
        window.add((1.0, 1.0, 1.0, float(number)))
    window.forget_old()
    left = [requests for *_, requests in window]
    assert left == list(range(2 * AGE_MAX - len(left), 2 * AGE_MAX))
    assert 0 < len(left) <= KIND_ROWS_MAX


def test_who_has_never_seen_a_prompt_is_not_sure():
    told = taught(CPU, count=300, steps=8, prompts=False).step_time
    assert told.error_ratio < 0.05
    assert not told.is_sure


@pytest.mark.parametrize("field", ["seconds", "steps", "new_tokens", "context_token_steps", "request_steps"])
@pytest.mark.parametrize("value", [math.nan, math.inf, -1.0, 1e300])
def test_what_cannot_be_is_counted_and_ignored(field, value):
    rng, learner = random.Random(1), taught(CPU, count=100)
    before = learner.step_time
    for _ in range(2 * ERRORS_KEPT):
        learner.observe(replace(observed(CPU, rng), **{field: value}))
    assert learner.step_time == before
    assert learner.ignored_total == 2 * ERRORS_KEPT


@pytest.mark.parametrize(("steps", "is_possible"), [(1, True), (900, True), (1_100, False), (1e12, False)])
def test_no_step_is_shorter_than_a_microsecond(steps, is_possible):
    assert Observation(1e-3, steps, 10 * steps, 0.0, steps).is_possible == is_possible


def test_an_error_is_that_of_a_prediction_made_before_the_observation_was_learnt_from():
    start = StepTime(CPU, error_ratio=0.0, is_sure=True)
    learner = StepTimeLearner(start)
    for _ in range(4):
        learner.observe(Observation(1e-3 / 0.9, 1, 1, 0, 0))  # the model says 0.959 ms
    assert learner.step_time.error_ratio == pytest.approx(1 - 0.959 * 0.9)


def test_equal_observations_teach_their_mean_and_no_nonsense():
    learner = StepTimeLearner()
    for _ in range(100):
        learner.observe(Observation(2e-3, 1, 10, 5000, 10))
    told = learner.step_time
    assert told.model.step_s(new_tokens=10, context_tokens=5000, requests=10) == pytest.approx(2e-3, rel=0.02)
    assert told.model.step_s(new_tokens=20, context_tokens=10000, requests=20) <= 4.1e-3


def test_equal_observations_give_equal_coefficients():
    assert taught(CPU, count=200).step_time == taught(CPU, count=200).step_time


def test_all_that_was_observed_can_be_fitted_at_once():
    rng = random.Random(2)
    seen = [observed(CPU, rng, steps=4) for _ in range(400)]
    assert median(errors(fit_all(seen), CPU)) < 0.01
    assert fit_all([]) is None
    assert fit_all([Observation(1.0, 0, 0, 0, 0), Observation(math.nan, 1, 1, 1, 1)]) is None


def test_the_best_of_all_choices_of_zeros_is_found():
    # by hand: free minimum (-1, 2); with the first at zero, the second is 3 / 2
    assert not_negative([[1.0, 1.0], [1.0, 2.0]], [1.0, 3.0]) == [0.0, 1.5]
    assert not_negative([[2.0, 0.0], [0.0, 4.0]], [-1.0, -1.0]) == [0.0, 0.0]
    assert not_negative([[2.0, 0.0], [0.0, 4.0]], [1.0, 1.0]) == [0.5, 0.25]
