"""Steps of the pure engine: what they compute, how long they take, which sequence is preempted."""

import pytest

from backends.engine.batching import ChunkedPrefill, Sarathi, SeparatePrefill
from backends.engine.coefficients import COEFFICIENTS, StepCoefficients
from backends.engine.engine import Engine, EngineRequest, StepResult
from backends.engine.kv_memory import BlockMemory, OracleMemory
from tests.priority_order import ORDERS

SIMPLE = StepCoefficients(
    base_s=1.0, token_s=0.1, context_token_s=0.001, request_s=0.01, kv_tokens_max=64, source="round numbers"
)
A10G = COEFFICIENTS["a10g-llama2-7b"]


def make_engine(**kwargs) -> Engine:
    return Engine(SIMPLE, **{"block_tokens": 4, "requests_running_max": 8, **kwargs})


def step(engine: Engine) -> StepResult:
    assert engine.step_begin(0.0) is not None
    return engine.step_end()


def run_to_the_end(engine: Engine) -> list[StepResult]:
    reports = []
    while engine.step_begin(0.0) is not None:
        reports.append(engine.step_end())
    return reports


def test_an_idle_engine_has_no_step():
    assert make_engine().step_begin(0.0) is None


def test_prefill_produces_the_first_token_and_each_decode_one_more():
    engine = make_engine()
    engine.submit(EngineRequest("a", 5, 3), 0.0)
    reports = run_to_the_end(engine)
    assert [report.emitted for report in reports] == [("a",)] * 3
    assert [report.plan.new_tokens for report in reports] == [5, 1, 1]
    assert [report.plan.context_tokens for report in reports] == [5, 6, 7]
    assert [report.finished for report in reports] == [(), (), ("a",)]
    assert (reports[0].prompt_tokens, dict(reports[0].prefilled)) == (5, {"a": 0})


def test_a_mixed_step_takes_base_plus_new_tokens_plus_context_plus_requests():
    engine = make_engine()
    engine.submit(EngineRequest("a", 5, 3), 0.0)
    step(engine)
    engine.submit(EngineRequest("b", 7, 1), 0.0)
    plan = engine.step_begin(2.5)
    assert plan is not None
    assert (plan.new_tokens, plan.context_tokens, plan.requests, plan.begun_at) == (1 + 7, 6 + 7, 2, 2.5)
    assert plan.duration_s == pytest.approx(1.0 + 0.1 * 8 + 0.001 * 13 + 0.01 * 2)


def test_the_a10g_prefills_alone_and_decodes_as_profiled():
    engine = Engine(A10G, memory=OracleMemory(kv_tokens_max=10_000), batching=SeparatePrefill.for_pool(10_000))
    engine.submit(EngineRequest("a", 100, 5), 0.0)
    engine.submit(EngineRequest("b", 50, 5), 0.0)
    prefill = engine.step_begin(0.0)
    assert prefill is not None
    assert prefill.duration_s * 1e3 == pytest.approx(44.6 + 0.2069 * 150 + 0.184 * 2 + 2.4)
    engine.step_end()
    decode = engine.step_begin(0.0)
    assert decode is not None
    assert decode.duration_s * 1e3 == pytest.approx(18.16 + 0.215 * 2 + 0.00189 * (101 + 51) + 2.4)


def test_a_prompt_longer_than_the_token_budget_is_cut():
    engine = Engine(COEFFICIENTS["cpu-tiny"], batching=ChunkedPrefill(tokens_max=2048))
    engine.submit(EngineRequest("a", 3000, 2), 0.0)
    first, second = engine.step_begin(0.0), engine.step_end()
    assert first is not None
    assert second.emitted == ()
    assert first.duration_s * 1e3 == pytest.approx(0.95 + 9e-3 * 2048 + 0.05e-3 * 2048 + 0.035)
    last = engine.step_begin(0.0)
    assert last is not None
    assert (last.new_tokens, last.context_tokens) == (952, 3000)
    assert engine.step_end().emitted == ("a",)


def test_decodes_come_before_chunks_and_the_budget_is_never_exceeded():
    engine = make_engine(batching=ChunkedPrefill(tokens_max=6))
    engine.submit(EngineRequest("a", 4, 9), 0.0)
    step(engine)
    engine.submit(EngineRequest("b", 12, 2), 0.0)
    engine.submit(EngineRequest("c", 3, 2), 0.0)
    reports = [step(engine) for _ in range(4)]
    # b gets 5, 5, 2 tokens beside a's decode; c gets what b leaves of the third step.
    assert [report.plan.new_tokens for report in reports] == [6, 6, 6, 3]
    assert [report.emitted for report in reports] == [("a",), ("a",), ("a", "b", "c"), ("a", "b", "c")]


