"""A pool to simulate in one call: the real Scheduler, one or more engines of a kind, and the judges."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from backends.engine.coefficients import COEFFICIENTS
from backends.engine.engine import Engine
from backends.simulation.requests import Arrival, RequestRecord
from backends.simulation.world import World
from policies.fairness import FAIRNESS
from policies.fairness.bounds import BOUNDS
from policies.prediction import PREDICTION
from policies.queueing.share_cap import SHARE_RATIO_MAX
from policies.scheduler import Scheduler
from policies.types import DEFAULT_TIER, Snapshot, Tenant, Tier
from tests.simulation.arrivals import from_csv
from tests.simulation.bound_checkers import ServiceBound
from tests.simulation.checkers import InFlightLimits, RunWatch, WorkConservation
from tests.simulation.fairness_metric import accumulated_service
from tests.simulation.recording import Recorder
from tests.simulation.run_accounts import RunAccounts

TRACE = Path(__file__).parents[2] / "tests/evidence/data/vtc_lmsys_real_trace.csv"
ENGINE = "a10g-llama2-7b"  # the VTC paper's: 10,000 tokens of KV pool, some 1,350 service units a second


@dataclass(frozen=True)
class Run:
    """What a simulation left behind."""

    records: Sequence[RequestRecord]
    wall_s: float
    bound: ServiceBound
    snapshot: Snapshot

    def service(self, start_s: float, end_s: float) -> dict[str, float]:
        """Every tenant's service between two times, in weighted tokens per second."""
        totals = accumulated_service(self.records, [start_s, end_s])
        return {tenant: (series[1] - series[0]) / (end_s - start_s) for tenant, series in totals.items()}


def simulate(
    tenants: Sequence[Tenant],
    arrivals: Iterable[Arrival],
    *,
    tiers: Sequence[Tier] = (DEFAULT_TIER,),
    fairness: str = "vtc",
    prediction: str = "quantile",
    engines: int = 1,
    share_ratio_max: float | None = None,
    bounded: bool = False,
    kv_rule: str = "sum",
) -> Run:
    """Run the arrivals to their end under every judge; `bounded` adds the bound of VTC, which only VTC keeps.

    The cap on a tenant's share in flight is the default's under VTC; a baseline has none.
    """
    if share_ratio_max is None:
        share_ratio_max = SHARE_RATIO_MAX if fairness == "vtc" else 1.0
    scheduler = Scheduler(
        tenants=tenants,
        tiers=tiers,
        fairness=FAIRNESS[fairness],
        prediction=PREDICTION[prediction](),
        admission=(),
        share_ratio_max=share_ratio_max,
        wait_s_max=1e6,
        kv_rule=kv_rule,
    )
    accounts = RunAccounts(tenants=tenants, tiers=tiers)
    bound = ServiceBound(accounts, BOUNDS["vtc"], is_capped=share_ratio_max < 1.0, every_s=0.5)
    judges = [
        InFlightLimits(accounts),
        WorkConservation(accounts, scheduler, every_s=0.5),
        *([bound] if bounded else []),
    ]
    world = World(
        Recorder(scheduler, RunWatch(accounts, judges)),
        {f"engine-{number}": Engine(COEFFICIENTS[ENGINE]) for number in range(engines)},
    )
    records = list(world.run(arrivals))
    snapshot = scheduler.snapshot(world.now)
    accounts.conclude(snapshot)
    return Run(records, world.now, bound, snapshot)


@cache
def lmsys_trace() -> list[Arrival]:
    """The trace behind the VTC paper's tables 2 and 3, of which a client allows 1,024 tokens for every answer."""
    with TRACE.open() as lines:
        return list(from_csv(lines, output_tokens_max=1024))


def tenants_of(arrivals: Iterable[Arrival]) -> list[Tenant]:
    return [Tenant(tenant_id) for tenant_id in sorted({arrival.tenant_id for arrival in arrivals})]
