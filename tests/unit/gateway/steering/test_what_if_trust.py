"""A what-if says whether its replay of what happened is near enough to be trusted; slow backends are slow in it."""

import pytest

from backends.engine.coefficients import COEFFICIENTS
from gateway.simulate.run import SimulatedFleet
from gateway.steering.steering import _paces
from gateway.steering.what_if.process import _trust
from policies.step_time.model import StepTimeModel


def run(rate=100.0, **tenants):
    return {
        "output_tokens_per_s": rate,
        "tenants": {
            name: {"requests": calls, "served": calls, "ttft_p50_s": ttft} for name, (calls, ttft) in tenants.items()
        },
    }


def test_a_replay_that_is_near_is_trusted():
    trust = _trust(run(a=(30, 2.0), b=(50, 0.01)), run(90.0, a=(30, 3.0), b=(50, 0.09)))
    assert (trust["is_trusted"], trust["figure"]) == (True, "ttft_p50_s")
    assert trust["factor"] < 2.0


def test_the_tenant_whose_waits_are_furthest_off_is_named():
    happened = run(nightly=(232, 7.34), intern=(93, 2.47), chat=(150, 0.03))
    trust = _trust(happened, run(nightly=(232, 4.2), intern=(93, 12.8), chat=(150, 0.1)))
    assert (trust["is_trusted"], trust["tenant"], trust["figure"]) == (False, "intern", "ttft_p50_s")
    assert trust["factor"] == pytest.approx(12.9 / 2.57, abs=0.01)


def test_a_pool_that_writes_much_less_is_not_trusted_whatever_its_waits():
    trust = _trust(run(a=(30, 2.0)), run(40.0, a=(30, 2.0)))
    assert (trust["is_trusted"], trust["figure"], trust["tenant"]) == (False, "output_tokens_per_s", None)


def test_a_few_calls_are_not_trusted():
    trust = _trust(run(a=(19, 2.0)), run(a=(19, 2.0)))
    assert (trust["is_trusted"], trust["figure"]) == (False, "too_few_calls")


def test_a_backend_that_is_slower_is_slower_in_the_simulation():
    fast, slow = StepTimeModel(base_s=0.001, token_s=0.0001), StepTimeModel(base_s=0.004, token_s=0.0004)
    assert _paces(fast, [fast, slow, None], 12) == [1.0, 4.0, 1.0]
    assert _paces(fast, [fast, StepTimeModel(base_s=0.00101, token_s=0.0001)], 12) == []
    fleet = SimulatedFleet(
        engine="a10g", coefficients=COEFFICIENTS["a10g-llama2-7b"], engines=2, batching="chunked-prefill",
        block_tokens=16, requests_running_max=8, paces=[1.0, 4.0],
    )  # fmt: skip
    one, other = (each.coefficients for each in fleet.make().values())
    assert one == COEFFICIENTS["a10g-llama2-7b"]
    assert other.base_s == pytest.approx(4 * one.base_s)
    assert other.kv_tokens_max == one.kv_tokens_max
