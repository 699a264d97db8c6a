"""What one backend may hold: seats, blocks, shared prefixes, foreign load, preemptions."""

from itertools import permutations

import pytest

from policies.capacity.backend import BackendCapacity, Reservation
from policies.pool.snapshot import backend_view
from policies.types import BackendLoad, Request

WHOLE = {"headroom_ratio_max": 1.0}


def make_request(prompt: int = 10, output: int = 10, **fields) -> Request:
    return Request("r", "A", "m", 0.0, prompt, output, **fields)


def needed(capacity: BackendCapacity, prompt: int, output: float, **fields) -> Reservation:
    request = make_request(prompt, **fields)
    return capacity.reservation(request, "default", prompt_tokens=prompt, output_tokens=output)


def take(capacity: BackendCapacity, prompt: int, output: float = 0.0, **fields) -> Reservation:
    reservation = needed(capacity, prompt, output, **fields)
    capacity.take(reservation)
    return reservation


def fits(capacity: BackendCapacity, prompt: int, output: float = 0.0, **fields) -> bool:
    return capacity.fits(needed(capacity, prompt, output, **fields), reserve_only=False)


def test_reservations_fit_up_to_95_percent_of_the_pool():
    capacity = BackendCapacity(BackendLoad("gpu", kv_tokens_max=1000))
    take(capacity, 450, 50)
    assert fits(capacity, 400, 50)
    assert not fits(capacity, 401, 50)
    assert backend_view(capacity).tokens_limit == 950


@pytest.mark.parametrize(
    ("prompt", "output", "choices", "tokens"),
    [
        (1, 0, 1, 16),
        (16, 0, 1, 16),
        (16, 1, 1, 32),
        (10, 6, 1, 16),
        (10, 7, 1, 32),
        (20, 40, 2, 48 + 32),  # the first holds prompt and 20 tokens, the second shares the prompt
        (20, 0, 3, 32),
        (10, 5.5, 1, 16),
    ],
)
def test_a_request_occupies_whole_blocks_and_its_choices_share_the_prompt(prompt, output, choices, tokens):
    capacity = BackendCapacity(BackendLoad("gpu", kv_block_tokens=16))
    assert needed(capacity, prompt, output, choices=choices).tokens == tokens


def test_every_choice_takes_a_seat():
    capacity = BackendCapacity(BackendLoad("gpu", requests_running_max=4))
    take(capacity, 10, choices=2)
    assert fits(capacity, 10, choices=2)
    assert not fits(capacity, 10, choices=3)


def test_an_idle_backend_takes_one_however_large_it_is_and_whatever_others_do_there():
    load = BackendLoad("gpu", kv_tokens_max=100, requests_running_max=2, requests_running=50, kv_used_ratio=1.0)
    capacity = BackendCapacity(load)
    for _ in range(3):
        capacity.measured(load, 0)
    assert (capacity.sequences_max, capacity.tokens_max) == (0, 0.0)
    assert fits(capacity, 100_000, 1000, choices=20)
    take(capacity, 1)
    assert not fits(capacity, 1)


def test_where_the_size_of_the_pool_is_not_known_only_seats_count():
    capacity = BackendCapacity(BackendLoad("gpu", requests_running_max=2))
    take(capacity, 10**9)
    assert fits(capacity, 10**9)
    assert backend_view(capacity).tokens_limit is None


def test_where_seats_are_not_known_every_engine_has_vllms_default():
    assert BackendCapacity(BackendLoad("gpu", engines=2)).sequences_limit == 512


BLOCKS = {"prefix_block_tokens": 100.0}


def test_a_prompt_that_runs_already_is_counted_once():
    capacity = BackendCapacity(BackendLoad("gpu", kv_tokens_max=1000), **WHOLE)
    take(capacity, 450, 50, prefix=(1, 2, 3, 4), **BLOCKS)
    assert capacity.tokens == 500
    take(capacity, 450, 50, prefix=(1, 2, 3, 4), **BLOCKS)
    assert capacity.tokens == 600, "400 are shared, 50 of the prompt and 50 of the output are its own"
    assert fits(capacity, 450, 350, prefix=(1, 2, 3, 4), **BLOCKS)
    assert not fits(capacity, 450, 350, prefix=(1, 2, 3, 9), **BLOCKS), "block 9 would be new"


