"""Sequence: a request inside the engine, as numbers of prompt and output tokens, and at most one slot.

One rule covers prefill, decode and recomputation after a preemption, as in vLLM: all tokens that a sequence has (prompt
and output) must be in the KV pool; the step that computes the last of them produces the next one. A decode is the case
in which exactly one token is missing.
"""

import sys
from dataclasses import dataclass, field

from policies.types import SloEnvelope


@dataclass(frozen=True, slots=True)
class EngineRequest:
    """A request to a simulated engine. It carries its true output length, which only OracleMemory reads in advance.

    `prefix` has chained hashes of the prompt's leading blocks, each of the engine's `block_tokens` tokens. Only
    OracleMemory reads `tenant_id`, and only FairBatching reads `envelope`. `priority` (lower first) is for a waiting
    order of the tests; no other order reads it. The targets of the envelope count from `arrived_at`; None: from the
    time of `submit`.
    """

    id: str
    prompt_tokens: int
    output_tokens: int
    prefix: tuple[int, ...] = ()
    priority: int = 0
    tenant_id: str = ""
    envelope: SloEnvelope | None = None
    arrived_at: float | None = None


NO_BLOCK_LEFT = sys.maxsize


@dataclass(slots=True, eq=False)
class Sequence:
    """The mutable state of one request inside the engine. Counts are tokens unless they say blocks."""

    request: EngineRequest
    submitted_at: float
    order: int
    """Position in the order of submission, which survives a preemption."""

    present: int = field(init=False)
    """Prompt tokens plus emitted tokens: what must be in the KV pool before the next token comes."""
    computed: int = 0
    scheduled: int = 0
    emitted: int = 0
    cached: int = 0
    """Prompt tokens found in the prefix cache when it was first admitted."""
    preemptions: int = 0
    running: bool = False

    # Used by the block memory.
    capacity: int = 0
    blocks_private: int = 0
    blocks_shared: list[int] = field(default_factory=list)
    blocks_hashed: int = 0
    """Leading prompt blocks that were offered to the prefix cache."""
    hash_due: int = NO_BLOCK_LEFT
    """Tokens at which the next prompt block is full and can be shared."""

    def __post_init__(self) -> None:
        self.present = self.request.prompt_tokens

    @property
    def missing(self) -> int:
        """The tokens to compute before the next token is produced."""
        return self.present - self.computed
