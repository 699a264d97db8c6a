"""Whose request is taken back from its backend? Nobody's, unless the operator says so.

A seat that was given stays taken until its request ends. Two things may be worth taking one back for, always from
requests that have not produced a token, the youngest first, one at a time from each lane: whether it helped is seen
before the next.

- service: the difference between the least served tenant that waits and one that runs exceeds a threshold. The most
  served of the same tier gives (VTC, Sheng et al., OSDI '24, App. C.3).
- an envelope: the request that is next, but for tiers that are `preemptible`, would miss its TTFT if it waited for a
  seat, and would not if it had one. A preemptible tier gives, and only while the other, over its weight, is ahead of it
  by no more than what is taken back is worth: so nobody gets more than that beyond its share in this way, and nobody
  starves. The seat is kept for whom it was taken for.

What is taken back waits again at its tenant's head, as charged as it was, and is charged nothing for what its
backend will do twice. A request is taken back once at most. Otherwise tenants could push each other out by turns for
ever: where the threshold is below the price of a request, and where an order that looks at more than counters
sends the same one again.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from policies.accounts.ledger import InFlight
from policies.envelope import first_token_due_at
from policies.fleet.fleet import Fleet
from policies.queueing.fair_queue import FairQueue
from policies.queueing.fair_queues import FairQueues
from policies.slo.ttft_forecast import Forecaster
from policies.types import Preempt, Request, Tier

WAITED_RATIO_MAX = 0.5  # of its TTFT target, that a request may wait where nobody knows how long steps take
RECHECK_S = 0.001


@dataclass(slots=True)
class Preemption:
    """`service_min` is the difference of keys, in service over weight, beyond which a request is withdrawn; None: for
    service never. `tiers` are all of them, `tier` gives that of a tenant's id.
    """

    service_min: float | None
    tiers: Mapping[str, Tier]
    fleet: Fleet
    tier: Callable[[str], Tier]
    forecaster: Forecaster
    wakeup_at: float | None = field(default=None, init=False)
    """When somebody who waits will have waited too long."""
    is_on: bool = field(default=False, init=False)
    """Whether anything may be taken back from anybody."""
    _untouched: dict[str, InFlight] = field(default_factory=dict, init=False)  # by request, in the order of dispatch

    def __post_init__(self) -> None:
        self.tiers_changed()

    def tiers_changed(self) -> None:
        """There are other tiers, or they are others than they were."""
        self.is_on = self.service_min is not None or any(tier.preemptible for tier in self.tiers.values())

    def may_preempt(self, request: Request) -> bool:
        """Whether this request, if it is sent now, may be taken back."""
        return self.service_min is not None or self.tier(request.tenant_id).preemptible

    def sent(self, entry: InFlight) -> None:
        """The request of the entry was sent, and may be taken back."""
        if not entry.is_prepaid:
            self._untouched[entry.request.id] = entry

    def settled(self, request_id: str) -> None:
        """The request has produced a token, or is not at its backend any more: it cannot be taken back."""
        self._untouched.pop(request_id, None)

    def preempted(self, fair_queues: FairQueues, now: float) -> Iterator[Preempt]:
        """At most one request from each lane, where backends may be sent something now."""
        self.wakeup_at = None
        running: dict[FairQueue, list[InFlight]] = {}
        for entry in self._untouched.values():
            if self.fleet.is_open(entry.backend_id, now):
                running.setdefault(fair_queues.at(entry.backend_id), []).append(entry)
        for fair_queue, entries in running.items():
            if any(entry.is_preempted for entry in entries):
                continue  # what was asked for back has not come yet
            victim = self._for_envelope(fair_queue, entries, now) or self._for_service(fair_queue, entries)
            if victim is not None:
                victim.is_preempted = True
                yield Preempt(victim.request.id)

    def _for_service(self, fair_queue: FairQueue, entries: list[InFlight]) -> InFlight | None:
        if self.service_min is None or not fair_queue.order.is_fair:
            return None
        for tier_id, request in fair_queue.next_of_tiers():
            key_min = fair_queue.key(request.tenant_id) + self.service_min
            ahead = [
                entry
                for entry in _of_use(entries, request)
                if fair_queue.tier_id(entry.request.tenant_id) == tier_id
                and fair_queue.key(entry.request.tenant_id) > key_min
            ]
            if ahead:  # the youngest of whoever is furthest ahead
                return max(ahead, key=lambda each: (fair_queue.key(each.request.tenant_id), *_youth(each)))
        return None

    def _for_envelope(self, fair_queue: FairQueue, entries: list[InFlight], now: float) -> InFlight | None:
        waiting = (choice for choice in fair_queue.next_of_tiers() if not self.tiers[choice[0]].preemptible)
        tier_id, request = next(waiting, ("", None))
        if request is None or request.id in fair_queue.first:
            return None
        victims = [each for each in _of_use(entries, request) if self._gives(fair_queue, each, tier_id)]
        if not victims:
            return None
        late_at = self._late_at(request, now)
        if late_at is None:
            return None
        if now < late_at - RECHECK_S:
            self.wakeup_at = late_at if self.wakeup_at is None else min(self.wakeup_at, late_at)
            return None
        fair_queue.first[request.id] = None
        return max(victims, key=_youth)

    def _gives(self, fair_queue: FairQueue, entry: InFlight, tier_id: str) -> bool:
        """Whether the entry is of a preemptible tier that this one is not too far ahead of."""
        tier = self.tier(entry.request.tenant_id)
        if not tier.preemptible:
            return False
        lead = fair_queue.order.tier_checkpoint(tier_id).key - fair_queue.order.tier_checkpoint(tier.id).key
        return lead <= (entry.service + entry.outstanding) / tier.weight

    def _late_at(self, request: Request, now: float) -> float | None:
        """From when on the request will miss its TTFT if it goes on waiting for a seat; None where nothing is due, or
        even a seat would not save it.
        """
        due_at = first_token_due_at(request)
        if due_at is None or self.forecaster.is_hopeless(request, due_at, now):
            return None
        forecast_s = self.forecaster.next_ttft_s(request, now)
        if forecast_s is None:
            return request.arrived_at + (due_at - request.arrived_at) * WAITED_RATIO_MAX
        return due_at - forecast_s


def _of_use(entries: list[InFlight], request: Request) -> list[InFlight]:
    """Those whose seats the request may have."""
    return [each for each in entries if request.backend_ids is None or each.backend_id in request.backend_ids]


def _youth(entry: InFlight) -> tuple[float, str]:
    return entry.dispatched_at, entry.request.id
