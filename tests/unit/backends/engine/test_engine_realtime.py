"""The engine beside an event loop, under a loop whose clock the test moves."""

import heapq
import itertools
from collections import Counter

import pytest

from backends.engine.coefficients import StepCoefficients
from backends.engine.engine import Engine, EngineRequest
from backends.engine.http.exposition import CacheConfig, EngineMeters, render
from backends.engine.realtime import LAG_S_MAX, PacedEngine, least_loaded

STEP_S = 0.5
EVEN = StepCoefficients(base_s=STEP_S, token_s=0, context_token_s=0, kv_tokens_max=1024, source="one length for all")


class Timer:
    def __init__(self) -> None:
        self.cancelled = False

    def cancel(self) -> None:
        self.cancelled = True


class ManualLoop:
    """Just what PacedEngine uses of a loop: a clock, and callbacks that are due."""

    def __init__(self) -> None:
        self.now = 100.0
        self._due = []
        self._order = itertools.count()

    def time(self):
        return self.now

    def call_at(self, when, callback, *args):
        timer = Timer()
        heapq.heappush(self._due, (when, next(self._order), timer, callback, args))
        return timer

    def call_soon(self, callback, *args):
        return self.call_at(self.now, callback, *args)

    def turn(self) -> None:
        """One turn of the loop: what is due now runs, what that schedules waits for the next turn."""
        due = []
        while self._due and self._due[0][0] <= self.now:
            due.append(heapq.heappop(self._due))
        for _, _, timer, callback, args in due:
            if not timer.cancelled:
                callback(*args)


class Tokens:
    """Listens, and notes when its tokens came."""

    def __init__(self, loop: ManualLoop) -> None:
        self._loop = loop
        self.came_at = []
        self.cached = None

    def prefilled(self, cached_tokens: int) -> None:
        self.cached = cached_tokens

    def token(self) -> None:
        self.came_at.append(self._loop.now)


@pytest.fixture
def loop():
    return ManualLoop()


def make_paced(loop, *, speed=1.0, reports=None, **kwargs) -> PacedEngine:
    reports = [] if reports is None else reports
    return PacedEngine(Engine(EVEN, **kwargs), loop=loop, speed=speed, on_step=reports.append)


def advance(loop: ManualLoop, seconds: float, turn_s: float = 0.01) -> None:
    """Let time pass in turns of the loop."""
    end = loop.now + seconds
    while loop.now < end:
        loop.now = min(end, loop.now + turn_s)
        loop.turn()


def test_tokens_come_a_step_apart(loop):
    paced, tokens = make_paced(loop), Tokens(loop)
    paced.submit(EngineRequest("a", 3, 3), tokens)
    advance(loop, 2.0)
    assert tokens.came_at == pytest.approx([100.5, 101.0, 101.5], abs=0.021)
    assert tokens.cached == 0
    assert paced.requests_in_flight == 0


def test_speed_divides_time(loop):
    paced, tokens = make_paced(loop, speed=5.0), Tokens(loop)
    paced.submit(EngineRequest("a", 3, 3), tokens)
    advance(loop, 0.4)
    assert tokens.came_at == pytest.approx([100.1, 100.2, 100.3], abs=0.021)


def test_what_arrives_in_one_turn_shares_the_first_step(loop):
    reports = []
    paced = make_paced(loop, reports=reports)
    for name in "abc":
        paced.submit(EngineRequest(name, 3, 1), Tokens(loop))
    advance(loop, 1.0)
    assert [report.emitted for report in reports] == [("a", "b", "c")]


def test_a_late_timer_does_not_move_the_steps_after_it(loop):
    reports = []
    paced = make_paced(loop, reports=reports)
    paced.submit(EngineRequest("a", 3, 8), Tokens(loop))
    advance(loop, 1.0, turn_s=0.09)
    advance(loop, 5.0, turn_s=0.07)
    begun = [report.plan.begun_at for report in reports]
    assert [later - sooner for sooner, later in itertools.pairwise(begun)] == pytest.approx([STEP_S] * 7)


def test_a_loop_that_was_blocked_for_long_costs_the_engine_that_time(loop):
    reports = []
    paced = make_paced(loop, reports=reports)
    paced.submit(EngineRequest("a", 3, 8), Tokens(loop))
    advance(loop, 0.2)
    loop.now += 10
    advance(loop, 5.0)
    begun = [report.plan.begun_at for report in reports]
    assert begun[1] == pytest.approx(110.2 - LAG_S_MAX, abs=0.02)
    assert len(reports) == 8


def test_overdue_steps_are_delivered_one_per_turn(loop):
    tokens = Tokens(loop)
    paced = make_paced(loop, speed=STEP_S / 0.01)  # 10 ms a step
    paced.submit(EngineRequest("a", 3, 20), tokens)
    loop.turn()
    loop.now += 0.055
    for turns in range(1, 6):
        loop.turn()
        assert len(tokens.came_at) == turns
    loop.turn()
    assert len(tokens.came_at) == 5


def test_an_aborted_request_is_told_nothing_more(loop):
    paced, gone, stays = make_paced(loop), Tokens(loop), Tokens(loop)
    paced.submit(EngineRequest("a", 3, 9), gone)
    paced.submit(EngineRequest("b", 3, 2), stays)
    advance(loop, 0.7)
    paced.abort("a")
    paced.abort("a")
    advance(loop, 2.0)
    assert (len(gone.came_at), len(stays.came_at)) == (1, 2)
    assert paced.requests_in_flight == 0


def test_an_engine_that_went_idle_starts_again_with_the_next_request(loop):
    paced = make_paced(loop)
    for _ in range(2):
        tokens = Tokens(loop)
        paced.submit(EngineRequest("a", 3, 1), tokens)
        started = loop.now
        advance(loop, 3.0)
        assert tokens.came_at == pytest.approx([started + STEP_S], abs=0.021)


def test_a_stopped_engine_takes_no_further_step(loop):
    paced, tokens = make_paced(loop), Tokens(loop)
    paced.submit(EngineRequest("a", 3, 9), tokens)
    advance(loop, 0.7)
    paced.stop()
    advance(loop, 3.0)
    assert len(tokens.came_at) == 1


def test_the_least_loaded_engine_counts_a_waiting_request_as_four_running(loop):
    crowded = make_paced(loop, requests_running_max=1)
    busy = make_paced(loop, requests_running_max=8)
    for number in range(2):
        crowded.submit(EngineRequest(f"c{number}", 3, 99), Tokens(loop))
    for number in range(4):
        busy.submit(EngineRequest(f"b{number}", 3, 99), Tokens(loop))
    loop.turn()
    assert least_loaded([crowded, busy]) is busy  # 1 + 4 against 4
    busy.submit(EngineRequest("b4", 3, 99), Tokens(loop))
    advance(loop, 1.0)
    assert least_loaded([crowded, busy]) is crowded  # 5 against 5: the first


def test_metric_labels_are_escaped():
    engine = Engine(EVEN)
    text = render(
        [(engine.snapshot(), EngineMeters())],
        model='a "b"\\c',
        cache=CacheConfig(block_tokens=16, blocks=64, max_model_len=512),
        rejections=Counter(),
    )
    assert 'vllm:num_requests_running{engine="0",model_name="a \\"b\\"\\\\c"} 0.0' in text
    assert 'kv_cache_max_concurrency="2.0"' in text
