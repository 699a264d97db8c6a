"""An engine that batches fairly goes by deadlines: what is due later delays nothing, and decodes can wait."""

from dataclasses import replace

import pytest

from policies.capacity.backend import BackendCapacity, Clock
from policies.limit.deadlines import PromptsByDeadline
from policies.reservation import Reservation
from policies.step_time import StepTime, StepTimeModel
from policies.types import BackendLoad, SloEnvelope

# An empty step takes 10 ms, a decode 1 ms, a prompt token 1 ms: a full chunk of 100 tokens 110 ms.
MODEL = StepTimeModel(base_s=0.010, token_s=0.001)
LOAD = BackendLoad(
    "gpu", step_tokens_max=100, batching="fair", step_time=StepTime(MODEL, error_ratio=0.05, is_sure=True)
)
FLOOD = 5_000


def reservation(prompt=10, *, ttft=None, tpot=None, at=0.0) -> Reservation:
    envelope = None if ttft is None and tpot is None else SloEnvelope(ttft, tpot)
    return Reservation("default", 1, prompt, prompt_tokens=prompt, output_tokens=20.0, arrived_at=at, envelope=envelope)


class Engine:
    def __init__(self, load=LOAD):
        self.clock = Clock()
        self.capacity = BackendCapacity(load, clock=self.clock)

    def send(self, *args, **promise):
        sent = reservation(*args, **promise)
        self.capacity.take(sent)
        return sent

    def begin(self, sent, at):
        """Its first token is there."""
        self.clock.now, sent.produced_tokens = at, 1
        self.capacity.started(sent)

    def run(self, count, **promise):
        for _ in range(count):
            self.begin(self.send(1, **promise), self.clock.now)

    def allows(self, *args, **promise):
        return self.capacity.fits(reservation(*args, **promise), reserve_only=False)


@pytest.fixture
def engine():
    return Engine()


def test_prompts_that_are_due_later_delay_none(engine):
    engine.send(FLOOD, ttft=60.0)
    assert engine.allows(90, ttft=0.5)
    assert engine.capacity.ttft_s(90, due_at=0.5) < 0.5
    assert engine.capacity.ttft_s(90, due_at=61.0) > 5.0
    engine.send(400, ttft=0.4)
    assert not engine.allows(90, ttft=0.5)
    assert engine.allows(90, ttft=0.39)


def test_prompts_without_a_target_are_computed_after_all_that_have_one(engine):
    engine.send(FLOOD)
    assert engine.allows(90, ttft=0.5)
    assert engine.capacity.ttft_s(90) > 5.0, "but not after another without"


@pytest.mark.parametrize("pab_tokens", [None, 1e9])
def test_a_request_without_a_target_goes_while_less_is_owed_than_keeps_the_engine_busy(pab_tokens):
    engine = Engine(replace(LOAD, pab_tokens=pab_tokens))
    engine.send(90)
    assert engine.allows(FLOOD)
    engine.send(FLOOD)
    assert not engine.allows(5)
    engine.clock.now = engine.capacity.opens_at(0.0)
    assert engine.allows(5)


def test_a_budget_is_less_what_was_sent_and_is_due_no_later():
    engine = Engine(replace(LOAD, pab_tokens=1_000.0, pab_dispatches={}))
    engine.send(600, ttft=30.0)
    assert engine.capacity.budget_tokens(1.0, due_at=1.0) == 1_000
    assert engine.capacity.budget_tokens(1.0, due_at=30.0) == 400
    engine.capacity.measured(replace(LOAD, pab_tokens=400.0, pab_dispatches={"": 1}), 0)
    assert engine.capacity.budget_tokens(1.0, due_at=1.0) == 1_000, "the report counts what is due later"
    assert engine.capacity.budget_tokens(1.0, due_at=30.0) == 400


def test_a_first_token_says_nothing_of_prompts_that_were_sent_before_and_are_due_later(engine):
    engine.send(FLOOD, ttft=60.0)
    engine.send(FLOOD, ttft=60.0)
    engine.begin(engine.send(10, ttft=0.5), at=0.020)
    assert engine.capacity.work.owed_tokens(0.020) > FLOOD


def test_one_prompt_at_most_is_taken_to_be_computed_before_its_first_token_is_there(engine):
    for _ in range(3):
        engine.send(FLOOD, ttft=600.0)
    assert engine.capacity.work.owed_tokens(500.0) == 2 * FLOOD


def test_streams_that_can_wait_do_not_keep_out_one_that_cannot():
    engine = Engine()
    engine.run(60, tpot=0.200)
    assert engine.allows(tpot=0.050)  # 10 and 1 of every 50 ms, and 60 of every 200
    engine.run(30, tpot=0.200)
    assert engine.allows(tpot=0.050)
    engine.run(70, tpot=0.200)
    assert not engine.allows(tpot=0.050)
    vllm = Engine(replace(LOAD, batching="vllm"))
    vllm.run(60, tpot=0.200)
    assert not vllm.allows(tpot=0.050), "there all run in every step"


def test_streams_of_one_target_fill_its_step(engine):
    engine.run(39, tpot=0.050)
    assert engine.allows(tpot=0.050)
    engine.run(1, tpot=0.050)
    assert not engine.allows(tpot=0.050)
    assert not engine.capacity.has_slot


def test_sums_by_deadline_return_to_nothing():
    prompts, sent = PromptsByDeadline(), [reservation(10 * n, ttft=n % 3 or None, at=n % 5) for n in range(1, 20)]
    for number, each in enumerate(sent):
        each.number = number
        prompts.add(each)
    assert prompts.tokens == prompts.tokens_by(float("inf")) == 1_900
    assert prompts.tokens_by(3.0) == sum(each.prompt_tokens for each in sent if -1 < each.first_due_at <= 3.0)
    for each in sent[::2] + sent[1::2]:
        prompts.remove(each)
    assert (prompts.tokens, prompts.largest(), prompts.tokens_due()) == (0, 0, 0)


def test_prompts_get_what_decodes_at_their_pace_leave(engine):
    engine.run(20, tpot=0.050)  # 10 + 20 ms of every 50
    assert engine.capacity.budget_tokens(1.0) == pytest.approx(0.4 * 1_000)
    engine.run(20, tpot=0.200)  # and 20 of every 200
    assert engine.capacity.budget_tokens(1.0) == pytest.approx(0.3 * 1_000)
    engine.run(5)  # which run in every step
    assert engine.capacity.budget_tokens(1.0) == pytest.approx(0.2 * 1_000)
