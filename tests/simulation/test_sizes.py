"""Engines whose size nothing tells, before a flood of eight clients a seat (all of them: docs/results/load.md)."""

from functools import cache

import pytest
from closed_loop import LONG, ClosedLoop, engine, percentile

from backends.simulation.world import KnownSteps
from policies.types import Tier

PHASES = (0.1, 0.6)


@cache
def tokens_given(seats):
    """What is served where the size is given."""
    return ClosedLoop({"x": engine(seats)}, given=seats).play().tokens


@pytest.mark.parametrize("seats", [4, 12, 64, pytest.param(256, marks=pytest.mark.long)])
@pytest.mark.parametrize("phase", PHASES)
def test_an_engine_is_kept_full_and_hardly_anything_waits_inside_it(seats, phase):
    learnt = ClosedLoop({"x": engine(seats)}, phase=phase).play()
    assert learnt.tokens > 0.97 * tokens_given(seats)
    assert learnt.waiting_mean("x") < 1.0
    assert learnt.inside["x"].most <= max(2, seats / 8)
    assert learnt.inside["x"].under_s < 5.0
    assert learnt.limit("x") in {seats, seats + 1}


def test_a_quiet_tenant_waits_as_long_as_if_the_size_were_given():
    given = [s for seed in range(5) for s in ClosedLoop({"x": engine(12)}, given=12, seed=seed).play().ttft_s]
    learnt = [s for seed in range(5) for s in ClosedLoop({"x": engine(12)}, phase=seed / 5, seed=seed).play().ttft_s]
    assert percentile(learnt, 0.99) < 1.3 * percentile(given, 0.99)


def test_long_prompts_do_not_make_the_limit_small_for_good():
    given = ClosedLoop({"x": engine(64)}, given=64, mix=LONG, seconds=20.0).play()
    learnt = ClosedLoop({"x": engine(64)}, mix=LONG, seconds=20.0).play()
    assert learnt.tokens > 0.97 * given.tokens
    assert learnt.waiting_mean("x") < 1.5


def test_with_step_counters_it_is_the_same():
    learnt = ClosedLoop({"x": engine(12)}, steps=KnownSteps(learnt=True)).play()
    assert learnt.waiting_mean("x") < 1.0
    assert learnt.limit("x") in {12, 13}


def test_where_answers_are_not_streamed_scrapes_tell_what_runs():
    given = ClosedLoop({"x": engine(64)}, given=64, is_streamed=False).play()
    learnt = ClosedLoop({"x": engine(64)}, is_streamed=False).play()
    assert learnt.tokens > 0.97 * given.tokens
    assert learnt.waiting_mean("x") < 2.0, "it has doubled once too often at 2 s"


def test_beside_a_tier_with_a_reserve_its_engines_are_filled_and_their_size_is_found():
    """Of two engines of 12 seats, one call of the quiet tier after another has its part."""
    tiers = [Tier("batch"), Tier("chat", weight=4, reserve_ratio=0.1)]
    engines = {name: engine(12) for name in "xy"}
    run = ClosedLoop(engines, tiers=tiers).play()
    given = ClosedLoop({name: engine(12) for name in "xy"}, tiers=tiers, given=12).play()
    assert run.tokens > 0.97 * given.tokens
    for name in "xy":
        assert run.waiting_mean(name) < 1.0
        assert 12 <= run.limit(name) <= 14
    assert percentile(run.ttft_s, 0.99) < 0.8, "its target; 65 s where 256 seats were assumed"
