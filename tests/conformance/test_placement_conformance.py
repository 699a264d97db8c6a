"""What every placement that chooses when a request is sent keeps to. It runs over the table."""

from itertools import permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.capacity.backend import BackendCapacity
from policies.placement import LATE_PLACEMENT
from policies.pool.snapshot import backend_view
from policies.step_time import StepTime, StepTimeModel
from policies.types import BackendLoad, Request

every_placement = pytest.mark.parametrize("make", LATE_PLACEMENT.values(), ids=LATE_PLACEMENT.keys())
REQUEST = Request("r", "A", "m", 0.0, 100, 100, prefix=(1, 2, 3), prefix_block_tokens=16.0)

sizes = st.tuples(st.integers(1, 64), st.none() | st.integers(1, 10_000))
fills = st.lists(st.integers(1, 3_000), max_size=4)
STEP_TIME = StepTime(StepTimeModel(0.01, 1e-4, 1e-7), error_ratio=0.05, is_sure=True)
step_times = st.none() | st.just(STEP_TIME)
backends = st.lists(st.tuples(sizes, fills, step_times), min_size=1, max_size=4)


def make_capacity(
    number: int,
    size: tuple[int, int | None] = (8, 1_000),
    fill: list[int] | None = None,
    step_time: StepTime | None = None,
):
    slots, tokens = size
    capacity = BackendCapacity(
        BackendLoad(f"gpu-{number}", requests_running_max=slots, kv_tokens_max=tokens, step_time=step_time)
    )
    for prompt in fill or []:
        capacity.take(capacity.reservation(REQUEST, "default", prompt_tokens=prompt, output_tokens=0.0))
    return capacity


@every_placement
@given(specs=backends)
def test_one_of_the_candidates_is_chosen_whatever_order_they_come_in(make, specs):
    candidates = [make_capacity(number, *spec) for number, spec in enumerate(specs)]
    placement = make()
    chosen = {placement.place(REQUEST, list(order)).id for order in permutations(candidates)}
    assert len(chosen) == 1
    assert chosen <= {candidate.id for candidate in candidates}


@every_placement
@given(specs=backends)
def test_choosing_reserves_nothing(make, specs):
    candidates = [make_capacity(number, *spec) for number, spec in enumerate(specs)]
    before = [backend_view(candidate) for candidate in candidates]
    make().place(REQUEST, candidates)
    assert [backend_view(candidate) for candidate in candidates] == before


@every_placement
@pytest.mark.parametrize("step_time", [None, STEP_TIME], ids=["steps unknown", "steps known"])
def test_equal_backends_are_filled_evenly(make, step_time):
    placement = make()
    candidates = [make_capacity(number, step_time=step_time) for number in range(3)]
    for number in range(12):
        request = Request(f"r{number}", "A", "m", 0.0, 10, 10)
        chosen = placement.place(request, candidates)
        chosen.take(chosen.reservation(request, "default", prompt_tokens=10, output_tokens=10.0))
    assert [candidate.requests for candidate in candidates] == [4, 4, 4]
