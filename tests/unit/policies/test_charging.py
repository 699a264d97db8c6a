"""What a request is charged on every way out, and how its reservation follows what is known of it."""

from dataclasses import replace

import pytest

from policies.accounts.cost import LinearPrice, ProfiledQuadraticPrice
from policies.prediction import NoPrediction, Oracle, TenantQuantile
from policies.step_time import StepTime, StepTimeModel
from policies.types import BackendLoad, Outcome, Usage

ROOMY = [BackendLoad("gpu", requests_running_max=10, kv_tokens_max=10_000, kv_block_tokens=16)]


def test_a_completed_request_costs_what_it_used(make_pool):
    pool = make_pool(loads=ROOMY)
    pool.send("A", "a", prompt=100)
    pool.dispatched()
    pool.emit("a", 30)
    pool.end("a")
    assert pool.service("A") == pool.counter("A") == pool.rank("A") == 160


def test_a_client_that_goes_mid_stream_is_charged_what_was_received(make_pool):
    pool = make_pool(loads=ROOMY, prediction=TenantQuantile())
    pool.send("A", "a", prompt=100, output_max=50)
    pool.dispatched()
    assert pool.rank("A") == 200, "50 tokens are expected"
    pool.emit("a", 7)
    pool.end("a", Outcome.CLIENT_DISCONNECTED)
    assert pool.service("A") == pool.rank("A") == 114


def test_a_client_that_goes_before_the_first_token_has_had_its_prefill(make_pool):
    pool = make_pool(loads=ROOMY)
    pool.send("A", "a", prompt=100)
    pool.dispatched()
    pool.end("a", Outcome.CLIENT_DISCONNECTED)
    assert pool.service("A") == 100


def test_of_a_prompt_in_flight_is_known_how_far_it_is(make_pool):
    step_time = StepTime(StepTimeModel(base_s=0.0, token_s=0.001), error_ratio=0.0, is_sure=True)
    pool = make_pool(loads=[replace(ROOMY[0], step_time=step_time, step_tokens_max=100)])
    pool.send("A", "a", prompt=1000)
    assert pool.scheduler.prefilled("a", 0.0) is None, "it waits"
    pool.dispatched()
    assert pool.scheduler.prefilled("a", 0.0) == Usage(0, 0, 0)
    assert pool.scheduler.prefilled("a", 0.5).prompt_tokens == pytest.approx(500, rel=0.05)
    pool.scheduler.tokens("a", pool.scheduler.prefilled("a", 0.5), 0.5)
    assert pool.scheduler.prefilled("a", 9.0) == Usage(1000, 0, 0)


@pytest.mark.parametrize("price", [LinearPrice(1, 1, 2), ProfiledQuadraticPrice()])
def test_a_dispatch_that_crossed_the_disconnect_costs_nothing(make_pool, price):
    pool = make_pool(loads=ROOMY, price=price)
    pool.send("A", "a", prompt=100)
    pool.dispatched()
    pool.scheduler.cancel("a", pool.now)
    assert pool.service("A") == pytest.approx(0.0), "a price per request is no charge either"


@pytest.mark.parametrize("price", [LinearPrice(1, 1, 2), ProfiledQuadraticPrice()])
def test_a_backend_that_fails_before_the_first_token_costs_the_tenant_nothing(make_pool, price):
    pool = make_pool(loads=ROOMY, price=price, prediction=TenantQuantile())
    pool.send("A", "a", prompt=100)
    pool.dispatched()
    assert pool.rank("A") > 0
    pool.end("a", Outcome.BACKEND_FAILED)
    assert (pool.service("A"), pool.counter("A")) == (0, 0)
    assert pool.rank("A") == pytest.approx(0, abs=1e-9)


def test_a_backend_that_fails_mid_stream_leaves_the_tenant_charged_for_what_it_got(make_pool):
    pool = make_pool(loads=ROOMY)
    pool.send("A", "a", prompt=100)
    pool.dispatched()
    pool.emit("a", 5)
    pool.end("a", Outcome.BACKEND_FAILED)
    assert pool.service("A") == 110


