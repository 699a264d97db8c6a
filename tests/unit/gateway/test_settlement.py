"""When a stream's relay has to tell of tokens again: the first, and then as often as somebody needs to know."""

from types import SimpleNamespace

import pytest

from gateway.generation import _Settlement
from gateway.telemetry import CallTrace
from policies.types import Usage

QUIET_TOKENS = 50.0


def settlement(prompts: int) -> _Settlement:
    call = SimpleNamespace(parsed=SimpleNamespace(prompts=prompts), request=SimpleNamespace(prompt_tokens=9))
    lease = SimpleNamespace(tokens=lambda usage: max(usage.output_tokens, QUIET_TOKENS) + 1)
    intake = SimpleNamespace(learn=lambda _call, _tokens: None)
    return _Settlement(intake, call, lease, CallTrace("/v1/completions"))


def test_before_the_first_token_the_first_token_is_waited_for():
    assert settlement(prompts=1).tokens(Usage(9, 0, 0)) == 1


def test_of_one_prompt_no_more_is_told_than_the_lease_needs():
    assert settlement(prompts=1).tokens(Usage(9, 0, 1)) == QUIET_TOKENS + 1


@pytest.mark.parametrize("output", [1, 70])
def test_of_several_prompts_every_token_is_told_because_any_may_be_the_first_of_another_prompt(output):
    assert settlement(prompts=2).tokens(Usage(4, 0, output)) == output + 1


def test_a_server_that_counts_no_prompt_leaves_our_estimate_standing():
    assert settlement(prompts=1).true(Usage(0, 0, 3)) == Usage(9, 0, 3)
