"""What a limit makes of an engine's step-time model, for people and metrics. It reads, and moves nothing on."""

from math import inf

from policies.limit.predictors import prefill_tokens_per_s
from policies.limit.work import EngineWork
from policies.types import StepsView

WINDOW_S = 1.0  # of a budget that no engine reports


def steps_view(work: EngineWork, now: float) -> StepsView | None:
    """As of the last fact; None where nothing is limited by a model."""
    if work.model is None:
        return None
    prefill_s, budget = max(0.0, work.ready_at - now), work.budget_tokens
    if budget is None:
        budget = prefill_tokens_per_s(work) * WINDOW_S - _tokens_in(work, prefill_s)
    return StepsView(
        step_s=work.decode_s,
        step_s_max=None if work.step_s_max == inf else work.step_s_max,
        prefill_s=prefill_s,
        budget_tokens=budget,
    )


def _tokens_in(work: EngineWork, prefill_s: float) -> float:
    """Prompt tokens that take so long: what `work.prefill_s` says, turned round."""
    assert work.model is not None
    full_steps, rest_s = divmod(prefill_s, work.chunk_s)
    token_s = work.model.token_s / work.engines
    rest = (rest_s - work.decode_s) / token_s if token_s and rest_s > work.decode_s else 0.0
    return full_steps * work.chunk_tokens + rest
