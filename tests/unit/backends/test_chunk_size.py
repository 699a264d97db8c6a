"""The size of a full step, learnt from the scrapes of engines whose size is known, and of servers that lie."""

from dataclasses import replace

import pytest
from steady_load import CPU, GPU, Load

from backends.chunk_size import ChunkSize
from backends.metrics import EngineMetrics, parse_metrics

BACKLOG = {"concurrent": 64, "slots": 128, "prompts_max": 4000, "answers_max": 60}  # prompts wait for each other
SEATS = {"concurrent": 64, "slots": 32, "prompts_max": 100, "answers_max": 30}  # they wait for seats
SECONDS = {CPU: 60, GPU: 150}


def watch(load: Load, learnt: ChunkSize, *, seconds: float, lie=lambda metrics: metrics) -> list[int | None]:
    found, end = [], load.now + seconds
    while load.now < end:
        load.run_until(load.now + 0.25)
        learnt.scraped(lie(parse_metrics(load.text())))
        found.append(learnt.tokens_max)
    return found


@pytest.mark.parametrize("coefficients", [CPU, GPU])
@pytest.mark.parametrize("tokens_max", [256, 700, 2048])
def test_the_size_of_a_full_step_is_learnt_while_prompts_wait(coefficients, tokens_max):
    load = Load(coefficients, step_tokens_max=tokens_max, **BACKLOG)
    found = watch(load, ChunkSize(), seconds=SECONDS[coefficients])
    assert found[0] is None
    assert found[-1] is not None
    for size in set(found) - {None}:
        assert size == pytest.approx(tokens_max, rel=0.05)


@pytest.mark.parametrize("coefficients", [CPU, GPU])
@pytest.mark.parametrize("other", [{}, {"prompts_max": 400}, {"slots": 8}, {"answers_max": 4}])
def test_who_waits_for_a_seat_says_nothing(coefficients, other):
    load = Load(coefficients, step_tokens_max=2048, **SEATS | other)
    assert set(watch(load, ChunkSize(), seconds=SECONDS[coefficients])) == {None}


def test_a_few_seats_with_a_long_prompt_in_one_of_them_say_nothing():
    """Fewer decode than there are seats, then; and who waits still waits for a seat."""
    load = Load(CPU, step_tokens_max=512, **BACKLOG | {"slots": 6})
    assert set(watch(load, ChunkSize(), seconds=SECONDS[CPU])) == {None}


def test_where_nobody_waits_nothing_is_learnt():
    load = Load(CPU, step_tokens_max=2048, **BACKLOG | {"concurrent": 6})
    assert set(watch(load, ChunkSize(), seconds=SECONDS[CPU])) == {None}


def test_steps_that_the_server_does_not_count_are_not_mistaken_for_large_ones():
    """Answers of a token or two, and no others: most steps only cut a prompt, and are in no counter."""
    load = Load(CPU, step_tokens_max=256, **BACKLOG | {"answers_max": 2})
    assert set(watch(load, ChunkSize(), seconds=SECONDS[CPU])) == {None}


def test_a_pool_whose_memory_is_full_says_nothing():
    load = Load(CPU, step_tokens_max=256, **BACKLOG)
    full = watch(load, ChunkSize(), seconds=SECONDS[CPU], lie=lambda said: replace(said, kv_used_ratio=0.95))
    assert set(full) == {None}


def test_an_engine_that_was_started_again_is_learnt_anew():
    learnt = ChunkSize()
    watch(Load(CPU, step_tokens_max=512, **BACKLOG), learnt, seconds=60)
    assert learnt.tokens_max == pytest.approx(512, rel=0.05)
    found = watch(Load(CPU, step_tokens_max=256, **BACKLOG), learnt, seconds=60)
    assert found[0] is None, "its counters began anew"
    assert found[-1] == pytest.approx(256, rel=0.05)


def test_an_engine_exchanged_while_nobody_looked_is_learnt_too():
    """It has counted more meanwhile than the one before: nothing tells them apart but what is seen from now on."""
    learnt, load = ChunkSize(), Load(CPU, step_tokens_max=512, **BACKLOG)
    watch(load, learnt, seconds=60)
    learnt.silent()
    other = Load(CPU, step_tokens_max=256, **BACKLOG)
    other.run_until(80.0)
    assert watch(other, learnt, seconds=80)[-1] == pytest.approx(256, rel=0.05)


def test_of_several_engines_the_largest_is_told():
    loads = [Load(CPU, step_tokens_max=256, seed=1, **BACKLOG), Load(CPU, step_tokens_max=320, seed=2, **BACKLOG)]
    learnt = ChunkSize()
    for tick in range(1, 160):
        for load in loads:
            load.run_until(tick * 0.25)
        one, other = (parse_metrics(load.text()).engine_steps[0] for load in loads)
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

    assert set(watch(Load(CPU, step_tokens_max=512, **BACKLOG), learnt, seconds=60, lie=lying)) == {None}
