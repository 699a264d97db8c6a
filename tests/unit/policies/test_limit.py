"""No backend is given more than it can serve in time: what a model of its steps allows, by numbers."""

from dataclasses import replace
from math import inf

import pytest

from policies.capacity.backend import BackendCapacity, Clock
from policies.limit import FixedLimit, RoomOnly
from policies.limit.by_latency import LatencyLimit
from policies.limit.engine_work import EngineWork
from policies.limit.knee import RATE_SHARE, knee_s
from policies.limit.latency_by_batch import TimedAnswer
from policies.reservation import Reservation
from policies.step_time import StepTime, StepTimeModel
from policies.types import BackendLoad, SloEnvelope

# An empty step takes 10 ms, a decode 1 ms, a prompt token 1 ms: a full chunk of 100 tokens 110 ms.
MODEL = StepTimeModel(base_s=0.010, token_s=0.001)
LOAD = BackendLoad("gpu", step_tokens_max=100, step_time=StepTime(MODEL, error_ratio=0.05, is_sure=True))
LONG_S = 10.0


def make_reservation(prompt: int = 10, output: float = 20.0, *, at: float = 0.0, ttft=None, tpot=None) -> Reservation:
    envelope = None if ttft is None and tpot is None else SloEnvelope(ttft, tpot)
    return Reservation(
        "default", 1, prompt, output_tokens=output, prompt_tokens=prompt, arrived_at=at, envelope=envelope
    )


class Backend:
    """One backend and its clock."""

    def __init__(self, load: BackendLoad = LOAD, **options) -> None:
        self.clock = Clock()
        self.capacity = BackendCapacity(load, clock=self.clock, **options)

    def allows(self, prompt: int = 10, output: float = 20.0, **fields) -> bool:
        return self.capacity.fits(make_reservation(prompt, output, **fields), reserve_only=False)

    def run(self, count: int = 1, prompt: int = 1, produced: int = 1, **fields) -> list[Reservation]:
        """So many that were sent and have begun to answer."""
        taken = [make_reservation(prompt, **fields) for _ in range(count)]
        for each in taken:
            self.capacity.take(each)
        for each in taken:
            each.produced_tokens = produced
            self.capacity.started(each)
        return taken


@pytest.fixture
def backend():
    return Backend()


# -- step time: the tightest TPOT target, or the knee -----------------------------------------------------------


def test_the_step_stays_within_the_tightest_tpot_target_of_what_runs(backend):
    backend.run(28, tpot=1.0)
    backend.run(1, tpot=0.040, ttft=LONG_S)
    assert backend.allows()  # 10 + 30 * 1 ms
    backend.run(1)
    assert not backend.allows()


def test_a_request_does_not_enter_where_its_own_target_would_not_be_kept(backend):
    backend.run(30)
    assert backend.allows(tpot=0.041)
    assert not backend.allows(tpot=0.040)
    assert backend.allows()


def test_the_target_binds_as_long_as_its_request_runs(backend):
    (urgent,) = backend.run(1, tpot=0.040)
    others = backend.run(29)
    assert not backend.allows()
    backend.capacity.release(urgent)
    assert backend.allows()
    assert len(others) == 29


def test_without_any_envelope_the_step_goes_up_to_the_knee(backend):
    assert knee_s(MODEL) == pytest.approx(0.100)
    backend.run(89)
    assert backend.allows()
    backend.run(1)
    assert not backend.allows()


def test_the_knee_does_not_bind_where_a_slower_target_is_set(backend):
    backend.run(95)
    assert not backend.allows()
    assert backend.allows(tpot=0.110)
    assert not backend.allows(tpot=0.100)


def test_the_knee_is_where_the_rate_reaches_its_share_of_the_asymptote():
    decodes = (knee_s(MODEL) - MODEL.base_s) / MODEL.token_s
    rate, asymptote = decodes / knee_s(MODEL), 1 / MODEL.token_s
    assert rate / asymptote == pytest.approx(RATE_SHARE)


