"""A run keeps nothing of a request that has been counted."""

import tracemalloc

from gateway.simulate.run import SimulatedFleet, TriedPolicy, simulate
from gateway.simulate.trace.arrivals import Replay
from gateway.simulate.trace.formats import TraceCall
from policies.accounts.cost import LinearPrice
from policies.scheduler import Scheduler
from policies.types import Tenant

FLEET = SimulatedFleet(
    coefficients="a10g-llama2-7b",
    engines=1,
    batching="chunked-prefill",
    block_tokens=16,
    requests_running_max=64,
)


def peak_bytes(calls):
    """Of a run with so many short calls, of which one in ten repeats a prompt."""
    policy = TriedPolicy(label="vtc", make_scheduler=Scheduler, price=LinearPrice(), price_text="", promise=None)
    trace = (
        (
            f"t{number % 20}",
            TraceCall(number / 5, 40 + number % 7, 2, prefix=(number % 10, number), prefix_block_tokens=16.0),
        )
        for number in range(calls)
    )
    replay = Replay(request_tokens_max=FLEET.request_tokens_max, block_tokens=16, output_tokens_max=4)
    tracemalloc.start()
    try:
        findings = simulate(policy, replay.arrivals(trace), fleet=FLEET, tenant_of=Tenant)
        assert findings.figures.served == calls
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_memory_does_not_grow_with_the_number_of_calls():
    # A record kept of every call would be 1 MB more; what the collector has not found yet makes the rest.
    assert peak_bytes(6000) < 2 * peak_bytes(1000)
