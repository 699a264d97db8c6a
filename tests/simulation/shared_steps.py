"""A chat beside a flood of long prompts, at an engine that gives no prompt more than a part of a step: the scene of
`make demo-slo` under a virtual clock, with what a request takes to the engine, and with steps of unequal length.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from random import Random
from statistics import quantiles

from backends.engine.batch import Batch
from backends.engine.batching import ChunkedPrefill
from backends.engine.coefficients import StepCoefficients
from backends.engine.engine import Engine, Leap, StepPlan, StepResult
from backends.engine.sequence import EngineRequest
from backends.simulation.requests import Arrival
from backends.simulation.world import KnownSteps, Slot, World
from policies.fairness.slack import SlackCounter
from policies.limit import Limit, ModelLimit
from policies.prediction import Oracle
from policies.scheduler import Scheduler
from policies.step_time import StepTime
from policies.types import BackendLoad, SloEnvelope, Tenant, Tier

CHAT_PER_S = 6.0
CHAT_FROM_S = 6.0
SECONDS = 18.0
SCRAPED_S = 0.25
SEATS = 32


@dataclass(frozen=True, kw_only=True)
class Machine:
    """Seconds of a step of the tiny model, and the steps that tests/benchmarks/demos/slo.py chooses there."""

    base_s: float
    token_s: float
    tokens_max: int
    prompt_tokens_max: int

    def coefficients(self, *, by: float = 1.0) -> StepCoefficients:
        known = StepCoefficients(
            base_s=self.base_s,
            token_s=self.token_s,
            context_token_s=0.02e-6,
            request_s=60e-6,
            kv_tokens_max=65_536,
            source="calibrated",
        )
        return known.scaled(by)

    def step_s(self, tokens: int) -> float:
        return self.coefficients().mixed_s(new_tokens=tokens, context_tokens=0, requests=1)


FAST = Machine(base_s=2.2e-3, token_s=5.5e-6, tokens_max=352, prompt_tokens_max=72)
"""With AMX: as on the machine with 7.3 ms to a first token."""
SLOW = Machine(base_s=5.5e-3, token_s=150e-6, tokens_max=128, prompt_tokens_max=64)
"""Without, beside other work."""


class FarEngine(Engine):
    """An engine that requests reach `way_s` after they were sent, and whose steps are longer than predicted by `noise`
    in the mean.
    """

    def __init__(self, machine: Machine, *, way_s: float, noise: float) -> None:
        batching = ChunkedPrefill(tokens_max=machine.tokens_max, prompt_tokens_max=machine.prompt_tokens_max)
        super().__init__(machine.coefficients(), batching=batching, requests_running_max=SEATS)
        self._way_s, self._noise, self._random = way_s, noise, Random(0)
        self._coming: list[tuple[float, EngineRequest]] = []
        self.steps: list[StepPlan] = []

    def submit(self, request: EngineRequest, now: float) -> None:
        self._coming.append((now + self._way_s, request))

    def step_begin(self, now: float) -> StepPlan | None:
        while self._coming and (self._coming[0][0] <= now or not self._sequences):
            super().submit(self._coming.pop(0)[1], now)
        return super().step_begin(now)

    def step_end(self) -> StepResult:
        result = super().step_end()
        self.steps.append(result.plan)
        return result

    def leap(self, now: float, before: float) -> Leap | None:
        return None

    def _duration_s(self, batch: Batch) -> float:
        return super()._duration_s(batch) * (1.0 + (self._random.expovariate(1 / self._noise) if self._noise else 0.0))


class SharedWorld(World):
    """The operator has configured how much of a step one prompt gets."""

    def __init__(self, machine: Machine, *args, **options) -> None:
        super().__init__(*args, **options)
        self._machine = machine

    def _load(self, slot: Slot) -> BackendLoad:
        return replace(super()._load(slot), prompt_step_tokens_max=self._machine.prompt_tokens_max)


@dataclass(frozen=True)
class Served:
    """What the chat saw, and tokens per second of all."""

    inside: float
    ttft_p99_s: float
    tokens_per_s: float


def play(
    machine: Machine,
    limit: Callable[[], Limit] = ModelLimit,
    *,
    way_steps: float = 3.0,
    noise: float = 0.0,
    model_by: float = 1.0,
) -> Served:
    """A request takes `way_steps` full steps to the engine. The gateway's model is wrong by the factor `model_by`."""
    full_s = machine.step_s(machine.tokens_max)
    way_s = way_steps * full_s
    targets = SloEnvelope(
        3 * (machine.step_s(60) + way_s) + full_s,  # as the demonstration sets them
        max(3 * machine.step_s(1), full_s / 0.6),
    )
    rng, at_s, chats = Random(1), CHAT_FROM_S, []
    while (at_s := at_s + rng.expovariate(CHAT_PER_S)) < SECONDS:
        chats.append(Arrival("chat", at_s, 60, 24, 24, envelope=targets))
    flood = [Arrival("batch", 0.0, 2_000, 16, 16)] * int(SECONDS / full_s * machine.tokens_max / 2_000 + SEATS)
    engine = FarEngine(machine, way_s=way_s, noise=noise)
    known = StepTime(machine.coefficients(by=model_by).step_time_model(), error_ratio=0.1, is_sure=True)
    world = SharedWorld(
        machine,
        Scheduler(
            tenants=[Tenant("chat", tier_id="chat"), Tenant("batch", tier_id="batch")],
            tiers=[Tier("chat", reserve_ratio=0.2), Tier("batch")],
            fairness=lambda: SlackCounter(second_key="deadline"),
            prediction=Oracle(),
            limit=limit,
            admission=[],
        ),
        {"gpu": engine},
        requests_running_max=SEATS,
        metrics_every_s=SCRAPED_S,
        steps=KnownSteps(known, tokens_max=machine.tokens_max),
    )
    records = [each for each in world.run([*flood, *chats]) if each.tenant_id == "chat"]
    ttft_s = [each.first_token_latency_s or 0.0 for each in records]
    assert targets.ttft_s is not None
    assert targets.tpot_s is not None
    inside = sum(
        first_s <= targets.ttft_s and (each.tpot_s or 0.0) <= targets.tpot_s
        for first_s, each in zip(ttft_s, records, strict=True)
    )
    steps = [each for each in engine.steps if CHAT_FROM_S <= each.begun_at < SECONDS]
    seconds = sum(each.duration_s for each in steps)
    return Served(
        inside / len(records),
        quantiles(ttft_s, n=100, method="inclusive")[98],
        sum(each.new_tokens for each in steps) / seconds,
    )
