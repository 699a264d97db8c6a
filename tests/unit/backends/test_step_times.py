"""A backend's step time learnt from outside: scrapes of engines whose steps are known, and of servers that lie."""

import logging
import math
import random
from dataclasses import astuple, replace
from statistics import median

import pytest
from steady_load import CPU, GPU, Load

from backends.engine.coefficients import StepCoefficients
from backends.metrics import EngineMetrics, EngineSteps, parse_metrics
from backends.step_times import REPORTS_FRESH_S, ReportedStep, StepTimes
from policies.step_time import StepTime, StepTimeModel
from policies.step_time.learner import ERROR_RATIO_SURE


def model_of(coefficients: StepCoefficients) -> StepTimeModel:
    c = coefficients
    return StepTimeModel(c.base_s + c.overhead_s, c.token_s, c.context_token_s, c.request_s)


def watch(load: Load, learnt: StepTimes, *, seconds: float, every_s: float = 0.25, then=lambda: None) -> None:
    end = load.now + seconds
    while load.now < end:
        load.run_until(load.now + every_s)
        learnt.scraped(parse_metrics(load.text()), now=load.now)
        then()


def step_errors(learnt: StepTimes, plans) -> float:
    model = learnt.step_time.model
    return median(
        abs(
            model.step_s(new_tokens=p.new_tokens, context_tokens=p.context_tokens, requests=p.requests) / p.duration_s
            - 1
        )
        for p in plans
    )


@pytest.mark.parametrize("coefficients", [CPU, GPU])
def test_an_engine_is_learnt_from_its_counters_alone(coefficients):
    load, learnt = Load(coefficients), StepTimes("b")
    watch(load, learnt, seconds=20 if coefficients is CPU else 90)
    assert step_errors(learnt, load.plans[-1000:]) < 0.05
    assert learnt.step_time.is_sure
    assert learnt.step_time.error_ratio < 0.1


def test_prompts_that_the_cache_supplies_are_not_mistaken_for_computed_ones():
    load, learnt = Load(CPU, shared_blocks=60, prompts_max=300), StepTimes("b")
    watch(load, learnt, seconds=10)
    assert load.engine.snapshot().prefix_hits_total > 50_000
    assert learnt.step_time.model.token_s == pytest.approx(CPU.token_s, rel=0.2)


def test_time_with_nothing_running_is_not_learnt():
    load, learnt = Load(CPU, concurrent=6), StepTimes("b")
    for _ in range(50):
        load.concurrent = load.rng.randint(1, 8)
        watch(load, learnt, seconds=0.4, every_s=0.1)
        load.concurrent = 0
        watch(load, learnt, seconds=1.0, every_s=0.5)
    assert step_errors(learnt, load.plans) < 0.1
    assert learnt.step_time.error_ratio < 0.02, "nor left out as an outlier: nothing was strange"


@pytest.mark.parametrize("coefficients", [CPU, GPU])
def test_pauses_that_no_scrape_sees_are_not_learnt(coefficients):
    """One call at a time, and a pause after each that is shorter than the time between two scrapes."""
    load, learnt = Load(coefficients, concurrent=1, answers_max=400, pause_s_max=0.2), StepTimes("b")
    watch(load, learnt, seconds=60 if coefficients is CPU else 200)
    assert step_errors(learnt, load.plans) < 0.05
    assert learnt.step_time.error_ratio < 0.05


def test_scrapes_that_come_slowly_teach_as_well():
    load, learnt = Load(GPU), StepTimes("b")
    watch(load, learnt, seconds=200, every_s=2.0)
    assert step_errors(learnt, load.plans[-1000:]) < 0.1


def test_engines_behind_one_url_are_each_watched_by_themselves():
    one, other, learnt = Load(CPU, concurrent=4, seed=1), Load(CPU, concurrent=28, seed=2), StepTimes("b")
    for tick in range(1, 60):
        for load in (one, other):
            load.run_until(tick * 0.25)
        texts = parse_metrics(one.text()), parse_metrics(other.text().replace('engine="0"', 'engine="1"'))
        both = EngineMetrics(engines=2, engine_steps=texts[0].engine_steps + texts[1].engine_steps)
        learnt.scraped(both, now=tick * 0.25)
    assert step_errors(learnt, one.plans[-500:] + other.plans[-500:]) < 0.05


def test_a_server_that_was_started_again_is_learnt_on():
    load, learnt = Load(CPU), StepTimes("b")
    watch(load, learnt, seconds=10)
    again = Load(CPU, seed=2)
    again.now = load.now
    watch(again, learnt, seconds=10)
    assert step_errors(learnt, again.plans) < 0.05


def times(coefficients: StepCoefficients, factor: float) -> StepCoefficients:
    c = coefficients
    return replace(c, base_s=factor * c.base_s, token_s=factor * c.token_s, context_token_s=factor * c.context_token_s)


