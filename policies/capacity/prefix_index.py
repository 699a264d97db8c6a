"""Prefix index: which backend is believed to hold how many leading blocks of a prompt in its prefix cache.

A prompt is a list of chained hashes of its leading blocks. A chained hash identifies everything before it, so one flat
table from hash to holders is a radix tree over all prompts: the path from the root to a node is the prompt's own
list of hashes, and no pointer is followed. The holders of a node are the bits of one integer.

Evictions at a backend are seen late or never. So each backend's part is kept no larger than its KV pool, and the least
recently used blocks are dropped first. A prompt is touched from its end to its beginning: a block is then always more
recent than the blocks that follow it, and LRU order drops leaves first without knowing which nodes are leaves. So a
backend that holds a block holds all blocks before it, and bisection finds how far a prompt matches.

The engine stores outputs and the ends of prompts in the same pool, so the index overestimates the cached blocks.
"""

from collections import OrderedDict, deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
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

    def changed(self, block: int) -> None:
        """Invalidate the answers that depend on this block, because its holders have changed."""
        for prompt in self._told.pop(block, ()):
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


@dataclass(slots=True)
class _Holder:
    """The blocks of one backend, least recently used first, and the tokens of each. `matches` caches lookups: a full
    backend is asked for the same waiting prompts again and again.
    """

    bit: int
    matches: _Answers[int]
    tokens_max: float = KV_TOKENS_UNKNOWN
    tokens: float = 0.0
    blocks: OrderedDict[int, float] = field(default_factory=OrderedDict)


class PrefixIndex:
    """Prompt blocks that backends are believed to hold. Sending n blocks costs O(n), looking them up O(log n)."""

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
            matched = leading_blocks(request.prefix, holder.blocks.__contains__)
            holder.matches.add(request.prefix, matched, matched)
        return matched

    def changes(self, number: int, *, backend_id: str | None = None) -> tuple[int, Collection[int] | None]:
        """A number for the current state, and the prompts whose match has changed since the state of `number`. A prompt
        is named by its last block. The match is the one at this backend; None: at the best backends. Only prompts that
        were looked up are reported. None in place of the prompts: any may have changed.
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
        holder = self._holder(backend_id)
        blocks, bits, bit = holder.blocks, self._bits, holder.bit
        for block in reversed(request.prefix):
            if block in blocks:
                blocks.move_to_end(block)
            else:
                blocks[block] = request.prefix_block_tokens
                holder.tokens += request.prefix_block_tokens
                bits[block] = bits.get(block, 0) | bit
                self._changed(holder, block)
        self._trim(holder)

    def evicted(self, backend_id: str, hashes: Iterable[int]) -> None:
        """Drop blocks that the backend reports as evicted. If only an inner block is reported, the blocks after it are
        assumed to be held until they are reported or age out.
        """
        holder = self._holders.get(backend_id)
        if holder is None:
            return
        for block in hashes:
            tokens = holder.blocks.pop(block, None)
            if tokens is not None:
                self._dropped(holder, block, tokens)
        holder.matches.clear()  # a block may be held without the blocks before it
        self._longest.clear()

    def resized(self, backend_id: str, kv_tokens_max: int | None) -> None:
        """Set the size of the backend's KV pool in tokens; None where it is not known."""
        holder = self._holder(backend_id)
        holder.tokens_max = KV_TOKENS_UNKNOWN if kv_tokens_max is None else float(kv_tokens_max)
        self._trim(holder)

    def retain(self, backend_ids: Collection[str]) -> None:
        """Drop all backends but these."""
        for backend_id in [name for name in self._holders if name not in backend_ids]:
            holder = self._holders.pop(backend_id)
            for block, tokens in holder.blocks.items():
                self._dropped(holder, block, tokens)

    def _look_up(self, prefix: Sequence[int]) -> tuple[int, frozenset[str]]:
        matched = leading_blocks(prefix, self._bits.__contains__)
        if not matched:
            return 0, frozenset()
        best = self._bits[prefix[matched - 1]]
        return matched, frozenset(name for name, holder in self._holders.items() if holder.bit & best)

    def _changed(self, holder: _Holder, block: int) -> None:
        """Invalidate cached matches after the backend got or dropped the block."""
        holder.matches.changed(block)
        self._longest.changed(block)

    def _holder(self, backend_id: str) -> _Holder:
        holder = self._holders.get(backend_id)
        if holder is None:
            taken = sum(each.bit for each in self._holders.values())
            lowest_free = ~taken & (taken + 1)
            holder = self._holders[backend_id] = _Holder(lowest_free, _Answers(self._numbers))
        return holder

    def _trim(self, holder: _Holder) -> None:
        while holder.blocks and (holder.tokens > holder.tokens_max or len(holder.blocks) > BLOCKS_MAX):
            self._dropped(holder, *holder.blocks.popitem(last=False))
        if not holder.blocks:
            holder.tokens = 0.0  # drop the rounding error

    def _dropped(self, holder: _Holder, block: int, tokens: float) -> None:
        self._changed(holder, block)
        holder.tokens -= tokens
        bits = self._bits[block] & ~holder.bit
        if bits:
            self._bits[block] = bits
        else:
            del self._bits[block]


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
