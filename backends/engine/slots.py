"""Who runs and who waits. Batch formation moves sequences between the two; nothing else does.

The waiting order is a table of two, named as vLLM names them. Order decides both ends: who is
admitted next, and who is preempted when the KV pool is full.
"""

import heapq
from collections import deque
from collections.abc import Iterator
from typing import Protocol

from backends.engine.kv_memory import KvMemory
from backends.engine.sequence import Sequence


class Order(Protocol):
    """Who is next, and who goes first when there is no room?"""

    def push(self, sequence: Sequence) -> None: ...

    def push_front(self, sequence: Sequence) -> None:
        """Put back what was preempted: ahead of everything it was ahead of."""
        ...

    def peek(self) -> Sequence | None: ...

    def pop(self) -> Sequence: ...

    def remove(self, sequence: Sequence) -> None: ...

    def victim(self, running: list[Sequence]) -> Sequence: ...

    def __iter__(self) -> Iterator[Sequence]:
        """The first one first, the others in no order that counts."""
        ...

    def __len__(self) -> int: ...


class FirstComeFirstServed:
    """Arrival order; the victim is the last admitted."""

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
    """Lower priority values first, then arrival; the victim is the last in that order."""

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


ORDERS: dict[str, type[Order]] = {"fcfs": FirstComeFirstServed, "priority": ByPriority}


class Slots:
    """The running batch, in order of admission, and the queue in front of it."""

    def __init__(self, *, memory: KvMemory, order: Order, requests_running_max: int) -> None:
        self.memory = memory
        self.waiting = order
        self.running: list[Sequence] = []
        self.requests_running_max = requests_running_max
        self.preemptions_total = 0
        self.prefix_queries_total = 0
        self.prefix_hits_total = 0

    @property
    def has_candidate(self) -> bool:
        """Whether somebody waits and a seat is free, whatever memory says."""
        return len(self.running) < self.requests_running_max and self.waiting.peek() is not None

    def admit(self) -> Sequence | None:
        """Seat the head of the queue, or None when it does not fit: nobody else is tried."""
        head = self.waiting.peek()
        return head if head is not None and self.admit_this(head) else None

    def admit_this(self, sequence: Sequence) -> bool:
        """Seat this one of the queue, if there is a seat and room for its prompt."""
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
        """Free a running sequence's room. It keeps what it produced and recomputes the KV of it later."""
        self.leave(victim)
        victim.computed = victim.scheduled = 0
        victim.preemptions += 1
        self.preemptions_total += 1
        self.waiting.push_front(victim)

    def leave(self, sequence: Sequence) -> None:
        """Take a running sequence out; its room is free at once."""
        self.running.remove(sequence)
        sequence.running = False
        self.memory.release(sequence)
