"""What is promised grows with what was in flight, and says what it cannot promise."""

import pytest

from gateway.observability.metrics.service_gap import GapBound
from gateway.simulate.exposure import RunExposure
from policies.accounts.cost import LinearPrice
from policies.fairness.fairness_bound import FairnessBound
from policies.types import Request

VTC = GapBound(bound=FairnessBound(), is_capped=False)


def request(prompt, output, prefix=()):
    return Request(
        id="r",
        tenant_id="a",
        model="m",
        arrived_at=0.0,
        prompt_tokens=prompt,
        output_tokens_max=1000,
        output_tokens_known=output,
        prefix=prefix,
    )


def exposed(*requests, kv_tokens=10, engines=1):
    exposure = RunExposure(LinearPrice(), kv_tokens=kv_tokens, engines=engines)
    for each in requests:
        exposure.dispatched(each)
    return exposure


@pytest.mark.parametrize(
    ("requests", "service"),
    [
        ([], 20),  # as many output tokens as may have been expected
        ([request(50, 10)], 50),  # the longest prompt
        ([request(50, 10), request(10, 30)], 80),  # all outputs
        ([request(50, 10), request(100, 1, prefix=(1,))], 20 + 2 + 90),  # and nine tenths of a prompt, if it is cached
    ],
)
def test_exposure_is_the_longest_prompt_or_all_that_may_yet_be_charged_or_given_back(requests, service):
    assert exposed(*requests).service == service
    assert exposed(*requests).promised(VTC) == 2 * service


def test_exposure_is_of_what_was_in_flight_at_once():
    exposure = exposed(request(5, 10), request(5, 30))
    exposure.ended(request(5, 30))
    exposure.dispatched(request(5, 30))
    assert exposure.service == 80


def test_a_quantum_a_cap_and_refunds_add_to_what_is_promised():
    exposure = exposed(request(100, 10, prefix=(1,)))
    u, k, capped, refunds = 20 + 90, 7, 20 + 90, 90
    ahead = FairnessBound(ahead="quantum_service")
    assert exposure.promised(GapBound(bound=ahead, ahead_service=k, is_capped=False)) == 2 * (u + k)
    assert exposure.promised(GapBound(bound=ahead, ahead_service=k)) == 2 * (u + k + capped)
    given_back = FairnessBound(ahead="quantum_service", plus_refunds=True)
    assert exposure.promised(GapBound(bound=given_back, ahead_service=k, is_capped=False)) == 2 * (u + k + refunds)


def test_queues_per_engine_promise_as_many_times_as_much():
    exposure = exposed(request(50, 10), kv_tokens=40, engines=4)
    promise = GapBound(bound=FairnessBound(), ahead_service=5, is_capped=False, is_per_engine=True)
    assert exposure.promised(promise) == 2 * 4 * (50 + 5)


def test_a_promise_that_ends_at_refunds_is_none_where_there_may_have_been_any():
    promise = GapBound(bound=FairnessBound(until_refund=True), is_capped=False)
    assert exposed(request(50, 10)).promised(promise) == 100
    assert exposed(request(50, 10, prefix=(1,))).promised(promise) is None
