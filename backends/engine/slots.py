"""Slots of an engine: the running sequences and the waiting ones. Only batch formation moves sequences between the two.

The waiting order is one of ORDERS, named as in vLLM. It decides both which sequence is admitted next and which one is
preempted when the KV pool is full.
"""

import heapq
from collections import deque
from collections.abc import Iterator
from typing import Protocol

from backends.engine.kv_memory import KvMemory
from backends.engine.sequence import Sequence


class SlotOrder(Protocol):
    """The waiting order of an engine: which sequence is admitted next, and which is preempted first?"""

    def push(self, sequence: Sequence) -> None: ...

    def push_front(self, sequence: Sequence) -> None:
        """Put back a preempted sequence, ahead of all sequences that it was ahead of."""
        ...

    def peek(self) -> Sequence | None: ...

    def pop(self) -> Sequence: ...

    def remove(self, sequence: Sequence) -> None: ...

    def victim(self, running: list[Sequence]) -> Sequence: ...

    def __iter__(self) -> Iterator[Sequence]:
        """Iterate over the sequences: the first one first, the others in no defined order."""
        ...

    def __len__(self) -> int: ...


class FirstComeFirstServed:
    """The waiting order by arrival; the sequence that was admitted last is preempted first."""

    def __init__(self) -> None:
        self._queue: deque[Sequence] = deque()

    def push(self, sequence: Sequence) -> None:
        self._queue.append(sequence)

    def push_front(self, sequence: Sequence) -> None:
        self._queue.appendleft(sequence)

    def peek(self) -> Sequence | None:
        return self._queue[0] if self._queue else None

    def pop(self) -> Sequence:
        return self._queue.popleft()

    def remove(self, sequence: Sequence) -> None:
        self._queue.remove(sequence)

    def victim(self, running: list[Sequence]) -> Sequence:
        return running[-1]

    def __iter__(self) -> Iterator[Sequence]:
        return iter(self._queue)

    def __len__(self) -> int:
        return len(self._queue)


class ByPriority:
    """The waiting order by priority value, lowest first, then by arrival; the last one in this order is preempted
    first.
    """

    def __init__(self) -> None:
        self._heap: list[tuple[tuple[int, int], Sequence]] = []

    def push(self, sequence: Sequence) -> None:
        heapq.heappush(self._heap, (_rank(sequence), sequence))

    push_front = push

    def peek(self) -> Sequence | None:
        return self._heap[0][1] if self._heap else None

    def pop(self) -> Sequence:
        return heapq.heappop(self._heap)[1]

    def remove(self, sequence: Sequence) -> None:
        self._heap.remove((_rank(sequence), sequence))
        heapq.heapify(self._heap)

    def victim(self, running: list[Sequence]) -> Sequence:
        return max(running, key=_rank)

    def __iter__(self) -> Iterator[Sequence]:
        return (sequence for _, sequence in self._heap)

    def __len__(self) -> int:
        return len(self._heap)


def _rank(sequence: Sequence) -> tuple[int, int]:
    return sequence.request.priority, sequence.order


ORDERS: dict[str, type[SlotOrder]] = {"fcfs": FirstComeFirstServed, "priority": ByPriority}


class Slots:
    """The slots of an engine: the running sequences in order of admission, and the queue in front of them."""

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
        return len(self.running) < self.requests_running_max and self.waiting.peek() is not None

    def admit(self) -> Sequence | None:
        """Admit the head of the queue; None if it does not fit, because no other sequence is tried."""
        head = self.waiting.peek()
        return head if head is not None and self.admit_this(head) else None

    def admit_this(self, sequence: Sequence) -> bool:
        """Admit this sequence of the queue, if there is a slot and room for its prompt."""
        if len(self.running) >= self.requests_running_max:
            return False
        cached = self.memory.admit(sequence)
        if cached is None:
            return False
        if sequence is self.waiting.peek():
            self.waiting.pop()
        else:
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
        self.waiting.push_front(victim)

    def leave(self, sequence: Sequence) -> None:
        """Remove a running sequence; its memory is free at once."""
        self.running.remove(sequence)
        sequence.running = False
        self.memory.release(sequence)
