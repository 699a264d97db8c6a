"""Engines of the FairBatching experiments: their batching policies, their capacity, and what is known of their steps.

A step's budget is vLLM's default of 8,192 tokens on large GPUs for vLLM, and as FairBatching's cap beside its time. For
Sarathi it is tuned to each case as in the paper: the largest that keeps the TPOT target. FairBatching knows the
engine's step times exactly, except where the cost of knowing less is measured.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import islice
from math import exp
from random import Random
from statistics import median

from backends.engine.batch import Batching
from backends.engine.batching import ChunkedPrefill, Sarathi
from backends.engine.coefficients import COEFFICIENTS, StepCoefficients
from backends.engine.engine import Engine, Leap, StepPlan
from backends.engine.fair_batching import FairBatching
from backends.simulation.requests import MODEL, Arrival
from backends.simulation.world import World
from policies.step_time.fit import equation, fit
from policies.step_time.model import StepTimeModel
from policies.step_time.observation import Observation
from policies.types import SloEnvelope
from tests.evidence.routers import REQUESTS_MAX, send_at_once
from tests.evidence.slo_workloads import TRACES

STEP_TOKENS_MAX = 8192
REQUESTS_RUNNING_MAX = 256
TIMELESS = StepTimeModel(0.0, 1e-15)  # no step is ever too long
BUSY_CONTEXT_TOKENS = 32_000
BUDGET_UNIT_TOKENS = 16
CAPACITY_REQUESTS = 2_000
WATCHED_LOAD_RATIO = 0.5
WATCHED_S = 120.0
NOISE_RATIO = 0.02
FIT_ROUNDS = 5
RUNS = 3

ENGINE = "h20-qwen3-14b"


def tuned_budget(coefficients: StepCoefficients, envelope: SloEnvelope) -> int:
    """Return the tokens of the longest step that keeps the TPOT target beside a busy engine's context."""
    model = coefficients.step_time_model()
    left_s = (envelope.tpot_s or 0.0) - model.step_s(new_tokens=0, context_tokens=BUSY_CONTEXT_TOKENS, requests=0)
    return max(1, int(left_s / model.token_s / BUDGET_UNIT_TOKENS)) * BUDGET_UNIT_TOKENS


def known_by_tokens(name: str) -> StepTimeModel:
    """Return the step-time model that is fitted by new tokens alone."""
    return fitted(name, reads_context=False)


# Name -> factory; its arguments: the engine's name in COEFFICIENTS and the requests' targets.
ORDERS: dict[str, Callable[[str, SloEnvelope], Batching]] = {
    "vllm": lambda *_: ChunkedPrefill(tokens_max=STEP_TOKENS_MAX),
    "vllm-tuned": lambda name, envelope: ChunkedPrefill(tokens_max=tuned_budget(COEFFICIENTS[name], envelope)),
    "sarathi": lambda name, envelope: Sarathi(tokens_max=tuned_budget(COEFFICIENTS[name], envelope)),
    "fair": lambda name, _: FairBatching(COEFFICIENTS[name].step_time_model(), tokens_max=STEP_TOKENS_MAX),
    "fair-tuned": lambda name, envelope: FairBatching(
        COEFFICIENTS[name].step_time_model(), tokens_max=tuned_budget(COEFFICIENTS[name], envelope)
    ),
    "fair-fixed": lambda name, envelope: FairBatching(TIMELESS, tokens_max=tuned_budget(COEFFICIENTS[name], envelope)),
    "fair-tokens": lambda name, _: FairBatching(known_by_tokens(name), tokens_max=STEP_TOKENS_MAX),
}


def make_engine(coefficients: str, order: str, envelope: SloEnvelope) -> Engine:
    return Engine(
        COEFFICIENTS[coefficients],
        requests_running_max=REQUESTS_RUNNING_MAX,
        batching=ORDERS[order](coefficients, envelope),
    )


@cache
def capacity_per_s(trace: str, coefficients: str) -> float:
    """Return the requests per second that one engine serves in vLLM's order while more wait than it can run."""
    rng = Random(f"capacity {trace}")
    requests = islice(TRACES[trace].requests(MODEL, rng), CAPACITY_REQUESTS)
    return served_per_s(requests, make_engine(coefficients, "vllm", TRACES[trace].envelope))


