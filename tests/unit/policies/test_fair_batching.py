from math import inf

import pytest

from policies.batching.fair import Decode, Prefill, form_batch, time_budget_s
from policies.step_time import StepTimeModel

MODEL = StepTimeModel(base_s=0.010, token_s=0.0002, context_token_s=0.000001)
TOKENS_MAX = 2048
DECODES = (
    Decode("late", slack_s=0.040, tpot_s=0.050, context_tokens=500),
    Decode("soon", slack_s=0.120, tpot_s=0.050, context_tokens=1000),
    Decode("ahead", slack_s=0.300, tpot_s=0.050, context_tokens=2000),
)
PROMPT = Prefill("prompt", slack_s=0.200, computed_tokens=0, remaining_tokens=300)


def batch(decodes=(), prefills=(), *, model=MODEL, tokens_max=TOKENS_MAX):
    return form_batch(decodes, prefills, model=model, tokens_max=tokens_max)


def decode(key, slack_s=inf, tpot_s=inf, *, context_tokens=0, tokens=1):
    return Decode(key, slack_s, tpot_s, context_tokens, tokens)


def prefill(key, slack_s=inf, *, computed_tokens=0, remaining_tokens=100, rank=0):
    return Prefill(key, slack_s, computed_tokens, remaining_tokens, rank)


def test_a_step_takes_urgent_decodes_then_as_much_of_a_prompt_as_there_is_time_for():
    """With 40 ms left after the base: 39.3 after the urgent decode, 195 tokens at 0.201 ms, and 0.105 left over."""
    assert batch(DECODES, [PROMPT]) == {"late": 1, "prompt": 195}
    assert MODEL.step_s(new_tokens=196, context_tokens=500 + 195, requests=2) == pytest.approx(0.049895)


def test_decodes_that_can_wait_take_the_time_that_prompts_leave():
    short = PROMPT._replace(remaining_tokens=190)  # leaves 1.11 ms: "soon" takes 1.2, with 185 tokens it fits
    assert batch(DECODES, [short]) == {"late": 1, "prompt": 190}
    assert batch(DECODES, [short._replace(remaining_tokens=185)]) == {"late": 1, "prompt": 185, "soon": 1}


def test_a_step_may_last_as_long_as_the_most_urgent_decode_allows_but_a_target_at_least():
    assert time_budget_s(DECODES) == 0.050
    assert time_budget_s(DECODES[1:]) == 0.120
    assert time_budget_s([decode("late", -1.0, 0.050), decode("ahead", 2.0, 0.020)]) == 0.020


def test_without_a_decode_that_has_a_target_only_the_tokens_are_limited():
    assert time_budget_s([]) == time_budget_s([decode("free")]) == inf
    assert batch([], [prefill("long", remaining_tokens=5000)]) == {"long": TOKENS_MAX}
    assert batch([decode("free")], [prefill("long", remaining_tokens=5000)]) == {"free": 1, "long": TOKENS_MAX - 1}


def test_a_decode_without_a_target_runs_in_every_step_beside_those_that_have_one():
    assert batch([*DECODES, decode("free")], [PROMPT]) == {"late": 1, "free": 1, "prompt": 194}


def test_urgent_decodes_are_taken_beyond_the_time_and_prompts_then_wait():
    crowd = [decode(number, 0.010, 0.050, context_tokens=10_000) for number in range(20)]
    assert batch(crowd, [PROMPT]) == dict.fromkeys(range(20), 1)


def test_prompts_go_by_slack_and_by_rank_before_it():
    waiting = [prefill("calm", 0.9), prefill("hurried", 0.1), prefill("running", 0.5, rank=-1)]
    assert list(batch([], waiting)) == ["running", "hurried", "calm"]
    assert batch([], waiting, tokens_max=150) == {"running": 100, "hurried": 50}


def test_what_a_prompt_has_computed_is_read_again_and_paid_for():
    begun = PROMPT._replace(computed_tokens=10_000)  # 10 ms for its context: (39.3 - 10) / 0.201
    assert batch(DECODES, [begun]) == {"late": 1, "prompt": 145}


def test_each_request_costs_what_the_model_says_a_request_costs():
    model = StepTimeModel(base_s=0.010, token_s=0.0002, context_token_s=0.000001, request_s=0.001)
    assert batch(DECODES, [PROMPT], model=model) == {"late": 1, "prompt": 185}  # (39.3 - 2) / 0.201


def test_a_model_in_which_tokens_cost_nothing_limits_nothing_but_requests():
    model = StepTimeModel(base_s=0.010, token_s=0.0, request_s=0.030)
    assert batch(DECODES, [PROMPT], model=model) == {"late": 1}
    assert batch(DECODES, [PROMPT], model=StepTimeModel(base_s=0.010, token_s=0.0)) == {
        "late": 1, "prompt": 300, "soon": 1, "ahead": 1,
    }  # fmt: skip


def test_drafts_to_verify_are_taken_whole_or_not_at_all():
    drafted = [decode("first", 0.040, 0.050, tokens=4), decode("second", 0.041, 0.050, tokens=4)]
    assert batch(drafted, [PROMPT], tokens_max=6) == {"first": 4, "prompt": 2}


@pytest.mark.parametrize("slack_s", [-5.0, 0.0, 0.049, 0.05, 0.3, 60.0])
def test_something_runs_whatever_the_slack_and_however_slow_the_engine(slack_s):
    slow = StepTimeModel(base_s=1.0, token_s=0.1)
    assert batch([decode("only", slack_s, 0.050)], [PROMPT], model=slow)


def test_equal_slack_goes_by_the_order_of_the_offer():
    assert list(batch([], [prefill("b", 1.0), prefill("a", 1.0)])) == ["b", "a"]
