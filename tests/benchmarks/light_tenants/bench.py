"""How long a light tenant waits for its first token beside a flood, and what it waits for.

    python -m tests.benchmarks.light_tenants.bench [--seconds 80]

One engine that four tenants keep full, and a quiet tenant (one call a second) or a probe (ten). Prints the time to
first token alone and beside the flood, tokens a second of all, and the part of the polls at which a call of it waits
that had no room for it.
"""

import argparse
from collections import Counter
from collections.abc import Iterator
from random import Random
from typing import Any

from backends.engine.batching import ChunkedPrefill
from backends.engine.coefficients import COEFFICIENTS
from backends.engine.engine import REQUESTS_RUNNING_MAX, Engine
from backends.simulation.requests import Arrival
from backends.simulation.world import World
from policies.scheduler import Scheduler
from policies.types import Tenant
from tests.evidence.measures import quantile
from tests.simulation.arrivals import merged

WARM_UP_S = 20.0
FLOOD = [f"flood{number}" for number in range(4)]
RATES = {"quiet": 1.0, "probe": 10.0}


def flow(
    tenant_id: str, per_s: float, sizes: tuple[tuple[int, int], tuple[int, int]], seed: int, seconds: float
) -> Iterator[Arrival]:
    rng, at_s = Random(seed), 0.0
    while (at_s := at_s + rng.expovariate(per_s)) < seconds:
        output = rng.randint(*sizes[1])
        yield Arrival(tenant_id, at_s, rng.randint(*sizes[0]), output, output)


class Watched(Scheduler):
    """Counts for what the light tenant's next call waits after each poll."""

    def __init__(self, tenant_id: str, **options: Any) -> None:
        super().__init__(**options)
        self._light_id = tenant_id
        self.waits: Counter[bool] = Counter()
        """Polls after which it waits, by whether the engine has room for it."""

    def poll(self, now: float) -> list[Any]:
        actions = super().poll(now)
        waiting = self._queues.of(self._light_id).requests
        if waiting:
            request = next(iter(waiting.values()))
            (backend,) = self._fleet.known(request)
            needed = backend.reservation(
                request,
                "default",
                prompt_tokens=request.prompt_tokens,
                output_tokens=self._slot_fitting.sizing.predict(request),
            )
            self.waits[backend.has_room(needed, reserve_only=False)] += 1
        return actions


def play(tenant_id: str, kv_tokens: int, seconds: float, *, is_flooded: bool) -> tuple[list[float], float, float]:
    """The light tenant's times to first token, tokens a second, and the part of its waits in which there is no room."""
    arrivals = [flow(tenant_id, RATES[tenant_id], ((10, 30), (5, 30)), 9, seconds)]
    if is_flooded:
        arrivals += [flow(name, 12.0, ((50, 400), (50, 600)), seed, seconds) for seed, name in enumerate(FLOOD)]
    tenants = [Tenant(name) for name in [tenant_id, *FLOOD]]
    scheduler = Watched(tenant_id, tenants=tenants, admission=(), wait_s_max=1e6)
    engine = Engine(
        COEFFICIENTS["a800-llama3.1-8b"],
        kv_tokens_max=kv_tokens,
        block_tokens=16,
        batching=ChunkedPrefill(tokens_max=2048),
    )
    world = World(scheduler, {"gpu": engine}, requests_running_max=REQUESTS_RUNNING_MAX, metrics_every_s=0.25)
    found = []
    for record in world.run(merged(*arrivals)):
        if record.tenant_id == tenant_id and record.arrived_at > WARM_UP_S and record.first_token_latency_s is not None:
            found.append(record.first_token_latency_s)
        if world.now > seconds:
            break
    no_room = scheduler.waits[False] / max(1, scheduler.waits.total())
    return found, engine.snapshot().emitted_tokens_total / world.now, no_room


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seconds", type=float, default=80.0)
    seconds = parser.parse_args().seconds
    for kv_tokens in (20_000, 40_000):
        for tenant_id in RATES:
            alone, _, _ = play(tenant_id, kv_tokens, seconds, is_flooded=False)
            beside, tokens_per_s, no_room = play(tenant_id, kv_tokens, seconds, is_flooded=True)
            ttft = [
                f"{name} p50 {quantile(x, 0.5):.3f} p99 {quantile(x, 0.99):.3f} s"
                for name, x in (("alone", alone), ("beside", beside))
            ]
            print(
                f"{kv_tokens} {tenant_id}: {', '.join(ttft)}; {tokens_per_s:.0f} tokens/s; no room {no_room:.0%}",
                flush=True,
            )


if __name__ == "__main__":
    main()
