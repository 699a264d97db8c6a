"""Prefix index: which backend is believed to hold how many leading blocks of a prompt in its prefix cache.

A prompt is a list of chained hashes of its leading blocks. A chained hash identifies everything before it, so one flat
table from hash to holders is a radix tree over all prompts: the path from the root to a node is the prompt's own
list of hashes, and no pointer is followed. The holders of a node are the bits of one integer.

Evictions at a backend are seen late or never. So each backend's part is kept no larger than its KV pool, and the least
recently used blocks are dropped first; of blocks that were used together, the last is dropped first. A block is then
always more recent than the blocks that follow it, and LRU order drops leaves first without knowing which nodes are
leaves. So a backend that holds a block holds all blocks before it, and bisection finds how far a prompt matches.

Blocks that were last used together are kept as one run, found by its first block. A prompt that is sent takes over all
its blocks from the runs that had them. So it costs one step per run, usually two, and one per new block, however many
blocks the backend holds already.

The engine stores outputs and the ends of prompts in the same pool, so the index overestimates the cached blocks.
"""

from collections import OrderedDict, deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from itertools import count, takewhile
from typing import Generic, TypeVar

from policies.types import Request

KV_TOKENS_UNKNOWN = 262_144  # assumed where the size of a backend's KV pool is not known
BLOCKS_MAX = 262_144  # per backend, however small its blocks: some 50 MB
MATCHES_MAX = 1024  # prompts whose match is cached, per backend and for the best of all

A = TypeVar("A")


class _Answers(Generic[A]):
    """A cache of match lengths, by the last block of the prompt. An answer is valid while the last block that matches
    keeps its holders and the block after it has none.
    """

    __slots__ = ("_added", "_answers", "_floor", "_numbers", "_said", "_told")

    def __init__(self, numbers: Iterator[int]) -> None:
        self._numbers = numbers
        self._answers: dict[int, A] = {}
        self._added = 0
        self._told: dict[int, list[int]] = {}  # by block: prompts whose answer a change of the block invalidates
        self._said: deque[tuple[int, int]] = deque(maxlen=MATCHES_MAX)  # number and prompt of invalidated answers
        self._floor = next(numbers)  # invalidations before this number are not known

    def __len__(self) -> int:
        return len(self._answers)

    def get(self, prompt: int) -> A | None:
        return self._answers.get(prompt)

    def add(self, prefix: Sequence[int], matched: int, answer: A) -> None:
        if self._added == MATCHES_MAX:  # bounds `_told`, where entries of invalidated answers may be left
            self.clear()
        self._added += 1
        self._answers[prefix[-1]] = answer
        for block in prefix[max(0, matched - 1) : matched + 1]:
            self._told.setdefault(block, []).append(prefix[-1])

    def changed(self, blocks: Iterable[int]) -> None:
        """Invalidate the answers that depend on these blocks, because their holders have changed."""
        told = self._told
        for prompt in [each for block in blocks if block in told for each in told.pop(block)]:
            if self._answers.pop(prompt, None) is not None:
                if len(self._said) == MATCHES_MAX:
                    self._floor = self._said[0][0]
                self._said.append((next(self._numbers), prompt))

    def clear(self) -> None:
        """Drop all answers, because any block may have changed."""
        self._answers.clear()
        self._told.clear()
        self._said.clear()
        self._added, self._floor = 0, next(self._numbers)

    def since(self, number: int) -> tuple[int, Collection[int] | None]:
        """The current number, and the prompts whose answers were invalidated since `number`; None: any may be."""
        now = self._said[-1][0] if self._said else self._floor
        if number < self._floor:
            return now, None
        return now, [prompt for each, prompt in takewhile(lambda said: said[0] > number, reversed(self._said))]


class _Run:
    """Blocks in a row that were last used together, and the tokens of each."""

    __slots__ = ("blocks", "tokens")

    def __init__(self, blocks: tuple[int, ...], tokens: tuple[float, ...]) -> None:
        self.blocks, self.tokens = blocks, tokens


