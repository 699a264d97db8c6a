"""P1 and P2, beyond the papers: the effect of each predictor on VTC, and of the two ways to reserve KV tokens.

They are reported and not judged, because no figures are published. P1 is R3's set-up with each predictor. P2 is a stock
engine (chunked prefill, blocks of 16 tokens, preemption) behind the gateway's defaults, where a prediction also sizes
the reservation: with too little the engine preempts, with too much slots stay empty.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from random import Random

from backends.engine.coefficients import COEFFICIENTS
from backends.engine.engine import REQUESTS_RUNNING_MAX, Engine
from backends.simulation.world import World
from gateway.config.scheduling import PolicySettings, SimulatedScheduling
from gateway.scheduling.assembly import make_scheduler
from policies.types import Tenant
from tests.evidence import measures
from tests.evidence.experiment import Row, Target
from tests.evidence.vtc_pool import OVERHEAD_S, OVERHEAD_SPREAD_S, RUNS, Run, VtcRun, ended_at
from tests.evidence.workloads import WORKLOADS

ENGINE = "a10g-llama2-7b"
PREDICTORS = ("none", "last-five", "exponential", "quantile", "mixture", "noisy-oracle", "oracle")
KV_RULES = ("sum", "peak")
FIGURES = {"avg": measures.average, "max": measures.maximum, "throughput": measures.throughput_of}


@dataclass(frozen=True, slots=True)
class StockRun:
    """The LMSYS trace on one stock engine behind the gateway's defaults, with this predictor and this KV rule."""

    prediction: str
    kv_rule: str
    repeats: int = RUNS

    def run(self, number: int) -> Run:
        arrivals = WORKLOADS["lmsys"].arrivals()
        overhead_s = OVERHEAD_S[ENGINE] + OVERHEAD_SPREAD_S * number / (self.repeats - 1)
        engine = Engine(replace(COEFFICIENTS[ENGINE], overhead_s=overhead_s))
        scheduler = make_scheduler(
            SimulatedScheduling(prediction=PolicySettings(policy=self.prediction), kv_rule=self.kv_rule),
            tenants=[Tenant(name) for name in sorted({arrival.tenant_id for arrival in arrivals})],
            rng=Random(number),
        )
        world = World(scheduler, {"engine": engine}, requests_running_max=REQUESTS_RUNNING_MAX)
        records = tuple(world.run(arrivals))
        return Run(records, ended_at(records), engine.snapshot().preemptions_total)


def of_predictor(name: str) -> Iterator[Row]:
    experiment = VtcRun(workload="lmsys", prediction=name)
    for figure, measure in FIGURES.items():
        yield Row(says=f"VTC, prediction {name}: {figure}", experiments=(experiment,), measure=measure)


def of_stock(prediction: str, kv_rule: str) -> Iterator[Row]:
    experiment = StockRun(prediction, kv_rule)
    for figure, measure in (FIGURES | {"preemptions": measures.preemptions}).items():
        yield Row(says=f"{prediction}, {kv_rule}: {figure}", experiments=(experiment,), measure=measure)


TARGETS = {
    "P1": Target(
        "VTC with each predictor",
        f"{WORKLOADS['lmsys'].says}, on R3's engine",
        tuple(row for name in PREDICTORS for row in of_predictor(name)),
        judged=False,
    ),
    "P2": Target(
        "What is reserved: predictors and KV rules on a stock engine",
        f"{WORKLOADS['lmsys'].says}; one {ENGINE} with vLLM's order; everything else as the gateway has it by default",
        tuple(row for name in PREDICTORS[1:] for rule in KV_RULES for row in of_stock(name, rule)),
        judged=False,
    ),
}
