"""Longest prefix: the backend that holds more than half of the prompt, else the one that is least full.

This is the late placement for orders by cached prefix: they choose a request because some backend has it cached, and
another backend would compute it all again. If no more than half is cached, as where all prompts begin with the same few
words, following the cache would fill one backend for little gain. (Preble's rule, for a request that has waited in one
queue.)
"""

from collections.abc import Sequence

from policies.capacity.backend import BackendCapacity
from policies.capacity.candidates import least_full_first
from policies.capacity.prefix_index import PrefixIndex
from policies.placement.base import Fits, Placement, always
from policies.types import Request


class LongestPrefix(Placement):
    """A late placement (it chooses a backend when a request is sent) on the backend that holds the most leading blocks
    of the prompt, if they are more than half of the prompt. Otherwise, and for ties, the least full backend is chosen,
    then the lowest id.
    """

    reads_prefixes = True

    def __init__(self) -> None:
        self._prefixes: PrefixIndex | None = None

    def look_up_in(self, prefixes: PrefixIndex) -> None:
        self._prefixes = prefixes

    def place(
        self, request: Request, candidates: Sequence[BackendCapacity], fits: Fits = always
    ) -> BackendCapacity | None:
        ranked = least_full_first(candidates)
        matches = {} if self._prefixes is None else self._worth_following(request, ranked, self._prefixes)
        if matches:
            ranked = sorted(ranked, key=lambda backend: -matches.get(backend.id, 0))
        for backend in ranked:
            if fits(backend):
                return backend
        return None

    def _worth_following(
        self, request: Request, candidates: Sequence[BackendCapacity], prefixes: PrefixIndex
    ) -> dict[str, int]:
        """The leading blocks held, by candidate id, of the candidates that hold more than half of the prompt."""
        if 2 * prefixes.longest(request)[0] * request.prefix_block_tokens <= request.prompt_tokens:
            return {}
        matches = {capacity.id: prefixes.matched_blocks(request, capacity.id) for capacity in candidates}
        tokens = request.prefix_block_tokens
        return {name: blocks for name, blocks in matches.items() if 2 * blocks * tokens > request.prompt_tokens}