@pytest.mark.parametrize("order", list(permutations(range(3))))
def test_shared_blocks_go_with_the_last_that_holds_them_in_whatever_order_requests_end(order):
    capacity = BackendCapacity(BackendLoad("gpu", kv_tokens_max=10_000), **WHOLE)
    prefixes = [(1, 2), (1, 2, 3), (1, 7)]
    reservations = [take(capacity, 450, prefix=prefix, **BLOCKS) for prefix in prefixes]
    assert capacity.tokens == (250 + 150 + 250) + 4 * 100
    held = set(range(3))
    for index in order:
        capacity.release(reservations[index])
        held.discard(index)
        blocks = {block for other in held for block in prefixes[other]}
        assert capacity.tokens == sum(450 - 100 * len(prefixes[other]) for other in held) + 100 * len(blocks)
    assert capacity.tokens == 0


def test_without_prefix_caching_every_request_holds_its_whole_prompt():
    capacity = BackendCapacity(BackendLoad("gpu", prefixes_shared=False))
    for _ in range(2):
        take(capacity, 450, prefix=(1, 2, 3, 4), **BLOCKS)
    assert capacity.tokens == 900


def measure(capacity: BackendCapacity, *, held: float = 0.0, times: int = 1, **measurement) -> None:
    for _ in range(times):
        load = BackendLoad("gpu", kv_tokens_max=1000, requests_running_max=10, **measurement)
        capacity.measured(load, held)


def test_what_others_run_is_taken_off_once_it_has_stayed():
    capacity = BackendCapacity(BackendLoad("gpu", kv_tokens_max=1000, requests_running_max=10), **WHOLE)
    for _ in range(2):
        take(capacity, 100)
    measure(capacity, requests_running=5, requests_waiting=1, kv_used_ratio=0.5, held=200, times=2)
    assert (capacity.external_requests, capacity.external_tokens) == (0, 0), "not yet: ours may have moved meanwhile"
    measure(capacity, requests_running=5, requests_waiting=1, kv_used_ratio=0.5, held=200)
    assert (capacity.external_requests, capacity.external_tokens) == (4, 300)
    assert fits(capacity, 500, choices=4)
    assert not fits(capacity, 500, choices=5)
    assert not fits(capacity, 501)


def test_a_single_odd_measurement_is_no_foreign_load_and_hides_none():
    capacity = BackendCapacity(BackendLoad("gpu", kv_tokens_max=1000, requests_running_max=10))
    measure(capacity, requests_running=0, kv_used_ratio=0.0, times=3)
    measure(capacity, requests_running=9, kv_used_ratio=0.9)
    assert (capacity.external_requests, capacity.external_tokens) == (0, 0)
    measure(capacity, requests_running=9, kv_used_ratio=0.9, times=2)
    assert (capacity.external_requests, capacity.external_tokens) == (9, 900)
    measure(capacity, requests_running=2, kv_used_ratio=0.1)
    assert (capacity.external_requests, capacity.external_tokens) == (2, 100), "less is believed at once"


def test_what_is_on_its_way_hides_nothing_that_others_run():
    capacity = BackendCapacity(BackendLoad("b", requests_running_max=8))
    measure(capacity, requests_running=2, times=3)
    assert capacity.external_requests == 2
    ours = [take(capacity, 10) for _ in range(2)]
    measure(capacity, requests_running=2)  # and has not heard of ours
    assert capacity.external_requests == 2
    measure(capacity, requests_running=4)
    assert capacity.external_requests == 2
    measure(capacity, requests_running=2)  # it has heard of ours by now, so the others have ended
    assert capacity.external_requests == 0
    for each in ours:
        capacity.release(each)
    measure(capacity, requests_running=2, times=3)
    capacity.started(take(capacity, 10))
    measure(capacity, requests_running=2)
    assert capacity.external_requests == 1, "what has started is there"


def test_what_we_have_predicted_but_not_produced_is_no_foreign_negative():
    capacity = BackendCapacity(BackendLoad("gpu", kv_tokens_max=1000, requests_running_max=10))
    take(capacity, 100, 400)
    measure(capacity, requests_running=0, kv_used_ratio=0.0, held=150, times=3)
    assert (capacity.external_requests, capacity.external_tokens) == (0, 0)


def test_shared_blocks_are_ours_too():
    capacity = BackendCapacity(BackendLoad("gpu", kv_tokens_max=1000, requests_running_max=10))
    take(capacity, 450, prefix=(1, 2, 3, 4), **BLOCKS)
    measure(capacity, requests_running=1, kv_used_ratio=0.45, held=50, times=3)
    assert capacity.external_tokens == pytest.approx(0)


def test_a_measurement_without_figures_changes_no_estimate():
    capacity = BackendCapacity(BackendLoad("gpu", kv_tokens_max=1000, requests_running_max=10))
    measure(capacity, requests_running=4, kv_used_ratio=0.5, times=3)
    measure(capacity, times=5)
    assert (capacity.external_requests, capacity.external_tokens) == (4, 500)