def test_no_prompt_gets_more_of_a_step_than_its_part():
    engine = make_engine(batching=ChunkedPrefill(tokens_max=10, prompt_tokens_max=4))
    for name in ("a", "b", "short"):
        engine.submit(EngineRequest(name, 3 if name == "short" else 8, 2), 0.0)
    reports = [step(engine) for _ in range(3)]
    # What two long prompts leave, 2 tokens, begins the short one: it ends with the step in which they do.
    assert [report.plan.new_tokens for report in reports] == [10, 9, 3]
    assert [report.emitted for report in reports] == [(), ("a", "b", "short"), ("a", "b", "short")]


def test_sarathi_gives_an_admitted_prompt_all_its_room_and_vllm_chunk_by_chunk():
    used, preempted = {}, {}
    for batching in (Sarathi(tokens_max=5), ChunkedPrefill(tokens_max=5)):
        engine = make_engine(kv_tokens_max=16, batching=batching)
        engine.submit(EngineRequest("a", 4, 9), 0.0)
        engine.submit(EngineRequest("cut", 12, 1), 0.0)
        step(engine)
        used[type(batching)] = engine.snapshot().kv_used_ratio
        preempted[type(batching)] = [step(engine).plan.preempted for _ in range(2)]
    assert used == {Sarathi: 1.0, ChunkedPrefill: 0.5}
    # a's second block is the fifth of four: under Sarathi at once, in vLLM when the cut prompt wants its third.
    assert preempted == {Sarathi: [("cut",), ()], ChunkedPrefill: [(), ("cut",)]}


def test_sarathi_decodes_all_that_run_before_it_goes_on_with_a_prompt():
    engine = make_engine(batching=Sarathi(tokens_max=6))
    engine.submit(EngineRequest("a", 4, 9), 0.0)
    step(engine)
    engine.submit(EngineRequest("b", 12, 2), 0.0)
    engine.submit(EngineRequest("c", 3, 2), 0.0)
    reports = [step(engine) for _ in range(4)]
    assert [report.plan.new_tokens for report in reports] == [6, 6, 6, 3]
    assert [report.emitted for report in reports] == [("a",), ("a",), ("a", "b", "c"), ("a", "b", "c")]


def test_admission_stops_at_the_first_request_that_does_not_fit():
    engine = make_engine(kv_tokens_max=16)
    engine.submit(EngineRequest("a", 8, 3), 0.0)
    engine.submit(EngineRequest("b", 9, 1), 0.0)
    engine.submit(EngineRequest("c", 1, 1), 0.0)
    assert step(engine).emitted == ("a",)
    assert engine.snapshot().requests_waiting == 2


def test_no_more_run_than_there_are_seats():
    engine = make_engine(requests_running_max=2)
    for name in "abc":
        engine.submit(EngineRequest(name, 1, 2), 0.0)
    assert [report.emitted for report in run_to_the_end(engine)] == [("a", "b"), ("a", "b"), ("c",), ("c",)]


def test_when_no_block_is_free_the_last_admitted_recomputes_what_it_had():
    engine = make_engine(kv_tokens_max=16)
    engine.submit(EngineRequest("a", 4, 8), 0.0)
    engine.submit(EngineRequest("b", 4, 8), 0.0)
    reports = run_to_the_end(engine)
    # After 5 steps both hold two full blocks of the four: a takes b's to go on.
    assert [report.emitted for report in reports] == [("a", "b")] * 5 + [("a",)] * 3 + [("b",)] * 3
    assert [report.plan.preempted for report in reports] == [()] * 5 + [("b",)] + [()] * 5
    assert reports[8].plan.new_tokens == 4 + 5
    snapshot = engine.snapshot()
    assert (snapshot.preemptions_total, snapshot.prompt_tokens_total, snapshot.emitted_tokens_total) == (1, 8, 16)
    assert snapshot.kv_used_ratio == 0


