"""Whatever is submitted and aborted, in whatever order: nothing leaks, nothing starves, nothing is lost."""

from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from backends.engine.batching import ChunkedPrefill, Sarathi, SeparatePrefill
from backends.engine.coefficients import COEFFICIENTS
from backends.engine.engine import Engine, EngineRequest
from backends.engine.kv_memory import BlockMemory, OracleMemory
from tests.examples import examples
from tests.priority_order import ORDERS

POOL_TOKENS = 128

MEMORIES = {
    "blocks of 4": lambda: BlockMemory(blocks_max=POOL_TOKENS // 4, block_tokens=4),
    "blocks of 16": lambda: BlockMemory(blocks_max=POOL_TOKENS // 16, block_tokens=16),
    "oracle": lambda: OracleMemory(kv_tokens_max=POOL_TOKENS, tenant_tokens=4),
}
BATCHINGS = {
    "chunked": lambda: ChunkedPrefill(tokens_max=7),
    "shared": lambda: ChunkedPrefill(tokens_max=7, prompt_tokens_max=3),
    "sarathi": lambda: Sarathi(tokens_max=7),
    "separate": lambda: SeparatePrefill(prefill_tokens_max=40, decode_steps_min=3),
}

submissions = st.tuples(
    st.just("submit"),
    st.integers(1, 60),  # prompt
    st.integers(1, 60),  # output
    st.integers(0, 3),  # family of prefixes
    st.integers(-2, 2),  # priority
)
operations = st.lists(
    st.one_of(submissions, st.just(("step",)), st.tuples(st.just("abort"), st.integers(0, 40))), max_size=60
)


def make_engine(memory: str, batching: str, order: str) -> Engine:
    return Engine(
        COEFFICIENTS["cpu-tiny"],
        memory=MEMORIES[memory](),
        batching=BATCHINGS[batching](),
        order=ORDERS[order](),
        requests_running_max=5,
    )


class Run:
    """Drives an engine and counts what came out."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.emitted: Counter[str] = Counter()
        self.finished: list[str] = []
        self.aborted: set[str] = set()
        self.submitted: list[EngineRequest] = []

    def apply(self, operation) -> None:
        match operation:
            case ("submit", prompt, output, family, priority):
                prefix = tuple(100 * family + block for block in range(prompt // 4)) if family else ()
                name = f"r{len(self.submitted)}"
                request = EngineRequest(name, prompt, output, prefix, priority, tenant_id=str(family))
                self.engine.submit(request, 0.0)
                self.submitted.append(request)
            case ("abort", index) if index < len(self.submitted):
                name = self.submitted[index].id
                if self.engine.abort(name):
                    self.aborted.add(name)
            case ("step",):
                self.step()
            case _:
                pass

    def step(self) -> bool:
        plan = self.engine.step_begin(0.0)
        if plan is None:
            return False
        assert plan.duration_s > 0
        assert 0 < plan.requests <= 5
        assert 0 <= self.engine.snapshot().kv_used_ratio <= 1
        report = self.engine.step_end()
        assert len(set(report.emitted)) == len(report.emitted)
        self.emitted.update(report.emitted)
        self.finished += report.finished
        return True


@settings(max_examples=examples(150))
@given(
    operations,
    st.sampled_from(sorted(MEMORIES)),
    st.sampled_from(sorted(BATCHINGS)),
    st.sampled_from(sorted(ORDERS)),
)
def test_every_request_that_is_not_aborted_gets_exactly_its_tokens_and_the_pool_is_empty_after(
    script, memory, batching, order
):
    run = Run(make_engine(memory, batching, order))
    for operation in script:
        run.apply(operation)
    for _ in range(20_000):
        if not run.step():
            break
    else:
        raise AssertionError("the engine does not come to an end")
    expected = {request.id: request.output_tokens for request in run.submitted}
    assert sorted(run.finished) == sorted(set(expected) - run.aborted)
    for name in run.finished:
        assert run.emitted[name] == expected[name]
    snapshot = run.engine.snapshot()
    assert (snapshot.requests_running, snapshot.requests_waiting, snapshot.kv_used_ratio) == (0, 0, 0)
    assert snapshot.emitted_tokens_total == run.emitted.total()


@settings(max_examples=examples(100))
@given(operations)
def test_a_reservation_to_the_end_never_preempts_when_prompts_are_prefilled_alone(script):
    run = Run(make_engine("oracle", "separate", "fcfs"))
    for operation in script:
        run.apply(operation)
    while run.step():
        pass
    assert run.engine.snapshot().preemptions_total == 0


@settings(max_examples=examples(60))
@given(operations, st.sampled_from(sorted(MEMORIES)), st.sampled_from(sorted(BATCHINGS)))
def test_equal_calls_give_equal_steps(script, memory, batching):
    runs = [Run(make_engine(memory, batching, "fcfs")) for _ in range(2)]
    for run in runs:
        for operation in script:
            run.apply(operation)
    assert runs[0].emitted == runs[1].emitted
    assert runs[0].engine.snapshot() == runs[1].engine.snapshot()


@settings(max_examples=examples(60))
@given(operations)
def test_first_come_first_served_admits_in_the_order_of_submission_when_all_fit_one_seat(script):
    engine = Engine(COEFFICIENTS["cpu-tiny"], memory=MEMORIES["blocks of 4"](), requests_running_max=1)
    run = Run(engine)
    for operation in script:
        run.apply(operation)
    while run.step():
        pass
    assert run.finished == [request.id for request in run.submitted if request.id in set(run.finished)]
