"""Queues of waiting requests: a FIFO per tenant, and the deadlines of a pool.

A request is in the order of its tenant's FIFO, or it is held until its API key (pool/key_holds.py) or its session
(pool/session_gate.py) has room.

Every operation on one request costs O(1) or O(log n). A request may be removed from the middle of its queue: its client
disconnected, or its queue timeout ended.
"""

from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, ValuesView
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush, merge
from operator import attrgetter

from policies.types import Request, Wait

SPARE_DEADLINES = 1024  # void heap entries tolerated before the heap is rebuilt
CHANGED_MAX = 4096  # tenants noted between two looks, of which a queue that is full has many


_arrived_at = attrgetter("arrived_at")


class Deadlines(dict[str, tuple[str, float]]):
    """The deadlines of waiting requests: a mapping of request id to tenant id and the time at which the wait ends.
    `put` adds a request; `del` and `pop` remove it. A heap finds the next deadline; its entry for a removed request is
    ignored later. Mutable.
    """

    __slots__ = ("_heap",)

    def __init__(self) -> None:
        super().__init__()
        self._heap: list[tuple[float, str]] = []  # with void entries

    def put(self, request_id: str, tenant_id: str, deadline_at: float) -> None:
        """Set the time until which the request waits, or move it to a later time."""
        if not self:
            self._heap.clear()
        self[request_id] = tenant_id, deadline_at
        heappush(self._heap, (deadline_at, request_id))
        if len(self._heap) > 2 * len(self) + SPARE_DEADLINES:
            self._heap = [entry for entry in self._heap if self._is_current(entry)]
            heapify(self._heap)

    def next(self) -> float | None:
        """The earliest deadline; None if no request waits."""
        self._drop_void()
        return self._heap[0][0] if self._heap else None

    def passed(self, now: float) -> str | None:
        """The id of the request with the earliest deadline, if that has passed; else None."""
        if not self._heap or self._heap[0][0] > now:
            return None
        self._drop_void()
        return None if not self._heap or self._heap[0][0] > now else self._heap[0][1]

    def _drop_void(self) -> None:
        while self._heap and not self._is_current(self._heap[0]):
            heappop(self._heap)

    def _is_current(self, entry: tuple[float, str]) -> bool:
        # The deadline is compared too: a later request may have the id of one that is gone.
        waiting = self.get(entry[1])
        return waiting is not None and waiting[1] == entry[0]


class ArrivalOrder(Mapping[str, Request]):
    """A mapping of waiting requests by id, iterated in order of arrival.

    The order is by arrival time also for requests that another process reported late. Only requests that are put first,
    such as returned ones, precede all others. These two kinds are stored apart, so that operations on all other
    requests are as fast as in a dictionary. Mutable.
    """

    __slots__ = ("_first", "_in_order", "_late", "_late_heap", "_late_made")

    def __init__(self, requests: Iterable[Request] = ()) -> None:
        self._first: OrderedDict[str, Request] = OrderedDict()
        """Before all others, the last one that was put there first."""
        self._in_order: OrderedDict[str, Request] = OrderedDict()
        self._late: dict[str, Request] = {}
        """They came after a request that arrived later."""
        self._late_heap: list[tuple[float, int, str]] = []  # of _late by arrival and as they came, with void entries
        self._late_made = 0
        for request in requests:
            self.append(request)

    def append(self, request: Request) -> None:
        """Add a request after all others."""
        self._in_order[request.id] = request

    def insert(self, request: Request) -> None:
        """Add a request before all requests that arrived later, but after the requests that were put first."""
        if not self._in_order or next(reversed(self._in_order.values())).arrived_at <= request.arrived_at:
            self._in_order[request.id] = request
            return
        self._late[request.id] = request
        self._late_made += 1
        heappush(self._late_heap, (request.arrived_at, self._late_made, request.id))

    def prepend(self, request: Request) -> None:
        """Add a request before all others."""
        self._first[request.id] = request
        self._first.move_to_end(request.id, last=False)

    def remove(self, request_id: str) -> Request | None:
        """Remove a request, wherever it stands, and return it; None if it is not here."""
        request = self._in_order.pop(request_id, None)
        if request is not None:
            return request
        request = self._first.pop(request_id, None) or self._late.pop(request_id, None)
        if not self._late:
            self._late_heap.clear()
        return request

    def head(self) -> Request:
        """The first request."""
        if self._first:
            return next(iter(self._first.values()))
        if not self._late:
            for request in self._in_order.values():  # for speed: the first one, without an iterator by name
                return request
        while (late := self._late.get(self._late_heap[0][2])) is None or late.arrived_at != self._late_heap[0][0]:
            heappop(self._late_heap)
        if not self._in_order:
            return late
        oldest = next(iter(self._in_order.values()))
        return late if late.arrived_at < oldest.arrived_at else oldest

    def last(self) -> Request:
        """The last request. Costs O(n) in the requests that were reported late."""
        ends = [next(reversed(self._in_order.values()))] if self._in_order else []
        ends += self._late.values()
        return max(ends, key=_arrived_at) if ends else next(reversed(self._first.values()))

    def values(self) -> ValuesView[Request]:
        return super().values() if self._first or self._late else self._in_order.values()

    def __iter__(self) -> Iterator[str]:
        if not self._late:
            return iter([*self._first, *self._in_order] if self._first else self._in_order)
        late = sorted(self._late.values(), key=_arrived_at)
        ordered = merge(self._in_order.values(), late, key=_arrived_at)
        return iter([*self._first, *(request.id for request in ordered)])

    def __getitem__(self, request_id: str) -> Request:
        request = self._in_order.get(request_id) or self._first.get(request_id)
        return self._late[request_id] if request is None else request

    def __contains__(self, request_id: object) -> bool:
        return request_id in self._in_order or request_id in self._first or request_id in self._late

    def __len__(self) -> int:
        in_order = len(self._in_order)  # asked several times a call, and there is nothing else as a rule
        return in_order + len(self._first) + len(self._late) if self._first or self._late else in_order