def test_a_preempted_request_is_the_first_to_come_back():
    engine = make_engine(kv_tokens_max=16)
    engine.submit(EngineRequest("a", 4, 8), 0.0)
    engine.submit(EngineRequest("b", 4, 8), 0.0)
    engine.submit(EngineRequest("c", 4, 1), 0.0)
    engine.submit(EngineRequest("d", 4, 1), 0.0)
    reports = run_to_the_end(engine)
    ended = [name for report in reports for name in report.finished]
    assert ended == ["c", "d", "a", "b"]
    assert engine.snapshot().preemptions_total == 1


def test_no_sequence_is_admitted_in_a_step_that_preempts():
    engine = make_engine(kv_tokens_max=16)
    engine.submit(EngineRequest("a", 4, 8), 0.0)
    engine.submit(EngineRequest("b", 4, 8), 0.0)
    for _ in range(5):
        step(engine)
    engine.submit(EngineRequest("c", 1, 1), 0.0)
    assert step(engine).emitted == ("a",)


def test_under_priority_order_the_least_urgent_waits_longest_and_is_preempted():
    engine = make_engine(kv_tokens_max=16, requests_running_max=2, order=ORDERS["priority"]())
    engine.submit(EngineRequest("low", 4, 8, priority=5), 0.0)
    step(engine)
    engine.submit(EngineRequest("later", 4, 8, priority=1), 0.0)
    engine.submit(EngineRequest("urgent", 4, 8, priority=-1), 0.0)
    reports = run_to_the_end(engine)
    # A slot is not taken from what runs, but memory is: low was admitted first and is preempted.
    assert reports[0].emitted == ("low", "urgent")
    assert next(report.plan.preempted for report in reports if report.plan.preempted) == ("low",)
    assert [name for report in reports for name in report.finished] == ["urgent", "later", "low"]


def test_a_victim_that_was_already_in_the_batch_leaves_it():
    engine = make_engine(kv_tokens_max=16, order=ORDERS["priority"]())
    engine.submit(EngineRequest("low", 3, 8, priority=5), 0.0)
    engine.submit(EngineRequest("high", 4, 8, priority=1), 0.0)
    # low is scheduled first and has room; high needs a block in step 6 that only low can give.
    reports = [step(engine) for _ in range(6)]
    assert reports[5].plan.preempted == ("low",)
    assert reports[5].emitted == ("high",)
    assert reports[5].plan.new_tokens == 1
    assert sum(report.emitted.count("low") for report in [*reports, *run_to_the_end(engine)]) == 8


def test_a_waiting_request_may_be_aborted_under_either_order():
    for order in ORDERS.values():
        engine = make_engine(requests_running_max=1, order=order())
        for name in "abc":
            engine.submit(EngineRequest(name, 1, 1), 0.0)
        assert engine.abort("b")
        assert [report.emitted for report in run_to_the_end(engine)] == [("a",), ("c",)]


def test_separate_prefill_waits_ten_decode_steps_and_then_tries_every_step():
    memory = OracleMemory(kv_tokens_max=100, tenant_tokens=0)
    engine = Engine(SIMPLE, memory=memory, batching=SeparatePrefill(prefill_tokens_max=3072))
    engine.submit(EngineRequest("a", 10, 40), 0.0)
    step(engine)
    engine.submit(EngineRequest("b", 10, 15), 0.0)  # fits, but is tried only in step 12
    engine.submit(EngineRequest("c", 55, 5), 0.0)
    reports = [step(engine) for _ in range(26)]
    # In step 12 a holds 21 and has 28 to come, b and c are new: 3 * 4 + 21 + 11 + 56 = 100, which is not below 100.
    # c is tried again in every step from 22 on, and fits when b has ended: 2 * 4 + 56 + 35 = 99.
    assert [report.emitted for report in reports] == [("a",)] * 10 + [("b",)] + [("a", "b")] * 14 + [("c",)]


def test_separate_prefill_takes_prompts_up_to_its_limit_but_never_none():
    engine = make_engine(batching=SeparatePrefill(prefill_tokens_max=10))
    for name, prompt in (("a", 12), ("b", 6), ("c", 4), ("d", 1)):
        engine.submit(EngineRequest(name, prompt, 1), 0.0)
    assert [report.emitted for report in run_to_the_end(engine)] == [("a",), ("b", "c"), ("d",)]


def test_the_prefill_limit_of_the_vtc_engine_is_a_sixth_of_the_pool_or_3072():
    assert SeparatePrefill.for_pool(10_000).prefill_tokens_max == 3072
    assert SeparatePrefill.for_pool(65_000).prefill_tokens_max == 10_833


