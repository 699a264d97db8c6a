"""An engine that another client uses too: its preemptions are its own, and our headroom is not cut for them."""

from collections.abc import Iterator
from random import Random

import pytest
from external_load import ExternalLoad

from backends.engine.coefficients import COEFFICIENTS
from backends.simulation.requests import Arrival
from backends.simulation.world import World
from policies.capacity.backend import KV_RULES
from policies.capacity.headroom import KV_HEADROOM_RATIO, PREEMPTION_SHRINK_RATIO
from policies.scheduler import Scheduler
from policies.types import Tenant

POOL_TOKENS = 20_000
EXTERNAL_S = (5.0, 30.0)  # from when to when the other client is there
WATCHED_S = 40.0


def backlog(tenants: int) -> Iterator[Arrival]:
    """Far more than can be served while it is watched."""
    rng = Random(1)
    for _ in range(80):
        for number in range(tenants):
            yield Arrival(f"t{number}", 0.0, rng.randint(50, 400), rng.randint(50, 600), 1024)


class Watched(World):
    """Remembers the limit of tokens at every measurement."""

    def _measure(self, now: float) -> None:
        super()._measure(now)
        (backend,) = self._scheduler.snapshot(now).backends.values()
        self.limits = [*getattr(self, "limits", []), backend.tokens_limit]


def play(*, kv_rule: str, concurrent: int) -> tuple[list[float], ExternalLoad]:
    """The part of the pool that might be reserved at every measurement, until all is over."""
    scheduler = Scheduler(
        tenants=[Tenant(f"t{number}") for number in range(12)], admission=(), kv_rule=kv_rule, wait_s_max=1e6
    )
    engine = ExternalLoad(
        COEFFICIENTS["a800-llama3.1-8b"],
        concurrent=concurrent,
        tokens=600,
        begins_s=EXTERNAL_S[0],
        ends_s=EXTERNAL_S[1],
        kv_tokens_max=POOL_TOKENS,
        block_tokens=16,
    )
    world = Watched(scheduler, {"gpu": engine}, metrics_every_s=0.25)
    for _ in world.run(backlog(12)):
        if world.now > WATCHED_S:
            break
    return [limit / POOL_TOKENS for limit in world.limits], engine


@pytest.mark.parametrize("kv_rule", KV_RULES)
def test_another_clients_preemptions_leave_us_our_headroom(kv_rule):
    ratios, engine = play(kv_rule=kv_rule, concurrent=16)
    assert engine.finished > 32
    assert engine.snapshot().preemptions_total >= 10, "otherwise there is nothing to tell apart"
    once = KV_HEADROOM_RATIO * PREEMPTION_SHRINK_RATIO - 0.001
    assert min(ratios) > once, "one accident of ours in the whole run, by the fullest moment; 0.51 when all counted"
    assert sum(ratios) / len(ratios) > KV_HEADROOM_RATIO - 0.02
