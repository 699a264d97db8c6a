"""KV memory of an engine: two rules by which sequences fit in the pool.

The research code of VTC knows every output length and admits a request only if the batch can run to its end without
overflow; it never preempts. vLLM knows no lengths: it admits a request if its prompt fits, takes a new block whenever
the last one is full, and preempts if no block is free.
"""

from collections.abc import Iterable
from typing import Protocol

from backends.engine.prefix_cache import PrefixCache
from backends.engine.sequence import NO_BLOCK_LEFT, EngineRequest, Sequence


class KvMemory(Protocol):
    """The interface of an engine's KV memory: does one more sequence fit, or one more token of a running sequence?"""

    def fits_alone(self, request: EngineRequest) -> bool:
        """Whether an otherwise empty engine can finish the request."""
        ...

    def admit(self, sequence: Sequence) -> int | None:
        """Admit the sequence and return how many of its tokens the prefix cache holds; None if it does not fit."""
        ...

    def reserve(self, sequence: Sequence, tokens: int) -> bool:
        """Reserve room for `tokens` more tokens of an admitted sequence, to be computed later. Without room, returns
        False and changes nothing.
        """
        ...

    def grow(self, sequence: Sequence, tokens: int) -> bool:
        """Make room for `tokens` more tokens of an admitted sequence; without room, return False and do nothing."""
        ...

    def release(self, sequence: Sequence) -> None:
        """Free all memory of a sequence at once, because it finished, was aborted or was preempted."""
        ...

    def decodes_ahead(self, running: list[Sequence]) -> int:
        """Return the number of tokens by which each of these sequences can surely grow in turn, if none enters."""
        ...

    @property
    def used_ratio(self) -> float:
        """The part of the pool that no other sequence can get now, from 0 to 1."""
        ...


class OracleMemory:
    """A KV memory that knows all output lengths in advance, and reserves room for each whole answer. This is the rule
    of the code of VTC and S-LoRA.

    If all running sequences advance together, the pool is fullest when one of them ends. Take the sequences in order of
    remaining output, longest first. When the k-th is about to end, only the first k still run, and each of them has
    grown by the remaining output of the k-th. A sequence is admitted only if the tokens held at each of these moments
    stay below the pool's size. Each tenant in the batch takes another `tenant_tokens` of the pool, because the
    published code keeps 4 x rank 8 tokens for adapters, even without adapters. Sequences do not advance together beside
    a prompt that is computed in chunks: they may then have to be preempted.
    """

    def __init__(self, *, kv_tokens_max: int, tenant_tokens: int = 32) -> None:
        self.kv_tokens_max = kv_tokens_max
        self.tenant_tokens = tenant_tokens
        self._admitted: dict[str, Sequence] = {}
        self._used_tokens = 0

    def fits_alone(self, request: EngineRequest) -> bool:
        return request.prompt_tokens + request.output_tokens < self.kv_tokens_max - self.tenant_tokens

    def admit(self, sequence: Sequence) -> int | None:
        batch = [*self._admitted.values(), sequence]
        tenants = len({member.request.tenant_id for member in batch})
        if peak_tokens(batch) >= self.kv_tokens_max - self.tenant_tokens * tenants:
            return None
        self._admitted[sequence.request.id] = sequence
        return 0

    def reserve(self, sequence: Sequence, tokens: int) -> bool:
        assert sequence.request.id in self._admitted, "admission reserves to the end"
        return self._used_tokens + tokens <= self.kv_tokens_max

    def grow(self, sequence: Sequence, tokens: int) -> bool:
        if self._used_tokens + tokens > self.kv_tokens_max:
            return False
        self._used_tokens += tokens
        return True

    def release(self, sequence: Sequence) -> None:
        del self._admitted[sequence.request.id]
        self._used_tokens -= sequence.computed + sequence.scheduled
        assert self._used_tokens >= 0
        assert self._admitted or self._used_tokens == 0, "an empty engine holds nothing"

    def decodes_ahead(self, running: list[Sequence]) -> int:
        return (self.kv_tokens_max - self._used_tokens) // len(running)

    @property
    def used_ratio(self) -> float:
        return self._used_tokens / self.kv_tokens_max


def peak_tokens(batch: Iterable[Sequence]) -> int:
    """Return the most tokens that this batch will hold at once if no sequence joins it. As in the published code, a
    sequence that has not been prefilled holds one token more than its prompt and has all but one of its output to come.
    """
    reservations = sorted((_reservation(sequence) for sequence in batch), reverse=True)
    peak = held = 0
    for position, (left, tokens) in enumerate(reservations, start=1):
        held += tokens
        peak = max(peak, position * left + held)
    return peak


