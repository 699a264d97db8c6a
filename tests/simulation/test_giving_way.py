"""Chat beside a batch of long answers that fills every slot: docs/results/continue.md has the figures."""

from dataclasses import replace

import pytest

from policies.pool.preemption import InterruptRules
from tests.simulation.giving_way import Setting, play

RULES = InterruptRules(times_max=8, tokens_between_min=64)
SHORT = Setting(batch_answers=90, asks_s=80.0)


@pytest.mark.parametrize(
    "setting",
    [SHORT, pytest.param(Setting(scene="staggered", batch_answers=200, asks_s=160.0), marks=pytest.mark.long)],
    ids=lambda setting: setting.scene,
)
def test_chat_waits_for_few_steps_and_the_batch_loses_next_to_nothing(setting):
    """Three steps and the own prompt; beyond that are other prompts of chat."""
    setting = replace(setting, chat_rate_per_s=0.5)
    stays, gives = play(setting), play(replace(setting, rules=RULES))
    assert stays.ttft_p99_s > 2.0
    assert gives.steps_p99 <= 3.2
    assert gives.steps_alone <= 2.1
    assert gives.tokens_per_s >= 0.95 * stays.tokens_per_s
    assert 0 < gives.interruptions_max <= RULES.times_max


def test_what_goes_on_where_it_ran_holds_no_other_prompt_up():
    """Its prompt is in the prefix cache there, so it leaves the room of the prompts of the next steps to others."""
    gives = play(replace(SHORT, chat_rate_per_s=4.0, scene="staggered", rules=RULES))
    assert gives.interruptions > 50
    assert gives.steps_alone <= 2.1
    assert gives.steps_p99 <= 4.0


@pytest.mark.long
def test_two_tenants_of_one_tier_give_way_too():
    setting = replace(SHORT, by_tier=False)
    stays, gives = play(setting), play(replace(setting, rules=RULES, preempt_service=2_000.0))
    assert gives.ttft_p50_s < 0.1 * stays.ttft_p50_s
    assert gives.tokens_per_s >= 0.95 * stays.tokens_per_s


@pytest.mark.long
def test_without_a_prefix_cache_it_costs_what_is_computed_again():
    setting = replace(SHORT, is_cached=False)
    stays, gives = play(setting), play(replace(setting, rules=RULES))
    assert gives.recomputed_tokens > 20_000
    assert gives.tokens_per_s < stays.tokens_per_s