class _Holder:
    """The blocks of one backend. `matches` caches lookups: a full backend is asked for the same waiting prompts again
    and again.
    """

    __slots__ = ("_by_first", "_by_use", "bit", "matches", "size", "tokens", "tokens_max")

    def __init__(self, bit: int, matches: _Answers[int]) -> None:
        self.bit, self.matches = bit, matches
        self.tokens_max = float(KV_TOKENS_UNKNOWN)
        self.tokens, self.size = 0.0, 0  # of all blocks, and their number
        self._by_first: dict[int, _Run] = {}
        self._by_use: OrderedDict[_Run, None] = OrderedDict()  # least recently used first

    def matched(self, prefix: tuple[int, ...]) -> int:
        """The number of leading blocks that it holds."""
        at, runs = 0, self._by_first
        while at < len(prefix) and (run := runs.get(prefix[at])) is not None:
            at += matching_blocks(prefix, at, run.blocks)
        return at

    def use(self, prefix: tuple[int, ...], block_tokens: float) -> int:
        """Make these blocks its most recently used. Returns how many of them it has held before."""
        at, blocks, tokens = 0, tuple[int, ...](), tuple[float, ...]()
        while at < len(prefix) and (run := self._by_first.pop(prefix[at], None)) is not None:
            matched = matching_blocks(prefix, at, run.blocks)
            at, blocks, tokens = at + matched, blocks + run.blocks[:matched], tokens + run.tokens[:matched]
            run.blocks, run.tokens = run.blocks[matched:], run.tokens[matched:]
            if run.blocks:  # they stay as they were used before
                self._by_first[run.blocks[0]] = run
            else:
                del self._by_use[run]
        added = len(prefix) - at
        run = self._by_first[prefix[0]] = _Run(blocks + prefix[at:], tokens + (block_tokens,) * added)
        self._by_use[run] = None
        self.size, self.tokens = self.size + added, self.tokens + added * block_tokens
        return at

    def surplus(self) -> tuple[int, ...]:
        """Drop the last of the least recently used blocks, where it has too many. Returns them; there may be more."""
        over, over_tokens = self.size - BLOCKS_MAX, self.tokens - self.tokens_max
        if not self.size or (over <= 0 and over_tokens <= 0.0):
            return ()
        run = next(iter(self._by_use))
        kept = len(run.blocks)
        while kept and (over > 0 or over_tokens > 0.0):
            kept, over = kept - 1, over - 1
            over_tokens -= run.tokens[kept]
            self.tokens -= run.tokens[kept]
        dropped = run.blocks[kept:]
        self.size -= len(dropped)
        if kept:
            run.blocks, run.tokens = run.blocks[:kept], run.tokens[:kept]
        else:
            del self._by_use[run]
            if self._by_first.get(dropped[0]) is run:
                del self._by_first[dropped[0]]
            if not self.size:
                self.tokens = 0.0  # drop the rounding error
        return dropped

    def blocks(self) -> set[int]:
        return {block for run in self._by_use for block in run.blocks}


