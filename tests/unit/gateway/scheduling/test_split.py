"""A split gives each target its weight's part of the callers, and a changed weight moves as few as can be."""

from math import sqrt

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.scheduling.split import choose_target
from tests.examples import examples

CALLERS = [f"tenant-{number}" for number in range(2000)]
WEIGHTS = st.dictionaries(
    st.sampled_from(["llama-70b", "llama-71b", "mistral", "qwen"]), st.floats(0.01, 100), min_size=1
)


def chosen(weights, seed="chat"):
    return [choose_target(weights, seed=seed, caller=caller) for caller in CALLERS]


@given(weights=WEIGHTS, seed=st.text(max_size=8))
@settings(max_examples=examples(20), deadline=None)
def test_each_target_gets_its_weights_part_within_five_standard_deviations(weights, seed):
    total, found = sum(weights.values()), chosen(weights, seed)
    for target, weight in weights.items():
        part = weight / total
        spread = sqrt(part * (1 - part) / len(CALLERS))
        assert abs(found.count(target) / len(CALLERS) - part) <= 5 * spread + 1 / len(CALLERS)


@given(weights=WEIGHTS, factor=st.floats(1.1, 10))
@settings(max_examples=examples(20), deadline=None)
def test_a_larger_weight_moves_callers_to_that_target_alone(weights, factor):
    target = min(weights)
    before, after = chosen(weights), chosen({**weights, target: weights[target] * factor})
    assert {new for old, new in zip(before, after, strict=True) if old != new} <= {target}
    back = chosen(weights)
    assert back == before


def test_a_new_target_takes_its_part_and_moves_no_other():
    before, after = chosen({"a": 50, "b": 50}), chosen({"a": 50, "b": 50, "c": 5})
    moved = [(old, new) for old, new in zip(before, after, strict=True) if old != new]
    assert {new for _, new in moved} == {"c"}
    assert len(moved) == after.count("c")


def test_the_choice_is_the_same_in_every_process_and_version():
    # A change of the hash would move callers between models with an upgrade.
    weights = {"llama-70b": 95, "llama-71b": 5}
    assert [number for number, each in enumerate(chosen(weights)[:100]) if each == "llama-71b"] == PINNED


def test_splits_of_other_aliases_choose_independently():
    weights = {"old": 90, "new": 10}
    one, other = chosen(weights, "chat"), chosen(weights, "code")
    both = sum(first == second == "new" for first, second in zip(one, other, strict=True))
    assert both < 0.03 * len(CALLERS)  # 1 % by chance, 10 % if they were the same


@pytest.mark.parametrize("weights", [{}, {"a": 0}])
def test_without_a_weight_there_is_no_choice(weights):
    assert choose_target(weights, seed="chat", caller="alice") is None


def test_a_target_of_weight_zero_gets_no_caller():
    assert set(chosen({"old": 1, "canary": 0})) == {"old"}


PINNED = [10, 13, 51, 52, 57, 93]
