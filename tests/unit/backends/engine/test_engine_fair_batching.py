"""The simulated engine divides its steps as FairBatching says; envelopes count from arrival at the gateway."""

import pytest

from backends.engine.coefficients import StepCoefficients
from backends.engine.engine import Engine, EngineRequest
from backends.engine.fair_batching import FairBatching
from policies.types import SloEnvelope

# 10 ms a step, 0.2 ms a token, 1 µs a token of context.
COEFFICIENTS = StepCoefficients(
    base_s=8e-3, overhead_s=2e-3, token_s=0.2e-3, context_token_s=1e-6, kv_tokens_max=100_000, source="a test"
)
ENVELOPE = SloEnvelope(0.2, 0.05)


def make_engine(**sizes: int) -> Engine:
    return Engine(COEFFICIENTS, batching=FairBatching(COEFFICIENTS.step_time_model(), tokens_max=2048), **sizes)


def step(engine: Engine, now: float):
    plan = engine.step_begin(now)
    return plan, engine.step_end(), now + plan.duration_s


def test_a_prompt_is_cut_to_the_time_that_a_decode_at_its_deadline_leaves():
    engine = make_engine()
    engine.submit(EngineRequest("decode", 500, 9, envelope=ENVELOPE, arrived_at=-0.3), 0.0)
    _, _, now = step(engine, 0.0)  # its first token is late already
    engine.submit(EngineRequest("prompt", 3000, 1, envelope=ENVELOPE), now)
    plan, report, _ = step(engine, now)
    assert report.emitted == ("decode",)
    assert plan.duration_s == pytest.approx(0.05, abs=0.3e-3)
    assert plan.new_tokens == 1 + 195  # (50 - 10 - 0.7) ms at 0.201 ms a token


def emitted_beside_an_urgent_decode_and_a_prompt(engine: Engine, envelope: SloEnvelope, arrived_at: float):
    """Which sequences get a token when a decode that is late and a long prompt run beside one with this envelope."""
    engine.submit(EngineRequest("late", 10, 9, envelope=ENVELOPE, arrived_at=-9.0), 0.0)
    engine.submit(EngineRequest("other", 10, 9, envelope=envelope, arrived_at=arrived_at), 0.0)
    _, _, now = step(engine, 0.0)
    engine.submit(EngineRequest("prompt", 2500, 1, envelope=ENVELOPE), now)
    return step(engine, now)[1].emitted


def test_a_decode_that_is_ahead_of_its_deadline_stands_still_for_a_prompt():
    assert emitted_beside_an_urgent_decode_and_a_prompt(make_engine(), SloEnvelope(5.0, 0.05), 0.0) == ("late",)


def test_without_envelopes_all_sequences_decode_in_every_step():
    engine = make_engine()
    for name in ("a", "b"):
        engine.submit(EngineRequest(name, 10, 9), 0.0)
    _, _, now = step(engine, 0.0)
    engine.submit(EngineRequest("prompt", 5000, 1), now)
    plan, report, _ = step(engine, now)
    assert report.emitted == ("a", "b")
    assert plan.new_tokens == 2048


def test_a_deadline_counts_from_the_arrival_at_the_gateway():
    emitted = emitted_beside_an_urgent_decode_and_a_prompt(make_engine(), SloEnvelope(5.0, 0.05), -5.0)
    assert emitted == ("late", "other")


def test_a_full_pool_preempts_the_last_and_lets_none_in_in_that_step():
    engine = make_engine(kv_tokens_max=64)
    for name in ("first", "last"):
        engine.submit(EngineRequest(name, 31, 20, envelope=ENVELOPE), 0.0)
    now, preempted = 0.0, []
    while (plan := engine.step_begin(now)) is not None:
        now += plan.duration_s
        preempted += plan.preempted
        if plan.preempted:
            assert plan.requests == 1
        engine.step_end()
    assert preempted == ["last"]


def test_the_most_urgent_of_those_that_wait_is_seated_before_the_first():
    engine = make_engine(requests_running_max=1)
    engine.submit(EngineRequest("first", 100, 1, envelope=SloEnvelope(30.0, 0.05)), 0.0)
    engine.submit(EngineRequest("urgent", 100, 1, envelope=ENVELOPE), 0.0)
    assert step(engine, 0.0)[1].finished == ("urgent",)


def test_what_an_engine_can_still_take_is_less_by_what_waits_and_by_the_time_of_its_decodes():
    engine = make_engine()
    free = engine.prefill_budget(0.0, ENVELOPE)
    assert free == pytest.approx((0.2 - 0.01) / 0.201e-3)
    engine.submit(EngineRequest("prompt", 300, 9, envelope=ENVELOPE), 0.0)
    assert engine.prefill_budget(0.0, ENVELOPE) == pytest.approx(free - 300)
    step(engine, 0.0)
    # Its next token is due at 0.25 s: in the window from 0.15 s on it needs three steps of its own.
    steps_s = 3 * (0.01 + 0.2e-3 + 301e-6)
    assert engine.prefill_budget(0.15, ENVELOPE) == pytest.approx((0.2 - steps_s) / 0.201e-3)


def test_a_prompt_that_is_due_at_no_time_takes_nothing_of_what_the_engine_can_take():
    engine = make_engine()
    free = engine.prefill_budget(0.0, ENVELOPE)
    engine.submit(EngineRequest("whenever", 3000, 9), 0.0)
    assert engine.prefill_budget(0.0, ENVELOPE) == free
