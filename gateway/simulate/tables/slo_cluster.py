"""Several tenants in tiers on a cluster: the gateway's own Scheduler against gateways that send at once.

    chat       critical: short prompts that come in no bursts, first token in 0.5 s, then 50 ms a token
    standard   the lengths of the Qwen stand-in, 2 s and 100 ms
    batch      sheddable: the lengths of the Azure stand-in, 30 s and 200 ms

A request is one of a tier by the tier's part of requests, and in it one of a tenant by Zipf's law: the first tenant
asks twice as often as the second. Arrivals are Poisson. A load is a ratio of what the engines can do with this very
mix, all of it waiting, in vLLM's order.

The Scheduler is made as a configuration would make it: tiers by weighted VTC, tenants by VTC with urgency as a second
key within its slack, placement by prefill admission budget, the limit by the model of step times, which it is given
exactly. The other gateways send to vLLM's order.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from itertools import islice
from random import Random

from backends.engine.coefficients import COEFFICIENTS
from backends.engine.engine import Engine
from backends.simulation.recording import SchedulerLike
from backends.simulation.workload import Arrival
from backends.simulation.world import METRICS_EVERY_S, Steps, World
from gateway.config.scheduling import SimulatedScheduling
from gateway.scheduling.assembly import make_scheduler
from gateway.simulate.tables import routers
from gateway.simulate.tables.routers import Kubernetes, RoundRobin, Router, least_request
from gateway.simulate.tables.slo_engines import CAPACITY_REQUESTS, STEP_TOKENS_MAX, make_engine
from gateway.simulate.tables.slo_pool import SloOutcome
from gateway.simulate.tables.slo_workloads import TRACES, Trace
from policies.step_time.model import StepTime
from policies.types import Request, SloEnvelope, Tenant, Tier

ENGINE = "a800-llama3.1-8b"
SLACK_SERVICE = 2_000.0
ZIPF = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Population:
    """The tenants of one tier: who they are to the gateway, what they ask, and which part of all requests."""

    tier: Tier
    trace: Trace
    tenants: int
    requests_ratio: float

    def names(self) -> list[str]:
        return [f"{self.tier.id}-{number:02}" for number in range(self.tenants)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """What is asked of a cluster, and by whom."""

    populations: tuple[Population, ...]
    engines: int

    @property
    def envelopes(self) -> dict[str, SloEnvelope]:
        return {name: each.trace.envelope for each in self.populations for name in each.names()}

    def tenants(self, tier_id: str) -> list[str]:
        return [name for each in self.populations if each.tier.id == tier_id for name in each.names()]

    def requests(self, rng: Random) -> Iterator[Arrival]:
        """Without an end, all at time 0."""
        ratios = [each.requests_ratio for each in self.populations]
        streams = [_drawn(each, rng) for each in self.populations]
        while True:
            (stream,) = rng.choices(streams, ratios)
            yield next(stream)

    def arrivals(self, load_ratio: float, *, asks_s: float, number: int) -> Iterator[Arrival]:
        rng = Random(f"cluster {load_ratio} {number}")  # noqa: S311 - no secrets
        rate_per_s, at_s = load_ratio * self.engines * capacity_per_s(self), 0.0
        for arrival in self.requests(rng):
            at_s += rng.expovariate(rate_per_s)
            if at_s >= asks_s:
                return
            yield replace(arrival, at_s=at_s)


def _drawn(population: Population, rng: Random) -> Iterator[Arrival]:
    names = population.names()
    weights = [1 / (number + 1) ** ZIPF for number in range(len(names))]
    for arrival in population.trace.requests(population.tier.id, rng):
        (name,) = rng.choices(names, weights)
        yield replace(arrival, tenant_id=name)


@cache
def capacity_per_s(scene: Scene) -> float:
    """Requests of the mix a second that one engine serves in vLLM's order while more wait than it can run."""
    requests = islice(scene.requests(Random("capacity")), CAPACITY_REQUESTS)  # noqa: S311 - no secrets
    engine = make_engine(ENGINE, "vllm", SloEnvelope())
    world = World(Router(least_request), {"engine": engine})
    ended_at = [world.now for _ in world.run(requests)]
    return CAPACITY_REQUESTS / 2 / ended_at[CAPACITY_REQUESTS // 2 - 1]


CHAT = replace(TRACES["burst"], gap_shape=1.0)
STANDARD = replace(TRACES["qwen"], envelope=SloEnvelope(2.0, 0.1))
BATCH = replace(TRACES["azure"], envelope=SloEnvelope(30.0, 0.2))
CRITICAL_TIER = Tier("critical", weight=4.0, priority=4, rejects_misses=True)
STANDARD_TIER = Tier("standard", weight=2.0, priority=3, rejects_misses=True)
BATCH_TIER = Tier("batch", priority=-1, preemptible=True)
SCENES: dict[str, Scene] = {
    "three tiers": Scene(
        populations=(
            Population(tier=CRITICAL_TIER, trace=CHAT, tenants=20, requests_ratio=0.5),
            Population(tier=STANDARD_TIER, trace=STANDARD, tenants=20, requests_ratio=0.3),
            Population(tier=BATCH_TIER, trace=BATCH, tenants=10, requests_ratio=0.2),
        ),
        engines=8,
    ),
}


@dataclass(frozen=True, slots=True)
class System:
    """A gateway before engines of one order; `steps` is what it is told of theirs."""

    order: str
    make: Callable[[Scene, int], SchedulerLike]
    steps: Steps | None = None
    metrics_every_s: float = METRICS_EVERY_S


def known_steps(batching: str) -> Steps:
    model = COEFFICIENTS[ENGINE].step_time_model()
    return Steps(StepTime(model, error_ratio=0.0, is_sure=True), batching, STEP_TOKENS_MAX)


def scheduled(*, fairness: str = "slack", placement: str = "pab", refuses: bool = True) -> Callable[..., SchedulerLike]:
    """The gateway's own Scheduler. Without `refuses` every tier waits for what cannot be in time any more."""

    def make(scene: Scene, number: int) -> SchedulerLike:
        chosen: dict[str, object] = {"policy": fairness}
        if fairness == "slack":
            chosen |= {"slack_service": SLACK_SERVICE, "second_key": "deadline"}
        scheduling = SimulatedScheduling.model_validate({"fairness": chosen, "placement": placement})
        tiers = [each.tier if refuses else replace(each.tier, rejects_misses=False) for each in scene.populations]
        tenants = [Tenant(name, tier_id=each.tier.id) for each in scene.populations for name in each.names()]
        rng = Random(f"policy {number}")  # noqa: S311 - no secrets
        return make_scheduler(scheduling, tiers=tiers, tenants=tenants, rng=rng)

    return make


def _kubernetes(scene: Scene, number: int) -> SchedulerLike:
    priority_of = {name: each.tier.priority for each in scene.populations for name in each.names()}

    def priority(request: Request) -> int:
        return priority_of[request.tenant_id]

    return Router(Kubernetes(Random(number), priority))  # noqa: S311 - no secrets


SYSTEMS: Mapping[str, System] = {
    "fairlead": System("fair", scheduled(), known_steps("fair")),
    "fairlead, refusing nobody": System("fair", scheduled(refuses=False), known_steps("fair")),
    "fairlead, vLLM order": System("vllm", scheduled(placement="predicted-ttft"), known_steps("vllm")),
    "least-request": System("vllm", lambda *_: Router(least_request)),
    "round-robin": System("vllm", lambda *_: Router(RoundRobin())),
    "Kubernetes": System("vllm", _kubernetes, metrics_every_s=routers.METRICS_EVERY_S),
    "least-request, FB order": System("fair", lambda *_: Router(least_request)),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterRun:
    """A scene under a system."""

    scene: str
    system: str
    load_ratio: float
    asks_s: float = 60.0
    repeats: int = 1

    def run(self, number: int) -> SloOutcome:
        scene, system = SCENES[self.scene], SYSTEMS[self.system]
        names = range(1, scene.engines + 1)
        engines: dict[str, Engine] = {
            f"engine-{name}": make_engine(ENGINE, system.order, SloEnvelope()) for name in names
        }
        world = World(system.make(scene, number), engines, metrics_every_s=system.metrics_every_s, steps=system.steps)
        arrivals = scene.arrivals(self.load_ratio, asks_s=self.asks_s, number=number)
        return SloOutcome(tuple(world.run(arrivals)), scene.envelopes, self.asks_s)
