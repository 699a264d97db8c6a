"""Where an engine gives no prompt more than a share of a step, short prompts pass long ones, by numbers."""

from dataclasses import replace
from math import inf

import pytest

from policies.capacity.backend import BackendCapacity, Clock
from policies.reservation import Reservation
from policies.step_time import StepTime, StepTimeModel
from policies.types import BackendLoad, SloEnvelope

# A full step of 100 tokens takes 110 ms, and has at most 30 of one prompt: three long prompts leave 10 tokens of it.
MODEL = StepTimeModel(base_s=0.010, token_s=0.001)
LOAD = BackendLoad(
    "gpu",
    step_tokens_max=100,
    prompt_step_tokens_max=30,
    step_time=StepTime(MODEL, error_ratio=0.05, is_sure=True),
)
LONG, SHORT = 2_000, 7
FULL_S = 0.11
LONG_S = 1.0 + (67 - 1.0 / 0.041) * 0.103  # of a long prompt, to which two others come after a second
NEXT_S = 1.0 + 67 * 0.103 - LONG_S  # after that, until these end


class Backend:
    def __init__(self, load=LOAD):
        self.clock = Clock()
        self.capacity = BackendCapacity(load, clock=self.clock)

    def allows(self, prompt, ttft=None, waited_s=0.0):
        reservation = self.reservation(prompt, ttft)
        reservation.arrived_at -= waited_s
        return self.capacity.fits(reservation, reserve_only=False)

    def send(self, count, prompt):
        sent = [self.reservation(prompt) for _ in range(count)]
        for each in sent:
            self.capacity.take(each)
        return sent

    def start(self, reservation):
        reservation.produced_tokens = 1
        self.capacity.started(reservation)

    def reservation(self, prompt, ttft=None):
        envelope = None if ttft is None else SloEnvelope(ttft, None)
        return Reservation(
            "default", 1, prompt, output_tokens=20.0, prompt_tokens=prompt, arrived_at=self.clock.now, envelope=envelope
        )


@pytest.fixture
def backend():
    return Backend()


def test_as_many_long_prompts_are_sent_as_leave_a_part_of_every_step(backend):
    backend.send(2, LONG)
    assert backend.allows(LONG)
    backend.send(1, LONG)
    assert not backend.allows(LONG)
    assert backend.allows(SHORT)


def test_a_long_prompt_goes_when_the_first_token_of_another_is_there_or_it_has_left(backend):
    (first,) = backend.send(1, LONG)
    backend.clock.now = 1.0
    second, _ = backend.send(2, LONG)
    backend.clock.now = LONG_S
    backend.start(first)
    assert backend.allows(LONG)
    backend.send(1, LONG)
    assert not backend.allows(LONG)
    backend.capacity.release(second)
    assert backend.allows(LONG)


def one_after_the_other(backend, late_s=0.0, ttft=None, given=None):
    """Let a long prompt be computed beside two that came a second later, and another come in its place. `late_s`: after
    it should have been. A chat of seven tokens has a TTFT target.
    """
    if ttft is not None:
        chat = backend.reservation(SHORT, ttft)
        chat.envelope = SloEnvelope(ttft, None, given)
        backend.capacity.take(chat)
        backend.capacity.release(chat)
    (first,) = backend.send(1, LONG)
    backend.clock.now = 1.0
    backend.send(2, LONG)
    backend.clock.now = LONG_S + late_s
    backend.start(first)
    backend.capacity.release(first)
    backend.send(1, LONG)


def opens_at(backend):
    """When one more long prompt may be sent."""
    backend.capacity.fits(backend.reservation(LONG), reserve_only=False)
    now, opening = backend.clock.now, backend.capacity.opens_at(backend.clock.now)
    assert not backend.allows(LONG)
    for backend.clock.now, is_open in ((opening - 1e-3, False), (opening + 1e-6, True)):
        assert backend.allows(LONG) == is_open
    return opening - now


def test_the_next_long_prompt_is_sent_a_step_before_the_first_one_ends(backend):
    """So that its part of the steps is not left free until the first token is here and the next prompt there."""
    one_after_the_other(backend)
    assert opens_at(backend) == pytest.approx(NEXT_S - FULL_S)


