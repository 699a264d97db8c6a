"""Shadow tenant: the tenant of copied calls, and the backends with room for them (gateway/forwarding/shadows.py)."""

from typing import Final

from gateway.scheduling.dispatcher import Dispatcher
from policies.slo.engine_priority import PRIORITY_MAX
from policies.types import Tenant, Tier

SHADOW_TIER: Final = Tier("~shadow", weight=1e-6, priority=-PRIORITY_MAX, preemptible=True)
SHADOW_TENANT: Final = Tenant(id="~shadow", tier_id=SHADOW_TIER.id)
"""The shadow tenant, which no configuration and no client can name: a tenant's name begins with a letter or a digit."""
IDLE_RATIO_MAX: Final = 0.5  # of a backend's sequences: what arrives finds the other half


def idle_backends(dispatcher: Dispatcher) -> frozenset[str]:
    """The backends of a pool that are at most half full while no request waits there; empty if this is not known."""
    pool = dispatcher.snapshot(())
    if pool.queued_requests:
        return frozenset()
    return frozenset(
        backend_id
        for backend_id, each in pool.backends.items()
        if each.available
        and each.bound_by is None
        and each.in_flight_requests + each.external_requests < IDLE_RATIO_MAX * each.requests_limit
    )
