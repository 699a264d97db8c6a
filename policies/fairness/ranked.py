"""Each tenant's waiting requests by a rank that a request keeps, best first.

Lazy deletion: what has left its queue stays in the heap until it surfaces or the heap is rebuilt.
"""

from collections.abc import Callable
from heapq import heapify, heappop, heappush
from itertools import count

from policies.fairness.base import Waiting
from policies.types import Request

SPARE_REQUESTS = 64  # of one tenant, void, tolerated before its heap is rebuilt

Rank = Callable[[Request], float]

_Entry = tuple[float, float, int, Request]  # rank, arrival, a number that settles the rest


class Ranked:
    """Which of a tenant's requests is best? Equal ranks by arrival."""

    def __init__(self, rank: Rank) -> None:
        """`rank` is asked once per request; the smallest is best."""
        self._rank = rank
        self._heaps: dict[str, list[_Entry]] = {}
        self._numbers = count()

    def queued(self, request: Request, waiting: Waiting) -> float:
        """The request waits, in this queue of its tenant. Returns its rank."""
        heap = self._heaps.setdefault(request.tenant_id, [])
        rank = self._rank(request)
        heappush(heap, (rank, request.arrived_at, next(self._numbers), request))
        if len(heap) > 2 * len(waiting) + SPARE_REQUESTS:
            heap[:] = [entry for entry in heap if waiting.get(entry[3].id) is entry[3]]
            heapify(heap)
        return rank

    def best(self, tenant_id: str, waiting: Waiting) -> tuple[float, Request]:
        """The best of the requests in the tenant's queue, which is not empty, and its rank."""
        heap = self._heaps[tenant_id]
        while waiting.get(heap[0][3].id) is not heap[0][3]:
            heappop(heap)
        return heap[0][0], heap[0][3]

    def forget(self, tenant_id: str) -> None:
        self._heaps.pop(tenant_id, None)