@dataclass(slots=True)
class TenantQueue:
    """The waiting requests of one tenant: `requests` may be dispatched, oldest first; `held` wait for their API key's
    limit or for their session. `body_bytes` counts both, `prompt_tokens` only `requests`. Mutable.
    """

    requests: ArrivalOrder = field(default_factory=ArrivalOrder)
    held: dict[str, Request] = field(default_factory=dict)
    body_bytes: int = 0
    prompt_tokens: int = 0

    def __len__(self) -> int:
        return len(self.requests) + len(self.held) if self.held else len(self.requests)

    def all(self) -> list[Request]:
        """All waiting requests: first those that are not held, oldest first, then the held ones."""
        return [*self.requests.values(), *self.held.values()]

    def newest(self) -> Request:
        """The last request in the order, or the last held one, whichever arrived later."""
        last = [self.requests.last()] if self.requests else []
        if self.held:
            last.append(next(reversed(self.held.values())))
        return max(last, key=_arrived_at)


EMPTY = TenantQueue()


class TenantQueues:
    """The waiting requests of all tenants, as one TenantQueue per tenant. Mutable."""

    def __init__(self) -> None:
        self.by_tenant: dict[str, TenantQueue] = {}
        """The queues of tenants with a waiting request. To read."""
        self.body_bytes = 0
        self.prompt_tokens = 0

    def of(self, tenant_id: str) -> TenantQueue:
        """The tenant's queue, to read only; an empty one if it has none."""
        return self.by_tenant.get(tenant_id, EMPTY)

    def head(self, tenant_id: str) -> Request:
        return self.by_tenant[tenant_id].requests.head()

    def tenant_ids(self) -> list[str]:
        """The tenants with a waiting request."""
        return list(self.by_tenant)

    def waiting(self) -> Iterator[Request]:
        """All waiting requests, tenant by tenant."""
        return (request for queue in self.by_tenant.values() for request in queue.all())

    def add(self, request: Request) -> None:
        """Put a request at the end of its tenant's queue."""
        self._ordered(request).append(request)

    def add_back(self, request: Request) -> None:
        """Insert a request before those requests of its tenant that arrived later."""
        self._ordered(request).insert(request)

    def add_first(self, request: Request) -> None:
        """Put a request at the head of its tenant's queue."""
        self._ordered(request).prepend(request)

    def take(self, tenant_id: str, request_id: str) -> Request:
        """Remove a request, wherever it stands in its tenant's queue, and return it."""
        queue = self.by_tenant[tenant_id]
        request = queue.requests.remove(request_id)
        if request is None:
            request = queue.held.pop(request_id)
        else:
            queue.prompt_tokens -= request.prompt_tokens
            self.prompt_tokens -= request.prompt_tokens
        queue.body_bytes -= request.body_bytes
        self.body_bytes -= request.body_bytes
        if not queue.held and not queue.requests:
            del self.by_tenant[tenant_id]
        return request

    def _ordered(self, request: Request) -> ArrivalOrder:
        """The order that the request is about to be in, with its body and prompt counted."""
        queue = self._count(request)
        queue.prompt_tokens += request.prompt_tokens
        self.prompt_tokens += request.prompt_tokens
        return queue.requests

    def _count(self, request: Request) -> TenantQueue:
        """The queue that the request is about to be in, with its body."""
        queue = self.by_tenant.get(request.tenant_id)
        if queue is None:
            queue = self.by_tenant[request.tenant_id] = TenantQueue()
        queue.body_bytes += request.body_bytes
        self.body_bytes += request.body_bytes
        return queue


