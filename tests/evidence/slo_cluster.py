"""Tenants in tiers: the gateway's own Scheduler against gateways that send at once, on scenes of several tenants.

A tier's requests are Poisson arrivals at its part of all requests. The tenant of each is drawn by Zipf's law: the first
tenant sends twice as many as the second. A load is a ratio of what the engines can serve of this very mix, with all of
it waiting, in vLLM's order. Each tier's requests are drawn separately: they are the same whatever other tiers send.

The Scheduler is made as from a configuration: tiers by weighted VTC, tenants by VTC with urgency as a second key within
its slack, placement by prefill admission budget, the limit by the model of step times, which it knows exactly. The
other gateways send to engines of vLLM's order.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from random import Random

from backends.engine.coefficients import COEFFICIENTS
from backends.simulation.requests import Arrival
from backends.simulation.world import METRICS_EVERY_S, KnownSteps, World
from gateway.config.scheduling import SimulatedScheduling
from gateway.scheduling.assembly import make_scheduler
from policies.scheduler_protocol import SchedulerProtocol
from policies.step_time.model import StepTime
from policies.types import DEFAULT_TIER, Request, SloEnvelope, Tenant, Tier
from tests.evidence import routers
from tests.evidence.routers import REQUESTS_MAX, Kubernetes, KubernetesGateway, send_at_once
from tests.evidence.slo_engines import (
    CAPACITY_REQUESTS,
    REQUESTS_RUNNING_MAX,
    STEP_TOKENS_MAX,
    make_engine,
    served_per_s,
    tuned_budget,
)
from tests.evidence.slo_pool import SloOutcome
from tests.evidence.slo_workloads import TRACES, Lengths, TraceShape
from tests.simulation.arrivals import merged

ENGINE = "a800-llama3.1-8b"
STEP_ENVELOPE = SloEnvelope(0.5, 0.05)  # the targets that step budgets are tuned to
SLACK_SERVICE = 2_000.0
ZIPF = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Population:
    """The tenants of one tier: the tier, their requests, and their part of all requests."""

    tier: Tier
    trace: TraceShape
    tenants: int
    requests_ratio: float

    def names(self) -> list[str]:
        return [f"{self.tier.id}-{number:02}" for number in range(self.tenants)]

    def requests(self, rng: Random) -> Iterator[Arrival]:
        """Yield requests without end, all at time 0."""
        names = self.names()
        weights = [1 / (number + 1) ** ZIPF for number in range(len(names))]
        for arrival in self.trace.requests(self.tier.id, rng):
            (name,) = rng.choices(names, weights)
            yield replace(arrival, tenant_id=name)

    def arrivals(self, rate_per_s: float, *, asks_s: float, number: int) -> Iterator[Arrival]:
        rng = Random(f"{self.tier.id} {rate_per_s} {number}")
        at_s, requests = 0.0, self.requests(rng)
        while (at_s := at_s + rng.expovariate(rate_per_s)) < asks_s:
            yield replace(next(requests), at_s=at_s)

    def __str__(self) -> str:
        share = f"{self.requests_ratio:.0%} of requests, of {self.tenants} tenants"
        return f"{self.tier.id} ({share}): {self.trace}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """The requests to a cluster, by tier, and its number of engines."""

    populations: tuple[Population, ...]
    engines: int

    @property
    def envelopes(self) -> dict[str, SloEnvelope]:
        return {name: each.trace.envelope for each in self.populations for name in each.names()}

    def tenants(self, tier_id: str) -> list[str]:
        return [name for each in self.populations if each.tier.id == tier_id for name in each.names()]

    def arrivals(self, load_ratio: float, *, asks_s: float, number: int, only: str | None) -> Iterator[Arrival]:
        """Yield arrivals in order of time; of one tier only, if it is named."""
        rate_per_s = load_ratio * self.engines * capacity_per_s(self)
        return merged(
            *(
                each.arrivals(rate_per_s * each.requests_ratio, asks_s=asks_s, number=number)
                for each in self.populations
                if only in (None, each.tier.id)
            )
        )

    def __str__(self) -> str:
        return f"{self.engines} engines ({ENGINE}); " + "; ".join(map(str, self.populations))


@cache
def capacity_per_s(scene: Scene) -> float:
    """Return the requests of the mix per second that one engine serves in vLLM's order while more wait than it
    can run.
    """
    rng = Random("capacity")
    streams = [each.requests(rng) for each in scene.populations]
    chosen = rng.choices(streams, [each.requests_ratio for each in scene.populations], k=CAPACITY_REQUESTS)
    return served_per_s((next(stream) for stream in chosen), make_engine(ENGINE, "vllm", STEP_ENVELOPE))


CRITICAL = Tier("critical", weight=4.0, priority=4, rejects_misses=True)
STANDARD = Tier("standard", weight=2.0, priority=3, rejects_misses=True)
BATCH = Tier("batch", priority=-1, preemptible=True)
CHAT = TraceShape(prompt=Lengths(300, 600, 4096), output=Lengths(150, 300, 1024), envelope=SloEnvelope(0.5, 0.05))
LONG_PROMPTS = TraceShape(
    prompt=Lengths(8000, 8000, 8000), output=Lengths(100, 200, 1024), envelope=SloEnvelope(60.0, 0.2)
)
SCENES: dict[str, Scene] = {
    "three tiers": Scene(
        populations=(
            Population(tier=CRITICAL, trace=replace(TRACES["burst"], gap_shape=1.0), tenants=20, requests_ratio=0.5),
            Population(
                tier=STANDARD,
                trace=replace(TRACES["qwen"], envelope=SloEnvelope(2.0, 0.1)),
                tenants=20,
                requests_ratio=0.3,
            ),
            Population(
                tier=BATCH,
                trace=replace(TRACES["azure"], envelope=SloEnvelope(30.0, 0.2)),
                tenants=10,
                requests_ratio=0.2,
            ),
        ),
        engines=8,
    ),
    "flood": Scene(
        populations=(
            Population(tier=CRITICAL, trace=CHAT, tenants=1, requests_ratio=0.05),
            Population(
                tier=BATCH, trace=replace(CHAT, envelope=SloEnvelope(60.0, 0.2)), tenants=1, requests_ratio=0.95
            ),
        ),
        engines=1,
    ),
    "long prompts": Scene(
        populations=(
            Population(tier=CRITICAL, trace=CHAT, tenants=1, requests_ratio=0.5),
            Population(tier=BATCH, trace=LONG_PROMPTS, tenants=1, requests_ratio=0.5),
        ),
        engines=1,
    ),
}


@dataclass(frozen=True, slots=True)
class System:
    """A gateway in front of engines of one order; `steps` is what it knows of their steps."""

    order: str
    make: Callable[[Scene, int], SchedulerProtocol]
    steps: KnownSteps | None = None
    metrics_every_s: float = METRICS_EVERY_S
    requests_running_max: int | None = None


def known_steps(batching: str, tokens_max: int) -> KnownSteps:
    model = COEFFICIENTS[ENGINE].step_time_model()
    return KnownSteps(StepTime(model, error_ratio=0.0, is_sure=True), batching, tokens_max)


def scheduled(
    *, fairness: str = "slack", placement: str = "pab", refuses: bool = True
) -> Callable[..., SchedulerProtocol]:
    """Return a factory of the gateway's own Scheduler. Without `refuses` no tier rejects requests that will be late;
    `fifo` has no tiers.
    """

    def make(scene: Scene, number: int) -> SchedulerProtocol:
        chosen: dict[str, object] = {"policy": fairness}
        if fairness == "slack":
            chosen |= {"slack_service": SLACK_SERVICE, "second_key": "deadline"}
        scheduling = SimulatedScheduling.model_validate({"fairness": chosen, "placement": placement})
        tier_of = {
            each.tier.id: DEFAULT_TIER if fairness == "fifo" else replace(each.tier, rejects_misses=refuses)
            for each in scene.populations
        }
        tenants = [
            Tenant(name, tier_id=tier_of[each.tier.id].id) for each in scene.populations for name in each.names()
        ]
        rng = Random(f"policy {number}")
        return make_scheduler(scheduling, tiers=set(tier_of.values()), tenants=tenants, rng=rng)

    return make


def with_plugin(tokens_max: int, make: Callable[[Scene, int], SchedulerProtocol], *, order: str = "fair") -> System:
    """Return a gateway before engines with the plugin, which orders them and tells step times and sizes."""
    return System(order, make, known_steps("fair", tokens_max), requests_running_max=REQUESTS_RUNNING_MAX)


def _tenant_ids(scene: Scene) -> list[str]:
    return [name for each in scene.populations for name in each.names()]


def at_once(order: str, placement: str = "least-reserved") -> System:
    """Return a gateway that holds nothing back, before engines of this order."""
    return System(
        order,
        lambda scene, _: send_at_once(placement, _tenant_ids(scene)),
        requests_running_max=REQUESTS_MAX,
    )


def _kubernetes(scene: Scene, number: int) -> SchedulerProtocol:
    priority_of = {name: each.tier.priority for each in scene.populations for name in each.names()}

    def priority(request: Request) -> int:
        return priority_of[request.tenant_id]

    return KubernetesGateway(Kubernetes(Random(number), priority), _tenant_ids(scene))


TUNED_TOKENS = tuned_budget(COEFFICIENTS[ENGINE], STEP_ENVELOPE)
SYSTEMS: Mapping[str, System] = {
    "fairlead": with_plugin(STEP_TOKENS_MAX, scheduled()),
    "fairlead, rejecting none": with_plugin(STEP_TOKENS_MAX, scheduled(refuses=False)),
    "fairlead, vLLM order": System("vllm", scheduled(placement="predicted-ttft"), known_steps("vllm", STEP_TOKENS_MAX)),
    "least requests": at_once("vllm"),
    "round robin": at_once("vllm", "round-robin"),
    "Kubernetes": System(
        "vllm", _kubernetes, metrics_every_s=routers.METRICS_EVERY_S, requests_running_max=REQUESTS_MAX
    ),
    "least requests, FB order": at_once("fair"),
    # Short steps keep the TPOT target whatever is in them.
    "no gateway, short steps": at_once("vllm-tuned"),
    "no gateway, FB order, short steps": at_once("fair-tuned"),
    "FIFO, short steps": System("vllm-tuned", scheduled(fairness="fifo"), known_steps("vllm", TUNED_TOKENS)),
    "fairlead, vLLM order, short steps": System(
        "vllm-tuned", scheduled(placement="predicted-ttft"), known_steps("vllm", TUNED_TOKENS)
    ),
    "fairlead, short steps": with_plugin(TUNED_TOKENS, scheduled(), order="fair-tuned"),
    "fairlead, short steps, rejecting none": with_plugin(TUNED_TOKENS, scheduled(refuses=False), order="fair-tuned"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterRun:
    """A scene under a system; only the tier `only` sends, if it is named."""

    scene: str
    system: str
    load_ratio: float
    only: str | None = None
    asks_s: float = 60.0
    repeats: int = 1

    def run(self, number: int) -> SloOutcome:
        scene = SCENES[self.scene]
        world = make_world(scene, SYSTEMS[self.system], number)
        arrivals = scene.arrivals(self.load_ratio, asks_s=self.asks_s, number=number, only=self.only)
        return SloOutcome(tuple(world.run(arrivals)), scene.envelopes, self.asks_s)


def make_world(scene: Scene, system: System, number: int) -> World:
    """Return the scene's engines behind the system's gateway."""
    engines = {
        f"engine-{name}": make_engine(ENGINE, system.order, STEP_ENVELOPE) for name in range(1, scene.engines + 1)
    }
    return World(
        system.make(scene, number),
        engines,
        requests_running_max=system.requests_running_max,
        metrics_every_s=system.metrics_every_s,
        steps=system.steps,
    )
