"""Arrangement: the fair queues that the present policies give a pool, and the state that those policies read.

All parts of a Scheduler share this one object, so that a switch of policies (policy_switch.py) replaces the queues for
all of them at once.
"""

from collections.abc import Collection

from policies.accounts.ledger import InFlight
from policies.fleet.fleet import Fleet
from policies.placement import ArrivalPlacement, LeastReserved, Placement
from policies.pool.slot_fitting import SlotFitting
from policies.queueing.fair_queues import FairQueues, PresentQueues, QueueFactory
from policies.queues import PoolQueues


class Arrangement(PresentQueues):
    """The fair queues of one pool, and the policies that they follow, which an operator may switch. Mutable."""

    def __init__(
        self,
        placement: Placement | ArrivalPlacement,
        factory: QueueFactory,
        *,
        queues: PoolQueues,
        slot_fitting: SlotFitting,
        fleet: Fleet,
    ) -> None:
        self.factory = factory
        self._queues = queues
        self._slot_fitting = slot_fitting
        self._fleet = fleet
        super().__init__(self.arrange(placement))

    def arrange(self, placement: Placement | ArrivalPlacement, running: Collection[str] = ()) -> FairQueues:
        """Make the queues of this placement, and tell the placement the ids of requests that are already dispatched
        (`running`). The pool keeps its present queues until the new ones replace them.
        """
        self.placement = placement
        # Where a request waits for one backend, there is no backend to choose any more.
        self._fleet.placement = LeastReserved() if isinstance(placement, ArrivalPlacement) else placement
        order = self.factory.make_order()  # an instance to read its flags from
        self.reads_counters = order.reads_counters
        # By other rules than the sum, what is held is estimated anew with every question, so each has to be asked.
        self.serves_at_once = not (order.reads_counters or order.follows_requests) and self._fleet.kv_rule == "sum"
        """Whether a request need not have waited before it is sent (Fairness.served_at_once)."""
        self.needs_every_token = order.reads_counters or self._fleet.reads_progress
        self._slot_fitting.reads_prefixes = order.reads_prefixes or placement.reads_prefixes
        return self.factory.fair_queues(placement, self._queues, running)

    def resize(self, entry: InFlight) -> None:
        """Fit the entry's reservation to the reported prompt, and to an output that is longer than predicted."""
        tokens = self._fleet.resize(entry)
        if tokens:
            self.fair_queues.at(entry.backend_id).use.count(entry, 0, 0, tokens)
