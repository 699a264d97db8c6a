"""Scenes with agents: 24 of them on two CPU cores, and up to 84 for each pair of H100s; and what became of them."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from random import Random
from statistics import fmean
from typing import Any

from backends.engine.batching import ChunkedPrefill
from backends.engine.coefficients import COEFFICIENTS, StepCoefficients
from backends.engine.engine import Engine
from backends.simulation.world import KnownSteps
from gateway.simulate.trace.agents import GAPS_S, SHARED_TOKENS, Agents, Quantiles, always
from policies.facts import Fact, TenantsChanged
from policies.pool.session_gate import SessionRules
from policies.scheduler import Scheduler
from policies.scheduler_protocol import SchedulerProtocol
from policies.sessions.ledger import SessionLedger, TurnEntry
from policies.step_time.model import StepTime
from policies.types import Action, Dispatch, Outcome, Request, Tenant, Timing, Usage
from tests.simulation.sessions.replicas import Replicas
from tests.simulation.sessions.world import SessionWorld, TurnRecord

CPU_13M = COEFFICIENTS["cpu-13m"]
CPU_1M = replace(COEFFICIENTS["cpu-tiny"], kv_tokens_max=16_384)
H100 = COEFFICIENTS["2xh100-qwen3-30b"]
SHORT_GAPS, LONG_GAPS = always(0.1), always(0.3)


@dataclass(frozen=True)
class Scene:
    """Agents, and the engines that they share. The first `warm_s` seconds are left out of the figures."""

    coefficients: StepCoefficients
    agents: tuple[Agents, ...]
    engines: int = 1
    block_tokens: int = 16
    running_max: int = 256
    step_tokens: int = 8192
    until_s: float = 180.0
    warm_s: float = 40.0
    seed: int = 0


def cpu(*, gap_s: Quantiles = SHORT_GAPS, coefficients: StepCoefficients = CPU_13M, until_s: float = 180.0) -> Scene:
    """A has 20 agents, B has 4: sessions of 12 turns that begin with 1,200 tokens and get 144 more with each."""
    agents = tuple(
        Agents(
            tenant_id=tenant, sessions=count, first_prompt=always(1200.0), added=always(120.0), output=always(24.0),
            turns=always(12.0), gap_s=gap_s, starts_within_s=0.5,
        )
        for tenant, count in {"A": 20, "B": 4}.items()
    )  # fmt: skip
    return Scene(coefficients, agents, running_max=16, step_tokens=512, until_s=until_s)


def h100(sessions: int, *, engines: int = 1, until_s: float = 3000.0, warm_s: float = 600.0) -> Scene:
    """So many agents a pod: prompts of about 50,000 tokens, answers of 350, gaps of up to 10 s."""
    agents = Agents(
        tenant_id="A", sessions=sessions * engines, starts_within_s=60.0, shared_tokens=SHARED_TOKENS
    )  # fmt: skip
    return Scene(H100, (agents,), engines=engines, block_tokens=512, until_s=until_s, warm_s=warm_s)


@dataclass(frozen=True)
class Figures:
    """What became of a scene. Quantiles are 0.5, 0.9, 0.99; sessions those that began and ended after the warm-up.
    `session_held_s`: for how long all turns together of each session were held that was; `held_s_max` is of one turn.
    """

    tokens_per_s: float
    hits: float
    ttft_s: tuple[float, float, float]
    session_s: tuple[float, float, float]
    turns: Mapping[str, int]
    prompt_mean: float
    session_held_s: tuple[float, float, float] = (0.0, 0.0, 0.0)
    held_s_max: float = 0.0
    pauses: int = 0
    yields: int = 0
    etas: tuple[float, ...] = ()

    def __str__(self) -> str:
        times = " ".join(f"{each:8.2f}" for each in (*self.ttft_s, *self.session_s))
        turns = " : ".join(str(count) for _, count in sorted(self.turns.items()))
        eta = " ".join(f"{each:.2f}" for each in self.etas)
        return (
            f"{self.tokens_per_s:8.1f} {self.hits:6.3f} {times} {turns:>12} {self.prompt_mean:8.0f}"
            f" {self.session_held_s[2]:8.1f} {self.held_s_max:8.1f} {self.pauses:6} {self.yields:6} {eta}"
        )


HEAD = (
    "tokens/s   hits    TTFT p50 p90 p99           session p50 p90 p99          turns       prompt"
    "     held p99 max  pauses yields eta"
)


class NoGateway:
    """Sends each call at once, to the backend of its session; sessions take turns over the backends."""

    def __init__(self, engines: int) -> None:
        self._new: list[Request] = []
        self._at: dict[str | None, str] = {}
        self._engines = engines

    def submit(self, request: Request, now: float) -> None:
        self._new.append(request)

    def poll(self, now: float) -> list[Action]:
        new, self._new = self._new, []
        return [
            Dispatch(each.id, self._at.setdefault(each.program_id, f"e{len(self._at) % self._engines}")) for each in new
        ]

    def tokens(self, request_id: str, usage: Usage, now: float) -> None: ...
    def finished(
        self, request_id: str, outcome: Outcome, now: float, timing: Timing | None = None, usage: Usage | None = None
    ) -> None: ...
    def told(self, fact: Fact) -> None: ...
    def next_wakeup(self) -> float | None:
        return None


@dataclass(frozen=True, kw_only=True)
class Way:
    """How agents reach the engines. `told`: the ends of sessions are told. `replicas`: so many share the order."""

    gateway: bool = True
    replicas: int = 1
    gate: bool = False
    told: bool = False
    ledger: Mapping[str, Any] = field(default_factory=dict)
    make: type[Scheduler] = Scheduler


DIRECT, OFF = Way(gateway=False), Way()
ON = Way(gate=True, ledger={"wait_s_max": 150.0})  # half of the default queue timeout
TOLD = replace(ON, told=True)
THREE = replace(ON, replicas=3)


def play(scene: Scene, way: Way, begun: Callable[[SessionWorld], None] = lambda _world: None) -> Figures:
    """Play the scene; `begun` is called first."""
    engines = {f"e{number}": _engine(scene) for number in range(scene.engines)}
    tenants = [Tenant(each.tenant_id) for each in scene.agents]
    settings: dict[str, Any] = {"admission": (), "wait_s_max": 1e9}
    held_s: dict[str, list[float]] = {}
    ledgers: list[SessionLedger] = []

    def make() -> Scheduler:
        scheduler = way.make(**settings, sessions=SessionRules(**way.ledger) if way.gate else None)
        if scheduler._sessions is not None:
            ledgers.append(scheduler._sessions.ledger)
            note_waits(ledgers[-1], held_s)
        return scheduler

    model = scene.coefficients.step_time_model()
    world = SessionWorld(
        _order(scene, way, make, tenants),
        engines,
        scene.agents,
        rng=Random(scene.seed),
        until_s=scene.until_s,
        tells_ends=way.told,
        requests_running_max=scene.running_max,
        steps=KnownSteps(time=StepTime(model, 0.0, is_sure=True), tokens_max=scene.step_tokens),
    )
    begun(world)
    world.play()
    return _figures(scene, world, ledgers[-1] if ledgers else None, held_s)


def _order(scene: Scene, way: Way, make: Callable[[], Scheduler], tenants: list[Tenant]) -> SchedulerProtocol:
    if not way.gateway:
        return NoGateway(scene.engines)
    if way.replicas > 1:
        return Replicas(make, tenants, replicas=way.replicas)
    scheduler = make()
    scheduler.told(TenantsChanged(0.0, changed=tuple(tenants)))
    return scheduler


def note_waits(ledger: SessionLedger, held_s: dict[str, list[float]]) -> None:
    """Note for how long each turn of a session was held."""
    released = ledger.released

    def noted(now: float) -> Iterator[TurnEntry]:
        for entry in released(now):
            turn = ledger.turns[entry.request_id]
            held_s.setdefault(turn.session.id, []).append(now - turn.arrived_at)
            yield entry

    ledger.released = noted  # type: ignore[method-assign]


def _engine(scene: Scene) -> Engine:
    return Engine(
        scene.coefficients,
        block_tokens=scene.block_tokens,
        requests_running_max=scene.running_max,
        batching=ChunkedPrefill(tokens_max=scene.step_tokens),
    )


def _figures(
    scene: Scene, world: SessionWorld, ledger: SessionLedger | None, held_s: Mapping[str, list[float]]
) -> Figures:
    turns = [each for each in world.turns if each.arrived_at + (each.latency_s or 0.0) >= scene.warm_s]
    sessions = [
        each.ended_at - each.began_at
        for each in world.sessions
        if each.ended_at is not None and each.began_at >= scene.warm_s
    ]
    return Figures(
        sum(each.output for each in turns) / (scene.until_s - scene.warm_s),
        sum(each.cached for each in turns) / max(1, sum(each.prompt for each in turns)),
        _quantiles([each.ttft_s for each in turns if each.ttft_s is not None]),
        _quantiles(sessions),
        {agents.tenant_id: sum(_of(each, agents) for each in turns) for agents in scene.agents},
        fmean(each.prompt for each in turns),
        _quantiles([sum(each) for each in held_s.values()]),
        max(map(max, held_s.values()), default=0.0),
        ledger.pauses_total if ledger else 0,
        ledger.yields_total if ledger else 0,
        tuple(each.eta for each in ledger.working_sets.values()) if ledger else (),
    )


def _of(turn: TurnRecord, agents: Agents) -> bool:
    return turn.session.agents is agents


def _quantiles(values: list[float]) -> tuple[float, float, float]:
    ordered = sorted(values) or [float("nan")]
    middle, high, highest = (ordered[min(len(ordered) - 1, int(part * len(ordered)))] for part in (0.5, 0.9, 0.99))
    return middle, high, highest


SCENES: Mapping[str, Scene] = {
    "cpu": cpu(),
    "cpu-gap-0.3": cpu(gap_s=LONG_GAPS),
    "cpu-published-gaps": cpu(gap_s=GAPS_S),
    "cpu-1m-gap-0.3": cpu(gap_s=LONG_GAPS, coefficients=CPU_1M),
    "cpu-1m-published-gaps": cpu(gap_s=GAPS_S, coefficients=CPU_1M),
    **{f"h100-{count}": h100(count) for count in (8, 16, 24, 32, 48, 84)},
    "h100-16-2-pods": h100(16, engines=2, until_s=1200.0, warm_s=300.0),
    "h100-84-2-pods": h100(84, engines=2, until_s=1500.0),
    "h100-84-4-pods": h100(84, engines=4, until_s=2400.0),
}
WAYS: Mapping[str, Way] = {
    "direct": DIRECT,
    "off": OFF,
    "on": ON,
    "told": TOLD,
    "replicas": THREE,
    "wait-90": Way(gate=True, ledger={"wait_s_max": 90.0}),
    "wait-free": Way(gate=True, ledger={"wait_s_max": 1e9}),
    "quantum-3": Way(gate=True, ledger={"wait_s_max": 1e9, "quantum": 3.0}),
}
