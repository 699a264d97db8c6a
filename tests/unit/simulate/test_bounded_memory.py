"""A run keeps nothing of a request that has been counted."""

import gc
import tracemalloc

from backends.engine.coefficients import COEFFICIENTS
from gateway.simulate.run import SimulatedFleet, TriedPolicy, simulate
from gateway.simulate.trace.arrivals import Replay
from gateway.simulate.trace.formats import TraceCall
from policies.accounts.cost import LinearPrice
from policies.scheduler import Scheduler
from policies.types import Tenant

FLEET = SimulatedFleet(
    engine="a10g",
    coefficients=COEFFICIENTS["a10g-llama2-7b"],
    engines=1,
    batching="chunked-prefill",
    block_tokens=16,
    requests_running_max=64,
)
SETTLED, CALLS = 1200, 1600  # calls: between them no table of the curves doubles
RECORD_BYTES = 100  # of a call: a RequestRecord takes 200


def used_bytes():
    gc.collect()
    return tracemalloc.get_traced_memory()[0]


def test_memory_does_not_grow_with_the_number_of_calls():
    """Short calls, of which one in ten repeats a prompt."""
    used = []

    def calls():
        for number in range(CALLS):
            if number == SETTLED:
                used.append(used_bytes())
            prefix = (number % 10, number)
            yield f"t{number % 20}", TraceCall(number / 5, 40 + number % 7, 2, prefix=prefix, prefix_block_tokens=16.0)
        used.append(used_bytes())

    policy = TriedPolicy(label="vtc", make_scheduler=Scheduler, price=LinearPrice(), price_text="", promise=None)
    replay = Replay(request_tokens_max=FLEET.request_tokens_max, block_tokens=16, output_tokens_max=4)
    tracemalloc.start()
    try:
        findings = simulate(policy, replay.arrivals(calls()), fleet=FLEET, tenant_of=Tenant)
    finally:
        tracemalloc.stop()
    assert findings.figures.served == CALLS
    settled, ended = used
    assert ended < settled + (CALLS - SETTLED) * RECORD_BYTES
