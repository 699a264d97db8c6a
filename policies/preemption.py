"""Whose request is taken back from its backend? Off by default.

A seat that was given stays taken until its request ends, so a tenant that joins a full pool waits although others have
received far more. Where the difference between the least served tenant that waits and one that runs exceeds a
threshold, the youngest request of the most served that has not produced a token is withdrawn: it waits again, at its
tenant's head and as charged as it was, and is charged nothing for what its backend will do twice (VTC, Sheng et al.,
OSDI '24, App. C.3). One at a time from each lane: whether it helped is seen before the next.

A request is taken back once at most. Otherwise tenants could push each other out by turns for ever: where the threshold
is below the price of a request, and where an order that looks at more than counters sends the same one again.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from policies.fleet import Fleet
from policies.lane import Lane
from policies.lanes import Lanes
from policies.ledger import InFlight
from policies.types import Withdraw


@dataclass(frozen=True, slots=True)
class Preemption:
    """`service_min` is the difference of keys, in service over weight, beyond which a request is withdrawn."""

    service_min: float

    def withdrawn(self, lanes: Lanes, in_flight: Iterable[InFlight], fleet: Fleet, now: float) -> Iterator[Withdraw]:
        """At most one request from each lane, where backends may be sent something now."""
        running: dict[Lane, list[InFlight]] = {}
        for entry in in_flight:
            if not entry.usage.output_tokens and not entry.is_prepaid and fleet.is_open(entry.backend_id, now):
                running.setdefault(lanes.at(entry.backend_id), []).append(entry)
        for lane, entries in running.items():
            victim = self._victim(lane, entries)
            if victim is not None:
                victim.is_withdrawn = True
                yield Withdraw(victim.request.id)

    def _victim(self, lane: Lane, entries: list[InFlight]) -> InFlight | None:
        if not lane.order.is_fair or any(entry.is_withdrawn for entry in entries):
            return None  # what was asked for back has not come yet
        for tier_id, request in lane.next_of_tiers():
            key_min = lane.key(request.tenant_id) + self.service_min
            ahead = [
                entry
                for entry in entries
                if lane.tier_id(entry.request.tenant_id) == tier_id
                and lane.key(entry.request.tenant_id) > key_min
                and (request.backend_ids is None or entry.backend_id in request.backend_ids)
            ]
            if ahead:  # the youngest of whoever is furthest ahead
                return max(
                    ahead,
                    key=lambda each: (lane.key(each.request.tenant_id), each.dispatched_at, each.request.id),
                )
        return None
