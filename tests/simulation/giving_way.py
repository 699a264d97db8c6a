"""A simulated engine whose slots are all taken by long answers, when short ones come that cannot wait.

Batch answers have 4,000 tokens, and more of them wait than a run can serve. Chat comes at random and has no reserve.
What is compared is whether, and how often, a batch answer gives way. In the scene "together" all batch answers begin at
once, so no slot is free for minutes. In "staggered" they end one after another, as in a pool that has run for long.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from math import inf
from random import Random

from backends.engine.coefficients import COEFFICIENTS
from backends.engine.engine import Engine
from backends.simulation.requests import Arrival, RequestRecord
from backends.simulation.world import KnownSteps, SimulatedCall, Slot, World
from policies.fairness import FAIRNESS
from policies.pool.preemption import NO_INTERRUPTIONS, InterruptRules
from policies.scheduler import Scheduler
from policies.types import SloEnvelope, Tenant, Tier
from tests.simulation.arrivals import merged, poisson

ENGINE = "a800-llama3.1-8b"
SLOTS = 64
BATCH_PROMPT_TOKENS, BATCH_TOKENS = 500, 4_000
CHAT_PROMPT_TOKENS, CHAT_TOKENS = 512, (50, 250)
WARM_UP_S = 20.0  # by then the gateway has learnt the engine's step times
SHARES_S = 0.2  # more than two steps, of which one has a prompt
SCENES = ("together", "staggered")


@dataclass(frozen=True, kw_only=True)
class Setting:
    """One run. `by_tier`: chat is a tier with a target, batch a preemptible one; else both are tenants of one tier, and
    give way by `preempt_service`. Without `is_cached` the engine keeps no prefixes.
    """

    rules: InterruptRules = NO_INTERRUPTIONS
    scene: str = "together"
    chat_rate_per_s: float = 1.0
    fairness: str = "vtc"
    by_tier: bool = True
    preempt_service: float | None = None
    is_cached: bool = True
    batch_answers: int = 300
    asks_s: float = 240.0
    seed: int = 1


@dataclass(frozen=True)
class Found:
    """Of a run: times to first token of chat; how many steps they are beyond the own prompt, and the most of those that
    shared no step with another prompt (infinite: there is none); output tokens a second while chat came; interruptions,
    and tokens computed again because of them.
    """

    ttft_p50_s: float
    ttft_p99_s: float
    steps_p99: float
    steps_alone: float
    tokens_per_s: float
    interruptions: int
    interruptions_max: int
    recomputed_tokens: int


@dataclass
class Notes:
    """What a run notes: the engine's emitted tokens at two times, the step under way at each arrival of chat, and when
    prompts were sent, by whose arrival.
    """

    emitted: list[int] = field(default_factory=list)
    steps_s: dict[float, float] = field(default_factory=dict)
    prompts: list[tuple[float, float]] = field(default_factory=list)  # sent at, arrived at; in order


class WatchedWorld(World):
    """A World that takes notes."""

    def __init__(self, scheduler: Scheduler, engine: Engine, setting: Setting) -> None:
        steps = KnownSteps(learnt=True)
        super().__init__(scheduler, {"x": engine}, requests_running_max=SLOTS, steps=steps)
        self.notes = Notes()
        self._is_cached = setting.is_cached
        for at_s in (WARM_UP_S, setting.asks_s):
            self._at(at_s, self._look)

    def _look(self, now: float) -> None:
        self.notes.emitted.append(self._slots["x"].engine.snapshot().emitted_tokens_total)

    def _arrive(self, now: float) -> None:
        self.notes.steps_s[now] = self._slots["x"].step_s
        super()._arrive(now)

    def _dispatch(self, call: SimulatedCall, slot: Slot, now: float) -> None:
        if not call.emitted:
            self.notes.prompts.append((now, call.request.arrived_at))
        super()._dispatch(call, slot, now)

    def _blocks(self, call: SimulatedCall) -> tuple[int, ...]:
        return super()._blocks(call) if self._is_cached else ()


def step_s(context_tokens: int = BATCH_PROMPT_TOKENS + BATCH_TOKENS // 2) -> float:
    """Seconds of a step in which all slots decode, each with so much context; by default half way through an answer."""
    coefficients = COEFFICIENTS[ENGINE]
    return coefficients.mixed_s(new_tokens=SLOTS, context_tokens=SLOTS * context_tokens, requests=SLOTS)


def prompt_s() -> float:
    """Seconds that a chat request's prompt adds to a step."""
    return COEFFICIENTS[ENGINE].token_s * CHAT_PROMPT_TOKENS


