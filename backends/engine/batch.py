"""Batch: one engine step while it is formed, and the interface of the policies that form it."""

from dataclasses import dataclass, field
from typing import Protocol

from backends.engine.sequence import Sequence
from backends.engine.slots import Slots


@dataclass(slots=True)
class Batch:
    """The sequences of one engine step, with the tokens that the step computes of each (`scheduled`). Mutable."""

    sequences: list[Sequence] = field(default_factory=list)
    prefill_alone: bool = False
    new_tokens: int = 0
    context_tokens: int = 0
    """The KV tokens that are read: for each sequence, its tokens in the pool once its part is computed."""
    preempted: list[Sequence] = field(default_factory=list)

    def add(self, sequence: Sequence, tokens: int) -> None:
        """Schedule the sequence to compute this many tokens."""
        sequence.scheduled = tokens
        self.sequences.append(sequence)
        self.new_tokens += tokens
        self.context_tokens += sequence.computed + tokens

    def drop(self, sequence: Sequence) -> None:
        """Undo `add`, before the step has begun."""
        self.sequences.remove(sequence)
        self.new_tokens -= sequence.scheduled
        self.context_tokens -= sequence.computed + sequence.scheduled


class Batching(Protocol):
    """The interface of batching policies: which tokens does the next engine step compute?"""

    def form(self, slots: Slots, now: float) -> Batch:
        """Form the next step: admit, preempt and schedule. An empty batch means that no sequence can run."""
        ...

    def decodes_ahead(self, slots: Slots) -> float:
        """Return the number of steps that would only decode all running sequences, if none enters or leaves and memory
        suffices.
        """
        ...

    def decoded(self, steps: int) -> None:
        """Record that `steps` steps, as counted by `decodes_ahead`, ran without calls of `form`."""
        ...


def take(slots: Slots, batch: Batch, sequence: Sequence, tokens: int, tokens_max: int) -> None:
    """Let a running sequence compute these tokens in this step of `tokens_max`. While there is no room, sequences are
    preempted from the end of the waiting order. A sequence that would have to be preempted itself gets no tokens; a
    sequence that is alone always fits.
    """
    grow = slots.memory.grow
    while sequence.running:
        scheduled = min(tokens, tokens_max - batch.new_tokens)
        if grow(sequence, scheduled):
            batch.add(sequence, scheduled)
            return
        preempt_last(slots, batch)


def preempt_last(slots: Slots, batch: Batch) -> None:
    """Preempt the running sequence that is last in the waiting order, whether or not it is in this step."""
    victim = slots.waiting.victim(slots.running)
    if victim.scheduled:
        batch.drop(victim)
    slots.preempt(victim)
    batch.preempted.append(victim)
