"""One step of an engine, as it is put together, and the question of who may put it together."""

from dataclasses import dataclass, field
from typing import Protocol

from backends.engine.sequence import Sequence
from backends.engine.slots import Slots


@dataclass(slots=True)
class Batch:
    """The sequences of one step. How much each computes is its `scheduled`."""

    sequences: list[Sequence] = field(default_factory=list)
    prefill_alone: bool = False
    new_tokens: int = 0
    context_tokens: int = 0
    """KV tokens that are read: for each sequence, what is in the pool once its part is computed."""
    preempted: list[Sequence] = field(default_factory=list)

    def add(self, sequence: Sequence, tokens: int) -> None:
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
    """Which tokens does the next step compute?"""

    def form(self, slots: Slots, now: float) -> Batch:
        """Admit, preempt and schedule; an empty batch means that nothing can run."""
        ...

    def decodes_ahead(self, slots: Slots) -> float:
        """How many steps would do nothing but decode all that run, while nobody comes or goes and memory lasts."""
        ...

    def decoded(self, steps: int) -> None:
        """So many of these were done without asking."""
        ...


def take(slots: Slots, batch: Batch, sequence: Sequence, tokens: int, tokens_max: int) -> None:
    """Let a sequence compute so many tokens in this step of `tokens_max`, if it runs still, preempting from the end of
    the waiting order while there is no room. One that is its own victim is not taken; whoever is left alone fits.
    """
    grow = slots.memory.grow
    while sequence.running:
        scheduled = min(tokens, tokens_max - batch.new_tokens)
        if grow(sequence, scheduled):
            batch.add(sequence, scheduled)
            return
        preempt_last(slots, batch)


def preempt_last(slots: Slots, batch: Batch) -> None:
    """Preempt the last of those who run, in the waiting order, whether or not this step has it."""
    victim = slots.waiting.victim(slots.running)
    if victim.scheduled:
        batch.drop(victim)
    slots.preempt(victim)
    batch.preempted.append(victim)