def test_where_steps_cost_nothing_by_themselves_there_is_no_knee():
    free = replace(LOAD, step_time=StepTime(StepTimeModel(0.0, 0.001), 0.05, is_sure=True))
    backend = Backend(free)
    backend.run(200)
    assert backend.allows()


def test_a_decode_reads_its_prompt_and_half_of_its_answer_in_the_mean():
    model = StepTimeModel(base_s=0.010, token_s=0.0, context_token_s=1e-4)
    backend = Backend(replace(LOAD, step_time=StepTime(model, 0.05, is_sure=True)))
    backend.run(1, prompt=100, output=200.0)
    assert backend.allows(100, 200.0, tpot=0.050)  # 10 ms + 2 * (100 + 200 / 2) * 0.1 ms
    assert not backend.allows(100, 202.0, tpot=0.050)


def test_a_tpot_target_that_no_engine_could_keep_does_not_bind(backend):
    backend.run(1, tpot=0.005)
    assert backend.allows()
    assert backend.allows(tpot=0.001)


def test_foreign_requests_make_steps_longer_too():
    backend = Backend(replace(LOAD, requests_running=0, measured_at=0.0))
    backend.run(1, tpot=0.040, ttft=LONG_S)
    assert backend.allows()
    for at in (1.0, 2.0, 3.0):
        backend.capacity.measured(replace(LOAD, requests_running=30, measured_at=at), 0)
    assert not backend.allows()


def test_engines_behind_one_url_share_what_runs():
    backend = Backend(replace(LOAD, engines=2))
    backend.run(58, tpot=0.040, ttft=LONG_S)
    assert backend.allows(tpot=0.040)
    backend.run(2, tpot=0.040, ttft=LONG_S)
    assert not backend.allows(tpot=0.040)


# -- prefill: for its own first token, and for the slack of others ----------------------------------------------


def test_prompts_ahead_must_be_computed_in_time_for_its_first_token(backend):
    backend.run(1)
    backend.capacity.take(make_reservation(297))  # three full steps beside one decode that runs and itself
    assert backend.allows(98, ttft=0.5)
    assert not backend.allows(98, ttft=0.4)


def test_time_computes_what_is_owed(backend):
    backend.run(1)
    backend.capacity.take(make_reservation(294))
    assert backend.capacity.work.owed_tokens(0.0) == 294
    assert backend.capacity.work.owed_tokens(0.110) == pytest.approx(196, abs=2)
    backend.clock.now = 0.2
    assert backend.allows(98, at=0.2, ttft=0.3)
    assert backend.capacity.work.owed_tokens(LONG_S) == 0


def test_first_tokens_put_the_clock_of_prefill_right(backend):
    first, second, third = (make_reservation(200) for _ in range(3))
    for each in (first, second, third):
        backend.capacity.take(each)
    first.produced_tokens = second.produced_tokens = 1
    backend.capacity.started(second)
    assert backend.capacity.work.owed_tokens(0.0) == 200
    backend.capacity.started(first)
    assert backend.capacity.work.owed_tokens(0.0) == 200, "told in another order, computed in the same"


def test_an_answer_that_came_whole_says_nothing_of_what_is_computed_since(backend):
    whole, later = make_reservation(100), make_reservation(100)
    backend.capacity.take(whole)
    backend.capacity.take(later)
    backend.clock.now = LONG_S
    whole.produced_tokens = 500
    backend.capacity.started(whole)
    assert backend.capacity.work.owed_tokens(LONG_S) == 0


def test_what_is_preempted_is_not_owed(backend):
    first, second = make_reservation(100), make_reservation(300)
    backend.capacity.take(first)
    backend.capacity.take(second)
    backend.capacity.release(first)
    assert backend.capacity.work.owed_tokens(0.0) == 300
    backend.capacity.release(second)
    assert backend.capacity.work.owed_tokens(0.0) == 0


def test_cached_prompts_are_not_computed(backend):
    backend.run(1)
    cached = make_reservation(1000)
    cached.cached_tokens = 990
    backend.capacity.take(cached)
    assert backend.capacity.work.owed_tokens(0.0) == 10


