"""Accounting: charges each request to its tenant, in the accounts of the right queue.

The ledger knows the cost of a request. A request is charged in the queue from which it was dispatched, or in which it
waits again. A token within the predicted output moves service from `outstanding` to `counter`, so the tenant's rank
stays the same. Therefore such tokens are charged only before the accounts are read.
"""

from dataclasses import dataclass, field, replace

from policies.accounts.ledger import Charge, InFlight, Ledger
from policies.queueing.fair_queue import FairQueue
from policies.queueing.fair_queues import PresentQueues, QueueMove
from policies.types import Request, Usage


@dataclass(slots=True)
class Accounting:
    """The part of a Scheduler that charges requests to tenants, in the ledger and in the right queue of the pool."""

    ledger: Ledger
    present: PresentQueues
    unsettled: dict[str, InFlight] = field(default_factory=dict)
    """Entries with usage that is not charged yet, by request id."""

    def settle(self, entry: InFlight) -> None:
        """Charge the part of the entry's usage that was not charged yet."""
        self.unsettled.pop(entry.request.id, None)
        self._charge(entry, self.ledger.charge(entry, entry.usage))

    def settle_all(self) -> None:
        for entry in list(self.unsettled.values()):
            self.settle(entry)

    def ended(self, entry: InFlight, fair_queue: FairQueue, *, is_served: bool, now: float) -> None:
        """The entry, dispatched from this queue, has ended: charge the rest of its usage."""
        if entry.request.id in self.unsettled:
            del self.unsettled[entry.request.id]
        service, outstanding = self.ledger.charge(entry, entry.usage)
        refund, expected = self.ledger.closed(entry, is_served=is_served)
        tenant = fair_queue.tenants[entry.request.tenant_id].tenant
        fair_queue.order.charged(tenant, (service + refund, outstanding + expected))
        if fair_queue.order.follows_requests:
            fair_queue.ended(entry, now)

    def left(self, request: Request, fair_queue: FairQueue, now: float) -> None:
        """A request has left this queue for good without being dispatched; its prepaid charge is refunded."""
        fair_queue.first.pop(request.id, None)
        entry = self.ledger.prepaid.get(request.id)
        if entry is not None:
            fair_queue.charged(request.tenant_id, self.ledger.refunded(entry))
            fair_queue.ended(entry, now)
        else:
            fair_queue.dropped(request, now)

    def moved(self, request: Request, move: QueueMove, now: float) -> None:
        """A waiting request moves to another queue, and its prepaid charge with it."""
        if request.id in move.before.first:
            del move.before.first[request.id]
            move.after.first[request.id] = None
        entry = self.ledger.prepaid.get(request.id)
        if entry is not None:
            entry.backend_id = move.after.backend_id or entry.backend_id
            # What an interrupted request has received, it has received there.
            service = 0.0 if entry.request.produced_tokens else entry.service
            move.before.charged(request.tenant_id, (-service, -entry.outstanding))
            move.after.charged(request.tenant_id, (service, entry.outstanding))
            move.before.ended(replace(entry, service=0.0), now)
        else:
            move.before.dropped(request, now)

    def spent(self, tenant_id: str, usage: Usage) -> None:
        """Charge a call that was never queued, to all queues in equal parts: the backend that served it is unknown."""
        service, _ = self.ledger.spent(tenant_id, usage)
        fair_queues = self.present.fair_queues.all()
        for fair_queue in fair_queues:
            fair_queue.charged(tenant_id, (service / len(fair_queues), 0.0))

    def _charge(self, entry: InFlight, charge: Charge) -> None:
        self.present.fair_queues.at(entry.backend_id).charged(entry.request.tenant_id, charge)