def _reservation(sequence: Sequence) -> tuple[int, int]:
    request, emitted = sequence.request, sequence.emitted
    if not emitted:
        return request.output_tokens - 1, request.prompt_tokens + 1
    return request.output_tokens - emitted - 1, request.prompt_tokens + emitted


class BlockMemory:
    """A KV memory that gives out blocks on demand, as vLLM does. A block is free, private to one sequence, or in the
    prefix cache (in use or not): private + cached + free == total, always. Blocks of output are not cached, because the
    simulation does not know their text.
    """

    def __init__(self, *, blocks_max: int, block_tokens: int) -> None:
        self.blocks_max = blocks_max
        self.block_tokens = block_tokens
        self.cache = PrefixCache()
        self._blocks_private = 0
        self._blocks_free = blocks_max

    def fits_alone(self, request: EngineRequest) -> bool:
        # The last token is emitted and never enters the pool.
        return self._blocks(request.prompt_tokens + request.output_tokens - 1) <= self.blocks_max

    def admit(self, sequence: Sequence) -> int | None:
        # At least one token is always computed: its step produces the next one.
        prefix = sequence.request.prefix[: (sequence.present - 1) // self.block_tokens]
        hits = prefix[: self.cache.match(prefix)]
        available = self._blocks_free + self.cache.unused - self.cache.unused_among(hits)
        if self._blocks(sequence.present) - len(hits) > available:
            return None
        self.cache.acquire(hits)
        sequence.blocks_shared = list(hits)
        sequence.capacity = len(hits) * self.block_tokens
        self._offered(sequence, len(hits))
        return sequence.capacity

    def grow(self, sequence: Sequence, tokens: int) -> bool:
        end = sequence.computed + tokens
        if end > sequence.capacity and not self.reserve(sequence, tokens):
            return False
        if end >= sequence.hash_due:
            self._share_full_blocks(sequence, end)
        return True

    def reserve(self, sequence: Sequence, tokens: int) -> bool:
        blocks = self._blocks(sequence.computed + tokens - sequence.capacity)
        if blocks > self._blocks_free + self.cache.unused:
            return False
        for _ in range(blocks - self._blocks_free):
            self.cache.evict()
            self._blocks_free += 1
        self._blocks_free -= blocks
        self._blocks_private += blocks
        sequence.blocks_private += blocks
        sequence.capacity += blocks * self.block_tokens
        self._assert_conserved()
        return True

    def release(self, sequence: Sequence) -> None:
        self.cache.release(sequence.blocks_shared)
        self._blocks_private -= sequence.blocks_private
        self._blocks_free += sequence.blocks_private
        sequence.blocks_shared = []
        sequence.blocks_private = sequence.capacity = sequence.blocks_hashed = 0
        sequence.hash_due = NO_BLOCK_LEFT
        self._assert_conserved()

    def decodes_ahead(self, running: list[Sequence]) -> int:
        blocks_each = (self._blocks_free + self.cache.unused) // len(running)
        room = blocks_each * self.block_tokens + min([sequence.capacity - sequence.computed for sequence in running])
        # Blocks are shared in the order in which they are filled.
        return min(room, min([sequence.hash_due - sequence.computed for sequence in running]) - 1)

    @property
    def used_ratio(self) -> float:
        return 1 - (self._blocks_free + self.cache.unused) / self.blocks_max

    def _blocks(self, tokens: int) -> int:
        return max(0, -(-tokens // self.block_tokens))

    def _share_full_blocks(self, sequence: Sequence, end: int) -> None:
        prefix = sequence.request.prefix
        full = min(end // self.block_tokens, len(prefix))
        for block in prefix[sequence.blocks_hashed : full]:
            # A twin computed in the same step stays private: the pool holds both, as in vLLM.
            if self.cache.insert(block):
                sequence.blocks_shared.append(block)
                sequence.blocks_private -= 1
                self._blocks_private -= 1
        self._offered(sequence, full)
        self._assert_conserved()

    def _offered(self, sequence: Sequence, blocks: int) -> None:
        sequence.blocks_hashed = blocks
        more = blocks < len(sequence.request.prefix)
        sequence.hash_due = (blocks + 1) * self.block_tokens if more else NO_BLOCK_LEFT

    def _assert_conserved(self) -> None:
        assert self._blocks_free >= 0
        assert self._blocks_private + len(self.cache) + self._blocks_free == self.blocks_max