def test_a_prompt_waits_that_would_make_a_running_stream_late(backend):
    backend.clock.now = 1.0
    backend.run(1, at=0.0, ttft=1.0, tpot=0.050, produced=2)  # its third token is due in 100 ms
    assert backend.allows(88)  # a step of 10 + 1 + 88 ms
    assert not backend.allows(90)
    assert not backend.allows(500)


def test_a_stream_pays_for_every_full_step_with_slack(backend):
    # It gains nothing in a step of 110 ms, but loses 60: 300 ms are spent in four of them, and 20 ms are left.
    backend.clock.now = 0.8
    backend.run(1, at=0.0, ttft=1.0, tpot=0.050, produced=2)
    assert backend.allows(4 * 99)
    assert not backend.allows(5 * 99)


def test_a_stream_whose_prompt_takes_two_steps_has_its_first_token_in_the_second(backend):
    backend.capacity.take(make_reservation(2 * 99, ttft=1.02, tpot=0.050))
    # Its 14th token comes in step 15 after 1.65 s and is due after 1.67, the 15th after 1.76 and is due after 1.72.
    assert backend.allows(13 * 99, ttft=LONG_S)
    assert not backend.allows(14 * 99, ttft=LONG_S)


def test_full_steps_within_the_target_make_no_request_late(backend):
    backend.clock.now = 0.99
    backend.run(1, ttft=1.0, tpot=0.200)
    assert backend.allows(20 * 99, tpot=0.200)


def test_a_stream_that_is_late_already_holds_no_request_back(backend):
    backend.run(1, ttft=0.1, tpot=0.050)
    backend.clock.now = LONG_S
    assert backend.allows(190)


def test_without_a_ttft_target_a_prompt_goes_while_less_is_owed_than_keeps_the_engine_busy(backend):
    backend.capacity.take(make_reservation(90))
    assert backend.allows(5_000)
    backend.capacity.take(make_reservation(20))
    assert not backend.allows(5)


def test_a_first_token_that_nothing_could_save_is_not_waited_for(backend):
    backend.capacity.take(make_reservation(90))
    assert backend.allows(1_000, ttft=0.2)
    assert backend.allows(10, at=-LONG_S, ttft=0.2)


def test_an_idle_backend_takes_one_whatever_it_asks_for(backend):
    assert backend.allows(1_000_000, ttft=1e-9, tpot=1e-9)


# -- engines that batch fairly ----------------------------------------------------------------------------------

FAIR = replace(LOAD, batching="fair")


def test_an_engine_that_batches_fairly_makes_no_stream_late_for_a_prompt():
    backend = Backend(FAIR)
    backend.run(1, ttft=0.1, tpot=0.050)
    assert backend.allows(190)


def test_a_reported_budget_is_spent_by_what_is_sent_until_a_report_includes_it():
    backend = Backend(replace(FAIR, pab_tokens=1_000.0, pab_dispatches={}))
    sent = make_reservation(600, ttft=1.0)
    backend.capacity.take(sent)
    assert sent.number == 1
    assert backend.capacity.budget_tokens(1.0) == 400
    assert backend.allows(400, ttft=LONG_S)
    assert not backend.allows(401, ttft=LONG_S)
    backend.capacity.measured(replace(FAIR, pab_tokens=1_000.0, pab_dispatches={}), 0)
    assert backend.capacity.budget_tokens(1.0) == 400, "a report from before it was sent"
    backend.capacity.measured(replace(FAIR, pab_tokens=500.0, pab_dispatches={"": 1}), 0)
    assert backend.capacity.budget_tokens(1.0) == 500


def test_a_report_that_is_told_again_gives_nothing_back():
    load = replace(FAIR, pab_tokens=1_000.0, measured_at=1.0)
    backend = Backend(load)
    backend.capacity.take(make_reservation(600))
    backend.capacity.measured(load, 0)
    assert backend.capacity.budget_tokens(1.0) == 400


