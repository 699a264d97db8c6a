"""Runs of the FairBatching paper's experiments: stand-in traces, engines of the catalogue, a virtual clock.

Requests reach the engines through a router (routers.py), which sends at once, as the paper's do. Loads are ratios of
the engines' capacity: requests per second while more wait than can run, in vLLM's order. All orders and routers get the
same requests in a run of one load and number.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from random import Random

from backends.engine.engine import Engine
from backends.simulation.fairness_metric import RequestRecord
from backends.simulation.world import World
from policies.types import SloEnvelope
from tests.evidence.routers import (
    METRICS_EVERY_S,
    Kubernetes,
    PrefillBudget,
    RoundRobinRule,
    Router,
    Rule,
    least_request,
)
from tests.evidence.slo_engines import ENGINE, RUNS, asked, make_engine
from tests.evidence.slo_workloads import TRACES


@dataclass(frozen=True, slots=True)
class SloOutcome:
    """The result of one run: its records, the envelopes that they are judged by, and the seconds for which requests
    arrived.
    """

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
        own = TRACES[self.trace].envelope
        envelope = SloEnvelope(self.ttft_s or own.ttft_s, self.tpot_s or own.tpot_s)
        load_ratio = self.load_ratio * self.engines
        asked_for = asked(self.trace, load_ratio, self.coefficients, asks_s=self.asks_s, number=number)
        arrivals = (replace(arrival, envelope=envelope) for arrival in asked_for)
        engines = {
            f"engine-{name}": make_engine(self.coefficients, self.order, envelope)
            for name in range(1, self.engines + 1)
        }
        rule = ROUTERS[self.router](engines, envelope, number)
        world = World(Router(rule), engines, metrics_every_s=METRICS_EVERY_S)
        return SloOutcome(tuple(world.run(arrivals)), {self.trace: envelope}, self.asks_s)


ROUTERS: dict[str, Callable[[Mapping[str, Engine], SloEnvelope, int], Rule]] = {
    "round-robin": lambda *_: RoundRobinRule(),
    "least-request": lambda *_: least_request,
    "pab": lambda engines, envelope, _: _budgets(engines, envelope, refuses=False),
    "pab-admission": lambda engines, envelope, _: _budgets(engines, envelope, refuses=True),
    "kubernetes": lambda _engines, _envelope, number: Kubernetes(Random(number)),
}


def _budgets(engines: Mapping[str, Engine], envelope: SloEnvelope, *, refuses: bool) -> PrefillBudget:
    return PrefillBudget(lambda name, now: engines[name].prefill_budget(now, envelope), refuses=refuses)
