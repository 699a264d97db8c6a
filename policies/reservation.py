"""What one request occupies at its backend, and how far it has come."""

from dataclasses import dataclass
from math import inf

from policies.types import SloEnvelope


@dataclass(slots=True, eq=False)
class Reservation:
    """One request's place.

    `tokens` are its own (the tail of its prompt and its whole output), rounded up to blocks; `prefix` are the
    leading blocks of its prompt that it may share, `block_tokens` tokens each. Of the output, `output_tokens` are
    expected and `produced_tokens` are there already, over all its sequences. Of `prompt_tokens` as estimated when it
    was sent, `cached_tokens` need not be computed. It arrived at `arrived_at` and was promised the envelope; it is the
    `number`-th that its backend was sent, which then had `ran_with` sequences of ours, its own included.
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

    @property
    def steps_left(self) -> float:
        """Steps until it is expected to end; negative: it has outgrown the prediction."""
        return (self.output_tokens - self.produced_tokens) / self.sequences

    @property
    def first_due_at(self) -> float:
        """When its first token is due; long ago where nobody said when: no time would be soon enough to tell."""
        envelope = self.envelope
        return -inf if envelope is None or envelope.ttft_s is None else self.arrived_at + envelope.ttft_s

    @property
    def prefill_tokens(self) -> int:
        """Tokens of the prompt that the engine has to compute."""
        return max(1, self.prompt_tokens - self.cached_tokens)

    @property
    def context_tokens(self) -> float:
        """KV tokens that a step reads for it, in the mean over its expected life."""
        return self.prompt_tokens + self.output_tokens / 2