class PrefixIndex:
    """An index of the prompt blocks that each backend is believed to hold in its prefix cache, from the prompts that
    were sent there. Placements and reservations read it. Mutable.
    """

    def __init__(self) -> None:
        self._holders: dict[str, _Holder] = {}
        self._bits: dict[int, int] = {}  # block hash -> bits of the backends that hold it; never zero
        self._numbers = count(1)
        self._longest: _Answers[tuple[int, frozenset[str]]] = _Answers(self._numbers)

    def __len__(self) -> int:
        """The number of distinct blocks that any backend is believed to hold."""
        return len(self._bits)

    def matched_blocks(self, request: Request, backend_id: str) -> int:
        """The number of leading blocks of the prompt that this backend holds."""
        holder = self._holders.get(backend_id)
        if holder is None or not request.prefix:
            return 0
        matched = holder.matches.get(request.prefix[-1])
        if matched is None:
            matched = holder.matched(request.prefix)
            holder.matches.add(request.prefix, matched, matched)
        return matched

    def changes(self, number: int, *, backend_id: str | None = None) -> tuple[int, Collection[int] | None]:
        """A number for the current state, and the prompts whose match has changed since the state of `number`. A prompt
        is named by its last block. The match is the one at this backend (None: at the best backends). Only prompts that
        were looked up are reported. If None is in place of the prompts, any may have changed.
        """
        if backend_id is None:
            return self._longest.since(number)
        holder = self._holders.get(backend_id)
        return (0, None) if holder is None else holder.matches.since(number)

    def uncached_tokens(self, request: Request, backend_id: str) -> int:
        """The tokens of the prompt that this backend would have to compute; at least 1, as the last is never cached."""
        if not request.prefix:
            return max(1, request.prompt_tokens)
        cached_tokens = int(self.matched_blocks(request, backend_id) * request.prefix_block_tokens)
        return max(1, request.prompt_tokens - cached_tokens)

    def longest(self, request: Request) -> tuple[int, frozenset[str]]:
        """The most leading blocks that any backend holds, and the ids of the backends that hold as many; (0, empty) if
        none.
        """
        if not request.prefix:
            return 0, frozenset()
        answer = self._longest.get(request.prefix[-1])
        if answer is None:
            answer = self._look_up(request.prefix)
            self._longest.add(request.prefix, answer[0], answer)
        return answer

    def inserted(self, request: Request, backend_id: str) -> None:
        """Record that the prompt was sent to the backend, which will hold all its blocks as the most recently used."""
        if not request.prefix:
            return
        holder, prefix, bits = self._holder(backend_id), request.prefix, self._bits
        at = holder.use(prefix, request.prefix_block_tokens)
        if at < len(prefix):
            known = leading_blocks(prefix, bits.__contains__)  # to any backend
            bits.update([(block, bits.get(block, 0) | holder.bit) for block in prefix[at:known]])
            bits.update(dict.fromkeys(prefix[known:], holder.bit))
            # A match ends at a block that is held, before one that is not: so none depends on further ones.
            holder.matches.changed(prefix[at : at + 1])
            self._longest.changed(prefix[at : known + 1])
        self._trim(holder)

    def resized(self, backend_id: str, kv_tokens_max: int | None) -> None:
        """Set the size of the backend's KV pool in tokens; None where it is not known."""
        holder = self._holder(backend_id)
        holder.tokens_max = KV_TOKENS_UNKNOWN if kv_tokens_max is None else float(kv_tokens_max)
        self._trim(holder)

    def retain(self, backend_ids: Collection[str]) -> None:
        """Drop all backends but these."""
        for backend_id in [name for name in self._holders if name not in backend_ids]:
            holder = self._holders.pop(backend_id)
            self._dropped(holder, holder.blocks())

    def _look_up(self, prefix: Sequence[int]) -> tuple[int, frozenset[str]]:
        matched = leading_blocks(prefix, self._bits.__contains__)
        if not matched:
            return 0, frozenset()
        best = self._bits[prefix[matched - 1]]
        return matched, frozenset(name for name, holder in self._holders.items() if holder.bit & best)

    def _holder(self, backend_id: str) -> _Holder:
        holder = self._holders.get(backend_id)
        if holder is None:
            taken = sum(each.bit for each in self._holders.values())
            lowest_free = ~taken & (taken + 1)
            holder = self._holders[backend_id] = _Holder(lowest_free, _Answers(self._numbers))
        return holder

    def _trim(self, holder: _Holder) -> None:
        while blocks := holder.surplus():
            self._dropped(holder, blocks)

    def _dropped(self, holder: _Holder, blocks: Collection[int]) -> None:
        bits, others = self._bits, ~holder.bit
        for block in blocks:
            if block not in bits:
                continue  # it is no chained hash, but stands twice
            left = bits[block] & others
            if left:
                bits[block] = left
            else:
                del bits[block]
        holder.matches.changed(blocks)
        self._longest.changed(blocks)


def leading_blocks(prefix: Sequence[int], holds: Callable[[int], bool]) -> int:
    """The number of leading blocks that are held, found by bisection: a holder of a block holds all before it."""
    low, high = 0, len(prefix)
    while low < high:
        middle = (low + high) // 2
        if holds(prefix[middle]):
            low = middle + 1
        else:
            high = middle
    return low


def matching_blocks(prefix: Sequence[int], at: int, blocks: Sequence[int]) -> int:
    """How many of `blocks` are blocks of the prompt. The first one is the prompt's block at position `at`."""
    low, high = 1, min(len(blocks), len(prefix) - at)
    if prefix[at + high - 1] == blocks[high - 1]:
        return high
    while low < high:
        middle = (low + high) // 2
        if prefix[at + middle] == blocks[middle]:
            low = middle + 1
        else:
            high = middle
    return low
