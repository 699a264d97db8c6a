"""What one request occupies at its backend, and how far it has come."""

from dataclasses import dataclass


@dataclass(slots=True, eq=False)
class Reservation:
    """One request's place.

    `tokens` are its own (the tail of its prompt and its whole output), rounded up to blocks; `prefix` are the
    leading blocks of its prompt that it may share, `block_tokens` tokens each. Of the output, `output_tokens` are
    expected and `produced_tokens` are there already, over all its sequences.
    """

    tier_id: str
    sequences: int
    tokens: int
    prefix: tuple[int, ...] = ()
    block_tokens: float = 0.0
    output_tokens: float = 0.0
    produced_tokens: int = 0

    @property
    def steps_left(self) -> float:
        """Steps until it is expected to end; negative: it has outgrown the prediction."""
        return (self.output_tokens - self.produced_tokens) / self.sequences
