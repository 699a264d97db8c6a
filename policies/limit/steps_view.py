"""Steps view: the values that a limit derives from an engine's step-time model, for the admin API and metrics. Read
only.
"""

from math import inf

from policies.limit.engine_work import EngineWork
from policies.limit.step_forecast import prefill_tokens_per_s
from policies.types import StepsView

WINDOW_S = 1.0  # of a budget that is computed because the engine reports none


def steps_view(work: EngineWork, now: float) -> StepsView | None:
    """The view of the engine as of the last event; None without a usable model."""
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