def served_per_s(requests: Iterable[Arrival], engine: Engine) -> float:
    """Return the requests per second in the second quarter of CAPACITY_REQUESTS that all arrive at once: by then the
    batch is mixed, and still full.
    """
    # Of one tenant, so that they are served in the order in which they come.
    arrivals = (replace(request, tenant_id="t") for request in requests)
    gateway = send_at_once("least-reserved", ["t"])
    world = World(gateway, {"engine": engine}, requests_running_max=REQUESTS_MAX)
    quarter = CAPACITY_REQUESTS // 4
    ended_at = [world.now for _ in islice(world.run(arrivals), 2 * quarter)]
    return quarter / (ended_at[-1] - ended_at[quarter - 1])


def asked(trace: str, load_ratio: float, coefficients: str, *, asks_s: float, number: int) -> Iterator[Arrival]:
    """Return a trace's arrivals, as one tenant, at this ratio of one engine's capacity; drawn anew for each number."""
    rng = Random(f"{trace} {load_ratio} {number}")
    rate_per_s = load_ratio * capacity_per_s(trace, coefficients)
    return TRACES[trace].arrivals(trace, rate_per_s, duration_s=asks_s, rng=rng)


class WatchedEngine(Engine):
    """An engine that records what each step computed and how long it took, with noise. It never leaps, so no step is
    missed.
    """

    def __init__(self, coefficients: StepCoefficients, batching: Batching, *, noise_ratio: float, rng: Random) -> None:
        super().__init__(coefficients, requests_running_max=REQUESTS_RUNNING_MAX, batching=batching)
        self.observations: list[Observation] = []
        self._noise_ratio = noise_ratio
        self._rng = rng

    def leap(self, now: float, before: float) -> Leap | None:
        return None

    def step_begin(self, now: float) -> StepPlan | None:
        plan = super().step_begin(now)
        if plan is not None:
            seconds = plan.duration_s * exp(self._rng.gauss(0.0, self._noise_ratio))
            self.observations.append(Observation(seconds, 1, plan.new_tokens, plan.context_tokens, plan.requests))
        return plan


def watched(coefficients: str, *, noise_ratio: float, number: int) -> list[Observation]:
    """Return the steps of FairBatching on the Qwen trace at a usual load."""
    known, rng = COEFFICIENTS[coefficients], Random(f"steps {number}")
    batching = FairBatching(known.step_time_model(), tokens_max=STEP_TOKENS_MAX)
    engine = WatchedEngine(known, batching, noise_ratio=noise_ratio, rng=rng)
    arrivals = asked("qwen", WATCHED_LOAD_RATIO, coefficients, asks_s=WATCHED_S, number=number)
    gateway = send_at_once("least-reserved", ["qwen"])
    for _ in World(gateway, {"engine": engine}, requests_running_max=REQUESTS_MAX).run(arrivals):
        pass
    return engine.observations


@cache
def fitted(coefficients: str, *, reads_context: bool) -> StepTimeModel:
    """Return the gateway's own fit to steps without noise, with or without their context tokens."""
    return fit_to(watched(coefficients, noise_ratio=0.0, number=0), reads_context=reads_context)


def fit_to(observations: Sequence[Observation], *, reads_context: bool) -> StepTimeModel:
    seen = observations if reads_context else [replace(each, context_token_steps=0.0) for each in observations]
    # While all requests decode, a request is a token: the catalogue's engines have no cost per request.
    equations = [equation(replace(each, request_steps=0.0)) for each in seen]
    model = fit(equations, None, believed=None, rounds=FIT_ROUNDS)
    assert model is not None, "there were steps"
    return model


@dataclass(frozen=True, slots=True)
class ModelError:
    """The median relative error of a model on steps that it was not fitted to: the second half of a run."""

    reads_context: bool
    coefficients: str = ENGINE
    noise_ratio: float = NOISE_RATIO
    repeats: int = RUNS

    def run(self, number: int) -> float:
        observations = watched(self.coefficients, noise_ratio=self.noise_ratio, number=number)
        half = len(observations) // 2
        model = fit_to(observations[:half], reads_context=self.reads_context)
        return median(abs(1.0 - each.predicted_s(model) / each.seconds) for each in observations[half:])