@pytest.mark.parametrize("true_prompt", [40, 100, 250])
def test_an_estimated_prompt_is_trued_up_by_the_first_usage(make_pool, true_prompt):
    pool = make_pool(loads=ROOMY)
    pool.send("A", "a", prompt=100)
    pool.dispatched()
    assert pool.counter("A") == 100
    pool.report("a", prompt=true_prompt, output=1)
    assert pool.counter("A") == true_prompt + 2
    assert pool.backend().reserved_tokens == 16 * -(-(true_prompt + 1) // 16)
    assert pool.tenant("A").in_flight_tokens == pool.backend().reserved_tokens
    pool.end("a")
    assert pool.backend().reserved_tokens == pool.tenant("A").in_flight_tokens == 0


@pytest.mark.parametrize("outcome", list(Outcome))
@pytest.mark.parametrize("usage", [Usage(40, 8, 0), Usage(100, 0, 1), Usage(250, 0, 300)])
def test_what_was_used_may_be_told_with_the_end(make_pool, usage, outcome):
    """A whole answer comes at once: two facts, told as one."""
    apart, at_once = (
        make_pool(loads=[BackendLoad("gpu", requests_running_max=1)], prediction=TenantQuantile()) for _ in range(2)
    )
    for pool in (apart, at_once):
        for name in ("a", "next", "last"):
            pool.send("A", name, prompt=100)
        pool.send("B", "b", prompt=120)
        assert pool.dispatched() == ["a"]
        pool.now += 1.0
    apart.scheduler.tokens("a", usage, apart.now)
    apart.scheduler.finished("a", outcome, apart.now)
    at_once.scheduler.finished("a", outcome, at_once.now, usage=usage)
    is_free = outcome is Outcome.BACKEND_FAILED and not usage.output_tokens
    assert at_once.service("A") == (0 if is_free else usage.prompt_tokens + 2 * usage.output_tokens)
    assert at_once.poll() == apart.poll()
    assert at_once.scheduler.snapshot(1.0) == apart.scheduler.snapshot(1.0)


def test_a_prompt_that_was_estimated_too_long_makes_room_for_others(make_pool):
    pool = make_pool(loads=[BackendLoad("gpu", requests_running_max=10, kv_tokens_max=1000)], headroom_ratio_max=1.0)
    pool.send("A", "a", prompt=900)
    pool.send("B", "b", prompt=500)
    assert pool.dispatched() == ["a"]
    pool.report("a", prompt=400, output=1)
    assert pool.dispatched() == ["b"]


def test_cached_prompt_tokens_are_charged_at_their_own_price_when_they_are_reported(make_pool):
    pool = make_pool(loads=ROOMY, price=LinearPrice(prompt=1.0, cached_prompt=0.1, output=2.0))
    pool.send("A", "a", prompt=100)
    pool.dispatched()
    pool.report("a", prompt=100, cached=80, output=1)
    assert pool.counter("A") == pytest.approx(20 + 8 + 2)
    pool.report("a", prompt=100, cached=80, output=2)
    assert pool.counter("A") == pytest.approx(20 + 8 + 4)


def test_usage_may_arrive_merged_and_charges_the_same(make_pool):
    services = []
    for parts in ([1] * 12, [5, 7], [12]):
        pool = make_pool(loads=ROOMY, prediction=TenantQuantile())
        pool.send("A", "a", prompt=10)
        pool.dispatched()
        output = 0
        for part in parts:
            output += part
            pool.report("a", prompt=10, output=output)
        pool.end("a")
        services.append((pool.service("A"), pool.rank("A")))
    assert services == [(34, 34)] * 3


def test_a_reservation_is_what_was_predicted_until_the_output_outgrows_it(make_pool):
    pool = make_pool(loads=ROOMY, prediction=Oracle())
    pool.send("A", "a", prompt=10, output_tokens_known=20)
    pool.dispatched()
    reserved = []
    for output in (1, 19, 20, 22, 23, 38, 39):
        pool.report("a", prompt=10, output=output)
        reserved.append(pool.backend().reserved_tokens)
    assert reserved == [32, 32, 32, 32, 48, 48, 64]


def test_an_outgrown_prediction_keeps_later_requests_out(make_pool):
    pool = make_pool(loads=[BackendLoad("gpu", requests_running_max=10, kv_tokens_max=100)], headroom_ratio_max=1.0)
    pool.send("A", "a", prompt=10)
    pool.dispatched()
    pool.report("a", prompt=10, output=50)
    pool.send("B", "b", prompt=41)
    assert pool.dispatched() == []
    pool.send("C", "c", prompt=40)
    pool.scheduler.cancel("b", pool.now)
    assert pool.dispatched() == ["c"]


def test_choices_are_seats_and_their_outputs_are_charged_together(make_pool):
    pool = make_pool(
        loads=[BackendLoad("gpu", requests_running_max=4, kv_block_tokens=16)], prediction=TenantQuantile()
    )
    pool.send("A", "a", prompt=20, output_max=120, choices=3)
    pool.send("B", "b", choices=2)
    pool.send("B", "b2")
    assert pool.dispatched() == ["a"], "3 of 4 seats; b needs 2, and b2 waits behind it"
    assert pool.rank("A") == 20 + 2 * 120, "min(3 * 256, 120) over all choices"
    assert pool.backend().reserved_tokens == 64 + 48 + 48, "40 tokens each, the prompt once"
    pool.report("a", prompt=20, output=90)
    pool.end("a")
    assert pool.service("A") == 20 + 180
    assert pool.dispatched() == ["b", "b2"]


def test_predictions_are_per_choice_so_that_n_does_not_mislead_them(make_pool):
    pool = make_pool(loads=ROOMY, prediction=TenantQuantile())
    pool.send("A", "a", prompt=1, output_max=1000, choices=4)
    pool.dispatched()
    pool.report("a", prompt=1, output=80)
    pool.end("a")
    pool.send("A", "b", prompt=1, output_max=1000)
    before = pool.rank("A")
    pool.dispatched()
    assert pool.rank("A") == before + 1 + 2 * 20


@pytest.mark.parametrize(
    ("outcome", "output", "expected"),
    [
        (Outcome.COMPLETED, 5, 5),  # the whole answer
        (Outcome.CLIENT_DISCONNECTED, 5, 256),  # cut short: says nothing
        (Outcome.CLIENT_DISCONNECTED, 300, 300),  # at least so long
        (Outcome.BACKEND_FAILED, 5, 256),
    ],
)
def test_only_what_ended_by_itself_or_outgrew_its_prediction_is_learnt_from(make_pool, outcome, output, expected):
    pool = make_pool(loads=ROOMY, prediction=TenantQuantile())
    pool.send("A", "a", prompt=1, output_max=1000)
    pool.dispatched()
    pool.report("a", prompt=1, output=output)
    pool.end("a", outcome)
    pool.send("A", "b", prompt=1, output_max=1000)
    before = pool.rank("A")
    pool.dispatched()
    assert pool.rank("A") - before == 1 + 2 * expected


def test_reservations_may_expect_an_output_that_the_order_does_not(make_pool):
    pool = make_pool(
        prediction=NoPrediction(),
        sizing=TenantQuantile(),
        loads=[BackendLoad("gpu", kv_tokens_max=1000, requests_running_max=100)],
        headroom_ratio_max=1.0,
    )
    pool.send("A", "a1", prompt=10, output_max=100)
    pool.dispatched()
    assert pool.rank("A") == 10, "the order expects nothing"
    assert pool.scheduler.snapshot(0.0).backends["gpu"].reserved_tokens == 110


def test_a_general_price_is_charged_in_parts_that_add_up_to_the_price_of_the_whole(make_pool):
    price = ProfiledQuadraticPrice()
    pool = make_pool(loads=ROOMY, price=price)
    pool.send("A", "a", prompt=256)
    pool.dispatched()
    assert pool.service("A") == pytest.approx(54.9109, abs=5e-5), "at admission h(p, 0)"
    pool.emit("a", 99)
    before = pool.service("A")
    pool.emit("a")
    assert pool.service("A") - before == pytest.approx(1.76759, abs=5e-6), "h(256, 100) - h(256, 99)"
    pool.emit("a", 156)
    pool.end("a")
    assert pool.service("A") == pytest.approx(554.7998, abs=5e-5)


def test_with_a_prediction_admission_expects_the_price_of_the_whole_and_the_end_corrects_it(make_pool):
    price = ProfiledQuadraticPrice()
    pool = make_pool(loads=ROOMY, price=price, prediction=Oracle())
    pool.send("A", "a", prompt=256, output_tokens_known=100)
    pool.dispatched()
    assert pool.rank("A") == pytest.approx(price.service(256, 0, 100))
    pool.emit("a", 120)
    assert pool.rank("A") == pytest.approx(price.service(256, 0, 120)), "growth past the prediction is charged"
    pool.end("a")
    assert pool.rank("A") == pool.counter("A") == pytest.approx(price.service(256, 0, 120))
    pool.send("A", "b", prompt=256, output_tokens_known=100)
    pool.dispatched()
    pool.emit("b", 40)
    pool.end("b")
    assert pool.rank("A") == pytest.approx(price.service(256, 0, 120) + price.service(256, 0, 40)), (
        "refunded at the end"
    )
