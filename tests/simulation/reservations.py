"""A backlog of many tenants on one engine: what is reserved of its KV cache, used, and answered."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from math import log
from operator import itemgetter
from random import Random
from typing import Any

from backends.engine.batching import ChunkedPrefill
from backends.engine.coefficients import COEFFICIENTS
from backends.engine.engine import Engine
from backends.simulation.requests import Arrival
from backends.simulation.world import Slot, World
from policies.prediction import Oracle
from policies.scheduler import Scheduler
from policies.types import BackendLoad, Tenant

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
    """Of what was watched; ratios are of the KV cache, preemptions are over answers of the whole run.

    `due_max` is the most that was sent at once by true lengths: what would be held at the fullest moment from then on.
    `light_ttft_s` are the times to first token of the tenants of the smaller half, sorted.
    """

    tokens_per_s: float
    reserved_max: float
    reserved_mean: float
    used_mean: float
    due_max: float
    preemptions_ratio: float
    light_ttft_s: list[float]


class Watched(World):
    """Remembers what is reserved, used and due at every measurement, and how many tokens there were by then.

    Direct: nothing is known of the engine's size, so all is sent at once, as without a gateway.
    """

    samples: list[tuple[float, int, float, float, float]]
    is_direct = False

    def _load(self, slot: Slot) -> BackendLoad:
        load = super()._load(slot)
        return replace(load, kv_tokens_max=None, requests_running_max=COUNT_MAX) if self.is_direct else load

    def _measure(self, now: float) -> None:
        super()._measure(now)
        (backend,) = self._scheduler.snapshot(now, ()).backends.values()
        (slot,) = self._slots.values()
        engine = slot.engine.snapshot()
        reserved = backend.reserved_tokens / POOL_TOKENS
        sample = (now, engine.emitted_tokens_total, reserved, engine.kv_used_ratio, self._due() / POOL_TOKENS)
        self.samples = [*getattr(self, "samples", []), sample]

    def _due(self) -> float:
        """The most tokens that what was sent will hold at any moment, by its true lengths."""
        left = [(call.arrival.output_tokens - call.emitted, call) for call in self._in_flight.values()]
        held, most = 0, 0
        for running, (steps, call) in enumerate(sorted(left, key=itemgetter(0), reverse=True), start=1):
            held += call.arrival.prompt_tokens + call.emitted
            most = max(most, held + running * steps)
        return float(most)


def backlog(workload: str, tenants: int) -> Iterator[Arrival]:
    rng = Random(1)
    for number in range(COUNT_MAX):
        prompt_tokens = rng.randint(50, 400)
        output_tokens, limit = WORKLOADS[workload](rng)
        yield Arrival(f"t{number % tenants}", 0.0, prompt_tokens, output_tokens, limit)


def play(workload: str, tenants: int, *, warm_up_s: float, watched_s: float, **options: Any) -> Figures:
    """The figures of so many seconds after the warm-up; the options are the Scheduler's."""
    return watch(backlog(workload, tenants), tenants, warm_up_s=warm_up_s, watched_s=watched_s, **options)


def watch(
    arrivals: Iterator[Arrival],
    tenants: int,
    *,
    warm_up_s: float,
    watched_s: float,
    is_direct: bool = False,
    **options: Any,
) -> Figures:
    scheduler = Scheduler(
        tenants=[Tenant(f"t{number}") for number in range(tenants)], admission=(), wait_s_max=1e9, **options
    )
    engine = Engine(
        COEFFICIENTS["a800-llama3.1-8b"],
        kv_tokens_max=POOL_TOKENS,
        block_tokens=16,
        batching=ChunkedPrefill(tokens_max=2048),
    )
    world, records = Watched(scheduler, {"gpu": engine}), []
    world.is_direct = is_direct
    for record in world.run(arrivals):
        records.append(record)
        if world.now > warm_up_s + watched_s:
            break
    samples = [each for each in world.samples if warm_up_s <= each[0] <= warm_up_s + watched_s]
    (began, before, *_), (ended, after, *_) = samples[0], samples[-1]
    _, _, reserved, used, due = zip(*samples, strict=True)
    light = [
        record.first_token_latency_s
        for record in records
        if record.first_token_latency_s is not None
        and record.arrived_at > warm_up_s
        and int(record.tenant_id[1:]) >= tenants // 2
    ]
    return Figures(
        tokens_per_s=(after - before) / (ended - began),
        reserved_max=max(reserved),
        reserved_mean=sum(reserved) / len(samples),
        used_mean=sum(used) / len(samples),
        due_max=max(due),
        preemptions_ratio=engine.snapshot().preemptions_total / len(records),
        light_ttft_s=sorted(light),
    )


def known(workload: str, tenants: int, *, warm_up_s: float, watched_s: float) -> Figures:
    """Of a gateway that knows every length."""
    options = {"kv_rule": "peak", "prediction": Oracle(), "headroom_ratio_max": 1.0}
    return play(workload, tenants, warm_up_s=warm_up_s, watched_s=watched_s, **options)


ZIPF_TENANTS = 200
ZIPF_PER_S = 20.0  # calls: about half as many again as the engine can answer


def zipf(seed: int, seconds: float) -> Iterator[Arrival]:
    """Calls of tenants of which the n-th sends 1/n as many as the first, with log-normal prompts and answers."""
    rng, at_s = Random(seed), 0.0
    weights = [1.0 / number for number in range(1, ZIPF_TENANTS + 1)]
    medians = [rng.lognormvariate(log(120.0), 0.5) for _ in weights]  # tokens of each tenant's answers
    while (at_s := at_s + rng.expovariate(ZIPF_PER_S)) < seconds:
        (number,) = rng.choices(range(ZIPF_TENANTS), weights)
        prompt_tokens = min(4000, 1 + int(rng.lognormvariate(log(150.0), 0.9)))
        output_tokens = min(1024, 1 + int(rng.lognormvariate(log(medians[number]), 0.9)))
        yield Arrival(f"t{number}", at_s, prompt_tokens, output_tokens, 1024)
