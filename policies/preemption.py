"""Whose request is taken back from its backend? Off by default.

A seat that was given stays taken until its request ends, so a tenant that joins a full pool waits although others have
received far more. Where the difference between the least served tenant that waits and one that runs exceeds a
threshold, the youngest request of the most served that has not produced a token is withdrawn: it waits again, at its
tenant's head and as charged as it was, and is charged nothing for what its backend will do twice (VTC, Sheng et al.,
OSDI '24, App. C.3). One at a time from each lane: whether it helped is seen before the next.

A threshold below the price of a request lets two tenants push each other out by turns.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from policies.lane import Lane
from policies.ledger import InFlight
from policies.types import Request


@dataclass(frozen=True, slots=True)
class Preemption:
    """`service_min` is the difference of keys, in service over weight, beyond which a request is withdrawn."""

    service_min: float

    def victim(self, lane: Lane, running: Iterable[InFlight]) -> InFlight | None:
        """The entry to withdraw of those that were sent from this lane and run where something may be sent now."""
        if not lane.order.is_fair:
            return None
        entries = [entry for entry in running if not entry.usage.output_tokens]
        if any(entry.is_withdrawn for entry in entries):
            return None  # not answered yet
        for tier_id, request in lane.next_of_tiers():
            key = lane.key(request.tenant_id) + self.service_min
            found = [
                entry
                for entry in entries
                if lane.tier_id(entry.request.tenant_id) == tier_id
                and lane.key(entry.request.tenant_id) > key
                and _would_do(entry.backend_id, request)
            ]
            if found:
                return max(
                    found, key=lambda each: (lane.key(each.request.tenant_id), each.dispatched_at, each.request.id)
                )
        return None


def _would_do(backend_id: str, request: Request) -> bool:
    return request.backend_ids is None or backend_id in request.backend_ids
