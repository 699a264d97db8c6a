"""The backend that is least full by what its requests are expected to need, not by their number."""

from collections.abc import Sequence

from policies.capacity import BackendCapacity
from policies.placement.base import Placement
from policies.types import Request


class LeastReserved(Placement):
    """Smallest reserved part of its capacity; equals by backend id."""

    def place(self, request: Request, candidates: Sequence[BackendCapacity]) -> BackendCapacity:
        return min(candidates, key=lambda capacity: (capacity.reserved_ratio, capacity.id))
