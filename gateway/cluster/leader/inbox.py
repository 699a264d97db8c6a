"""Inbox: the facts that the leader has received and not processed yet, in the order of arrival (rule 10).

All sources, the leader's own process among them, share one order, so a follower's clients wait no longer than the
leader's. If more facts arrive than one turn processes, each source has an equal part of the turn, so a flood of one
source delays no other source. Only a barrier, a measurement of backends, waits for all facts that came before it:
otherwise requests that the measurement counted would look like external load.
"""

from collections import deque
from collections.abc import Iterator
from heapq import heapify, heappop, heappush
from typing import Final, Generic, TypeVar

TAKEN_MAX: Final = 256
"""Of one turn, over all sources: a fact costs 10 to 30 us, so a turn takes less than 10 ms."""

T = TypeVar("T")


class Inbox(Generic[T]):
    """The queue of facts (what happened to a request, a backend or a tenant) that the leader has received and not yet
    processed. Each source, such as a member, has its own FIFO, and the sources take fair turns. Mutable.
    """

    def __init__(self) -> None:
        self._entries: dict[str, deque[tuple[int, T, bool]]] = {}  # those of a source, each with its number
        self._number = 0
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def add(self, source: str, entry: T, *, is_barrier: bool = False) -> None:
        self._number += 1
        self._size += 1
        self._entries.setdefault(source, deque()).append((self._number, entry, is_barrier))

    def drop(self, source: str) -> None:
        """Drop the unprocessed facts of this source."""
        self._size -= len(self._entries.pop(source, ()))

    def turn(self, most: int = TAKEN_MAX) -> Iterator[tuple[str, T]]:
        """Yield at most `most` entries with their sources, by arrival. The others come first in the next turn."""
        if not self._entries:
            return
        part = max(1, most // len(self._entries)) if self._size > most else most
        taken = dict.fromkeys(self._entries, 0)
        heads = [(entries[0][0], source) for source, entries in self._entries.items()]
        heapify(heads)
        oldest_left = None
        while heads:
            number, source = heappop(heads)
            entries = self._entries.get(source)
            if not entries or entries[0][0] != number:
                continue  # dropped meanwhile
            is_barrier = entries[0][2]
            if taken[source] >= part or (is_barrier and oldest_left is not None):
                oldest_left = number
                if is_barrier:
                    return  # nothing overtakes a barrier but what was taken already
                continue
            _, entry, _ = entries.popleft()
            self._size -= 1
            if entries:
                heappush(heads, (entries[0][0], source))
            else:
                del self._entries[source]
            taken[source] += 1
            yield source, entry
