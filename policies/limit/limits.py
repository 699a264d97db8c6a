"""Limits: whether a backend that has a slot and memory for one more request can also serve it in time.

An engine serves its own queue first come, first served, outside the scheduler's fairness; with too few requests, it
wastes steps. By its step-time model, a backend may be sent a request while

- the step with it stays within the tightest TPOT target of the running requests, or within the knee where no request
  has one;
- the prompts ahead of it are computed in time for its first token, and it makes no running request late. If it has no
  TTFT target, or cannot keep it there, the backend must owe less prompt than keeps the engine busy for a step: more
  would wait there, ahead of every later request.

A target that the engine could not keep even for this request alone is ignored. While there is no usable model, the
limit is learnt from how long answers take (by_latency.py).
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from math import inf

from policies.limit.by_latency import LatencyLimit
from policies.limit.engine_work import BUSY_STEPS, EngineWork
from policies.limit.shared_steps import STEP_UNDER_WAY, SharedSteps
from policies.limit.step_forecast import PREDICTORS
from policies.reservation import Reservation

SEQUENCES_MAX = 64


class Limit(ABC):
    """The base class of a backend's limits: may one more request be sent to a backend that has room for it?"""

    reads_time = False
    """Whether the limit depends on the time at which prompts will be computed."""
    by_latency: LatencyLimit | None = None
    """What learns from how long answers take, while there is no model of the steps; None: nothing does."""

    @abstractmethod
    def is_full(self, work: EngineWork) -> bool:
        """Whether the limit allows no request at all until a running one ends. Never asked of an idle backend."""

    @abstractmethod
    def allows(self, work: EngineWork, reservation: Reservation, now: float) -> bool:
        """Whether the request may be sent now. Never asked of an idle backend, which always takes one."""

    def sequences_max(self, work: EngineWork) -> float:
        """The most sequences that the limit allows at the backend; infinite where there is no fixed number."""
        return inf


class RoomOnly(Limit):
    """A limit that never rejects a request, so that only slots and memory count."""

    def is_full(self, work: EngineWork) -> bool:
        return False

    def allows(self, work: EngineWork, reservation: Reservation, now: float) -> bool:
        return True


class FixedLimit(Limit):
    """A limit with a configured number of sequences per engine. If several replicas of the gateway use the engine, they
    share this number.
    """

    def __init__(self, sequences_max: int = SEQUENCES_MAX) -> None:
        self._sequences_max = sequences_max

    def is_full(self, work: EngineWork) -> bool:
        return work.sequences >= self.sequences_max(work)

    def allows(self, work: EngineWork, reservation: Reservation, now: float) -> bool:
        return work.sequences + reservation.sequences <= self.sequences_max(work)

    def sequences_max(self, work: EngineWork) -> float:
        return work.share.of(self._sequences_max * work.engines)


class ModelLimit(Limit):
    """A limit by prediction: a request is allowed if, by the step-time model, the backend can serve the request in time
    without making a running request miss a TPOT target. Without a model, the limit by latency applies (LatencyLimit).
    """

    reads_time = True

    def __init__(self) -> None:
        self.by_latency = self._learnt = LatencyLimit()

    def is_full(self, work: EngineWork) -> bool:
        if work.model is None:
            return work.sequences + 1 > self._learnt.sequences_max
        return work.sequences > 0 and PREDICTORS[work.batching].is_full(work)

    def allows(self, work: EngineWork, reservation: Reservation, now: float) -> bool:
        if work.model is None:
            return work.sequences + reservation.sequences <= self._learnt.sequences_max
        if now < work.busy_until and work.ready_at > reservation.first_due_at:
            return False  # the result of `may_prefill`, without its cost
        return PREDICTORS[work.batching].keeps_pace(work, reservation) and may_prefill(work, reservation, now)

    def sequences_max(self, work: EngineWork) -> float:
        return self._learnt.sequences_max if work.model is None else inf


def may_prefill(work: EngineWork, reservation: Reservation, now: float) -> bool:
    """Whether the request's prompt may be the next that the engine computes. Requires a step-time model."""
    predictor = PREDICTORS[work.batching]
    tokens = reservation.prefill_tokens
    if predictor.makes_late(work, tokens, now):
        return False
    due_at = reservation.first_due_at
    left_s = None if due_at == -inf else due_at - now
    if work.shared is not None:
        return may_share(work, work.shared, tokens, None if left_s is None else due_at - reservation.arrived_at, now)
    if left_s is not None and work.prefill_s(tokens) <= left_s:
        budget_tokens = work.budget_tokens(due_at, now)
        if budget_tokens is not None:
            return tokens <= budget_tokens
        if predictor.ttft_s(work, tokens, now, due_at=due_at) <= left_s:
            return True
    # The engine computes in order, so a request that is late behind others is not sooner for having waited here.
    return now >= work.busy_until


def may_share(work: EngineWork, shared: SharedSteps, tokens: int, ttft_s: float | None, now: float) -> bool:
    """Whether a prompt may be computed beside the others, where each gets at most a share of a step.

    Long prompts leave a part of the steps to short ones, so short prompts are computed soon, even if much is owed of
    long prompts. `ttft_s` is the request's whole TTFT target, not the rest of it: the backend may owe as many short
    prompts as it computes in that time. A rejection because little of that time is left would make no request faster.
    """
    if tokens > shared.share_tokens:
        return not work.long_opens_in_s(shared, now)
    chunk_s = work.chunk_s
    needed_s = shared.short_s(tokens, work.chunk_tokens, chunk_s)
    return needed_s <= (1.0 + BUSY_STEPS + STEP_UNDER_WAY) * chunk_s or (ttft_s is not None and needed_s <= ttft_s)


LIMITS: dict[str, Callable[..., Limit]] = {"model": ModelLimit, "fixed": FixedLimit, "room": RoomOnly}
