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

from collections import OrderedDict, deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count, takewhile
from typing import Generic, TypeVar

from policies.types import Request

KV_TOKENS_UNKNOWN = 262_144  # of a backend whose pool is not known
BLOCKS_MAX = 262_144  # of one backend, however small its blocks: some 50 MB
MATCHES_MAX = 1024  # prompts that are remembered to match so far, of one backend and of all

A = TypeVar("A")


class _Answers(Generic[A]):
    """How far prompts match, by their last block. An answer holds while the last block that matches is held by the same
    backends and the one after it by none.
    """

    __slots__ = ("_added", "_answers", "_floor", "_numbers", "_said", "_told")

    def __init__(self, numbers: Iterator[int]) -> None:
        self._numbers = numbers
        self._answers: dict[int, A] = {}
        self._added = 0
        self._told: dict[int, list[int]] = {}  # prompts whose answer ends with a change of the block
        self._said: deque[tuple[int, int]] = deque(maxlen=MATCHES_MAX)  # prompts whose answer has ended, numbered
        self._floor = next(numbers)  # what ended before is not known

    def __len__(self) -> int:
        return len(self._answers)

    def get(self, prompt: int) -> A | None:
        return self._answers.get(prompt)

    def add(self, prefix: Sequence[int], matched: int, answer: A) -> None:
        if self._added == MATCHES_MAX:  # of what has ended something may be left where it would have been told
            self.clear()
        self._added += 1
        self._answers[prefix[-1]] = answer
        for block in prefix[max(0, matched - 1) : matched + 1]:
            self._told.setdefault(block, []).append(prefix[-1])

    def changed(self, block: int) -> None:
        """Another backend holds the block, or one less."""
        for prompt in self._told.pop(block, ()):
            if self._answers.pop(prompt, None) is not None:
                if len(self._said) == MATCHES_MAX:
                    self._floor = self._said[0][0]
                self._said.append((next(self._numbers), prompt))

    def clear(self) -> None:
        """Anything may be held."""
        self._answers.clear()
        self._told.clear()
        self._said.clear()
        self._added, self._floor = 0, next(self._numbers)

    def since(self, number: int) -> tuple[int, Collection[int] | None]:
        """The number of now, and the prompts whose answers have ended since another; None: any."""
        now = self._said[-1][0] if self._said else self._floor
        if number < self._floor:
            return now, None
        return now, [prompt for each, prompt in takewhile(lambda said: said[0] > number, reversed(self._said))]


@dataclass(slots=True)
class _Holder:
    """One backend's blocks, least recently used first, and the tokens that each stands for.

    `matches` are answers: a full backend is asked for the same waiting prompts again and again.
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
        """Distinct blocks that are known."""
        return len(self._bits)

    def matched_blocks(self, request: Request, backend_id: str) -> int:
        """How many leading blocks of the prompt this backend holds."""
        holder = self._holders.get(backend_id)
        if holder is None or not request.prefix:
            return 0
        matched = holder.matches.get(request.prefix[-1])
        if matched is None:
            matched = leading_blocks(request.prefix, holder.blocks.__contains__)
            holder.matches.add(request.prefix, matched, matched)
        return matched

    def changes(self, number: int, *, backend_id: str | None = None) -> tuple[int, Collection[int] | None]:
        """A number for now, and of which prompts, by their last blocks, this backend (None: the best) holds more or
        less since the moment of another number, as far as that was asked for; None: perhaps of any.
        """
        if backend_id is None:
            return self._longest.since(number)
        holder = self._holders.get(backend_id)
        return (0, None) if holder is None else holder.matches.since(number)

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
        answer = self._longest.get(request.prefix[-1])
        if answer is None:
            answer = self._look_up(request.prefix)
            self._longest.add(request.prefix, answer[0], answer)
        return answer

    def inserted(self, request: Request, backend_id: str) -> None:
        """The backend was sent this prompt: it will hold all of its blocks, used just now."""
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
        """The backend reports that it has given up these blocks. Engines give up leaves first, too: where a block goes
        alone, what followed it is believed to be held until it is reported or falls out of use.
        """
        holder = self._holders.get(backend_id)
        if holder is None:
            return
        for block in hashes:
            tokens = holder.blocks.pop(block, None)
            if tokens is not None:
                self._dropped(holder, block, tokens)
        holder.matches.clear()  # somebody may hold a block alone
        self._longest.clear()

    def resized(self, backend_id: str, kv_tokens_max: int | None) -> None:
        """The backend's KV pool holds this many tokens; None where it is not known."""
        holder = self._holder(backend_id)
        holder.tokens_max = KV_TOKENS_UNKNOWN if kv_tokens_max is None else kv_tokens_max
        self._trim(holder)

    def retain(self, backend_ids: Collection[str]) -> None:
        """These are all the backends there are: what others held is gone."""
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
        """It holds the block since now, or not any more."""
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
            holder.tokens = 0.0  # what rounding may have left

    def _dropped(self, holder: _Holder, block: int, tokens: float) -> None:
        self._changed(holder, block)
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