@pytest.mark.parametrize("factor", [0.5, 2.0, 4.0])
@pytest.mark.parametrize(
    ("slower", "prompts_max", "warm_up_s", "doubted_s"),
    [
        (0.2, 1500, 15, 2.0),  # steps of 6 ms
        pytest.param(0.4, 1500, 20, 2.0, marks=pytest.mark.long),
        pytest.param(1.25, 400, 40, 2.0, marks=pytest.mark.long),
        (2.5, 400, 60, 2.0),
        (6.0, 400, 120, 2.0),  # of 100 ms
    ],
)
def test_an_engine_that_changes_its_speed_is_doubted_in_2_s_and_known_in_4(
    slower, prompts_max, warm_up_s, doubted_s, factor
):
    """A scrape falls anywhere into a step."""
    before = times(GPU, slower)
    load, learnt, rng = Load(before, prompts_max=prompts_max), StepTimes("b"), random.Random(1)

    def scrape() -> float:
        load.run_until(load.now + 0.25)
        now = load.now + rng.random() * load.plans[-1].duration_s
        learnt.scraped(parse_metrics(load.text()), now=now)
        return now

    while load.now < warm_up_s:
        scrape()
    assert learnt.step_time.is_sure
    assert step_errors(learnt, load.plans[-50:]) < 0.1
    load.engine.coefficients = times(before, factor)
    changed_at, doubted_at, wrong_at = load.now, None, 0.0
    while load.now < changed_at + 8.0:
        after_s = scrape() - changed_at
        is_right = step_errors(learnt, [plan for plan in load.plans if plan.begun_at >= changed_at]) < ERROR_RATIO_SURE
        wrong_at = wrong_at if is_right else after_s
        if doubted_at is None and (is_right or not learnt.step_time.is_sure):
            doubted_at = after_s
    assert doubted_at is not None
    assert doubted_at < doubted_s + 0.25, "a scrape later"
    assert wrong_at < doubted_s + 2.0


def test_another_engine_behind_the_same_url_is_learnt_within_500_steps():
    slow = replace(GPU, base_s=2 * GPU.base_s, token_s=3 * GPU.token_s)
    load, learnt = Load(GPU), StepTimes("b")
    watch(load, learnt, seconds=120)
    other = Load(slow, seed=3)
    other.now = load.now
    while len(other.plans) < 500:
        other.run_until(other.now + 0.25)
        learnt.scraped(parse_metrics(other.text()), now=other.now)
    before = step_errors(learnt, load.plans[-300:])
    after = step_errors(learnt, other.plans[-300:])
    assert after < 0.15 < before
    assert learnt.step_time.is_sure


def test_steps_that_are_reported_are_learnt_exactly_and_go_before_counters():
    load, learnt = Load(CPU), StepTimes("b")
    told = 0

    def tell() -> None:
        nonlocal told
        new, told = load.plans[told:], len(load.plans)
        learnt.reported(
            [ReportedStep(p.new_tokens, p.context_tokens, p.requests, p.duration_s) for p in new], now=load.now
        )

    watch(load, learnt, seconds=5, then=tell)
    assert step_errors(learnt, load.plans) < 0.01
    assert astuple(learnt.step_time.model) == pytest.approx(astuple(model_of(CPU)), rel=0.1)


def test_counters_are_learnt_from_again_when_the_reports_have_ended():
    learnt = StepTimes("b")
    learnt.reported([ReportedStep(10, 100, 10, 1.0)] * 100, now=0.0)
    load = Load(CPU)
    watch(load, learnt, seconds=REPORTS_FRESH_S - 1)
    assert step_errors(learnt, load.plans) > 0.5
    watch(load, learnt, seconds=20)
    assert step_errors(learnt, load.plans[-500:]) < 0.1


def steps(number, **other):
    fields = {
        "engine": "0",
        "steps_total": 100 * number,
        "step_tokens_total": 1000 * number,
        "generation_tokens_total": 800 * number,
        "requests_running": 8,
        "kv_used_tokens": 4000.0,
        "kv_block_tokens": 16,
    }
    return EngineMetrics(engines=1, engine_steps=(EngineSteps(**{**fields, **other}),))


LIES = {
    "tokens run backwards": {"step_tokens_total": 5},
    "decoded tokens run backwards": {"generation_tokens_total": 5},
    "tokens without end": {"step_tokens_total": 10**300},
    "steps without end": {"steps_total": 10**300},
    "steps that take no time": {"steps_total": 10**12, "step_tokens_total": 10**13, "generation_tokens_total": 10**12},
    "memory without end": {"kv_used_tokens": 1e300},
}


@pytest.mark.parametrize("lie", LIES.values(), ids=LIES)
def test_what_no_engine_does_is_ignored_and_said_once(lie, caplog):
    start = StepTime(StepTimeModel(1e-3, 0.1e-3), error_ratio=0.1, is_sure=True)
    learnt = StepTimes("vllm-7", start)
    with caplog.at_level(logging.WARNING):
        for number in range(1, 200, 2):
            learnt.scraped(steps(number), now=0.25 * number)
            learnt.scraped(steps(number + 1, **lie), now=0.25 * (number + 1))
    assert learnt.step_time == start
    assert [record.getMessage() for record in caplog.records] == [
        "backend vllm-7: what it says of its steps cannot be, and is ignored"
    ]


@pytest.mark.parametrize("report", [(-1, 0, 1, 0.1), (10**400, 0, 1, 0.1), (1, 10**400, 1, 0.1), (1, 0, 1, math.nan)])
def test_a_report_of_a_step_that_cannot_be_spoils_no_other(report, caplog):
    learnt = StepTimes("b")
    for _ in range(100):
        learnt.reported([ReportedStep(*report), *[ReportedStep(10, 100, 10, 1.0)] * 16], now=0.0)
    assert learnt.step_time.model.step_s(new_tokens=10, context_tokens=100, requests=10) == pytest.approx(1.0, rel=0.01)
    assert len(caplog.records) == 1


def test_a_server_that_says_nothing_of_its_steps_teaches_nothing():
    learnt = StepTimes("b")
    for number in range(100):
        learnt.scraped(EngineMetrics(engines=1, requests_running=3), now=number)
    assert learnt.step_time is None


def test_what_happens_while_it_does_not_answer_is_not_learnt():
    load, learnt = Load(CPU), StepTimes("b")
    for _ in range(60):
        watch(load, learnt, seconds=0.25)
        learnt.silent()
    assert learnt.step_time is None
