"""Runs of the VTC paper's experiments: its engine under the production Scheduler.

The paper's scheduler is inside the engine and chooses when a batch is formed; ours is in front of the engine. Both give
the same order if the engine's queue is empty whenever it admits. So the Scheduler here reserves as that engine does:
the most that is held at any time ("peak"), by the lengths that its memory planner knows (`sizing` is the oracle,
whatever orders the tenants), without headroom. No tenant's share of the pool is capped, and only room limits dispatch,
as in the paper. A dispatched request waits at most until ten decode steps have passed since the last prefill.

Each run has another host overhead per step, within the millisecond by which the published figures vary between runs: 2
to 3 ms where the step times were profiled without it (A10G), 0 to 1 ms where they were fitted to whole runs.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from random import Random

from backends.engine.batching import SeparatePrefill
from backends.engine.coefficients import COEFFICIENTS, StepCoefficients
from backends.engine.engine import REQUESTS_RUNNING_MAX, Engine
from backends.engine.kv_memory import OracleMemory
from backends.simulation.requests import Arrival, RequestRecord
from backends.simulation.world import World
from policies.accounts.cost import LinearPrice, Price, ProfiledQuadraticPrice
from policies.admission import RateLimiter
from policies.fairness import FAIRNESS
from policies.limit import RoomOnly
from policies.prediction import PREDICTION, NoisyOracle, Oracle, Prediction
from policies.scheduler import Scheduler
from policies.types import Tenant
from tests.evidence.workloads import WORKLOADS

RUNS = 5
OVERHEAD_S = {"a10g-llama2-7b": 2.0e-3, "a100-llama2-13b": 0.0}  # of the first run
OVERHEAD_SPREAD_S = 1.0e-3  # from the first run to the last
PATIENCE_S = 1e6  # no request is rejected for waiting
PRICES: dict[str, Price] = {"linear": LinearPrice(), "profiled": ProfiledQuadraticPrice()}


@dataclass(frozen=True, slots=True)
class Run:
    """The result of one run: its records in order of their ends, and when it ended."""

    records: tuple[RequestRecord, ...]
    wall_s: float
    preemptions: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class VtcRun:
    """A workload of the paper under one policy, on one engine. Tenants take `weights` in the order of their ids.

    The run stops after `until_s`; requests that have not ended by then have no record.
    """

    workload: str
    fairness: str = "vtc"
    prediction: str = "none"
    price: str = "linear"
    requests_per_minute_max: int | None = None
    weights: tuple[float, ...] = ()
    engine: str = "a10g-llama2-7b"
    kv_tokens_max: int = 10_000
    until_s: float = float("inf")
    repeats: int = RUNS

    def run(self, number: int) -> Run:
        arrivals = WORKLOADS[self.workload].arrivals()
        engines = {"engine": self._engine(number)}
        world = World(self._scheduler(arrivals, number), engines, requests_running_max=REQUESTS_RUNNING_MAX)
        records = tuple(_until(self.until_s, world, arrivals))
        return Run(records, ended_at(records))

    def _scheduler(self, arrivals: list[Arrival], number: int) -> Scheduler:
        names = sorted({arrival.tenant_id for arrival in arrivals})
        weights = self.weights or (1.0,) * len(names)
        rate = self.requests_per_minute_max
        return Scheduler(
            tenants=[
                Tenant(name, weight=weight, requests_per_minute_max=rate)
                for name, weight in zip(names, weights, strict=True)
            ],
            fairness=FAIRNESS[self.fairness],
            price=PRICES[self.price],
            prediction=_prediction(self.prediction, number),
            sizing=Oracle(),
            admission=(RateLimiter(Oracle().predict),),
            share_ratio_max=1.0,
            headroom_ratio_max=1.0,
            kv_rule="peak",
            limit=RoomOnly,
            wait_s_max=PATIENCE_S,
        )

    def _engine(self, number: int) -> Engine:
        return Engine(
            self._coefficients(number),
            kv_tokens_max=self.kv_tokens_max,
            block_tokens=1,
            batching=SeparatePrefill.for_pool(self.kv_tokens_max),
            memory=OracleMemory(kv_tokens_max=self.kv_tokens_max),
        )

    def _coefficients(self, number: int) -> StepCoefficients:
        overhead_s = OVERHEAD_S[self.engine] + OVERHEAD_SPREAD_S * number / (self.repeats - 1)
        return replace(COEFFICIENTS[self.engine], overhead_s=overhead_s)


def ended_at(records: Iterable[RequestRecord]) -> float:
    """Return when the last answer ended, in seconds."""
    return max(record.arrived_at + (record.total_latency_s or 0.0) for record in records)


def _prediction(name: str, number: int) -> Prediction:
    if name == "noisy-oracle":
        return NoisyOracle(rng=Random(number))
    return PREDICTION[name]()


def _until(until_s: float, world: World, arrivals: list[Arrival]) -> Iterator[RequestRecord]:
    for record in world.run(arrivals):
        if world.now > until_s:
            return
        yield record
