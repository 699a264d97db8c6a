"""Inbox: what the leader was told and has not taken in yet, in the order of arrival (rule 10).

All sources, the leader's own process among them, share one order, so a follower's clients wait no longer than the
leader's. A source that floods gets TAKEN_MAX of its entries taken in per turn, and the others go on past it. Only a
barrier, a measurement of backends, waits for all that came before it: else what it counted would look like external
load.
"""

from collections import deque
from collections.abc import Iterator
from typing import Final, Generic, TypeVar

TAKEN_MAX: Final = 200  # of one source and turn

T = TypeVar("T")


class Inbox(Generic[T]):
    """Entries by source, each source's in order. Mutable."""

    def __init__(self) -> None:
        self._entries: deque[tuple[str, T, bool]] = deque()

    def __len__(self) -> int:
        return len(self._entries)

    def add(self, source: str, entry: T, *, is_barrier: bool = False) -> None:
        self._entries.append((source, entry, is_barrier))

    def drop(self, source: str) -> None:
        """Forget what this source has said and was not taken in."""
        self._entries = deque(entry for entry in self._entries if entry[0] != source)

    def turn(self) -> Iterator[tuple[str, T]]:
        """Yield the entries of one turn with their sources, by arrival. What is left comes first in the next one."""
        if len(self._entries) <= TAKEN_MAX:  # no source can have more
            entries, self._entries = self._entries, deque()
            for source, entry, _is_barrier in entries:
                yield source, entry
            return
        taken: dict[str, int] = {}
        left: deque[tuple[str, T, bool]] = deque()
        while self._entries:
            source, entry, is_barrier = self._entries.popleft()
            count = taken.get(source, 0)
            if count >= TAKEN_MAX or (is_barrier and left):
                left.append((source, entry, is_barrier))
                if is_barrier:
                    break  # nothing overtakes a barrier but what was taken already
                continue
            taken[source] = count + 1
            yield source, entry
        self._entries = left + self._entries
