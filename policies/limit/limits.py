"""May a backend that has a seat and memory for one more be given it? No more than it can serve in time.

What waits inside an engine is first come, first served and outside our fairness; what is missing there is a wasted
step. By the model of its steps a backend may be given a request while

- the step with it stays within the tightest TPOT target of what runs, or within the knee where nobody has one;
- the prompts ahead of it are computed in time for its first token, and nobody who runs becomes late for it. Where it
  has no TTFT target, or nothing could save it, while less prompt is owed than keeps the engine busy for a step: more
  would wait there, in front of everybody who comes.

A target that the engine could not keep even for this request alone binds nobody. While the model is not sure, the time
that answers take says how much is too much (gap.py).
"""

from collections.abc import Callable
from math import inf
from typing import Protocol

from policies.limit.by_latency import LatencyLimit
from policies.limit.engine_work import BUSY_STEPS, EngineWork
from policies.limit.latency_by_batch import TimedAnswer
from policies.limit.shared_steps import SharedSteps
from policies.limit.step_forecast import PREDICTORS
from policies.reservation import Reservation

SEQUENCES_MAX = 64

STEP_UNDER_WAY = 1.0  # which a prompt that is sent now is not in


class Limit(Protocol):
    """May this backend be given one more, which it has a seat and memory for? One per backend."""

    reads_time: bool
    """Whether it goes by when prompts will be computed."""

    def is_full(self, work: EngineWork) -> bool:
        """Whether it allows nothing at all until something ends. Never asked of an idle backend."""
        ...

    def allows(self, work: EngineWork, reservation: Reservation, now: float) -> bool:
        """Whether the request may be sent now. Never asked of an idle backend, which always takes one."""
        ...

    def sequences_max(self, work: EngineWork) -> float:
        """The most sequences that it allows there; infinite where that depends on what they ask for, or is all."""
        ...

    def answered(self, answer: TimedAnswer, work: EngineWork, *, slots: float, is_sized: bool) -> None:
        """One has ended, of a backend with so many seats for ours, which it is known to have where it `is_sized`."""
        ...


class RoomOnly:
    """Seats and memory are all."""

    reads_time = False

    def sequences_max(self, work: EngineWork) -> float:
        return inf

    def is_full(self, work: EngineWork) -> bool:
        return False

    def allows(self, work: EngineWork, reservation: Reservation, now: float) -> bool:
        return True

    def answered(self, answer: TimedAnswer, work: EngineWork, *, slots: float, is_sized: bool) -> None:
        """Nothing is learnt."""


class FixedLimit(RoomOnly):
    """At most so many sequences per engine, as the operator says; of all replicas together."""

    def __init__(self, sequences_max: int = SEQUENCES_MAX) -> None:
        self._sequences_max = sequences_max

    def is_full(self, work: EngineWork) -> bool:
        return work.sequences >= self.sequences_max(work)

    def allows(self, work: EngineWork, reservation: Reservation, now: float) -> bool:
        return work.sequences + reservation.sequences <= self.sequences_max(work)

    def sequences_max(self, work: EngineWork) -> float:
        return work.share.of(self._sequences_max * work.engines)


class ModelLimit:
    """What the backend can serve in time, by the model of its steps."""

    reads_time = True

    def __init__(self) -> None:
        self._gap = LatencyLimit()

    def is_full(self, work: EngineWork) -> bool:
        if work.model is None:
            return work.sequences + 1 > self._gap.sequences_max
        return work.sequences > 0 and PREDICTORS[work.batching].is_full(work)

    def allows(self, work: EngineWork, reservation: Reservation, now: float) -> bool:
        if work.model is None:
            return work.sequences + reservation.sequences <= self._gap.sequences_max
        if now < work.busy_until and work.ready_at > reservation.first_due_at:
            return False  # as `may_prefill` would find, at a glance
        return PREDICTORS[work.batching].keeps_pace(work, reservation) and may_prefill(work, reservation, now)

    def sequences_max(self, work: EngineWork) -> float:
        return self._gap.sequences_max if work.model is None else inf

    def answered(self, answer: TimedAnswer, work: EngineWork, *, slots: float, is_sized: bool) -> None:
        if work.model is None:
            self._gap.answered(answer, slots=slots, is_sized=is_sized)


def may_prefill(work: EngineWork, reservation: Reservation, now: float) -> bool:
    """Whether its prompt may be computed there next."""
    predictor = PREDICTORS[work.batching]
    tokens = reservation.prefill_tokens
    if predictor.makes_late(work, tokens, now):
        return False
    due_at = reservation.first_due_at
    left_s = None if due_at == -inf else due_at - now
    if work.shared is not None:
        return may_share(work, work.shared, tokens, left_s)
    if left_s is not None and work.prefill_s(tokens) <= left_s:
        budget_tokens = work.budget_tokens(due_at, now)
        if budget_tokens is not None:
            return tokens <= budget_tokens
        return predictor.ttft_s(work, tokens, now, due_at=due_at) <= left_s
    return now >= work.busy_until


def may_share(work: EngineWork, shared: SharedSteps, tokens: int, left_s: float | None) -> bool:
    """Whether a prompt may be computed beside the others, where each has at most a share of a step. Long ones leave
    something of every step to short ones, which are then soon computed, however much is owed.
    """
    if tokens > shared.share_tokens:
        long_max = shared.long_prompts_max(step_tokens_max=work.step_tokens_max, engines=work.engines)
        return shared.long_prompts < long_max
    steps = shared.short_steps(tokens, chunk_tokens=work.chunk_tokens)
    if left_s is not None and work.prefill_s(tokens) <= left_s:
        return (steps + STEP_UNDER_WAY) * work.chunk_s <= left_s
    return steps <= 1.0 + BUSY_STEPS


LIMITS: dict[str, Callable[..., Limit]] = {"model": ModelLimit, "fixed": FixedLimit, "room": RoomOnly}
