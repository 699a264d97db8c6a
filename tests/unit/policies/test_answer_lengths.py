"""How likely an answer goes on: from those that ended, and those that still run."""

from math import exp
from random import Random

import pytest

from policies.capacity.kv_use.answer_lengths import AnswerLengths, part_alive


def learnt(ended, running=(), predicted=100.0):
    lengths = AnswerLengths()
    for produced in ended:
        lengths.ended(predicted, produced)
    lengths.learn((predicted, produced) for produced in running)
    return lengths


def test_before_anything_is_known_an_answer_reaches_its_prediction_and_then_ends_with_equal_probability():
    alive = AnswerLengths().alive(100.0)
    assert part_alive(alive, 1.0) == 1.0
    for ratio in (1.5, 2.0, 4.0, 6.0):
        assert part_alive(alive, ratio) == pytest.approx(exp(1.0 - ratio))


def test_of_many_answers_as_many_go_on_as_have_gone_on_before():
    alive = learnt(Random(1).sample(range(1, 201), 200)).alive(100.0)
    for ratio in (0.25, 0.5, 1.0, 1.5):
        assert part_alive(alive, ratio) == pytest.approx(1.0 - ratio / 2, abs=0.05)


def test_answers_that_always_reach_their_prediction_are_known_to_end_there():
    alive = learnt([100] * 200).alive(100.0)
    assert part_alive(alive, 0.9) > 0.6
    assert part_alive(alive, 15 / 16) == pytest.approx(1.0)
    assert part_alive(alive, 1.0) < 0.03


def test_answers_that_end_at_once_are_known_to_end_there():
    assert part_alive(learnt([1] * 200).alive(100.0), 1 / 16) < 0.03


def test_the_first_that_end_are_short_and_do_not_pass_for_all():
    """After 20 steps of 100 answers of 1 to 100 tokens, 20 have ended: nothing says how long the others are."""
    alive = learnt(range(1, 21), running=[20] * 80).alive(100.0)
    assert part_alive(alive, 0.2) == pytest.approx(0.8, abs=0.03)
    assert part_alive(alive, 1.0) == pytest.approx(0.8, abs=0.05)
    assert part_alive(learnt(range(1, 21)).alive(100.0), 0.2) < 0.3, "of those that ended alone"


def test_what_was_predicted_small_says_nothing_of_what_was_predicted_large():
    lengths = learnt([90] * 100, predicted=10.0)
    assert part_alive(lengths.alive(10.0), 3.9) > 0.85
    assert lengths.alive(300.0) == AnswerLengths().alive(300.0)
