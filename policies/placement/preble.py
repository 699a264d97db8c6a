"""Preble: the cache decides if most of the prompt is cached, else the least load (Preble's exploit and explore).

If more than half of a prompt is known, it goes to one of the backends that hold that part: computing it again would
cost more than waiting. Any other prompt goes to the backend with the least load, and its new part becomes a prefix of
its own. Load is the work that the backend still has to do, predicted from the last three minutes:

    sum over prefixes used there of   miss rate x uses x time to prefill it / backends that share it
    + requests assigned there x median output x time of an output token

Only the ratio of the two times matters. The published scheduler learns the second from its engines; here both are
constants of a profiled engine. Its migration of hot prefixes between backends is left out.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median

from policies.placement.base import Worker
from policies.placement.locality import LocalPlacement
from policies.types import Request, Usage

WINDOW_S = 180.0
USES_MAX = 65_536  # in the window
BLOCKS_MAX = 1_048_576  # of prefixes in the window
OUTPUTS_OBSERVED = 200
OUTPUT_TOKENS_AT_FIRST = 128.0
PREFILL_TOKEN_S = 0.1084e-3  # Mistral-7B on an A6000, Preble's own profile
OUTPUT_TOKEN_S = 30e-3  # a decode step of the same engine with a batch of some 50


@dataclass(slots=True, eq=False)
class _Prefix:
    """A prefix: the blocks by which a prompt goes beyond shorter prefixes, with the requests of the window that have
    it.
    """

    tokens: float
    blocks: list[int] = field(default_factory=list)
    hit_tokens: float = 0.0
    prompt_tokens: int = 0
    uses: dict[str, int] = field(default_factory=dict)  # by backend

    def prefill_s(self) -> float:
        """Seconds that each backend of the prefix is predicted to spend on prefilling it."""
        if not self.prompt_tokens:
            return 0.0
        miss_ratio = 1.0 - self.hit_tokens / self.prompt_tokens
        return miss_ratio * sum(self.uses.values()) * self.tokens * PREFILL_TOKEN_S / len(self.uses)


@dataclass(slots=True, eq=False)
class _BackendUse:
    """One request of the window; not `counted` after it has left the window, or the queue unsent."""

    at: float
    prefix: _Prefix
    backend_id: str
    hit_tokens: float
    prompt_tokens: int
    counted: bool = False


@dataclass(slots=True)
class _Load:
    """The predicted work of one backend: prefill seconds, uses in the window, and requests that wait for it or run."""

    prefill_s: float = 0.0
    uses: int = 0
    requests: int = 0


class _RecentUses:
    """The uses of prefixes in the last WINDOW_S, and what they say of the work of backends. Mutable."""

    def __init__(self) -> None:
        self.loads: dict[str, _Load] = {}
        """By backend that has any work. `requests` is up to the caller."""
        self._window: deque[_BackendUse] = deque()
        self.prefix_of: dict[int, _Prefix] = {}
        """The prefix in use of which a block is part, by block."""

    def join(self, prefix: _Prefix, blocks: Sequence[int]) -> _Prefix:
        """Add these blocks to the prefix, and return it."""
        for block in blocks:
            if self.prefix_of.get(block) is not prefix:
                self.prefix_of[block] = prefix
                prefix.blocks.append(block)
        return prefix

    def expire(self, now: float) -> None:
        """Drop uses that are too old, or too many."""
        window = self._window
        while window and (window[0].at <= now - WINDOW_S or len(window) > USES_MAX or len(self.prefix_of) > BLOCKS_MAX):
            self.discount(window.popleft())

    def add(self, use: _BackendUse) -> None:
        """The prefix is used again."""
        self._window.append(use)
        use.counted = True
        self.loads.setdefault(use.backend_id, _Load()).uses += 1
        self._change(use, 1)

    def discount(self, use: _BackendUse) -> None:
        """The use has left the window, or its request the queue unsent."""
        if not use.counted:
            return
        use.counted = False
        self._change(use, -1)
        self.loads[use.backend_id].uses -= 1
        self.drop_idle(use.backend_id)
        if not use.prefix.uses:
            for block in use.prefix.blocks:
                if self.prefix_of.get(block) is use.prefix:
                    del self.prefix_of[block]

    def _change(self, use: _BackendUse, sign: int) -> None:
        """Update a prefix, and its part in the loads of its backends, for one use more or less (`sign`)."""
        prefix = use.prefix
        for backend_id in prefix.uses:
            self.loads[backend_id].prefill_s -= prefix.prefill_s()
        prefix.hit_tokens += sign * use.hit_tokens
        prefix.prompt_tokens += sign * use.prompt_tokens
        uses = prefix.uses.get(use.backend_id, 0) + sign
        prefix.uses[use.backend_id] = uses
        if not uses:
            del prefix.uses[use.backend_id]
        for backend_id in prefix.uses:
            self.loads[backend_id].prefill_s += prefix.prefill_s()

    def drop_idle(self, backend_id: str) -> None:
        """Forget a backend without work."""
        load = self.loads.get(backend_id)
        if load is not None and not load.uses and not load.requests:
            del self.loads[backend_id]


class Preble(LocalPlacement):
    """The arrival placement of Preble, which weighs cached prefixes against the load of each backend. A request costs
    O(blocks of the prompt + backends). Mutable.
    """

    def __init__(self) -> None:
        super().__init__()
        self._window = _RecentUses()
        self._assigned: dict[str, _BackendUse] = {}  # by request that waits or runs
        self._outputs: deque[int] = deque(maxlen=OUTPUTS_OBSERVED)
        self._output_tokens = OUTPUT_TOKENS_AT_FIRST

    def assign(self, request: Request, workers: Sequence[Worker]) -> str:
        self._window.expire(request.arrived_at)
        matched, holders = self._locality.longest(request, workers)
        known_tokens = min(float(request.prompt_tokens), matched * request.prefix_block_tokens)
        exploits = request.prompt_tokens - known_tokens < known_tokens
        chosen = min(holders if exploits else workers, key=lambda worker: (self.load_s(worker.id), worker.id)).id
        prefix = self._exploited(request, matched) if exploits else self._explored(request, matched)
        use = _BackendUse(request.arrived_at, prefix, chosen, known_tokens, request.prompt_tokens)
        self._window.add(use)
        self._assigned[request.id] = use
        self._window.loads[chosen].requests += 1
        self._locality.waits(request, chosen)
        return chosen

    def unassigned(self, request: Request, backend_id: str) -> None:
        self._locality.left(request, backend_id)
        self._window.discount(self._ended(request))

    def ended(self, request: Request, backend_id: str, usage: Usage) -> None:
        self._ended(request)
        if usage.output_tokens:
            self._outputs.append(usage.output_tokens)
            self._output_tokens = median(self._outputs)

    def load_s(self, backend_id: str) -> float:
        """Seconds of work that the backend is predicted to have."""
        load = self._window.loads.get(backend_id)
        return 0.0 if load is None else load.prefill_s + load.requests * self._output_tokens * OUTPUT_TOKEN_S

    def _exploited(self, request: Request, matched: int) -> _Prefix:
        """The prefix to which the known part of the prompt belongs; the new part, which is smaller, joins it."""
        prefix = self._window.prefix_of.get(request.prefix[matched - 1])
        if prefix is None:  # it left the window unused, but is still cached
            return self._window.join(_Prefix(matched * request.prefix_block_tokens), request.prefix)
        return self._window.join(prefix, request.prefix[matched:])

    def _explored(self, request: Request, matched: int) -> _Prefix:
        new_tokens = request.prompt_tokens - matched * request.prefix_block_tokens
        return self._window.join(_Prefix(new_tokens), request.prefix[matched:])

    def _ended(self, request: Request) -> _BackendUse:
        use = self._assigned.pop(request.id)
        self._window.loads[use.backend_id].requests -= 1
        self._window.drop_idle(use.backend_id)
        return use