def test_preemptions_tighten_at_once_and_headroom_comes_back_slowly():
    capacity = BackendCapacity(BackendLoad("gpu", kv_tokens_max=1000, preemptions_total=7))
    take(capacity, 10)
    measure(capacity, preemptions_total=8)
    assert capacity.tokens_limit == pytest.approx(950 * 0.9)
    take(capacity, 10)
    measure(capacity, preemptions_total=20)
    assert capacity.tokens_limit == pytest.approx(950 * 0.81)
    measure(capacity, preemptions_total=20, times=10)
    assert capacity.tokens_limit == pytest.approx(950 * 0.81 + 50)
    measure(capacity, preemptions_total=20, times=100)
    assert capacity.tokens_limit == pytest.approx(950)


def test_however_often_an_engine_preempts_half_of_its_pool_is_used():
    capacity = BackendCapacity(BackendLoad("gpu", kv_tokens_max=1000, preemptions_total=0))
    for total in range(1, 50):
        take(capacity, 1)
        measure(capacity, preemptions_total=total)
    assert capacity.tokens_limit == 500


def test_preemptions_before_the_next_is_let_in_are_one_accident():
    capacity = BackendCapacity(BackendLoad("gpu", kv_tokens_max=1000, preemptions_total=0))
    take(capacity, 10)
    for total in range(1, 6):
        measure(capacity, preemptions_total=total)
    assert capacity.tokens_limit == pytest.approx(950 * 0.9 + 4 * 5), "recovering since the first"


def beside_strangers(*, ours: int, theirs: int) -> BackendCapacity:
    """A pool of 1,000 tokens in which strangers hold 400, and one of ours was let in with the other 600."""
    capacity = BackendCapacity(BackendLoad("gpu", kv_tokens_max=1000, preemptions_total=0), **WHOLE)
    measure(capacity, requests_running=4, kv_used_ratio=0.4, preemptions_total=0, times=3)
    reservation = take(capacity, 100, 500)
    capacity.resize(reservation, 600 + ours)
    used = (600 + ours + 400 + theirs) / 1000
    measure(capacity, requests_running=5, kv_used_ratio=used, held=600 + ours, preemptions_total=1)
    return capacity


@pytest.mark.parametrize(("ours", "theirs"), [(0, 100), (50, 200), (-100, 300)])
def test_a_preemption_of_a_pool_that_strangers_have_filled_costs_us_no_headroom(ours, theirs):
    assert beside_strangers(ours=ours, theirs=theirs).tokens_limit == 1000


@pytest.mark.parametrize(("ours", "theirs"), [(100, 0), (200, 50), (100, -100)])
def test_a_preemption_of_a_pool_that_our_answers_outgrew_is_ours_whatever_else_runs_there(ours, theirs):
    assert beside_strangers(ours=ours, theirs=theirs).tokens_limit == 900


def test_external_load_that_comes_before_our_drain_is_over_is_not_ours():
    """Between their coming and our last answer of before, more is reserved than is left to us: nothing was let in."""
    capacity = BackendCapacity(BackendLoad("gpu", kv_tokens_max=1000, preemptions_total=0), **WHOLE)
    take(capacity, 500, 500)
    for total in range(10):
        measure(capacity, requests_running=5, kv_used_ratio=1.0, held=500, preemptions_total=total)
    assert capacity.external_tokens == 500
    assert capacity.tokens_max < capacity.tokens
    assert capacity.tokens_limit == 1000


def test_an_engine_that_restarts_counts_preemptions_from_zero_without_a_penalty():
    capacity = BackendCapacity(BackendLoad("gpu", kv_tokens_max=1000, preemptions_total=50))
    measure(capacity, preemptions_total=0)
    assert capacity.tokens_limit == 950


def test_a_pool_that_shrinks_below_what_runs_takes_nothing_more_and_loses_nothing():
    capacity = BackendCapacity(BackendLoad("gpu", kv_tokens_max=1000, requests_running_max=10), **WHOLE)
    reservations = [take(capacity, 100) for _ in range(5)]
    capacity.measured(BackendLoad("gpu", kv_tokens_max=400, requests_running_max=3), 500)
    assert not fits(capacity, 1)
    for reservation in reservations:
        capacity.release(reservation)
    assert (capacity.tokens, capacity.sequences, capacity.requests) == (0, 0, 0)


def test_how_full_it_is_goes_by_the_nearer_limit():
    capacity = BackendCapacity(BackendLoad("gpu", kv_tokens_max=1000, requests_running_max=10), **WHOLE)
    take(capacity, 50)
    assert capacity.reserved_ratio == 0.1
    take(capacity, 350)
    assert capacity.reserved_ratio == 0.4
