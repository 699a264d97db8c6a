"""The size of a full step, learnt from the scrapes of engines whose size is known, and of servers that lie."""

from dataclasses import replace
from functools import cache

import pytest
from steady_load import CPU, GPU, Load

from backends.chunk_size import ChunkSize
from backends.metrics import EngineMetrics, parse_metrics

BACKLOG = {"concurrent": 64, "slots": 128, "prompts_max": 4000, "answers_max": 60}  # prompts wait for each other
SEATS = {"concurrent": 64, "slots": 32, "prompts_max": 100, "answers_max": 30}  # they wait for seats
SECONDS = {CPU: 60, GPU: 150}
SEATS_S = {CPU: 25, GPU: 100}  # by then those that wait for each other have taught, and longer ones teach no more


@cache  # an engine is the same whatever learns from it
def scrapes(coefficients, *, from_s: float = 0.0, seconds: float | None = None, **load_options) -> list[EngineMetrics]:
    load, scraped = Load(coefficients, **load_options), []
    load.run_until(from_s)
    end = load.now + (seconds or SECONDS[coefficients])
    while load.now < end:
        load.run_until(load.now + 0.25)
        scraped.append(parse_metrics(load.text()))
    return scraped


def watch(scraped: list[EngineMetrics], learnt: ChunkSize, *, lie=lambda metrics: metrics) -> list[int | None]:
    found = []
    for metrics in scraped:
        learnt.scraped(lie(metrics))
        found.append(learnt.tokens_max)
    return found


@pytest.mark.parametrize("coefficients", [CPU, GPU])
@pytest.mark.parametrize("tokens_max", [256, 700, 2048])
def test_the_size_of_a_full_step_is_learnt_while_prompts_wait(coefficients, tokens_max):
    found = watch(scrapes(coefficients, step_tokens_max=tokens_max, **BACKLOG), ChunkSize())
    assert found[0] is None
    assert found[-1] is not None
    for size in set(found) - {None}:
        assert size == pytest.approx(tokens_max, rel=0.05)


@pytest.mark.parametrize("coefficients", [CPU, pytest.param(GPU, marks=pytest.mark.long)])
@pytest.mark.parametrize("other", [{}, {"prompts_max": 400}, {"slots": 8}, {"answers_max": 4}])
def test_who_waits_for_a_seat_says_nothing(coefficients, other):
    scraped = scrapes(coefficients, step_tokens_max=2048, seconds=SEATS_S[coefficients], **SEATS | other)
    assert set(watch(scraped, ChunkSize())) == {None}


def test_a_few_seats_with_a_long_prompt_in_one_of_them_say_nothing():
    """Fewer decode than there are slots, then; and what waits still waits for a slot."""
    assert set(watch(scrapes(CPU, step_tokens_max=512, **BACKLOG | {"slots": 6}), ChunkSize())) == {None}


def test_where_no_request_waits_nothing_is_learnt():
    assert set(watch(scrapes(CPU, step_tokens_max=2048, **BACKLOG | {"concurrent": 6}), ChunkSize())) == {None}


def test_steps_that_the_server_does_not_count_are_not_mistaken_for_large_ones():
    """Answers of a token or two, and no others: most steps only cut a prompt, and are in no counter."""
    assert set(watch(scrapes(CPU, step_tokens_max=256, **BACKLOG | {"answers_max": 2}), ChunkSize())) == {None}


def test_a_pool_whose_memory_is_full_says_nothing():
    scraped = scrapes(CPU, step_tokens_max=256, **BACKLOG)
    full = watch(scraped, ChunkSize(), lie=lambda said: replace(said, kv_used_ratio=0.95))
    assert set(full) == {None}


def test_an_engine_that_was_started_again_is_learnt_anew():
    learnt = ChunkSize()
    watch(scrapes(CPU, step_tokens_max=512, **BACKLOG), learnt)
    assert learnt.tokens_max == pytest.approx(512, rel=0.05)
    found = watch(scrapes(CPU, step_tokens_max=256, **BACKLOG), learnt)
    assert found[0] is None, "its counters began anew"
    assert found[-1] == pytest.approx(256, rel=0.05)


def test_an_engine_exchanged_between_two_scrapes_is_learnt_too():
    """It has counted more meanwhile than the one before: nothing tells them apart but what is seen from now on."""
    learnt = ChunkSize()
    watch(scrapes(CPU, step_tokens_max=512, **BACKLOG), learnt)
    learnt.silent()
    other = scrapes(CPU, step_tokens_max=256, from_s=80.0, seconds=80.0, **BACKLOG)
    assert watch(other, learnt)[-1] == pytest.approx(256, rel=0.05)


def test_of_several_engines_the_largest_is_told():
    small = scrapes(CPU, step_tokens_max=256, seed=1, seconds=40.0, **BACKLOG)
    large = scrapes(CPU, step_tokens_max=320, seed=2, seconds=40.0, **BACKLOG)
    learnt = ChunkSize()
    for one, other in ((one.engine_steps[0], other.engine_steps[0]) for one, other in zip(small, large, strict=True)):
        learnt.scraped(EngineMetrics(engines=2, engine_steps=(one, replace(other, engine="1"))))
    assert learnt.tokens_max == pytest.approx(320, rel=0.05)


LIES = {
    "tokens without end": lambda n: {"step_tokens_total": 10**300 * n},
    "fewer tokens than answers": lambda n: {"step_tokens_total": n},
    "steps without end": lambda n: {"steps_total": 10**300 * n},
    "a step that never ends": lambda _: {"steps_total": 7},
    "answers without end": lambda n: {"generation_tokens_total": 10**300 * n, "step_tokens_total": 10**300 * n},
    "requests without end": lambda n: {"requests_running": 10**300 if n == 1 else 9, "step_tokens_total": 10**307 * n},
}


@pytest.mark.parametrize("lie", LIES.values(), ids=LIES)
def test_a_server_that_lies_teaches_nothing(lie):
    learnt, number = ChunkSize(), 0

    def lying(said: EngineMetrics) -> EngineMetrics:
        nonlocal number
        number += 1
        return replace(said, engine_steps=(replace(said.engine_steps[0], **lie(number)),))

    assert set(watch(scrapes(CPU, step_tokens_max=512, **BACKLOG), learnt, lie=lying)) == {None}
