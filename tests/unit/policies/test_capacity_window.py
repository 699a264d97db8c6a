"""How many requests an engine is sent that does not say its size."""

from itertools import pairwise

import pytest

from policies.capacity.backend import BackendCapacity
from policies.capacity.window import PART, PROBE_S, PROBE_S_MAX, START, Window
from policies.pool.snapshot import backend_view
from policies.scheduler import Scheduler
from policies.types import BackendLoad, Outcome, Request, SizeSource, Tenant

SCRAPED_S = 0.25
REQUEST = Request("r", "a", "m", 0.0, 10, 5)


class Scrapes:
    """A window before an engine of so many seats, all of it used all the time by answers that are streamed."""

    def __init__(self, seats, *, is_streamed=True, jam=0):
        self.window, self.seats, self.is_streamed, self.now = Window(), seats, is_streamed, 0.0
        self.jam = jam  # seats that are free and that nobody gets, as prompts fill the steps
        self.waited = []

    def scrape(self, times=1, *, running=None):
        for _ in range(times):
            self.now += SCRAPED_S
            self.step()
            sent = self.window.sequences_max
            ran = min(sent, self.seats - self.jam) if running is None else running
            self.waited.append(sent - ran)
            seen = ran if self.is_streamed else 0
            self.window.measured(ran, sent - ran, seen=seen, is_used=True, now=self.now)
        return self.window.sequences_max

    def step(self, times=1):
        for _ in range(times):
            if self.is_streamed:
                self.window.started(min(self.window.sequences_max, self.seats - self.jam))


