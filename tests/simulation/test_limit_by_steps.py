"""A chat with targets beside a flood of long prompts: what the limit by step times does for it, and costs."""

from collections.abc import Iterator
from functools import cache
from random import Random

import pytest

from backends.engine.batching import ChunkedPrefill
from backends.engine.coefficients import COEFFICIENTS
from backends.engine.engine import Engine
from backends.simulation.requests import Arrival, RequestRecord
from backends.simulation.world import KnownSteps, World
from policies.limit import ModelLimit, RoomOnly
from policies.placement import LATE_PLACEMENT
from policies.prediction import Oracle
from policies.scheduler import Scheduler
from policies.step_time import StepTime
from policies.types import SloEnvelope, Tenant, Tier

ENGINE = COEFFICIENTS["h20-qwen3-14b"]
CHUNK_TOKENS = 512  # a step of 168 ms: longer than the chat's target per token
STEPS = KnownSteps(StepTime(ENGINE.step_time_model(), error_ratio=0.05, is_sure=True), tokens_max=CHUNK_TOKENS)
CHAT = SloEnvelope(ttft_s=1.0, tpot_s=0.1)
ASKS_S = 40.0
SEATS = 256  # of every engine, and given


def flow(tenant_id: str, per_s: float, *, prompt: int, envelope: SloEnvelope | None, seed: int) -> Iterator[Arrival]:
    """Poisson arrivals of prompts around this size, answered in 150 tokens in the mean."""
    rng, at_s = Random(seed), 0.0
    while (at_s := at_s + rng.expovariate(per_s)) < ASKS_S:
        output = max(1, int(rng.expovariate(1 / 150)))
        yield Arrival(tenant_id, at_s, int(rng.uniform(0.5, 1.5) * prompt), output, output, envelope=envelope)


@cache
def play(limit, *, flood_per_s: float, engines: int = 1, placement: str = "least-reserved") -> list[RequestRecord]:
    scheduler = Scheduler(
        tenants=[Tenant("chat", tier_id="chat"), Tenant("batch", tier_id="batch")],
        tiers=[Tier("chat", reserve_ratio=0.1), Tier("batch")],
        prediction=Oracle(),
        limit=limit,
        placement=LATE_PLACEMENT[placement](),
    )
    pool = {f"gpu-{n}": Engine(ENGINE, batching=ChunkedPrefill(tokens_max=CHUNK_TOKENS)) for n in range(engines)}
    chat = flow("chat", 2.0 * engines, prompt=150, envelope=CHAT, seed=1)
    batch = flow("batch", flood_per_s * engines, prompt=2000, envelope=None, seed=2)
    arrivals = sorted([*chat, *batch], key=lambda arrival: arrival.at_s)
    records = list(World(scheduler, pool, requests_running_max=SEATS, steps=STEPS).run(arrivals))
    assert len(records) == len(arrivals)
    assert all(record.served for record in records)
    return records


def inside(records: list[RequestRecord]) -> float:
    """Share of the chat's requests with every token in time."""
    chat = [record for record in records if record.tenant_id == "chat"]
    assert CHAT.ttft_s is not None
    assert CHAT.tpot_s is not None
    kept = [
        (record.first_token_latency_s or 0.0) <= CHAT.ttft_s and (record.tpot_envelope_s or 0.0) <= CHAT.tpot_s + 1e-9
        for record in chat
    ]
    return sum(kept) / len(kept)


def duration_s(records: list[RequestRecord]) -> float:
    return max(record.arrived_at + (record.total_latency_s or 0.0) for record in records)


def test_beside_a_flood_the_chat_is_served_in_time_that_would_wait_for_a_minute():
    without, limited = (play(limit, flood_per_s=6.0) for limit in (RoomOnly, ModelLimit))
    assert inside(without) < 0.05
    assert inside(limited) > 0.55
    assert duration_s(limited) < 1.05 * duration_s(without), "the same work in 95 % of the throughput or more"


@pytest.mark.parametrize("placement", ["predicted-ttft", "pab"])
def test_by_predicted_time_more_are_served_in_time_than_by_reserved_tokens(placement):
    by_tokens = play(RoomOnly, flood_per_s=1.0, engines=4)
    by_time = play(RoomOnly, flood_per_s=1.0, engines=4, placement=placement)
    assert inside(by_time) > inside(by_tokens) + 0.1
    assert inside(play(ModelLimit, flood_per_s=1.0, engines=4, placement=placement)) > 0.95
