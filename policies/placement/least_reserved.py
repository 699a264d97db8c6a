"""Least reserved: the backend that is least full by the predicted need of its requests, not by their number.

A slow backend counts as fuller: its requests take longer, and so does the first token of a new one.
"""

from collections.abc import Sequence

from policies.capacity.backend import BackendCapacity
from policies.capacity.candidates import least_full_first
from policies.placement.base import Fits, Placement, always
from policies.types import Request


class LeastReserved(Placement):
    """A late placement (it chooses a backend when a request is sent) on the least full backend: the one with the
    smallest reserved part of its capacity, divided by its speed. Ties go by backend id.
    """

    def place(
        self, request: Request, candidates: Sequence[BackendCapacity], fits: Fits = always
    ) -> BackendCapacity | None:
        for backend in least_full_first(candidates):
            if fits(backend):
                return backend
        return None
