"""A leap is nothing but the same steps in one go: equal times, tokens, victims and gauges, to the last bit."""

from collections import Counter
from math import inf

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from backends.engine.batching import BATCHING, ChunkedPrefill
from backends.engine.coefficients import COEFFICIENTS
from backends.engine.engine import Engine, EngineRequest
from backends.engine.kv_memory import BlockMemory, OracleMemory
from policies.types import SloEnvelope
from tests.examples import examples

TINY = COEFFICIENTS["cpu-tiny"]
POOL_TOKENS = 160
ENVELOPES = (None, SloEnvelope(0.01, 0.002), SloEnvelope(0.02, 0.0012), SloEnvelope(tpot_s=0.005))
MEMORIES = {
    "blocks of 4": lambda: BlockMemory(blocks_max=POOL_TOKENS // 4, block_tokens=4),
    "blocks of 16": lambda: BlockMemory(blocks_max=POOL_TOKENS // 16, block_tokens=16),
    "oracle": lambda: OracleMemory(kv_tokens_max=POOL_TOKENS, tenant_tokens=4),
}

arrivals = st.tuples(
    st.floats(0, 0.05),  # seconds since the operation before
    st.integers(1, 60),  # prompt
    st.integers(1, 60),  # output
    st.integers(0, 3),  # family of prefixes
)
departures = st.tuples(st.floats(0, 0.05), st.integers(0, 20))
operations = st.lists(st.one_of(arrivals, departures), max_size=25)


class Drive:
    """Lets operations happen at their times, and the engine step between them; takes down all there is to see."""

    def __init__(self, engine: Engine, *, leaps: bool) -> None:
        self.engine = engine
        self.leaps = leaps
        self.leapt_steps = 0
        self.step_ends_at: float | None = None
        self.emitted: Counter[str] = Counter()
        self.seen: list[object] = []

    def run(self, script) -> None:
        now, submitted = 0.0, 0
        for delay_s, *operation in script:
            now += delay_s
            self.step_until(now)
            match operation:
                case (prompt, output, family):
                    prefix = tuple(100 * family + block for block in range(prompt // 4)) if family else ()
                    tenant_id, envelope = str(family), ENVELOPES[family]
                    request = EngineRequest(
                        f"r{submitted}", prompt, output, prefix, tenant_id=tenant_id, envelope=envelope
                    )
                    self.engine.submit(request, now)
                    submitted += 1
                case (number,):
                    self.seen.append(self.engine.abort(f"r{number}"))
            self.begin(now, before=now)  # an idle engine begins at once
            self.seen.append((now, dict(self.emitted)))
        self.step_until(inf)

    def step_until(self, before: float) -> None:
        while self.step_ends_at is not None and self.step_ends_at < before:
            now = self.step_ends_at
            report = self.engine.step_end()
            self.emitted.update(report.emitted)
            self.seen += [(now, report.finished, dict(report.prefilled))] if report.finished or report.prefilled else []
            self.step_ends_at = None
            self.begin(now, before)

    def begin(self, now: float, before: float) -> None:
        if self.step_ends_at is not None:
            return
        if self.leaps and (leap := self.engine.leap(now, before)) is not None:
            now = leap.ended_at
            self.leapt_steps += leap.steps
            self.emitted.update(dict.fromkeys(leap.emitted, leap.steps))
        plan = self.engine.step_begin(now)
        if plan is not None:
            self.seen += [plan.preempted] if plan.preempted else []
            self.step_ends_at = now + plan.duration_s


def make_engine(memory: str, batching: str) -> Engine:
    return Engine(
        TINY,
        memory=MEMORIES[memory](),
        batching=BATCHING[batching](TINY, POOL_TOKENS, 64),
        requests_running_max=5,
    )


@settings(max_examples=examples(200))
@given(operations, st.sampled_from(sorted(MEMORIES)), st.sampled_from(sorted(BATCHING)))
def test_leaping_gives_the_times_tokens_and_gauges_of_stepping(script, memory, batching):
    leaping, stepping = (Drive(make_engine(memory, batching), leaps=leaps) for leaps in (True, False))
    for drive in (leaping, stepping):
        drive.run(script)
    assert leaping.seen == stepping.seen
    assert leaping.emitted == stepping.emitted
    assert leaping.engine.snapshot() == stepping.engine.snapshot()


@pytest.mark.parametrize("batching", sorted(BATCHING))
def test_a_lone_answer_is_leapt_through_but_for_its_first_and_its_last_token(batching):
    drive = Drive(make_engine("blocks of 16", batching), leaps=True)
    drive.run([(0.0, 10, 50, 0)])
    assert drive.emitted == {"r0": 50}
    assert drive.leapt_steps == 48


def test_the_last_token_of_a_prompt_that_was_cut_is_no_decode():
    engine = Engine(COEFFICIENTS["cpu-tiny"], kv_tokens_max=POOL_TOKENS, batching=ChunkedPrefill(tokens_max=10))
    engine.submit(EngineRequest("r", 11, 5), 0.0)
    now = engine.step_begin(0.0).duration_s
    engine.step_end()
    assert engine.leap(now, before=inf) is None
    engine.step_begin(now)
    assert engine.step_end().prefilled == {"r": 0}


def test_a_leap_ends_before_the_time_it_is_given():
    engine = make_engine("blocks of 16", "chunked-prefill")
    engine.submit(EngineRequest("r", 10, 50), 0.0)
    plan = engine.step_begin(0.0)
    engine.step_end()
    leap = engine.leap(plan.duration_s, before=plan.duration_s + 0.005)
    assert leap.ended_at < plan.duration_s + 0.005 <= leap.ended_at + engine.step_begin(leap.ended_at).duration_s