@pytest.mark.parametrize("tokens", [float("nan"), float("-inf"), -1e300])
def test_a_report_that_cannot_be_holds_no_request_for_ever(tokens):
    backend = Backend(replace(FAIR, pab_tokens=tokens))
    backend.run(1)
    backend.clock.now = 1.0
    assert backend.allows(10, at=0.0, ttft=0.9), "what could not be in time any more is sent"
    assert backend.allows(10)


def test_without_reports_the_budget_is_what_decodes_at_their_pace_leave():
    backend = Backend(FAIR)
    backend.run(20, tpot=0.060)  # 10 + 20 ms of every 60: half of the time is left, at 1 ms a token
    assert backend.capacity.budget_tokens(1.0) == pytest.approx(500)
    backend.capacity.take(make_reservation(100, tpot=0.060))
    assert backend.capacity.budget_tokens(1.0) == pytest.approx(500 - 1000 / 60 - 100)


# -- forecasts --------------------------------------------------------------------------------------------------


def test_the_first_token_of_a_prompt_on_an_idle_engine_takes_one_step(backend):
    assert backend.capacity.ttft_s(50) == pytest.approx(0.010 + 0.001 + 0.050)


def test_without_a_sure_model_nothing_is_foretold():
    unsure = replace(LOAD, step_time=StepTime(MODEL, error_ratio=0.9, is_sure=False))
    assert Backend(unsure).capacity.ttft_s(50) is None
    assert Backend(unsure).capacity.budget_tokens(1.0) is None


# -- without a model --------------------------------------------------------------------------------------------


def ask(
    limit: LatencyLimit, token_s, answers: int, running: int, *, tokens=100, slots=1000, is_sized=True, streamed=True
):
    """So many answers of a backend that takes `token_s(n)` for a token of each of n, to clients that would have so many
    running; returns how many ran with each of the answers.
    """
    ran = []
    for _ in range(answers):
        n = int(min(running, slots, limit.sequences_max))
        ran.append(n)
        limit.answered(TimedAnswer(tokens * token_s(n), 100, tokens, streamed, n, n), slots=slots, is_sized=is_sized)
    return ran


def at_once(running: float):
    """A backend that computes so many at once, and lets others wait."""
    return lambda n: 0.010 * max(1.0, n / running)


def knee(n: int) -> float:
    return 0.010 + 0.001 * n  # nine tenths of its throughput with 90


def test_where_answers_are_far_slower_than_when_fewer_ran_and_fewer_are_enough_the_limit_is_at_the_knee():
    limit = LatencyLimit()
    ask(limit, knee, answers=20, running=1)
    ask(limit, knee, answers=500, running=80)
    assert limit.sequences_max == inf, "a batch makes steps longer"
    ask(limit, knee, answers=20_000, running=400)
    assert 80 <= limit.sequences_max <= 200
    assert knee(limit.sequences_max) < 0.5 * knee(400)


def test_where_running_less_does_not_make_it_faster_it_is_not_the_cure():
    limit = LatencyLimit()
    ask(limit, lambda _n: 0.010, answers=20, running=5)
    ran = ask(limit, lambda _n: 0.500, answers=2_000, running=500)
    assert limit.sequences_max == inf
    assert min(ran) >= 250
    assert sum(n < 500 for n in ran) < 300, "one trial"


def test_it_becomes_slower_or_faster_as_a_whole_and_the_limit_stays():
    limit = LatencyLimit()
    ask(limit, at_once(10), answers=2_000, running=80, is_sized=False)
    before = limit.sequences_max
    assert 10 <= before < 20
    for slower in (10.0, 100.0, 1.0, 0.1):
        ran = ask(limit, lambda n, slower=slower: slower * at_once(10)(n), answers=3_000, running=80, is_sized=False)
        assert sum(n < 10 for n in ran) < 300
        assert 10 <= limit.sequences_max <= 40


