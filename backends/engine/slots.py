"""Slots of an engine: the running sequences and the waiting ones. Only batch formation moves sequences between the two.

The waiting order decides both which sequence is admitted next and which one is preempted when the KV pool is full.
"""

from collections import deque

from backends.engine.kv_memory import KvMemory
from backends.engine.sequence import Sequence


class SlotOrder(deque[Sequence]):
    """The waiting order of an engine, by arrival. A preempted sequence is put back ahead of all others."""

    def victim(self, running: list[Sequence]) -> Sequence:
        """The running sequence that is preempted first: the one that was admitted last."""
        return running[-1]


class Slots:
    """The slots of an engine: the running sequences in order of admission, and the waiting sequences. Mutable."""

    def __init__(self, *, memory: KvMemory, order: SlotOrder, requests_running_max: int) -> None:
        self.memory = memory
        self.waiting = order
        self.running: list[Sequence] = []
        self.requests_running_max = requests_running_max
        self.preemptions_total = 0
        self.prefix_queries_total = 0
        self.prefix_hits_total = 0

    @property
    def has_candidate(self) -> bool:
        """Whether a sequence waits and a slot is free, regardless of memory."""
        return len(self.running) < self.requests_running_max and len(self.waiting) > 0

    def admit(self) -> Sequence | None:
        """Admit the head of the queue; None if it does not fit, because no other sequence is tried."""
        head = self.waiting[0] if self.waiting else None
        return head if head is not None and self.admit_this(head) else None

    def admit_this(self, sequence: Sequence) -> bool:
        """Admit this waiting sequence, if there is a slot and room for its prompt."""
        if len(self.running) >= self.requests_running_max:
            return False
        cached = self.memory.admit(sequence)
        if cached is None:
            return False
        self.waiting.remove(sequence)
        sequence.running = True
        sequence.computed = cached
        self.running.append(sequence)
        if not sequence.preemptions:
            sequence.cached = min(cached, sequence.request.prompt_tokens)
            self.prefix_queries_total += sequence.present
            self.prefix_hits_total += cached
        return True

    def preempt(self, victim: Sequence) -> None:
        """Free a running sequence's memory. It keeps its output and recomputes the KV entries later."""
        self.leave(victim)
        victim.computed = victim.scheduled = 0
        victim.preemptions += 1
        self.preemptions_total += 1
        self.waiting.appendleft(victim)

    def leave(self, sequence: Sequence) -> None:
        """Remove a running sequence; its memory is free at once."""
        self.running.remove(sequence)
        sequence.running = False
        self.memory.release(sequence)
