"""How the FairBatching paper's experiments are done here: stand-in traces, engines of the catalogue, a virtual clock.

Engines batch as named in ORDERS; requests reach them through a router (routers.py), which sends at once, as the
paper's do. Loads are ratios of what the engine can do: its requests per second while it has more than it can run, in
vLLM's order. All orders of one load and run see the very same requests.

A step's budget: vLLM's default of 8,192 tokens on large GPUs for vLLM, and as FairBatching's cap beside its time. The
paper tuned Sarathi's to each case, so several are tried and the best one counts.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache, partial
from itertools import islice
from random import Random

from backends.engine.batch import Batching
from backends.engine.batching import ChunkedPrefill, Sarathi
from backends.engine.coefficients import COEFFICIENTS, StepCoefficients
from backends.engine.engine import Engine
from backends.engine.fair_batching import FairBatching
from backends.simulation.fairness_metric import RequestRecord
from backends.simulation.workload import MODEL
from backends.simulation.world import World
from gateway.simulate.tables.routers import (
    METRICS_EVERY_S,
    Kubernetes,
    PrefillBudget,
    RoundRobin,
    Router,
    Rule,
    least_request,
)
from gateway.simulate.tables.slo_workloads import TRACES, Trace
from policies.step_time.model import StepTimeModel
from policies.types import SloEnvelope

STEP_TOKENS_MAX = 8192
REQUESTS_RUNNING_MAX = 256
SARATHI_BUDGETS = (64, 96, 128, 192)
FIXED_BUDGET = 128
TIMELESS = StepTimeModel(0.0, 1e-15)  # of which no step is ever too long
CAPACITY_REQUESTS = 400
RUNS = 3

ENGINE = "h20-qwen3-14b"


def without_context(coefficients: StepCoefficients, context_tokens: float) -> StepTimeModel:
    """What is known of these step times by new tokens alone: the context of a usual step is in the base."""
    exact = coefficients.step_time_model()
    return replace(exact, base_s=exact.base_s + exact.context_token_s * context_tokens, context_token_s=0.0)


ORDERS: dict[str, Callable[[StepCoefficients], Batching]] = {
    "vllm": lambda _: ChunkedPrefill(tokens_max=STEP_TOKENS_MAX),
    **{
        f"sarathi-{tokens}": partial(lambda tokens, _: Sarathi(tokens_max=tokens), tokens) for tokens in SARATHI_BUDGETS
    },
    "fair": lambda coefficients: FairBatching(coefficients.step_time_model(), tokens_max=STEP_TOKENS_MAX),
    "fair-fixed": lambda _: FairBatching(TIMELESS, tokens_max=FIXED_BUDGET),
    "fair-tokens": lambda coefficients: FairBatching(without_context(coefficients, 0.0), tokens_max=STEP_TOKENS_MAX),
}


@dataclass(frozen=True, slots=True)
class SloOutcome:
    """What came of one run: its records, the envelope they are judged by, and for how long requests arrived."""

    records: tuple[RequestRecord, ...]
    envelopes: Mapping[str, SloEnvelope]  # by tenant
    asks_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceRun:
    """One trace, as one tenant, on engines of one order behind one router."""

    trace: str
    load_ratio: float
    order: str
    router: str = "least-request"
    engines: int = 1
    coefficients: str = ENGINE
    ttft_s: float | None = None
    """Instead of the trace's own."""
    tpot_s: float | None = None
    asks_s: float = 120.0
    repeats: int = RUNS

    def run(self, number: int) -> SloOutcome:
        trace = self._trace()
        rate_per_s = self.load_ratio * self.engines * capacity_per_s(self.trace, self.coefficients)
        rng = Random(f"{self.trace} {self.load_ratio} {self.engines} {number}")  # noqa: S311 - no secrets
        arrivals = trace.arrivals(self.trace, rate_per_s, duration_s=self.asks_s, rng=rng)
        engines = {f"engine-{name}": make_engine(self.coefficients, self.order) for name in range(1, self.engines + 1)}
        rule = ROUTERS[self.router](engines, trace.envelope, number)
        world = World(Router(rule), engines, metrics_every_s=METRICS_EVERY_S)
        return SloOutcome(tuple(world.run(arrivals)), {self.trace: trace.envelope}, self.asks_s)

    def _trace(self) -> Trace:
        trace = TRACES[self.trace]
        own = trace.envelope
        envelope = SloEnvelope(self.ttft_s or own.ttft_s, self.tpot_s or own.tpot_s)
        return replace(trace, envelope=envelope)


ROUTERS: dict[str, Callable[[Mapping[str, Engine], SloEnvelope, int], Rule]] = {
    "round-robin": lambda *_: RoundRobin(),
    "least-request": lambda *_: least_request,
    "pab": lambda engines, envelope, _: _budgets(engines, envelope, refuses=False),
    "pab-admission": lambda engines, envelope, _: _budgets(engines, envelope, refuses=True),
    "kubernetes": lambda _engines, _envelope, number: Kubernetes(Random(number)),  # noqa: S311 - no secrets
}


def _budgets(engines: Mapping[str, Engine], envelope: SloEnvelope, *, refuses: bool) -> PrefillBudget:
    return PrefillBudget(lambda name, now: engines[name].prefill_budget(now, envelope), refuses=refuses)


def make_engine(coefficients: str, order: str) -> Engine:
    known = COEFFICIENTS[coefficients]
    return Engine(known, requests_running_max=REQUESTS_RUNNING_MAX, batching=ORDERS[order](known))


@cache
def capacity_per_s(trace: str, coefficients: str) -> float:
    """Requests a second that one engine serves in vLLM's order while more wait than it can run."""
    rng = Random(f"capacity {trace}")  # noqa: S311 - no secrets
    requests = islice(TRACES[trace].requests(MODEL, rng), CAPACITY_REQUESTS)
    world = World(Router(least_request), {"engine": make_engine(coefficients, "vllm")})
    ended_at = []
    for _ in world.run(requests):
        ended_at.append(world.now)
    # Until half are done the engine is full, whatever the last ones do.
    return CAPACITY_REQUESTS / 2 / ended_at[CAPACITY_REQUESTS // 2 - 1]