@pytest.mark.parametrize("batching", [ChunkedPrefill(), SeparatePrefill(prefill_tokens_max=99)])
def test_cached_tokens_are_not_computed_but_still_read(batching):
    engine = make_engine(batching=batching)
    engine.submit(EngineRequest("a", 10, 1, prefix=(1, 2)), 0.0)
    step(engine)
    engine.submit(EngineRequest("b", 10, 1, prefix=(1, 2)), 0.0)
    plan = engine.step_begin(0.0)
    assert plan is not None
    assert (plan.new_tokens, plan.context_tokens) == (2, 10)
    assert plan.duration_s == pytest.approx(1.0 + 0.1 * 2 + 0.001 * 10 + 0.01)
    assert dict(engine.step_end().prefilled) == {"b": 8}
    snapshot = engine.snapshot()
    assert (snapshot.prefix_queries_total, snapshot.prefix_hits_total) == (20, 8)


def test_a_prefill_line_of_its_own_charges_context_for_cached_tokens_only():
    engine = Engine(A10G, block_tokens=100, batching=SeparatePrefill.for_pool(10_000))
    for name in "ab":
        engine.submit(EngineRequest(name, 250, 1, prefix=(7, 8)), 0.0)
        plan = engine.step_begin(0.0)
        engine.step_end()
    assert plan is not None
    assert plan.duration_s * 1e3 == pytest.approx(44.6 + 0.2069 * 50 + 0.184 + 0.00189 * 200 + 2.4)


def test_an_abort_frees_seat_and_blocks_at_once_and_the_step_goes_on_without_it():
    engine = make_engine(kv_tokens_max=16, requests_running_max=2)
    engine.submit(EngineRequest("a", 8, 4), 0.0)
    engine.submit(EngineRequest("b", 4, 4), 0.0)
    engine.submit(EngineRequest("c", 4, 4), 0.0)
    plan = engine.step_begin(0.0)
    assert plan is not None
    assert engine.snapshot().kv_used_ratio == 0.75
    assert engine.abort("a")
    assert engine.snapshot().kv_used_ratio == 0.25
    assert engine.step_end().emitted == ("b",)
    assert step(engine).emitted == ("b", "c")


def test_aborting_what_is_not_there_changes_nothing():
    engine = make_engine()
    assert not engine.abort("a")


def test_an_id_may_be_used_again_in_the_very_step_its_first_owner_was_aborted():
    engine = make_engine()
    engine.submit(EngineRequest("a", 3, 2), 0.0)
    engine.step_begin(0.0)
    engine.abort("a")
    engine.submit(EngineRequest("a", 3, 2), 0.0)
    assert engine.step_end().emitted == ()
    assert [report.emitted for report in run_to_the_end(engine)] == [("a",), ("a",)]


@pytest.mark.parametrize(
    ("request_", "complaint"),
    [
        (EngineRequest("a", 1, 1), "already in flight"),
        (EngineRequest("b", 0, 1), "at least one prompt token"),
        (EngineRequest("b", 1, 0), "at least one prompt token"),
        (EngineRequest("b", 60, 6), "exceeds the KV pool"),
    ],
)
def test_a_request_that_could_never_run_is_refused_when_it_is_submitted(request_, complaint):
    engine = make_engine(kv_tokens_max=64)
    engine.submit(EngineRequest("a", 1, 1), 0.0)
    with pytest.raises(ValueError, match=complaint):
        engine.submit(request_, 0.0)


def test_every_platform_predicts_a_step_that_grows_with_its_work():
    for name, coefficients in COEFFICIENTS.items():
        small = coefficients.mixed_s(new_tokens=1, context_tokens=1, requests=1)
        large = coefficients.mixed_s(new_tokens=100, context_tokens=10_000, requests=10)
        assert 0 < small < large < 1, name
        assert 0 < coefficients.prefill_s(new_tokens=100, cached_tokens=0, requests=1) < 1, name
        assert coefficients.kv_tokens_max >= 10_000, name


def test_a_pool_default_comes_from_the_coefficients():
    engine = Engine(A10G)
    assert engine.kv_tokens_max == 10_000
    assert isinstance(engine._slots.memory, BlockMemory)
    assert engine._slots.memory.blocks_max == 625
