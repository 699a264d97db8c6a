"""Prefill admission budget: how many prompt tokens an engine with fair batching can still compute in time.

In a window of one TTFT target, decodes can be delayed until they are due. The least time that they then need, for steps
and tokens, is subtracted from the window. Prompts use the rest; the prompt tokens that are already owed are subtracted,
too. A negative budget means that some of these will be late. (FairBatching, arXiv 2510.14392, appendix A.) The budget
is valid only for an engine that really delays decodes (fair.py), and for one pair of targets.

    budget = (TTFT - a N - sum of n_r (b + c l_r) over decodes due in the window) / (b + c) - owed
    N = 1 + (TTFT - least slack) / TPOT,  n_r = 1 + (TTFT - slack_r) / TPOT

Quotients are rounded up: decodes need whole tokens, and steps are whole.
Decodes without a deadline run in every step (fair.py): their cost is added to a. A late decode counts as one that is
due now and makes steps no shorter than its TPOT: missed tokens are not made up for.
"""

from collections.abc import Iterable
from math import ceil, inf
from typing import NamedTuple

from policies.step_time.model import StepTimeModel


class DueDecode(NamedTuple):
    """A running request whose prompt is computed. Its next token is due in `slack_s` seconds, infinite without a
    deadline. An engine step reads `context_tokens` KV tokens for this request.
    """

    slack_s: float
    context_tokens: float


ROUNDING = 1e-9  # 0.4 / 0.05 are 8 steps, although the quotient is 8.000000000000002


def prefill_admission_budget(
    model: StepTimeModel, decodes: Iterable[DueDecode], *, owed_tokens: float, ttft_s: float, tpot_s: float
) -> float:
    """Return the budget in prompt tokens; negative where more is owed than can be computed in time. Targets are above
    zero.
    """
    step_s, needed_s, slack_min_s = model.base_s, 0.0, ttft_s
    for decode in decodes:
        if decode.slack_s == inf:
            step_s += _decode_s(model, decode.context_tokens)
        elif decode.slack_s < ttft_s:
            slack_s = max(decode.slack_s, 0.0)
            needed_s += _steps((ttft_s - slack_s) / tpot_s) * _decode_s(model, decode.context_tokens)
            slack_min_s = min(slack_min_s, slack_s)
    steps = _steps((ttft_s - slack_min_s) / tpot_s) if slack_min_s < ttft_s else 1.0
    left_s = ttft_s - step_s * steps - needed_s
    return tokens_in(model, left_s) - owed_tokens


def tokens_in(model: StepTimeModel, time_s: float) -> float:
    """The prompt tokens that can be computed in `time_s` seconds; each is computed, and read as context."""
    return time_s / max(model.token_s + model.context_token_s, TOKEN_S_MIN)


TOKEN_S_MIN = 1e-9  # for a model in which tokens cost nothing


def _steps(quotient: float) -> int:
    return 1 + ceil(quotient - ROUNDING)


def _decode_s(model: StepTimeModel, context_tokens: float) -> float:
    return model.token_s + model.context_token_s * context_tokens + model.request_s