def test_it_begins_small_and_grows_with_every_first_token_by_no_more_than_a_part_of_what_runs():
    engine = Scrapes(1024)
    assert engine.window.sequences_max == START
    for _ in range(60):
        running = min(engine.window.sequences_max, 1024)
        engine.step()
        assert engine.window.sequences_max - running <= max(1, running // PART)
    assert engine.window.sequences_max >= 1024, "after 60 prompts, without a scrape"


@pytest.mark.parametrize("seats", [1, 4, 12, 64, 256, 1024])
def test_at_an_engine_that_is_full_it_comes_to_rest_at_what_runs(seats):
    engine = Scrapes(seats)
    engine.step(80)
    engine.scrape(4)
    assert engine.window.is_known
    assert engine.window.sequences_max in {seats, seats + 1}
    engine.scrape(int(10 * PROBE_S_MAX / SCRAPED_S))
    assert sum(engine.waited[4:]) < 0.1 * len(engine.waited), "it is tried ever more seldom whether more runs"


def test_where_first_tokens_are_not_seen_scrapes_let_it_grow_by_what_they_show():
    engine = Scrapes(256, is_streamed=False)
    engine.scrape(14)
    assert engine.window.sequences_max == 256


def test_a_limit_that_is_too_small_is_found_out_and_grown_beyond_at_once():
    engine = Scrapes(64)
    engine.step(40)
    engine.scrape(3, running=20)
    assert engine.window.sequences_max < 64
    engine.scrape(int(5.0 / SCRAPED_S))
    assert engine.window.sequences_max >= 64


def test_one_scrape_in_which_less_runs_is_no_reason_for_a_smaller_limit():
    engine = Scrapes(64)
    engine.step(40)
    engine.scrape(2)
    engine.scrape(running=30)
    assert engine.window.sequences_max >= 64


def test_what_has_been_seen_to_run_is_no_limit_too_many():
    """A request waited, though it had a seat: it runs by the next step."""
    engine = Scrapes(64)
    for _ in range(8):
        engine.step()
        ran = engine.window.sequences_max - 1
        engine.window.measured(ran, 1, seen=ran, is_used=True, now=0.0)
        engine.window.started(ran + 1)
        assert engine.window.sequences_max >= ran + 1


def test_an_engine_that_has_fewer_seats_unnoticed_is_sent_no_more_than_it_runs_after_two_scrapes():
    engine = Scrapes(64)
    engine.step(40)
    engine.scrape(2)
    engine.seats = 12
    engine.scrape(2)
    assert engine.window.sequences_max == 12


def test_requests_that_wait_while_the_window_is_not_used_say_nothing_of_it():
    window = Window()
    window.started(40)
    window.measured(3, 2, seen=3, is_used=False, now=1.0)
    assert (window.sequences_max, window.is_known) == (45, False)


def test_it_has_room_for_one_more_request_however_many_answers_that_wants():
    window = Window()
    window.sent(16)
    window.started(16)
    assert window.sequences_max == 32


def test_a_limit_that_stands_is_tried_at_growing_intervals():
    engine = Scrapes(12)
    engine.step(20)
    engine.scrape(2)
    tried = [number for number in range(int(100 / SCRAPED_S)) if engine.scrape() > 12]
    gaps = [b - a for a, b in pairwise(tried)]
    assert gaps == sorted(gaps)
    assert gaps[0] * SCRAPED_S <= 4 * PROBE_S


def load(**known):
    return BackendLoad("x", **{"kv_tokens_max": 1 << 20, "requests_running": 0, "requests_waiting": 0, **known})


def test_a_server_that_was_away_may_be_another_one_and_begins_anew():
    backend = BackendCapacity(load())
    backend.measured(load(requests_running=40), 0.0)
    assert backend.sequences_max == START, "what is not ours says nothing of ours"
    running = [backend.reservation(REQUEST, "default", prompt_tokens=10, output_tokens=5) for _ in range(29)]
    for reservation in running:
        backend.take(reservation)
        backend.started(reservation)
    assert backend.sequences_max == 32
    for reservation in running:
        backend.release(reservation)
    assert backend.sequences_max == 32
    backend.measured(load(available=False), 0.0)
    backend.measured(load(), 0.0)
    assert backend.sequences_max == START


def test_a_size_is_given_learnt_or_assumed():
    backend = BackendCapacity(load())
    assert backend_view(backend).size is SizeSource.ASSUMED
    for _ in range(START):
        backend.take(backend.reservation(REQUEST, "default", prompt_tokens=10, output_tokens=5))
    backend.measured(load(requests_running=3, requests_waiting=1), 0.0)
    assert (backend_view(backend).size, backend_view(backend).requests_limit) == (SizeSource.LEARNT, 3)
    backend.measured(load(requests_running_max=64), 0.0)
    assert (backend_view(backend).size, backend_view(backend).requests_limit) == (SizeSource.GIVEN, 64)


def test_what_waits_for_something_else_than_room_does_not_count():
    backend = BackendCapacity(load())
    for _ in range(START):
        backend.take(backend.reservation(REQUEST, "default", prompt_tokens=10, output_tokens=5))
    backend.measured(load(requests_running=3, requests_waiting=1, requests_waiting_for_room=0), 0.0)
    assert backend_view(backend).size is SizeSource.ASSUMED


@pytest.mark.parametrize("a_step", [0, 16])
def test_requests_without_output_run_or_wait_for_a_step_though_no_scrape_shows_them_running(a_step):
    """A step ends all that it computes: scrapes show none running, and those that wait for the next step. The window
    grows until steps are full, and no further than that of an engine of vLLM's default size.
    """
    backend, sent, sizes = BackendCapacity(load()), [], []
    embedding = Request("r", "a", "m", 0.0, 10, 0)
    for _ in range(20):
        while backend.has_slot:
            sent.append(backend.reservation(embedding, "default", prompt_tokens=10, output_tokens=0.0))
            backend.take(sent[-1])
        backend.measured(load(requests_waiting=max(0, len(sent) - a_step) if a_step else 0), 0.0)
        sizes.append(backend.sequences_max)
        while sent:
            backend.release(sent.pop())
    assert sizes[-1] >= 2 * a_step
    assert max(sizes) <= 2 * 128 + 128 // PART, "one step of vLLM's default size, and what waits for the next"


def test_answers_that_wait_beside_requests_without_output_still_end_the_window():
    backend = BackendCapacity(load())
    for output_tokens in (0, 0, 100, 100):
        request = Request("r", "a", "m", 0.0, 10, output_tokens)
        backend.take(backend.reservation(request, "default", prompt_tokens=10, output_tokens=float(output_tokens)))
    backend.measured(load(requests_waiting=3), 0.0)
    assert backend_view(backend).size is not SizeSource.ASSUMED
    assert backend.sequences_max == 2


def test_an_engine_at_which_all_that_was_sent_waits_is_sent_one_request_at_a_time():
    scheduler = Scheduler()
    scheduler.load_changed([load()], 0.0)
    requests = [Request(str(number), "a", "m", 0.0, 10, 5, body_bytes=1) for number in range(START + 1)]
    scheduler.tenants_changed(changed=[Tenant("a")], now=0.0)
    for request in requests:
        scheduler.submit(request, 0.0)
    assert len(scheduler.poll(0.0)) == START
    scheduler.load_changed([load(requests_waiting=START)], 1.0)
    for request in requests[:START]:
        scheduler.finished(request.id, Outcome.COMPLETED, 2.0)
    assert [action.request_id for action in scheduler.poll(2.0)] == [requests[START].id]