def test_it_comes_back_in_proportion_when_more_are_of_use_again():
    limit = LatencyLimit()
    ask(limit, at_once(4), answers=1_000, running=500, is_sized=False)
    assert limit.sequences_max < 8
    ran = ask(limit, at_once(400), answers=2_000, running=500, is_sized=False)
    assert ran[-1] >= 400


def test_other_kinds_of_answers_are_not_limited_for_those_that_went_before():
    limit = LatencyLimit()
    ask(limit, at_once(4), answers=2_000, running=60, is_sized=False, streamed=False)
    assert limit.sequences_max < 8
    assert ask(limit, lambda _n: 0.020, answers=30, running=500, is_sized=False)[-1] >= 250


def test_answers_that_took_next_to_no_time_do_not_make_others_slow():
    """Such times say how busy the gateway is, not the engine."""
    limit = LatencyLimit()
    ask(limit, lambda _n: 1e-6, answers=8, running=8)
    ask(limit, lambda n: 1e-7 * n, answers=1_000, running=32)
    ask(limit, lambda _n: 4e-3, answers=1_000, running=32)
    assert limit.sequences_max == inf


def test_slow_answers_beside_fast_ones_limit_nothing():
    limit = LatencyLimit()
    for _ in range(200):
        ask(limit, lambda _n: 0.010, answers=1, running=20)
        ask(limit, lambda _n: 0.500, answers=19, running=20)
    assert limit.sequences_max == inf


def test_a_burst_that_ends_takes_nothing_away():
    limit = LatencyLimit()
    ask(limit, knee, answers=20, running=1)
    ask(limit, knee, answers=20_000, running=400)
    before = limit.sequences_max
    for running in (100, 50, 6, 1):
        ask(limit, knee, answers=500, running=running)
    assert limit.sequences_max == before


def test_what_changed_while_it_ran_says_nothing():
    steady, risen = (TimedAnswer(1.0, 10, 10, True, 20, last) for last in (21, 30))
    assert steady.ran_with == pytest.approx(20.5, abs=0.1)
    assert risen.ran_with is None


def test_more_than_is_assumed_of_a_backend_of_unknown_size_is_tried_and_kept():
    limit = LatencyLimit()
    ran = ask(limit, lambda _n: 0.010, answers=20_000, running=1_000, slots=256, is_sized=False)
    assert ran[-1] == 256, "the seats that its capacity takes from it"
    assert limit.sequences_max > 256


def test_a_model_that_was_sure_limits_on_while_it_is_learnt_anew(backend):
    unsure = replace(LOAD, step_time=StepTime(MODEL, error_ratio=0.9, is_sure=False))
    usable = []
    for second in range(40):
        load = LOAD if second == 20 else unsure
        backend.capacity.work.measured(load, external_sequences=0, external_tokens=0.0, now=float(second))
        usable.append(backend.capacity.work.model is not None)
    assert usable == [True] * 16 + [False] * 4 + [True] * 16 + [False] * 4


@pytest.mark.parametrize("step_time", [None, StepTime(MODEL, error_ratio=0.9, is_sure=False)])
def test_a_backend_without_a_sure_model_is_limited_by_its_answers(step_time):
    backend = Backend(replace(LOAD, step_time=step_time, requests_running_max=100))
    for running, answers in ((1, 20), (80, 200)):
        reservations = backend.run(running - backend.capacity.sequences)
        for number in range(answers):
            answered = reservations[number % len(reservations)]
            answered.ran_with = running
            backend.capacity.answered(answered, 100, 1.0 * running, is_streamed=True)
    assert backend.capacity.usable[0] == 40
    assert not backend.allows()
    assert not backend.capacity.has_slot


def test_a_fixed_limit_holds_per_engine_and_no_limit_leaves_seats_and_memory():
    fixed = Backend(replace(LOAD, engines=2), limit=FixedLimit(sequences_max=3))
    fixed.run(5, tpot=0.001)
    assert fixed.allows()
    fixed.run(1)
    assert not fixed.allows()
    anything = Backend(replace(LOAD, requests_running_max=150), limit=RoomOnly())
    anything.run(149)
    assert anything.allows(10_000)
    anything.run(1)
    assert not anything.allows()


