"""Placements that go by predicted time: worked examples."""

from policies.capacity.backend import BackendCapacity
from policies.capacity.prefix_index import PrefixIndex
from policies.placement import LargestBudget, PredictedTtft
from policies.step_time import StepTime, StepTimeModel
from policies.types import BackendLoad, Request, SloEnvelope

STEP_TIME = StepTime(StepTimeModel(base_s=0.010, token_s=0.001), error_ratio=0.05, is_sure=True)


def make_backend(name: str, *prompts: int, **fields) -> BackendCapacity:
    """A backend that was sent these prompts."""
    fields = {"step_time": STEP_TIME, "step_tokens_max": 100, "kv_tokens_max": 100_000} | fields
    backend = BackendCapacity(BackendLoad(name, **fields))
    for prompt in prompts:
        request = make_request(prompt)
        backend.take(backend.reservation(request, "default", prompt_tokens=prompt, output_tokens=10.0))
    return backend


def make_request(prompt: int, *prefix: int, envelope: SloEnvelope | None = None) -> Request:
    return Request("r", "A", "m", 0.0, prompt, 10, prefix=prefix, prefix_block_tokens=16.0, envelope=envelope)


def test_a_prompt_goes_where_less_prompt_is_ahead_of_it_whatever_the_number_of_requests():
    one_long, three_short = make_backend("a", 900), make_backend("b", 20, 20, 20)
    assert PredictedTtft().place(make_request(50), [one_long, three_short]) is three_short
    assert LargestBudget().place(make_request(50), [one_long, three_short]) is three_short


def test_a_prompt_goes_to_a_slower_start_that_holds_most_of_it():
    holder, idle = make_backend("a", 60), make_backend("b")
    request = make_request(480, *range(30))
    prefixes = PrefixIndex()
    prefixes.inserted(request, "a")
    placement = PredictedTtft()
    assert placement.place(request, [holder, idle]) is idle
    placement.look_up_in(prefixes)
    assert placement.place(request, [holder, idle]) is holder


def test_the_largest_reported_budget_that_has_room_for_the_prompt_takes_it():
    small, large = make_backend("a", pab_tokens=400.0), make_backend("b", pab_tokens=900.0)
    placement = LargestBudget()
    assert placement.place(make_request(100), [small, large]) is large
    large.take(large.reservation(make_request(600), "default", prompt_tokens=600, output_tokens=1.0))
    assert placement.place(make_request(100), [small, large]) is small, "spent by what was sent since"


def test_a_budget_that_suffices_for_the_uncached_part_is_chosen():
    holder, other = make_backend("a", pab_tokens=100.0), make_backend("b", pab_tokens=300.0)
    request = make_request(480, *range(28))
    prefixes = PrefixIndex()
    prefixes.inserted(request, "a")
    placement = LargestBudget()
    placement.look_up_in(prefixes)
    assert placement.place(request, [holder, other]) is holder


def test_a_budget_is_that_of_the_requests_own_ttft_target():
    # Beside 80 decodes a step of 100 ms leaves a tenth of the time: a long window is worth more than what is owed less.
    busy, owing = make_backend("a", *[1] * 80), make_backend("b", 700)
    assert LargestBudget().place(make_request(10), [busy, owing]) is owing
    tight = make_request(10, envelope=SloEnvelope(ttft_s=0.1))
    assert LargestBudget().place(tight, [busy, owing]) is busy


def test_while_the_steps_of_one_are_unknown_the_least_full_is_taken():
    unknown, known = make_backend("a", 5_000, step_time=None), make_backend("b", 4_000)
    for placement in (PredictedTtft(), LargestBudget()):
        assert placement.place(make_request(10), [unknown, known]) is known
        assert placement.place(make_request(10), [unknown, make_backend("b", 6_000)]) is unknown