def target_s() -> float:
    """The chat tier's target: three steps and its prompt."""
    return 3 * step_s() + prompt_s()


def arrivals(setting: Setting) -> Iterator[Arrival]:
    """The batch is there from the start, chat comes after the warm-up."""
    rng = Random(setting.seed)
    is_staggered = setting.scene == "staggered"
    lengths = [
        max(1, BATCH_TOKENS * (number + 1) // SLOTS) if is_staggered and number < SLOTS else BATCH_TOKENS
        for number in range(setting.batch_answers)
    ]
    batch = (
        Arrival("batch", 0.0, BATCH_PROMPT_TOKENS, tokens, BATCH_TOKENS, is_resumable=True)
        for number, tokens in enumerate(lengths)
    )
    chat = poisson(
        "chat",
        lambda at_s: setting.chat_rate_per_s if at_s > WARM_UP_S else 0.0,
        rate_per_s_max=setting.chat_rate_per_s,
        duration_s=setting.asks_s,
        prompt_tokens=(CHAT_PROMPT_TOKENS, CHAT_PROMPT_TOKENS),
        output_tokens=CHAT_TOKENS,
        rng=rng,
    )
    envelope = SloEnvelope(ttft_s=target_s()) if setting.by_tier else None
    return merged(batch, (replace(each, envelope=envelope) for each in chat))


def make_scheduler(setting: Setting) -> Scheduler:
    tiers = [Tier("batch", preemptible=True), Tier("chat", weight=4.0)] if setting.by_tier else [Tier("all")]
    tier_ids = ("batch", "chat") if setting.by_tier else ("all", "all")
    return Scheduler(
        tenants=[Tenant(name, tier_id=tier_id) for name, tier_id in zip(("batch", "chat"), tier_ids, strict=True)],
        tiers=tiers,
        fairness=FAIRNESS[setting.fairness],
        admission=(),
        wait_s_max=1e6,
        preempt_service=setting.preempt_service,
        interrupt_rules=setting.rules,
    )


def play(setting: Setting) -> Found:
    """Run the setting until every request has ended."""
    engine = Engine(COEFFICIENTS[ENGINE], requests_running_max=SLOTS)
    world = WatchedWorld(make_scheduler(setting), engine, setting)
    records = list(world.run(arrivals(setting)))
    before, after = world.notes.emitted
    chat = [each for each in records if each.tenant_id == "chat"]
    steps = {each.arrived_at: (_ttft_s(each) - prompt_s()) / world.notes.steps_s[each.arrived_at] for each in chat}
    return Found(
        ttft_p50_s=_quantile([_ttft_s(each) for each in chat], 0.5),
        ttft_p99_s=_quantile([_ttft_s(each) for each in chat], 0.99),
        steps_p99=_quantile(list(steps.values()), 0.99),
        steps_alone=max((steps[each.arrived_at] for each in chat if _is_alone(each, world.notes)), default=inf),
        tokens_per_s=(after - before) / (setting.asks_s - WARM_UP_S),
        interruptions=sum(each.interruptions for each in records),
        interruptions_max=max(each.interruptions for each in records),
        recomputed_tokens=sum(each.recomputed_tokens for each in records),
    )


def _is_alone(record: RequestRecord, notes: Notes) -> bool:
    """Whether no other prompt was sent from `SHARES_S` before its arrival to its first token."""
    begun, ended = record.arrived_at - SHARES_S, record.arrived_at + _ttft_s(record)
    return all(arrived_at == record.arrived_at for sent_at, arrived_at in notes.prompts if begun <= sent_at < ended)


def _ttft_s(record: RequestRecord) -> float:
    assert record.first_token_latency_s is not None, "the run goes on until all are served"
    return record.first_token_latency_s


def _quantile(values: list[float], ratio: float) -> float:
    return sorted(values)[min(len(values) - 1, int(ratio * len(values)))]
