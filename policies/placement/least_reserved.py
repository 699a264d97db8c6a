"""The backend that is least full by what its requests are expected to need, not by their number."""

from collections.abc import Sequence

from policies.capacity.backend import BackendCapacity
from policies.capacity.candidates import least_full_first
from policies.placement.base import Fits, Placement, always
from policies.types import Request


class LeastReserved(Placement):
    """Smallest reserved part of its capacity; equals by backend id."""

    def place(
        self, request: Request, candidates: Sequence[BackendCapacity], fits: Fits = always
    ) -> BackendCapacity | None:
        for backend in least_full_first(candidates):
            if fits(backend):
                return backend
        return None
