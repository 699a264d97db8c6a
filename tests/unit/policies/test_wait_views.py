"""What people are told of a request that waits: why, whose turn it is, and when it will probably be sent."""

from itertools import pairwise

import pytest

from policies.prediction import PREDICTION
from policies.step_time import StepTime, StepTimeModel
from policies.types import BackendLoad, PolicyChoice, Tenant, Wait

pytestmark = pytest.mark.every_scheduler

STEP = StepTimeModel(base_s=0.01, token_s=0.0001)
TOKENS = 100
ANSWER_S = TOKENS * 0.0101  # of one sequence alone


def load(*, is_sure=True, slots=1, **fields):
    step_time = StepTime(STEP, error_ratio=0.05, is_sure=is_sure)
    size = {"requests_running_max": slots, "kv_tokens_max": 100_000, "step_tokens_max": 2_000}
    return BackendLoad("gpu", **{**size, "step_time": step_time, **fields})


def a_pool(make_pool, **options):
    return make_pool(prediction=PREDICTION["oracle"](), **{"loads": [load()], **options})


def send(pool, *requests):
    for request_id, tenant_id in requests:
        pool.send(tenant_id, request_id, prompt=10, output_max=TOKENS, output_tokens_known=TOKENS)
    pool.poll()


def views(pool, *request_ids):
    found = pool.scheduler.wait_views(request_ids, pool.now)
    return [found.get(each) for each in request_ids]


def test_what_is_not_queued_has_no_view(make_pool):
    pool = a_pool(make_pool)
    send(pool, ("a", "A"))
    assert views(pool, "a", "never-seen") == [None, None]


def test_the_tenant_that_received_least_is_named_to_the_others_and_not_to_itself(make_pool):
    pool = a_pool(make_pool)
    send(pool, ("a0", "A"), ("a1", "A"), ("a2", "A"), ("b", "B"))
    assert [(each.reason, each.ahead) for each in views(pool, "a1", "a2", "b")] == [
        (Wait.NO_ROOM, "B"),
        (Wait.OWN_QUEUE, "B"),
        (Wait.NO_ROOM, None),
    ]


def test_under_fifo_it_is_the_turn_of_what_came_first(make_pool):
    pool = a_pool(make_pool)
    pool.scheduler.policy_changed(now=pool.now, fairness=PolicyChoice("fifo"))
    send(pool, ("a0", "A"), ("a1", "A"))
    pool.now = 0.01
    send(pool, ("b", "B"))
    assert [each.ahead for each in views(pool, "a1", "b")] == [None, "A"]


def test_a_request_that_came_back_has_its_turn_before_all_others(make_pool):
    pool = a_pool(make_pool, loads=[load(slots=2)])
    send(pool, ("a", "A"), ("b", "B"), ("c", "C"))
    pool.come_back("a", hold_s=0.0)
    pool.measure(load(slots=1))
    assert pool.dispatched() == []
    assert [each.ahead for each in views(pool, "a", "c")] == [None, "A"]


def test_what_does_not_wait_for_its_turn_has_neither_turn_nor_forecast(make_pool):
    pool = a_pool(make_pool, tenants=[Tenant("A", in_flight_max=1), Tenant("B")], loads=[load(slots=2)])
    send(pool, ("a0", "A"), ("b0", "B"), ("a1", "A"), ("b1", "B"))
    limited, other = views(pool, "a1", "b1")
    assert (limited.reason, limited.ahead, limited.start_s) == (Wait.TENANT_LIMIT, None, None)
    assert (other.reason, other.ahead) == (Wait.NO_ROOM, None)
    assert other.start_s is not None
    pool.measure(load(available=False))
    pool.poll()
    (gone,) = views(pool, "b1")
    assert (gone.reason, gone.ahead, gone.start_s) == (Wait.NO_BACKEND, None, None)


def test_the_start_is_predicted_by_what_is_sent_before_it(make_pool):
    """One slot: each request waits for the answers before it, within a factor of two (the forecast is a fluid)."""
    pool = a_pool(make_pool)
    send(pool, *((f"a{number}", "A") for number in range(9)))
    found = [each.start_s for each in views(pool, *(f"a{number}" for number in range(1, 9)))]
    assert all(before < after for before, after in pairwise(found))
    for number, start_s in enumerate(found, start=1):
        assert number * ANSWER_S / 2 <= start_s <= number * ANSWER_S * 2


def test_a_tenant_that_has_its_turn_is_sent_before_a_flood_that_came_earlier(make_pool):
    pool = a_pool(make_pool)
    send(pool, *((f"a{number}", "A") for number in range(20)), ("b", "B"))
    flood, light = views(pool, "a19", "b")
    assert light.start_s < flood.start_s / 4


def test_without_a_sure_model_of_steps_there_is_no_forecast(make_pool):
    pool = a_pool(make_pool, loads=[load(is_sure=False)])
    send(pool, ("a0", "A"), ("a1", "A"))
    (view,) = views(pool, "a1")
    assert (view.reason, view.start_s) == (Wait.NO_ROOM, None)
