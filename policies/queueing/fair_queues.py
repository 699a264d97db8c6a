"""Fair queues of a pool: one queue before all backends, or one per backend.

A late placement has one shared queue, and its next request goes to any backend with room. A placement on arrival has
one queue per backend, each with its own order and counters: service is fair within one backend's queue, and the pool's
bound is multiplied by the number of backends.

A request that waits for a backend that is gone, or has rejected requests for too long, is assigned again if another
backend serves. Counters of a queue stay as long as its backend is known or any request waits or runs there.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple, Protocol

from policies.accounts.checkpoint import SHARED_QUEUE, QueueCheckpoint
from policies.accounts.cost import Price
from policies.accounts.ledger import InFlight
from policies.capacity.backend import BackendCapacity
from policies.capacity.prefix_index import PrefixIndex
from policies.fairness import Fairness
from policies.fairness.base import CachedBlocks, Changes
from policies.fairness.tree import FairTree
from policies.fleet.fleet import Fleet
from policies.group_state import GroupState
from policies.placement import ArrivalPlacement, Placement, Worker
from policies.queueing.fair_queue import FairQueue, QueuedTenant
from policies.queues import PoolQueues, TenantQueues
from policies.types import Request, Tenant, Tier


class QueueMove(NamedTuple):
    """The move of a waiting request from the queue `before` to the queue `after`."""

    before: FairQueue
    after: FairQueue


class FairQueues(Protocol):
    """The interface of the set of a pool's queues: in which one does a request wait? The methods with a body suit a
    pool with a single queue.
    """

    shared: FairQueue | None
    """The one queue before all backends; None: each has its own."""

    def all(self) -> Collection[FairQueue]:
        """Every queue, in a fixed order."""
        ...

    def at(self, backend_id: str) -> FairQueue:
        """The queue that requests in flight at this backend were dispatched from."""
        ...

    def candidates(self, backends: list[BackendCapacity]) -> Sequence[tuple[FairQueue, list[BackendCapacity]]]:
        """Each queue that may dispatch to one of these backends, with the backends that it may use."""
        ...

    def enter(self, request: Request, now: float) -> FairQueue:
        """Add a request that has arrived, and return its queue. Requires `has_place`."""
        ...

    def enter_again(self, entry: InFlight) -> FairQueue:
        """Add a returned request again, before all other requests of its tenant."""
        ...

    def leave(self, request: Request, *, sent: bool) -> FairQueue:
        """Remove a request that was dispatched (`sent`) or has left, and return its queue."""
        ...

    def ended(self, entry: InFlight) -> None:
        """A dispatched request has ended."""
        return

    def backends_changed(self) -> None:
        """Backends have come or gone, or new facts about all of them are known."""
        self.release_holds()

    def release_holds(self) -> None:
        """Drop all holds, because after a change another backend than the held one may have room sooner."""
        for fair_queue in self.all():
            fair_queue.held.clear()

    def stranded(self, now: float) -> Sequence[Request]:
        """The requests, oldest first, that wait for a backend that does not serve although another would."""
        return ()

    def running(self) -> Collection[str]:
        """The ids of requests that were dispatched and have not ended, as far as the placement was told."""
        return ()

    def has_place(self, request: Request) -> bool:
        """Whether there is a queue for the request to wait in, whether or not its backend is available."""
        return True

    def move(self, request: Request, now: float) -> QueueMove:
        """Assign a stranded request to another backend."""
        ...

    def forget(self, tenant_id: str) -> None:
        """Drop the state of a removed tenant."""
        return

    def checkpoint(self, tenant_ids: Collection[str] | None = None) -> dict[str, QueueCheckpoint]:
        """The counters of each queue, by backend id or SHARED_QUEUE; of all tenants, or of `tenant_ids`."""
        return {
            fair_queue.backend_id or SHARED_QUEUE: fair_queue.order.checkpoint(tenant_ids) for fair_queue in self.all()
        }


class SharedQueue(FairQueues):
    """The set of queues of a pool with a late placement (it chooses a backend when a request is sent): one queue, from
    which requests may go to any backend.
    """

    def __init__(self, fair_queue: FairQueue) -> None:
        self.shared: FairQueue | None = fair_queue
        self._fair_queue = fair_queue
        self._all = (fair_queue,)

    def all(self) -> Collection[FairQueue]:
        return self._all

    def at(self, backend_id: str) -> FairQueue:
        return self._fair_queue

    def candidates(self, backends: list[BackendCapacity]) -> Sequence[tuple[FairQueue, list[BackendCapacity]]]:
        return ((self._fair_queue, backends),) if backends else ()

    def enter(self, request: Request, now: float) -> FairQueue:
        return self._fair_queue

    def enter_again(self, entry: InFlight) -> FairQueue:
        return self._fair_queue

    def leave(self, request: Request, *, sent: bool) -> FairQueue:
        self._fair_queue.held.pop(request.id, None)
        return self._fair_queue

    def move(self, request: Request, now: float) -> QueueMove:
        raise AssertionError("nothing is stranded before all backends")


class Assignments:
    """The assignment of each waiting request to a backend, as the arrival placement chose it. Mutable."""

    def __init__(self, placement: ArrivalPlacement) -> None:
        self._placement = placement
        self.queued: dict[str, int] = {}
        """Number of waiting requests, by backend with a queue."""
        self._backend_ids: dict[str, str] = {}  # by waiting request

    def choose(self, request: Request, backends: Sequence[BackendCapacity]) -> str:
        """The one of these backends that the placement assigns the request to."""
        workers = [Worker(each, self.queued[each.id]) for each in backends]
        backend_id = self._placement.assign(request, workers)
        assert any(worker.id == backend_id for worker in workers), (
            "a request is assigned to a backend that may serve it"
        )
        return backend_id

    def waits(self, request: Request, backend_id: str) -> None:
        """Record that the request waits for this backend."""
        self._backend_ids[request.id] = backend_id
        self.queued[backend_id] += 1

    def leaves(self, request: Request) -> str:
        """Record that the request waits no more; returns the backend that it waited for."""
        backend_id = self._backend_ids.pop(request.id)
        self.queued[backend_id] -= 1
        return backend_id


class QueuePerBackend(FairQueues):
    """The set of queues of a pool with an arrival placement: one queue per backend. The placement chooses a request's
    queue when the request arrives. Mutable.
    """

    def __init__(
        self,
        placement: ArrivalPlacement,
        fleet: Fleet,
        make_fair_queue: Callable[[str], FairQueue],
        running: Collection[str] = (),
    ) -> None:
        """`running` has the ids of requests that the placement knows as dispatched."""
        self.shared: FairQueue | None = None
        self._placement = placement
        self._running = set(running)
        self._fleet = fleet
        self._make_fair_queue = make_fair_queue
        self._fair_queues: dict[str, FairQueue] = {}
        self._assignments = Assignments(placement)
        self.backends_changed()

    def all(self) -> Collection[FairQueue]:
        return self._fair_queues.values()

    def at(self, backend_id: str) -> FairQueue:
        return self._fair_queues[backend_id]

    def candidates(self, backends: list[BackendCapacity]) -> Sequence[tuple[FairQueue, list[BackendCapacity]]]:
        return [(self._fair_queues[each.id], [each]) for each in backends if self._assignments.queued[each.id]]

    def enter(self, request: Request, now: float) -> FairQueue:
        fleet = self._fleet
        backends = fleet.serving(request, now) or fleet.available(request) or fleet.known(request)
        backend_id = self._assignments.choose(request, backends)
        self._assignments.waits(request, backend_id)
        fair_queue = self._fair_queues[backend_id]
        fair_queue.queues.add(request)
        return fair_queue

    def enter_again(self, entry: InFlight) -> FairQueue:
        request = entry.request
        if request.id in self._running:
            self._running.discard(request.id)
            self._placement.returned(request, entry.backend_id)
        else:  # it was dispatched before this placement was chosen
            self._assignments.choose(
                request, [each for each in self._fleet.known(request) if each.id == entry.backend_id]
            )
        self._assignments.waits(request, entry.backend_id)
        fair_queue = self._fair_queues[entry.backend_id]
        fair_queue.queues.add_first(request)
        return fair_queue

    def leave(self, request: Request, *, sent: bool) -> FairQueue:
        backend_id = self._assignments.leaves(request)
        if sent:
            self._running.add(request.id)
            self._placement.dispatched(request, backend_id)
        else:
            self._placement.unassigned(request, backend_id)
        fair_queue = self._fair_queues[backend_id]
        fair_queue.held.pop(request.id, None)
        fair_queue.queues.take(request.tenant_id, request.id)
        return fair_queue

    def ended(self, entry: InFlight) -> None:
        if entry.request.id in self._running:
            self._running.discard(entry.request.id)
            self._placement.ended(entry.request, entry.backend_id, entry.usage)

    def running(self) -> Collection[str]:
        return self._running

    def has_place(self, request: Request) -> bool:
        return bool(self._fleet.known(request))

    def backends_changed(self) -> None:
        super().backends_changed()
        known = self._fleet.backends.keys()
        for backend_id in known:
            if backend_id not in self._fair_queues:
                self._fair_queues[backend_id] = self._make_fair_queue(backend_id)
                self._assignments.queued[backend_id] = 0
        for backend_id in [
            each for each, fair_queue in self._fair_queues.items() if each not in known and fair_queue.is_empty
        ]:
            del self._fair_queues[backend_id], self._assignments.queued[backend_id]

    def stranded(self, now: float) -> Sequence[Request]:
        waiting = [
            request
            for backend_id, fair_queue in self._fair_queues.items()
            if self._assignments.queued[backend_id] and not self._fleet.serves(backend_id, now)
            for tenant_id in fair_queue.queues.tenant_ids()
            for request in fair_queue.queues.of(tenant_id).requests.values()
            if self._fleet.serving(request, now)
        ]
        return sorted(waiting, key=lambda request: (request.arrived_at, request.id))

    def move(self, request: Request, now: float) -> QueueMove:
        before = self.leave(request, sent=False)
        backend_id = self._assignments.choose(request, self._fleet.serving(request, now))
        self._assignments.waits(request, backend_id)
        after = self._fair_queues[backend_id]
        (after.queues.add_first if request.produced_tokens else after.queues.add_back)(request)
        return QueueMove(before, after)

    def forget(self, tenant_id: str) -> None:
        self._placement.forget(tenant_id)


class PresentQueues:
    """A reference to the queues that a pool has now. The parts of a Scheduler share it, because a switch of policies
    replaces the queues.
    """

    def __init__(self, fair_queues: FairQueues) -> None:
        self.fair_queues = fair_queues


@dataclass(slots=True)
class QueueFactory:
    """A maker of a pool's queues, which fit a given placement: one shared queue, or one per backend."""

    make_order: Callable[[], Fairness]
    tiers: Mapping[str, Tier]
    tenants: Mapping[str, QueuedTenant]
    fleet: Fleet
    prefixes: PrefixIndex
    price: Price
    share_ratio_max: float
    output_tokens: Callable[[Request], float]
    groups: Mapping[str, GroupState] = field(default_factory=dict)
    grouped: Collection[str] = ()
    """Ids of the tiers whose tenants have groups."""
    noted: set[str] = field(default_factory=set)
    """Tenants whose ranks may have changed; shedding reads and clears it."""
    restored: dict[str, QueueCheckpoint] = field(default_factory=dict)
    """The restored counters for the queues of backends that do not exist yet."""

    def fair_queues(
        self, placement: Placement | ArrivalPlacement, queues: PoolQueues, running: Collection[str] = ()
    ) -> FairQueues:
        """The queues for this placement, over the pool's FIFOs. `running` has the ids of requests that the placement
        knows as dispatched.
        """
        if placement.reads_prefixes:
            placement.look_up_in(self.prefixes)
        if isinstance(placement, ArrivalPlacement):
            return QueuePerBackend(placement, self.fleet, self._queue_before, running)
        self.restored = {}  # they belong to queues that this placement does not have
        longest = self.prefixes.longest
        return SharedQueue(
            self._fair_queue(queues, self.fleet.limits.sums, lambda request: longest(request)[0], self.prefixes.changes)
        )

    def _queue_before(self, backend_id: str) -> FairQueue:
        """A queue for one backend, with FIFOs of its own."""
        cached_blocks = partial(self.prefixes.matched_blocks, backend_id=backend_id)
        changes = partial(self.prefixes.changes, backend_id=backend_id)
        backends = self.fleet.backends
        fair_queue = self._fair_queue(
            TenantQueues(), lambda: backends[backend_id].usable, cached_blocks, changes, backend_id
        )
        if backend_id in self.restored:
            fair_queue.restore(self.restored.pop(backend_id))
        return fair_queue

    def _fair_queue(
        self,
        queues: TenantQueues,
        limits: Callable[[], tuple[float, float]],
        cached_blocks: CachedBlocks,
        cached_changes: Changes,
        backend_id: str | None = None,
    ) -> FairQueue:
        return FairQueue(
            FairTree(
                self.make_order,
                self.tiers.values(),
                cached_blocks,
                cached_changes,
                self.noted,
                groups=self.groups,
                grouped=self.grouped,
                tenant=self._tenant,
            ),
            queues,
            self.tenants,
            price=self.price,
            share_ratio_max=self.share_ratio_max,
            limits=limits,
            output_tokens=self.output_tokens,
            backend_id=backend_id,
        )

    def _tenant(self, tenant_id: str) -> Tenant | None:
        state = self.tenants.get(tenant_id)
        return None if state is None else state.tenant
