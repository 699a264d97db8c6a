"""What may go to another pool goes while it can still be in time there, by the forecast, and is judged at its end."""

import pytest

from policies.admission.retry_after import QUEUED_S_MIN
from policies.placement import LeastReserved
from policies.pool.passing_on import next_look
from policies.prediction import PREDICTION
from policies.step_time import StepTime, StepTimeModel
from policies.types import BackendLoad, KeyLimits, Reason, SloEnvelope, Tenant

pytestmark = pytest.mark.every_scheduler

TTFT_S = 0.8
ENVELOPE = SloEnvelope(ttft_s=TTFT_S)
STEP = StepTimeModel(base_s=0.01, token_s=0.0001)  # a decode step: 10.1 ms


def a_pool(make_pool, *, is_sure, output=100):
    """One slot, taken by a request that decodes for about a second, or 10 ms for each of this output."""
    step_time = StepTime(STEP, error_ratio=0.05, is_sure=is_sure)
    load = BackendLoad("gpu", requests_running_max=1, kv_tokens_max=10_000, step_tokens_max=2_000, step_time=step_time)
    pool = make_pool(tenants=[Tenant("A"), Tenant("B")], loads=[load], prediction=PREDICTION["oracle"]())
    pool.send("A", "running", output_max=output, output_tokens_known=output)
    assert pool.dispatched() == ["running"]
    return pool


def ask(pool, request_id, **fields):
    pool.send("A", request_id, envelope=ENVELOPE, output_tokens_known=100, **fields)
    return pool.refused()


def refused_at(pool, request_id):
    """When the waiting request is rejected, by the wakeups that the scheduler asks for."""
    for _ in range(50):
        wakeup_at = pool.scheduler.next_wakeup()
        assert wakeup_at is not None
        assert wakeup_at > pool.now, "looks do not spin"
        pool.now = wakeup_at
        if (reason := pool.refused().get(request_id)) is not None:
            assert reason is Reason.SLO_UNREACHABLE
            return pool.now
    raise AssertionError


def test_it_goes_at_once_where_the_forecast_is_later_than_its_target(make_pool):
    pool = a_pool(make_pool, is_sure=True)
    ask(pool, "first")
    pool.poll()
    assert ask(pool, "asks", may_pass_on=True) == {"asks": Reason.SLO_UNREACHABLE}
    assert ask(pool, "stays") == {}, "no other pool would serve it"


def test_it_waits_where_the_forecast_is_in_time(make_pool):
    pool = a_pool(make_pool, is_sure=True, output=30)
    assert ask(pool, "asks", may_pass_on=True) == {}
    pool.now = 0.35
    assert pool.refused() == {}
    pool.end("running")
    assert pool.dispatched() == ["asks"]


def test_without_any_forecast_it_goes_with_half_of_its_time_left(make_pool):
    pool = a_pool(make_pool, is_sure=False)
    assert ask(pool, "asks", may_pass_on=True) == {}
    assert refused_at(pool, "asks") == pytest.approx(TTFT_S / 2)


@pytest.mark.parametrize(("interval_s", "goes_at_s"), [(0.1, (0.4, TTFT_S)), (0.5, (0.0, 0.0))])
def test_without_a_model_the_pace_of_its_tenants_queue_is_the_forecast(make_pool, interval_s, goes_at_s):
    pool = a_pool(make_pool, is_sure=False)
    for number in range(8):
        pool.send("A", f"q{number}", output_max=1)
    for number in range(5):
        pool.now += interval_s
        pool.end("running" if not number else f"q{number - 1}")
        assert pool.dispatched() == [f"q{number}"]
    arrived_at = pool.now
    if ask(pool, "asks", may_pass_on=True):  # three are before it
        assert goes_at_s == (0.0, 0.0)
        return
    # Then the queue stands still: it does not wait for its target to pass.
    assert goes_at_s[0] <= refused_at(pool, "asks") - arrived_at < goes_at_s[1]


def test_what_went_on_is_not_counted_as_refused_here(make_pool):
    pool = a_pool(make_pool, is_sure=False)
    ask(pool, "asks", may_pass_on=True)
    refused_at(pool, "asks")
    assert sum(each.refused for each in pool.scheduler.snapshot(pool.now).attainment.values()) == 0


def test_what_its_client_has_a_part_of_does_not_go_on(make_pool):
    pool = a_pool(make_pool, is_sure=True)
    ask(pool, "first")
    assert ask(pool, "asks", may_pass_on=True, produced_tokens=1) == {}


@pytest.mark.every_scheduler
def test_looks_come_nearer_until_the_target_itself():
    looks, now = [], 0.0
    while now < TTFT_S:
        looks.append(now := next_look(now, TTFT_S))
    assert looks[:3] == pytest.approx([0.4, 0.6, 0.7])
    assert looks[-1] == TTFT_S
    assert TTFT_S - looks[-2] <= QUEUED_S_MIN


def test_what_its_key_holds_back_goes_on_with_half_of_its_time_left(make_pool):
    tenant = Tenant("A", keys={"k": KeyLimits(in_flight_max=1)})
    load = BackendLoad("gpu", requests_running_max=4)
    pool = make_pool(tenants=[tenant], loads=[load])
    pool.send("A", "running", key_id="k")
    assert pool.dispatched() == ["running"]
    assert ask(pool, "held", key_id="k", may_pass_on=True) == {}
    assert refused_at(pool, "held") == pytest.approx(TTFT_S / 2)


def test_a_look_while_no_backend_is_there_ends_its_wait(make_pool):
    pool = make_pool(loads=[BackendLoad("gpu", requests_running_max=1)], placement=LeastReserved())
    pool.send("A", "running")
    assert pool.dispatched() == ["running"]
    assert ask(pool, "asks", may_pass_on=True) == {}
    pool.now = TTFT_S / 2
    pool.measure()
    assert pool.refused() == {"asks": Reason.NO_BACKEND}
