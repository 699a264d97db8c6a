"""Runs of the FairBatching paper's experiments: stand-in traces, engines of the catalogue, a virtual clock.

Requests reach the engines through the Scheduler, with limits that never bind (routers.py): it sends at once, as the
paper's gateway does. The one that refuses has a tier that does (`on_miss: reject`), and rejects by its own forecast
what would be late. Loads are ratios of the engines' capacity: requests per second while more wait than can run, in
vLLM's order. All orders and gateways get the same requests in a run of one load and number.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial

from backends.engine.coefficients import COEFFICIENTS
from backends.simulation.requests import RequestRecord
from backends.simulation.world import KnownSteps, World
from policies.scheduler import Scheduler
from policies.step_time.model import StepTime
from policies.types import SloEnvelope
from tests.evidence.routers import REQUESTS_MAX, send_at_once
from tests.evidence.slo_engines import ENGINE, RUNS, STEP_TOKENS_MAX, asked, make_engine
from tests.evidence.slo_workloads import TRACES

REPORTED = ("pab", "pab-refusing")  # the gateways whose engines report their budgets
GATEWAYS: dict[str, Callable[[Iterable[str]], Scheduler]] = {
    **{name: partial(send_at_once, name) for name in ("least-reserved", "round-robin", "pab")},
    "pab-refusing": partial(send_at_once, "pab", refuses=True),
}


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
    """One trace, as one tenant, on engines of one order behind one gateway."""

    trace: str
    load_ratio: float
    order: str
    gateway: str = "least-reserved"
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
        steps = KnownSteps(
            StepTime(COEFFICIENTS[self.coefficients].step_time_model(), error_ratio=0.0, is_sure=True),
            "fair",
            STEP_TOKENS_MAX,
            budget_for=envelope,
        )
        world = World(
            GATEWAYS[self.gateway]([self.trace]),
            engines,
            requests_running_max=REQUESTS_MAX,
            steps=steps if self.gateway in REPORTED else None,
        )
        return SloOutcome(tuple(world.run(arrivals)), {self.trace: envelope}, self.asks_s)
