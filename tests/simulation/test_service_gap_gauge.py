"""The gauge of the service gap, over simulated overload: within its bound under VTC, beyond it under FIFO.

The gap is read once a second, as the gateway does. The engine is the VTC paper's, and cannot do half of what is asked.
"""

from random import Random

import pytest
from simulated_pool import ENGINE

from backends.engine.coefficients import COEFFICIENTS
from backends.engine.engine import Engine
from backends.simulation.world import World
from gateway.observability.metrics.service_gap import GapBound, ServiceGap, TenantService
from policies.fairness import FAIRNESS
from policies.fairness.bounds import BOUNDS
from policies.scheduler import Scheduler
from policies.types import Tenant
from tests.simulation.arrivals import even, merged
from tests.simulation.recording import Recorder

UNTIL_S = 400.0
TENANTS = [Tenant("loud"), Tenant("quiet"), Tenant("heavy", weight=3.0)]
REQUESTS_PER_S = {"loud": 4.0, "quiet": 1.0, "heavy": 3.0}
SIZE = {"prompt_tokens": 256, "output_tokens": 256, "output_tokens_max": 512}  # 768 service units a request


def looks(fairness):
    """What is seen once a second: evenness and the bound."""
    scheduler = Scheduler(tenants=TENANTS, fairness=FAIRNESS[fairness], admission=(), wait_s_max=1e6)
    gap, promise = ServiceGap(), GapBound(BOUNDS["vtc"])
    found, looked_at = [], 0.0

    def look(entry):
        nonlocal looked_at
        if entry.now - looked_at < 1.0:
            return
        looked_at = entry.now
        snapshot = scheduler.snapshot(entry.now)
        checkpoint = {
            tenant.id: TenantService(tenant.tier_id, tenant.weight, view.service, view.waiting_spell)
            for tenant in TENANTS
            if (view := snapshot.tenants[tenant.id])
        }
        bound = promise.gap_max(snapshot.service_in_flight_max, 1.0)
        tiers = {}
        for _ in gap.observing(entry.now, checkpoint, tiers):
            pass
        found.extend((evenness, bound) for evenness in tiers.values())

    world = World(Recorder(scheduler, look), {"engine": Engine(COEFFICIENTS[ENGINE])})
    rng = Random(3)
    arrivals = merged(*(even(name, rate, duration_s=UNTIL_S, rng=rng, **SIZE) for name, rate in REQUESTS_PER_S.items()))
    for _ in world.run(arrivals):
        if world.now > UNTIL_S:
            break
    return found


def test_under_vtc_the_gap_stays_within_its_bound_and_tenants_are_served_alike_by_weight():
    found = looks("vtc")
    assert len(found) > 300
    assert all(0 <= evenness.gap <= bound for evenness, bound in found)
    assert max(evenness.gap for evenness, _ in found) > 1000, "there is something to see"
    assert found[-1][0].jain_index == pytest.approx(1.0, abs=0.02)


def test_under_fifo_the_gap_goes_beyond_what_vtc_promises():
    found = looks("fifo")
    assert any(evenness.gap > bound for evenness, bound in found)
    assert found[-1][0].jain_index < 0.8
