"""Step forecast: how many decodes an engine can serve in time, when a prompt is computed, and whether it makes a
request late.

There is one predictor per rule by which engines fill their steps (BackendLoad.batching). vLLM's own rule computes
prompts in the order of arrival and runs every decode in every step, so a step with a full chunk takes longer and costs
all decodes some slack. FairBatching lets decodes wait for prompts as long as their slack lasts; the time that prompts
can then use is the prefill admission budget (policies/batching/pab.py).
"""

from math import inf
from typing import Protocol

from policies.batching.pab import tokens_in
from policies.limit.engine_work import EngineWork
from policies.limit.tpot_targets import ROUNDING_S
from policies.reservation import Reservation
from policies.types import StepsView

ROUNDING = 1e-9
WINDOW_S = 1.0  # of a budget that is computed because the engine reports none
FAR_OFF_S = 60.0  # where decodes leave no time for prompts, in theory never


class StepForecast(Protocol):
    """The interface of forecasts of what one engine can serve in time. A forecast is computed from the engine's
    step-time model and its work. There is one implementation per batching rule.
    """

    def keeps_pace(self, work: EngineWork, reservation: Reservation) -> bool:
        """Whether all running requests and this one keep their TPOT targets when they run together."""
        ...

    def is_full(self, work: EngineWork) -> bool:
        """Whether even the smallest request would be too much. Requires that at least one request runs."""
        ...

    def ttft_s(self, work: EngineWork, prefill_tokens: float, now: float, *, due_at: float) -> float:
        """Seconds from now until the first token of a prompt of `prefill_tokens` tokens. `due_at` is its deadline,
        infinite where it has none.
        """
        ...

    def makes_late(self, work: EngineWork, prefill_tokens: float, now: float) -> bool:
        """Whether the prompt would make a running request miss a deadline that it would keep otherwise."""
        ...


class ChunkedPrefillForecast:
    """The StepForecast for engines with vLLM's own batching rule: every decode runs in every step. Prompts get the rest
    of the step's tokens, in order of arrival.
    """

    def keeps_pace(self, work: EngineWork, reservation: Reservation) -> bool:
        """Whether the step with this request stays within the tightest TPOT target, or within the knee without a
        target.
        """
        step_s_max = work.step_s_max
        if reservation.envelope is not None and (own_s := work.own_tpot_s(reservation)) < inf:
            step_s_max = min(work.tpot_target_s(), own_s)  # the knee is for requests without a target
        return work.decode_with_s(reservation) <= step_s_max + ROUNDING_S

    def is_full(self, work: EngineWork) -> bool:
        model = work.model
        assert model is not None
        return work.decode_s + (model.token_s + model.request_s) / work.engines > work.step_s_max + ROUNDING_S

    def ttft_s(self, work: EngineWork, prefill_tokens: float, now: float, *, due_at: float) -> float:
        owed = work.owed_tokens(now)
        # It joins the next step, half a step away in the mean; where prompts are owed, their time includes that.
        wait_s = work.decode_s / 2 if work.sequences and not owed else 0.0
        return wait_s + work.prefill_s(owed + prefill_tokens)

    def makes_late(self, work: EngineWork, prefill_tokens: float, now: float) -> bool:
        return work.makes_late(prefill_tokens, now)


class FairBatchingForecast:
    """The StepForecast for engines with the batching rule FairBatching: running requests wait until their next token is
    due, and the most urgent prompts are computed meanwhile.
    """

    def keeps_pace(self, work: EngineWork, reservation: Reservation) -> bool:
        return decode_share(work, reservation) <= 1.0 + ROUNDING

    def is_full(self, work: EngineWork) -> bool:
        model = work.model
        assert model is not None
        least_s = (model.token_s + model.request_s) / work.engines
        return decode_share(work) + least_s / max(work.step_s_max, *work.targets.by_tpot, least_s) > 1.0 + ROUNDING

    def ttft_s(self, work: EngineWork, prefill_tokens: float, now: float, *, due_at: float) -> float:
        owed = work.owed_by(due_at, now) + prefill_tokens
        least_s, speed = work.prefill_s(owed), prefill_tokens_per_s(work)
        return max(least_s, owed / speed if speed > 0.0 else FAR_OFF_S)

    def makes_late(self, work: EngineWork, prefill_tokens: float, now: float) -> bool:
        return False  # a decode that would be late comes first, then prompts by their slack


def decode_share(work: EngineWork, reservation: Reservation | None = None) -> float:
    """The part of the engine's time that the running requests, and `reservation`, need for their tokens. No token is
    computed sooner than it is due, except for requests without a target, which run in every step.
    """
    model, own_s = work.model, inf if reservation is None else work.own_tpot_s(reservation)
    assert model is not None
    step_s = min(work.tpot_target_s(), own_s)
    step_s = work.knee_s if step_s == inf else step_s
    token_s, read_s = (model.token_s + model.request_s) / work.engines, model.context_token_s / work.engines
    share, sequences = model.base_s / step_s, work.sequences + work.external_sequences
    context_tokens = work.context_tokens + work.external_tokens
    for tpot_s, bound in work.targets.by_tpot.items():
        share += (token_s * bound.sequences + read_s * bound.context_tokens) / tpot_s
        sequences -= bound.sequences
        context_tokens -= bound.context_tokens
    share += (token_s * sequences + read_s * max(0.0, context_tokens)) / step_s
    if reservation is not None:
        own = token_s * reservation.sequences + read_s * reservation.context_tokens
        share += own / (step_s if own_s == inf else own_s)
    return share


def prefill_tokens_per_s(work: EngineWork) -> float:
    """Prompt tokens per second while decodes wait until they are due; zero or less where decodes leave no time."""
    assert work.model is not None
    return tokens_in(work.model, 1.0 - decode_share(work)) * work.engines


def steps_view(work: EngineWork, now: float) -> StepsView | None:
    """The state of the engine's steps, for the admin API and metrics, as of the last event; None without a model."""
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


PREDICTORS: dict[str, StepForecast] = {"vllm": ChunkedPrefillForecast(), "fair": FairBatchingForecast()}
