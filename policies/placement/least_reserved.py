"""Least reserved: the backend that is least full by the predicted need of its requests, not by their number.

A slow backend counts as fuller: what it has takes longer, and so does the first token of what it is sent.
"""

from collections.abc import Sequence

from policies.capacity.backend import BackendCapacity
from policies.capacity.candidates import least_full_first
from policies.placement.base import Fits, Placement, always
from policies.types import Request


class LeastReserved(Placement):
    """The smallest reserved part of the capacity, over the speed of the backend; ties by backend id."""

    def place(
        self, request: Request, candidates: Sequence[BackendCapacity], fits: Fits = always
    ) -> BackendCapacity | None:
        for backend in least_full_first(candidates):
            if fits(backend):
                return backend
        return None