class PoolQueues(TenantQueues):
    """The waiting requests of all tenants of one pool, with the deadline of each. A request id occurs at most once in
    it. Mutable.
    """

    def __init__(self) -> None:
        super().__init__()
        self.deadlines = Deadlines()
        self.restricted: dict[str, Request] = {}
        """Waiting requests that only some backends can serve, by id."""
        self.held_for: dict[str, Wait] = {}
        """Why waiting requests are held, by the ids of those that are. To read."""
        self.changed: set[str] | None = None
        """Tenants whose queue, or place among tiers and groups, has changed since the last look. None: all, because
        nothing looks, or too many have changed. PushOut sets it when it looks.
        """

    def __len__(self) -> int:
        return len(self.deadlines)

    def __contains__(self, request_id: str) -> bool:
        return request_id in self.deadlines

    def holds(self, request: Request) -> bool:
        """Whether this very request waits, and not a later request with the same id."""
        return request.id in self.deadlines and self.get(request.id) is request

    def append(self, request: Request, deadline_at: float, *, by_arrival: bool = False) -> None:
        """Put a request at the end of its tenant's queue; `by_arrival`: before its requests that arrived later."""
        self._expire_at(request, deadline_at)
        waiting = self._ordered(request)
        if by_arrival:
            waiting.insert(request)
        else:
            waiting.append(request)

    def prepend(self, request: Request, deadline_at: float) -> None:
        """Put a request back at the head of its tenant's queue."""
        self._expire_at(request, deadline_at)
        self.add_first(request)

    def hold(self, request: Request, deadline_at: float, reason: Wait) -> None:
        """Let a request wait outside of the order, for this reason."""
        self._expire_at(request, deadline_at)
        self._count(request).held[request.id] = request
        self.held_for[request.id] = reason

    def oldest_first(self) -> list[Request]:
        """All requests that are not held, by arrival."""
        ordered = (request for queue in self.by_tenant.values() for request in queue.requests.values())
        return sorted(ordered, key=lambda request: (request.arrived_at, request.id))

    def get(self, request_id: str) -> Request:
        """The waiting request with this id."""
        tenant_id, _ = self.deadlines[request_id]
        queue = self.by_tenant[tenant_id]
        return queue.requests[request_id] if request_id in queue.requests else queue.held[request_id]

    def remove(self, request_id: str) -> Request | None:
        """Remove a request, wherever it stands; None if it does not wait."""
        waiting = self.deadlines.pop(request_id, None)
        if waiting is None:
            return None
        tenant_id = waiting[0]
        if self.held_for:
            self.held_for.pop(request_id, None)
        request = self.take(tenant_id, request_id)
        if request.backend_ids is not None:
            del self.restricted[request_id]
        if self.changed is not None:
            self.note((tenant_id,))
        return request

    def note(self, tenant_ids: Iterable[str]) -> None:
        """Record that the queues of these tenants, or the tenants' places among tiers and groups, have changed."""
        if self.changed is not None:
            self.changed.update(tenant_ids)
            if len(self.changed) > CHANGED_MAX or not self.deadlines:
                self.changed = None

    def _expire_at(self, request: Request, deadline_at: float) -> None:
        assert request.id not in self.deadlines, "a request waits once"
        self.deadlines.put(request.id, request.tenant_id, deadline_at)
        if self.changed is not None:
            self.note((request.tenant_id,))
        if request.backend_ids is not None:
            self.restricted[request.id] = request
