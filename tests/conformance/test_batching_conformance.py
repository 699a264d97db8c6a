"""What every order of an engine's work keeps to. It runs over the table."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from backends.engine.batching import BATCHING, ChunkedPrefill, Sarathi
from backends.engine.coefficients import COEFFICIENTS
from backends.engine.engine import Engine, EngineRequest
from backends.engine.http.server import EngineOptions
from policies.types import SloEnvelope
from tests.examples import examples

TINY = COEFFICIENTS["cpu-tiny"]
POOL_TOKENS, STEP_TOKENS, BLOCK_TOKENS = 128, 9, 4
ENVELOPES = (None, SloEnvelope(0.01, 0.002), SloEnvelope(tpot_s=0.005))

every_batching = pytest.mark.parametrize("make", BATCHING.values(), ids=BATCHING.keys())
requests = st.lists(st.tuples(st.integers(1, 60), st.integers(1, 30), st.integers(0, 2)), min_size=1, max_size=12)


def make_engine(make, *, slots: int = 5) -> Engine:
    return Engine(
        TINY,
        kv_tokens_max=POOL_TOKENS,
        block_tokens=BLOCK_TOKENS,
        requests_running_max=slots,
        batching=make(TINY, POOL_TOKENS, STEP_TOKENS),
    )


def submit_all(engine: Engine, sizes) -> dict[str, int]:
    for number, (prompt, output, family) in enumerate(sizes):
        prefix = tuple(100 * family + block for block in range(prompt // BLOCK_TOKENS))
        request = EngineRequest(f"r{number}", prompt, output, prefix, envelope=ENVELOPES[family])
        engine.submit(request, 0.0)
    return {f"r{number}": output for number, (_, output, _) in enumerate(sizes)}


def steps(engine: Engine, most: int = 20_000):
    now = 0.0
    for _ in range(most):
        plan = engine.step_begin(now)
        if plan is None:
            return
        now += plan.duration_s
        yield plan, engine.step_end()
    raise AssertionError("the engine does not come to an end")


@every_batching
@settings(max_examples=examples(60))
@given(sizes=requests)
def test_every_request_gets_exactly_its_tokens_and_the_pool_is_empty_after(make, sizes):
    engine = make_engine(make)
    expected = submit_all(engine, sizes)
    emitted = dict.fromkeys(expected, 0)
    for plan, report in steps(engine):
        assert plan.new_tokens > 0
        assert plan.requests <= 5
        for request_id in report.emitted:
            emitted[request_id] += 1
    assert emitted == expected
    snapshot = engine.snapshot()
    assert (snapshot.requests_running, snapshot.requests_waiting, snapshot.kv_used_ratio) == (0, 0, 0)


@every_batching
@settings(max_examples=examples(40))
@given(sizes=requests)
def test_equal_engines_compute_equal_steps(make, sizes):
    runs = []
    for _ in range(2):
        engine = make_engine(make)
        submit_all(engine, sizes)
        runs.append([(plan, report.emitted) for plan, report in steps(engine)])
    assert runs[0] == runs[1]


@every_batching
def test_with_one_seat_requests_are_served_in_the_order_of_arrival(make):
    engine = make_engine(make, slots=1)
    submit_all(engine, [(10, 2, 0), (1, 1, 0), (30, 3, 0)])
    finished = [request_id for _, report in steps(engine) for request_id in report.finished]
    assert finished == ["r0", "r1", "r2"]


@every_batching
def test_what_arrives_while_others_decode_is_served_before_they_end(make):
    engine = make_engine(make)
    engine.submit(EngineRequest("long", 4, 60), 0.0)
    engine.step_begin(0.0)
    engine.step_end()
    engine.submit(EngineRequest("short", 4, 2), 0.0)
    finished = [request_id for _, report in steps(engine) for request_id in report.finished]
    assert finished == ["short", "long"]


@pytest.mark.parametrize("name", [name for name in BATCHING if name != "separate-prefill"])
@settings(max_examples=examples(40))
@given(sizes=requests)
def test_a_step_of_chunks_never_computes_more_than_its_budget(name, sizes):
    engine = make_engine(BATCHING[name])
    submit_all(engine, sizes)
    assert all(plan.new_tokens <= STEP_TOKENS for plan, _ in steps(engine))


def test_the_table_passes_the_budget_on():
    assert isinstance(sarathi := BATCHING["sarathi"](TINY, 1000, 512), Sarathi)
    assert isinstance(chunked := BATCHING["chunked-prefill"](TINY, 1000, 256), ChunkedPrefill)
    assert (sarathi.tokens_max, chunked.tokens_max) == (512, 256)


@pytest.mark.parametrize("name", BATCHING)
def test_a_server_can_be_started_with_each(name):
    assert EngineOptions(batching=name).batching == name
