"""Which backend holds how much of this prompt? What the gateway knows of every backend's prefix cache.

A prompt is told as chained hashes of its leading blocks. A chained hash names everything before it, so one flat
table from hash to holders is a radix tree over all prompts: the way from the root to a node is the prompt's own
list of hashes, and no pointer is followed. The holders of a node are the bits of one integer.

What a backend has evicted is seen late or never, so each backend's part is kept no larger than its KV pool, least
recently used first. A prompt is touched from its end to its beginning: a beginning is then always more recent than
whatever follows it, and the order of use gives up leaves first without knowing which nodes are leaves. So who holds
a block holds all before it, and how far a prompt matches is found by bisection.

The engine fills the same pool with outputs and with the ends of prompts too, so this errs on the side of cached.
"""

from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field

from policies.types import Request

KV_TOKENS_UNKNOWN = 262_144  # of a backend whose pool is not known
BLOCKS_MAX = 262_144  # of one backend, however small its blocks: some 50 MB
MATCHES_MAX = 1024  # prompts that are remembered to match so far, of one backend and of all


@dataclass(slots=True)
class _Holder:
    """One backend's blocks, least recently used first, and the tokens that each stands for.

    `matches` are answers given since they last changed, by the last block of the prompt: a full backend is asked for
    the same waiting prompts again and again.
    """

    bit: int
    tokens_max: float = KV_TOKENS_UNKNOWN
    tokens: float = 0.0
    blocks: OrderedDict[int, float] = field(default_factory=OrderedDict)
    matches: dict[int, int] = field(default_factory=dict)


class PrefixIndex:
    """Prompt blocks that backends are believed to hold. Sending n blocks costs O(n), looking them up O(log n)."""

    def __init__(self) -> None:
        self._holders: dict[str, _Holder] = {}
        self._bits: dict[int, int] = {}  # block hash -> bits of the backends that hold it; never zero
        self._longest: dict[int, tuple[int, frozenset[str]]] = {}  # answers since the last change, by the last block

    def __len__(self) -> int:
        """Distinct blocks that are known."""
        return len(self._bits)

    def matched_blocks(self, request: Request, backend_id: str) -> int:
        """How many leading blocks of the prompt this backend holds."""
        holder = self._holders.get(backend_id)
        if holder is None or not request.prefix:
            return 0
        whole = request.prefix[-1]
        matched = holder.matches.get(whole)
        if matched is None:
            if len(holder.matches) >= MATCHES_MAX:
                holder.matches.clear()
            matched = holder.matches[whole] = leading_blocks(request.prefix, holder.blocks.__contains__)
        return matched

    def uncached_tokens(self, request: Request, backend_id: str) -> int:
        """Tokens of the prompt that this backend would have to compute: the last one in any case."""
        if not request.prefix:
            return max(1, request.prompt_tokens)
        cached_tokens = int(self.matched_blocks(request, backend_id) * request.prefix_block_tokens)
        return max(1, request.prompt_tokens - cached_tokens)

    def longest(self, request: Request) -> tuple[int, frozenset[str]]:
        """How many leading blocks the best backends hold, and which these are; (0, nobody) where none holds any."""
        if not request.prefix:
            return 0, frozenset()
        whole = request.prefix[-1]
        answer = self._longest.get(whole)
        if answer is None:
            if len(self._longest) >= MATCHES_MAX:
                self._longest.clear()
            answer = self._longest[whole] = self._look_up(request.prefix)
        return answer

    def inserted(self, request: Request, backend_id: str) -> None:
        """The backend was sent this prompt: it will hold all of its blocks, used just now."""
        if not request.prefix:
            return
        holder = self._holder(backend_id)
        self._changes(holder)
        blocks, bits, bit = holder.blocks, self._bits, holder.bit
        for block in reversed(request.prefix):
            if block in blocks:
                blocks.move_to_end(block)
            else:
                blocks[block] = request.prefix_block_tokens
                holder.tokens += request.prefix_block_tokens
                bits[block] = bits.get(block, 0) | bit
        self._trim(holder)

    def evicted(self, backend_id: str, hashes: Iterable[int]) -> None:
        """The backend reports that it has given up these blocks. Engines give up leaves first, too: where a block goes
        alone, what followed it is believed to be held until it is reported or falls out of use.
        """
        holder = self._holders.get(backend_id)
        if holder is None:
            return
        self._changes(holder)
        for block in hashes:
            tokens = holder.blocks.pop(block, None)
            if tokens is not None:
                self._dropped(holder, block, tokens)

    def resized(self, backend_id: str, kv_tokens_max: int | None) -> None:
        """The backend's KV pool holds this many tokens; None where it is not known."""
        holder = self._holder(backend_id)
        holder.tokens_max = KV_TOKENS_UNKNOWN if kv_tokens_max is None else kv_tokens_max
        self._trim(holder)

    def retain(self, backend_ids: Collection[str]) -> None:
        """These are all the backends there are: what others held is gone."""
        for backend_id in [name for name in self._holders if name not in backend_ids]:
            holder = self._holders.pop(backend_id)
            self._changes(holder)
            for block, tokens in holder.blocks.items():
                self._dropped(holder, block, tokens)

    def _look_up(self, prefix: Sequence[int]) -> tuple[int, frozenset[str]]:
        matched = leading_blocks(prefix, self._bits.__contains__)
        if not matched:
            return 0, frozenset()
        best = self._bits[prefix[matched - 1]]
        return matched, frozenset(name for name, holder in self._holders.items() if holder.bit & best)

    def _changes(self, holder: _Holder) -> None:
        """What it holds is about to be something else."""
        holder.matches.clear()
        self._longest.clear()

    def _holder(self, backend_id: str) -> _Holder:
        holder = self._holders.get(backend_id)
        if holder is None:
            taken = sum(each.bit for each in self._holders.values())
            lowest_free = ~taken & (taken + 1)
            holder = self._holders[backend_id] = _Holder(lowest_free)
        return holder

    def _trim(self, holder: _Holder) -> None:
        while holder.blocks and (holder.tokens > holder.tokens_max or len(holder.blocks) > BLOCKS_MAX):
            self._changes(holder)
            self._dropped(holder, *holder.blocks.popitem(last=False))
        if not holder.blocks:
            holder.tokens = 0.0  # what rounding may have left

    def _dropped(self, holder: _Holder, block: int, tokens: float) -> None:
        holder.tokens -= tokens
        bits = self._bits[block] & ~holder.bit
        if bits:
            self._bits[block] = bits
        else:
            del self._bits[block]


def leading_blocks(prefix: Sequence[int], holds: Callable[[int], bool]) -> int:
    """How many leading blocks are held, where who holds one holds all before it."""
    low, high = 0, len(prefix)
    while low < high:
        middle = (low + high) // 2
        if holds(prefix[middle]):
            low = middle + 1
        else:
            high = middle
    return low
