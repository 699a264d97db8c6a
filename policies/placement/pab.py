"""Largest budget: the backend with the largest prefill admission budget (PAB-LB, FairBatching, arXiv 2510.14392,
appendix A).

A reported budget is used, less the prompts sent since (reports say what they include). For other engines the budget is
computed from the running requests. A count of requests would say nothing of the length of their prompts, nor of the
slack of the running streams.
"""

from collections.abc import Sequence

from policies.capacity.backend import BackendCapacity
from policies.capacity.prefix_index import PrefixIndex
from policies.due_times import due_no_later
from policies.placement.base import Fits, Placement, always
from policies.placement.least_reserved import LeastReserved
from policies.types import Request

TTFT_S = 1.0  # the window of a budget that is computed here for a request without a TTFT target


class LargestBudget(Placement):
    """A late placement (it chooses a backend when a request is sent) on the backend with the largest prefill admission
    budget: the number of prompt tokens that the engine can take without making a request late. A budget smaller than
    the uncached part of the prompt is considered only if all budgets are smaller. Ties go to the least full backend,
    then by id. While the budget of any candidate is unknown, the least full candidate is chosen.
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
