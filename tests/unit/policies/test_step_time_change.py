"""When is an error of the step model another engine, and when is it chance?"""

from math import log
from random import Random

import pytest

from policies.step_time.change import ChangeTest

DOUBLED = log(2.0)


def usual(observations: int, *, strange_ratio: float = 0.0, seed: int = 1) -> ChangeTest:
    """A test that has seen so many, the given part of them off by a factor of 3, too long."""
    test, rng = ChangeTest(), Random(seed)
    for _ in range(observations):
        test.observed(log(3.0) if rng.random() < strange_ratio else rng.gauss(0.0, 0.05))
        assert not test.has_changed
    return test


@pytest.mark.parametrize("off", [DOUBLED, -DOUBLED, 2 * DOUBLED])
def test_two_in_a_row_are_doubt_and_three_another_engine_where_nothing_ever_is_off(off):
    test = usual(400)
    seen = []
    for _ in range(3):
        test.observed(off)
        seen.append((test.in_doubt, test.has_changed))
    assert seen == [(False, False), (True, False), (True, True)]


@pytest.mark.parametrize("strange_ratio", [0.02, 0.1, 0.2])
def test_pauses_that_are_usual_are_no_change_in_10000_observations(strange_ratio):
    usual(10_000, strange_ratio=strange_ratio)


def test_the_more_often_something_is_strange_the_more_of_it_in_a_row_is_needed():
    needed = []
    for strange_ratio in (0.0, 0.05, 0.2):
        test, count = usual(2_000, strange_ratio=strange_ratio), 0
        while not test.has_changed:
            test.observed(log(3.0))
            count += 1
        needed.append(count)
    assert needed[0] < needed[1] < needed[2] < 20


def test_what_is_too_long_and_too_short_in_turn_is_the_same_engine():
    test = usual(400)
    for number in range(100):
        test.observed(DOUBLED if number % 2 else -DOUBLED)
        assert not test.has_changed


def test_normal_observations_end_a_doubt():
    test = usual(400)
    for off in (DOUBLED, DOUBLED):
        test.observed(off)
    assert test.in_doubt
    for _ in range(3):
        test.observed(0.0)
    assert not test.in_doubt


def test_what_chance_explains_is_not_strange():
    test = usual(400)
    for _ in range(20):
        test.observed(DOUBLED, edge=0.6)
    assert test.begins


@pytest.mark.parametrize(("noise", "is_rough"), [(0.05, False), (0.4, True)])
def test_a_usual_error_that_hides_a_doubling_is_rough(noise, is_rough):
    test, rng = ChangeTest(), Random(1)
    for _ in range(100):
        test.observed(rng.gauss(0.0, noise))
    assert test.is_rough is is_rough
