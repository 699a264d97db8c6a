"""Reservation: the slot and memory that one request occupies at its backend, and its progress there."""

from dataclasses import dataclass
from math import inf

from policies.types import SloEnvelope


@dataclass(slots=True, eq=False)
class Reservation:
    """The reservation of one request at a backend: the slots (each is room for one running sequence) and the KV memory
    that it takes there.

    `tokens` are KV tokens for this request alone: its whole expected output and the part of its prompt after the blocks
    in `prefix`, rounded up to blocks. `prefix` has the hashes of the leading blocks of its prompt that it may share
    with other requests, `block_tokens` tokens each. Over all sequences, `output_tokens` are expected, at most
    `output_tokens_max` are allowed, and `produced_tokens` are produced already. `prompt_tokens` is the estimate at
    dispatch, of which `cached_tokens` need no prefill. The request arrived at `arrived_at`. It is the `number`-th that
    was sent to its backend, and the `sender_number`-th that its `sender` (Request.sender) sent there. `ran_with` is the
    number of our sequences at the backend just after its dispatch, its own included.
    """

    tier_id: str
    sequences: int
    tokens: int
    prefix: tuple[int, ...] = ()
    block_tokens: float = 0.0
    output_tokens: float = 0.0
    produced_tokens: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    arrived_at: float = 0.0
    envelope: SloEnvelope | None = None
    number: int = 0
    ran_with: int = 0
    sender: str = ""
    sender_number: int = 0
    output_tokens_max: float = inf
    has_started: bool = False

    @property
    def steps_left(self) -> float:
        """Steps until the request's expected end; negative: it has outgrown the prediction."""
        return (self.output_tokens - self.produced_tokens) / self.sequences

    @property
    def first_due_at(self) -> float:
        """When the request's first token is due; -inf without a TTFT target, which compares as overdue."""
        envelope = self.envelope
        return -inf if envelope is None or envelope.ttft_s is None else self.arrived_at + envelope.ttft_s

    @property
    def prefill_tokens(self) -> int:
        """Tokens of the prompt that the engine has to compute."""
        return max(1, self.prompt_tokens - self.cached_tokens)

    @property
    def context_tokens(self) -> float:
        """KV tokens that a step reads for the request, averaged over its expected lifetime."""
        return self.prompt_tokens + self.output_tokens / 2
