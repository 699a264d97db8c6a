"""The engine with the largest prefill admission budget (PAB-LB, FairBatching, arXiv 2510.14392, appendix A).

An engine that reports its budget is believed, less what it was sent since (its reports say what they include); of
others the budget is reckoned by what runs there. A count of requests says nothing of how long their prompts are, nor
of how much time the streams that run can spare.
"""

from collections.abc import Sequence

from policies.capacity.backend import BackendCapacity
from policies.capacity.prefix_index import PrefixIndex
from policies.envelope import due_no_later
from policies.placement.base import Fits, Placement, always
from policies.placement.least_reserved import LeastReserved
from policies.types import Request

TTFT_S = 1.0  # the window of a budget that is reckoned here for a request without a TTFT target


class LargestBudget(Placement):
    """The largest budget among those that the prompt, less what is cached, fits; where it fits none, of all. Equals by
    how full they are, then by id; while the budget of any of the backends is not known, the least full.
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
        envelope = request.envelope
        window_s = TTFT_S if envelope is None or envelope.ttft_s is None else envelope.ttft_s
        due_at, ranked = due_no_later(request), []
        fitting = [each for each in candidates if fits(each)]
        for capacity in fitting:
            tokens = capacity.budget_tokens(window_s, due_at=due_at)
            if tokens is None:
                return self._otherwise.place(request, fitting)
            is_short = tokens < self._prefixes.uncached_tokens(request, capacity.id)
            ranked.append((is_short, -tokens, capacity.reserved_ratio, capacity.id, capacity))
        return min(ranked)[-1] if ranked else None
