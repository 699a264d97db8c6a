"""Predicted TTFT: the backend where the first token would come soonest, by step-time model and cached prefix."""

from collections.abc import Sequence

from policies.capacity.backend import BackendCapacity
from policies.capacity.prefix_index import PrefixIndex
from policies.due_times import due_no_later
from policies.placement.base import Fits, Placement, always
from policies.placement.least_reserved import LeastReserved
from policies.types import Request


class PredictedTtft(Placement):
    """A late placement (it chooses a backend when a request is sent) on the backend with the least predicted TTFT; ties
    go by the reserved part of the capacity, then by id. While the step-time model of any candidate with room is not yet
    reliable, the backend that is least full for its speed is chosen, so that this model is learnt.
    """

    reads_prefixes = True

    def __init__(self) -> None:
        self._prefixes = PrefixIndex()
        self._otherwise = LeastReserved()

    def look_up_in(self, prefixes: PrefixIndex) -> None:
        self._prefixes = prefixes

    def place(
        self, request: Request, candidates: Sequence[BackendCapacity], fits: Fits = always
    ) -> BackendCapacity | None:
        fitting = [each for each in candidates if fits(each)]
        uncached, due_at, soonest = self._prefixes.uncached_tokens, due_no_later(request), []
        for capacity in fitting:
            ttft_s = capacity.ttft_s(uncached(request, capacity.id), due_at=due_at)
            if ttft_s is None:
                return self._otherwise.place(request, fitting)
            soonest.append((ttft_s, capacity.reserved_ratio, capacity.id, capacity))
        return min(soonest)[-1] if soonest else None
