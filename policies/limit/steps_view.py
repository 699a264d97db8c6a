"""What a limit makes of an engine's step-time model, for people and metrics. It reads, and moves nothing on."""

from math import inf

from policies.limit.engine_work import EngineWork
from policies.limit.step_forecast import prefill_tokens_per_s
from policies.types import StepsView

WINDOW_S = 1.0  # of a budget that no engine reports


def steps_view(work: EngineWork, now: float) -> StepsView | None:
    """As of the last fact; None where nothing is limited by a model."""
    if work.model is None:
        return None
    owed_tokens, prefill_s = work.owed_then(now)
    budget = work.reported_budget
    return StepsView(
        step_s=work.decode_s,
        step_s_max=None if work.step_s_max == inf else work.step_s_max,
        prefill_s=prefill_s,
        budget_tokens=prefill_tokens_per_s(work) * WINDOW_S - owed_tokens if budget is None else budget,
    )
