"""What waits: a FIFO per tenant and one heap of deadlines.

Every operation costs O(1) or O(log n). A request may be taken from the middle of its queue (its client left,
its time ran out); the heap then holds a void entry until it surfaces or the heap is rebuilt.
"""

from collections import OrderedDict
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush

from policies.types import Request

SPARE_DEADLINES = 1024  # void heap entries tolerated before the heap is rebuilt


@dataclass(slots=True)
class TenantQueue:
    """One tenant's waiting requests, oldest first, and their size."""

    requests: OrderedDict[str, Request] = field(default_factory=OrderedDict)
    body_bytes: int = 0


EMPTY = TenantQueue()


class Queues:
    """All tenants' queues of one pool. A request id occurs at most once in all of them."""

    def __init__(self) -> None:
        self._tenants: dict[str, TenantQueue] = {}
        self._waiting: dict[str, tuple[str, float]] = {}  # request id -> (tenant id, deadline)
        self._deadlines: list[tuple[float, str]] = []
        self.body_bytes = 0

    def __len__(self) -> int:
        return len(self._waiting)

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._waiting

    def of(self, tenant_id: str) -> TenantQueue:
        """The tenant's queue, to read; an empty one where it has none."""
        return self._tenants.get(tenant_id, EMPTY)

    def append(self, request: Request, deadline_at: float) -> None:
        self._insert(request, deadline_at)

    def prepend(self, request: Request, deadline_at: float) -> None:
        """Put a request back at the head of its tenant's queue."""
        self._insert(request, deadline_at)
        self._tenants[request.tenant_id].requests.move_to_end(request.id, last=False)

    def head(self, tenant_id: str) -> Request:
        return next(iter(self._tenants[tenant_id].requests.values()))

    def get(self, request_id: str) -> Request:
        """A waiting request."""
        tenant_id, _ = self._waiting[request_id]
        return self._tenants[tenant_id].requests[request_id]

    def remove(self, request_id: str) -> Request | None:
        """Take a request out, wherever it stands; None if it does not wait."""
        waiting = self._waiting.pop(request_id, None)
        if waiting is None:
            return None
        tenant_id = waiting[0]
        queue = self._tenants[tenant_id]
        request = queue.requests.pop(request_id)
        queue.body_bytes -= request.body_bytes
        self.body_bytes -= request.body_bytes
        if not queue.requests:
            del self._tenants[tenant_id]
        return request

    def next_deadline(self) -> float | None:
        self._drop_void()
        return self._deadlines[0][0] if self._deadlines else None

    def pop_expired(self, now: float) -> Request | None:
        """Take out one request whose deadline has passed."""
        self._drop_void()
        if not self._deadlines or self._deadlines[0][0] > now:
            return None
        return self.remove(heappop(self._deadlines)[1])

    def _insert(self, request: Request, deadline_at: float) -> None:
        assert request.id not in self._waiting, "a request waits once"
        queue = self._tenants.setdefault(request.tenant_id, TenantQueue())
        queue.requests[request.id] = request
        queue.body_bytes += request.body_bytes
        self.body_bytes += request.body_bytes
        self._waiting[request.id] = (request.tenant_id, deadline_at)
        heappush(self._deadlines, (deadline_at, request.id))
        if len(self._deadlines) > 2 * len(self) + SPARE_DEADLINES:
            self._deadlines = [entry for entry in self._deadlines if self._is_current(entry)]
            heapify(self._deadlines)

    def _drop_void(self) -> None:
        while self._deadlines and not self._is_current(self._deadlines[0]):
            heappop(self._deadlines)

    def _is_current(self, entry: tuple[float, str]) -> bool:
        # By deadline too: a later request may carry the id of one that is gone.
        waiting = self._waiting.get(entry[1])
        return waiting is not None and waiting[1] == entry[0]
