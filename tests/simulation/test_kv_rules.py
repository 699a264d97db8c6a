"""Reserving the fullest moment: never a preemption where lengths are known, and more at once than by the sum.

By the expected use the cache is as full, and what ends leaves room at once.
"""

from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from reservations import WORKLOADS, ZIPF_TENANTS, Figures, known, watch, zipf
from reservations import play as play_backlog

from backends.engine.batching import ChunkedPrefill
from backends.engine.coefficients import COEFFICIENTS
from backends.engine.engine import Engine
from backends.simulation.requests import Arrival
from backends.simulation.world import World
from policies.prediction import Oracle
from policies.scheduler import Scheduler
from policies.types import Tenant
from tests.examples import examples
from tests.simulation.arrivals import merged

POOL_TOKENS = 512

arrivals = st.lists(
    st.tuples(
        st.sampled_from("ab"),
        st.floats(0, 0.2),  # seconds since the one before
        st.integers(1, 200),  # prompt
        st.integers(1, 200),  # output
    ),
    min_size=1,
    max_size=40,
)


def play(script, *, kv_rule: str, block_tokens: int) -> tuple[Engine, float]:
    """The engine, and when the last answer ended: lengths are known, no headroom, every prompt fits one step."""
    at_s, stream = 0.0, []
    for tenant_id, gap_s, prompt, output in script:
        at_s += gap_s
        stream.append(Arrival(tenant_id, at_s, prompt, output, output))
    engine = Engine(
        COEFFICIENTS["cpu-tiny"],
        kv_tokens_max=POOL_TOKENS,
        block_tokens=block_tokens,
        batching=ChunkedPrefill(tokens_max=1_000_000),
    )
    scheduler = Scheduler(
        tenants=[Tenant("a"), Tenant("b")], prediction=Oracle(), headroom_ratio_max=1.0, kv_rule=kv_rule
    )
    world = World(scheduler, {"gpu": engine})
    records = list(world.run(merged(stream)))
    assert all(record.served for record in records)
    return engine, max(record.arrived_at + (record.total_latency_s or 0.0) for record in records)


@settings(max_examples=examples(60))
@given(arrivals, st.sampled_from([1, 16]))
def test_with_known_lengths_nothing_is_ever_preempted(script, block_tokens):
    engine, _ = play(script, kv_rule="peak", block_tokens=block_tokens)
    assert engine.snapshot().preemptions_total == 0


@pytest.mark.parametrize("block_tokens", [1, 16])
def test_the_peak_finishes_a_backlog_sooner_than_the_sum(block_tokens):
    script = [("ab"[number % 2], 0.0, 20, 20 + 12 * (number % 12)) for number in range(60)]
    ends_s = {rule: play(script, kv_rule=rule, block_tokens=block_tokens)[1] for rule in ("sum", "peak")}
    assert ends_s["peak"] < 0.9 * ends_s["sum"]


@pytest.mark.parametrize("tenants", [pytest.param(20, marks=pytest.mark.long), 200])
@pytest.mark.parametrize("workload", WORKLOADS)
def test_predicted_lengths_fill_the_cache_by_the_peak_and_nothing_overflows(workload, tenants):
    best = known(workload, tenants, warm_up_s=10.0, watched_s=8.0)
    found = play_backlog(workload, tenants, warm_up_s=10.0, watched_s=8.0, kv_rule="peak")
    assert found.tokens_per_s >= 0.95 * best.tokens_per_s, "0.81 to 0.92 by the sum"
    assert found.reserved_max <= 1.05
    assert found.preemptions_ratio < 0.01


@cache
def under_zipf(kv_rule: str, *, is_direct: bool = False) -> Figures:
    """200 tenants whose calls fill the cache and more, with prompts and answers of log-normal lengths."""
    arrivals = zipf(1, 60.0)
    return watch(arrivals, ZIPF_TENANTS, warm_up_s=25.0, watched_s=35.0, is_direct=is_direct, kv_rule=kv_rule)


def test_by_the_expected_use_two_hundred_tenants_fill_the_cache_and_it_does_not_overflow():
    found = under_zipf("expected")
    assert found.used_mean >= 0.85
    assert under_zipf("sum").used_mean < 0.75
    assert found.due_max <= 1.05
    assert found.preemptions_ratio < 0.01


def test_by_the_expected_use_they_get_more_done_than_without_a_gateway():
    """Without one the engine preempts 4 of 10 answers, and computes them again."""
    direct = under_zipf("sum", is_direct=True)
    assert under_zipf("expected").tokens_per_s >= max(direct.tokens_per_s, 1.05 * under_zipf("sum").tokens_per_s)
    assert direct.preemptions_ratio > 0.1
