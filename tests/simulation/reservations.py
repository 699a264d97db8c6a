"""A backlog of many tenants on one engine: what is reserved of its KV cache, used, and answered."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from random import Random
from typing import Any

from backends.engine.batching import ChunkedPrefill
from backends.engine.coefficients import COEFFICIENTS
from backends.engine.engine import Engine
from backends.simulation.workload import Arrival
from backends.simulation.world import World
from policies.prediction import Oracle
from policies.scheduler import Scheduler
from policies.types import Tenant

POOL_TOKENS = 40_000
COUNT_MAX = 10_000  # requests of all tenants: more than are served while it is watched


def all_used(rng: Random) -> tuple[int, int]:
    limit = rng.randint(50, 600)
    return limit, limit


def uniform(rng: Random) -> tuple[int, int]:
    return rng.randint(1, 600), 1024


def exponential(rng: Random) -> tuple[int, int]:
    return min(1024, 1 + int(rng.expovariate(1 / 200))), 1024


WORKLOADS: dict[str, Callable[[Random], tuple[int, int]]] = {  # lengths of answers, and their limits
    "limits of 50 to 600, all used": all_used,
    "1 to 600 tokens, limit 1,024": uniform,
    "exponential, mean 200, limit 1,024": exponential,
}


@dataclass(frozen=True, slots=True)
class Figures:
    """Of what was watched; ratios are of the KV cache, preemptions are over answers of the whole run."""

    tokens_per_s: float
    reserved_max: float
    reserved_mean: float
    used_mean: float
    preemptions_ratio: float


class Watched(World):
    """Remembers what is reserved and used at every measurement, and how many tokens there were by then."""

    samples: list[tuple[float, int, float, float]]

    def _measure(self, now: float) -> None:
        super()._measure(now)
        (backend,) = self._scheduler.snapshot(now, ()).backends.values()
        (slot,) = self._slots.values()
        engine = slot.engine.snapshot()
        reserved = backend.reserved_tokens / POOL_TOKENS
        sample = (now, engine.emitted_tokens_total, reserved, engine.kv_used_ratio)
        self.samples = [*getattr(self, "samples", []), sample]


def backlog(workload: str, tenants: int) -> Iterator[Arrival]:
    rng = Random(1)
    for number in range(COUNT_MAX):
        prompt_tokens = rng.randint(50, 400)
        output_tokens, limit = WORKLOADS[workload](rng)
        yield Arrival(f"t{number % tenants}", 0.0, prompt_tokens, output_tokens, limit)


def play(workload: str, tenants: int, *, warm_up_s: float, watched_s: float, **options: Any) -> Figures:
    """The figures of so many seconds after the warm-up; the options are the Scheduler's."""
    scheduler = Scheduler(
        tenants=[Tenant(f"t{number}") for number in range(tenants)], admission=(), wait_s_max=1e9, **options
    )
    engine = Engine(
        COEFFICIENTS["a800-llama3.1-8b"],
        kv_tokens_max=POOL_TOKENS,
        block_tokens=16,
        batching=ChunkedPrefill(tokens_max=2048),
    )
    world, answers = Watched(scheduler, {"gpu": engine}), 0
    for _ in world.run(backlog(workload, tenants)):
        answers += 1
        if world.now > warm_up_s + watched_s:
            break
    samples = [each for each in world.samples if warm_up_s <= each[0] <= warm_up_s + watched_s]
    (began, before, *_), (ended, after, *_) = samples[0], samples[-1]
    reserved, used = [each[2] for each in samples], [each[3] for each in samples]
    return Figures(
        tokens_per_s=(after - before) / (ended - began),
        reserved_max=max(reserved),
        reserved_mean=sum(reserved) / len(samples),
        used_mean=sum(used) / len(samples),
        preemptions_ratio=engine.snapshot().preemptions_total / answers,
    )


def known(workload: str, tenants: int, *, warm_up_s: float, watched_s: float) -> Figures:
    """Of a gateway that knows every length."""
    options = {"kv_rule": "peak", "prediction": Oracle(), "headroom_ratio_max": 1.0}
    return play(workload, tenants, warm_up_s=warm_up_s, watched_s=watched_s, **options)
