"""Ranked requests: each tenant's waiting requests, ordered by a fixed rank, smallest first. Deletion is lazy: the entry
of a request that has left its queue stays in the heap until it reaches the top or the heap is rebuilt.
"""

from collections.abc import Callable
from heapq import heapify, heappop, heappush
from itertools import count

from policies.fairness.base import Waiting
from policies.types import Request

SPARE_REQUESTS = 64  # void entries of one tenant tolerated before its heap is rebuilt

Rank = Callable[[Request], float]

_Entry = tuple[float, float, int, Request]  # rank, arrival, a number that breaks ties


class Ranked:
    """The waiting requests of each tenant, in one heap per tenant. A request gets its rank (such as a deadline) when it
    is queued. The smallest rank comes first, ties by arrival. Mutable.
    """

    def __init__(self, rank: Rank) -> None:
        """`rank` is called once each time a request is queued."""
        self._rank = rank
        self._heaps: dict[str, list[_Entry]] = {}
        self._valid: dict[str, dict[str, int]] = {}  # tenant -> request id -> the number of its entry
        self._numbers = count()

    def queued(self, request: Request, waiting: Waiting) -> float:
        """Add a request to its tenant's heap, for the first time or again; return its rank."""
        heap = self._heaps.setdefault(request.tenant_id, [])
        valid = self._valid.setdefault(request.tenant_id, {})
        # A request that returns before its first entry has surfaced has two entries.
        rank, number = self._rank(request), next(self._numbers)
        valid[request.id] = number
        heappush(heap, (rank, request.arrived_at, number, request))
        if len(heap) > 2 * len(waiting) + SPARE_REQUESTS:
            heap[:] = [entry for entry in heap if _waits(entry, valid, waiting)]
            heapify(heap)
            self._valid[request.tenant_id] = {entry[3].id: entry[2] for entry in heap}
        return rank

    def best(self, tenant_id: str, waiting: Waiting) -> tuple[float, Request]:
        """The rank of the best request in the tenant's queue, and the request. The queue must not be empty."""
        heap, valid = self._heaps[tenant_id], self._valid[tenant_id]
        while not _waits(heap[0], valid, waiting):
            _, _, number, request = heappop(heap)
            if valid.get(request.id) == number:
                del valid[request.id]
        return heap[0][0], heap[0][3]

    def forget(self, tenant_id: str) -> None:
        self._heaps.pop(tenant_id, None)
        self._valid.pop(tenant_id, None)


def _waits(entry: _Entry, valid: dict[str, int], waiting: Waiting) -> bool:
    _, _, number, request = entry
    return valid.get(request.id) == number and waiting.get(request.id) is request