def test_sums_return_to_nothing_when_all_have_ended():
    work = EngineWork()
    work.measured(LOAD, external_sequences=0, external_tokens=0.0, now=0.0)
    reservations = [make_reservation(7, 0.1 * number, ttft=1.0, tpot=0.1) for number in range(20)]
    for number, each in enumerate(reservations):
        work.take(each, number * 0.01)
    for number, each in enumerate(reservations):
        if number % 2:
            each.produced_tokens = 1
            work.started(each, 1.0)
        work.release(each, 1.0 + number)
    assert (work.sequences, work.context_tokens, work.output_tokens) == (0, 0.0, 0.0)
    assert work.tpot_target_s() == float("inf")
    assert not work.makes_late(1_000_000, 30.0)
    assert work.owed_tokens(30.0) == 0


def sent_at_once(*prompts):
    work = EngineWork()
    work.measured(LOAD, external_sequences=0, external_tokens=0.0, now=0.0)
    reservations = [make_reservation(prompt, 0.0, ttft=9.0, tpot=0.1) for prompt in prompts]
    for each in reservations:
        work.take(each, 0.0)
    return work, reservations


def test_prompts_are_computed_in_the_order_in_which_they_were_sent():
    work, (first, second, third) = sent_at_once(400, 400, 400)
    all_s = work.prefill_s(1200)
    parts = [work.computed_tokens(each, all_s / 2) for each in (first, second, third)]
    assert parts == [400, pytest.approx(200), 0]
    assert work.owed_tokens(0.0) == 1200, "looking moves nothing on"
    assert [work.computed_tokens(each, all_s) for each in (first, second, third)] == [400, 400, 400]


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 2, 0)])
def test_in_whatever_order_they_leave_no_more_is_found_computed_than_was(order):
    work, reservations = sent_at_once(400, 400, 400)
    now, found = work.prefill_s(1200) / 2, 0.0
    for number in order:
        found += work.computed_tokens(reservations[number], now)
        work.release(reservations[number], now)
    assert found <= 600 + 1e-6


def test_where_no_model_says_how_fast_it_goes_a_prompt_is_taken_to_be_computed():
    work = EngineWork()
    work.take(reservation := make_reservation(400, 0.0, ttft=9.0, tpot=0.1), 0.0)
    assert work.computed_tokens(reservation, 0.0) == 400


def test_the_scheduler_wakes_when_a_prompt_may_go_that_time_alone_makes_room_for(make_pool):
    pool = make_pool(loads=(LOAD,))
    pool.send("A", "long", prompt=290)
    pool.send("B", "next", prompt=50)
    assert pool.dispatched() == ["long"]
    wakeup_at = pool.scheduler.next_wakeup()
    assert 0.15 < wakeup_at < 0.25, "when less than a step of 100 tokens is left"
    pool.now = wakeup_at - 0.001
    assert pool.dispatched() == []
    pool.now = wakeup_at
    assert pool.dispatched() == ["next"]


def test_what_made_a_request_late_is_asked_again_a_step_later(make_pool):
    pool = make_pool(loads=(LOAD,))
    pool.send("A", "stream", prompt=1, envelope=SloEnvelope(ttft_s=0.5, tpot_s=0.050))
    assert pool.dispatched() == ["stream"]
    pool.now = 0.1
    pool.emit("stream")
    pool.now = 0.48
    pool.send("B", "prompt", prompt=95)
    waited = 0
    while pool.dispatched() != ["prompt"]:
        assert waited < 200, "it is never left waiting"
        wakeup_at = pool.scheduler.next_wakeup()
        assert wakeup_at > pool.now
        pool.now, waited = wakeup_at, waited + 1


def test_each_dispatch_says_which_of_its_backends_it_is(make_pool):
    pool = make_pool(loads=(LOAD,))
    for number in range(3):
        pool.send("A", f"r{number}")
    assert [action.number for action in pool.poll()] == [1, 2, 3]