def test_it_is_sent_sooner_where_short_prompts_that_come_then_are_in_time_all_the_same(backend):
    one_after_the_other(backend, ttft=0.6)
    # 7 tokens of a full step are left to short ones: one is computed in the next step, after the one under way.
    assert opens_at(backend) == pytest.approx(NEXT_S - (0.6 - 2 * FULL_S))
    backend.send(1, LONG)
    assert backend.allows(SHORT, ttft=0.6)


def test_a_target_that_a_call_asked_for_itself_costs_others_nothing(backend):
    one_after_the_other(backend, ttft=0.1, given=0.6)
    assert opens_at(backend) == pytest.approx(NEXT_S - (0.6 - 2 * FULL_S))


def test_it_is_not_sent_sooner_where_they_would_be_late(backend):
    one_after_the_other(backend, ttft=0.1)
    backend.clock.now += NEXT_S
    assert not backend.allows(LONG)
    assert backend.capacity.opens_at(backend.clock.now) == inf


def test_no_more_than_one_is_sent_ahead(backend):
    one_after_the_other(backend, ttft=60.0)
    assert backend.allows(LONG)
    backend.send(1, LONG)
    assert not backend.allows(LONG)


def test_prompts_that_were_later_than_the_model_says_are_expected_as_late(backend):
    one_after_the_other(backend, late_s=0.5)
    assert opens_at(backend) == pytest.approx(NEXT_S - FULL_S)


def test_none_is_sent_ahead_before_the_first_token_of_a_long_prompt_was_seen(backend):
    backend.send(3, LONG)
    backend.clock.now = LONG_S + 1.0
    assert not backend.allows(LONG)
    assert backend.capacity.opens_at(backend.clock.now) == inf


def test_a_short_prompt_with_a_target_goes_while_what_is_left_of_the_steps_is_enough(backend):
    backend.send(3, LONG)  # 7 tokens of a step are left beside three sequences: 14 are two steps, and one is under way
    backend.send(1, 2 * SHORT)
    assert backend.allows(SHORT, ttft=0.50)
    assert not backend.allows(SHORT, ttft=0.49)


def test_a_short_prompt_that_is_late_wherever_it_waits_waits_here_no_longer_than_one_without_a_target(backend):
    backend.send(3, LONG)
    assert backend.allows(2 * SHORT, ttft=0.32)
    backend.send(1, 2 * SHORT)
    assert not backend.allows(1, ttft=0.32)


def test_a_short_prompt_that_has_waited_is_asked_for_its_whole_target(backend):
    backend.send(3, LONG)
    backend.send(1, 2 * SHORT)
    for waited_s in (0.0, 0.2, 0.4):
        assert backend.allows(SHORT, ttft=0.50, waited_s=waited_s)


def test_a_short_prompt_without_a_target_waits_here_while_others_fill_the_next_step(backend):
    backend.send(3, LONG)
    assert backend.allows(2 * SHORT)
    assert not backend.allows(2 * SHORT + 1)
    (short,) = backend.send(1, 2 * SHORT)
    assert not backend.allows(1)
    backend.start(short)
    assert backend.allows(1)


def test_an_engine_that_cuts_no_prompt_is_a_queue(backend):
    for load in (replace(LOAD, prompt_step_tokens_max=None), replace(LOAD, prompt_step_tokens_max=100)):
        queue = Backend(load)
        queue.send(1, LONG)
        assert not queue.allows(SHORT)


def test_a_share_that_changes_counts_what_is_there_anew(backend):
    backend.send(2, 40)
    backend.send(1, 20)
    backend.capacity.measured(replace(LOAD, prompt_step_tokens_max=50), 0.0)
    assert backend.allows(LONG)
    backend.send(1, LONG)
    assert not backend.allows(LONG)  # one leaves half of the step


def test_a_model_that_is_in_doubt_still_limits_and_one_that_stays_far_off_does_not(backend):
    backend.send(3, LONG)
    doubted = replace(LOAD, step_time=StepTime(MODEL, error_ratio=0.4, is_sure=False))
    backend.capacity.measured(doubted, 0.0)
    assert not backend.allows(LONG)
    assert not backend.capacity.work.is_sure
    far_off = replace(LOAD, step_time=StepTime(MODEL, error_ratio=0.6, is_sure=False))
    backend.capacity.measured(far_off, 0.0)
    assert not backend.allows(LONG), "it may be right again in a moment"
    backend.clock.now = 15.1
    backend.capacity.measured(far_off, 0.0)
    assert backend.allows(LONG)
    backend.capacity.measured(doubted, 0.0)
    assert backend.allows(LONG), "one that was never sure says nothing"
