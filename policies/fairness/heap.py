"""Tenant heap: waiting tenants by a key that changes while they wait, at O(log n) per change.

Deletion is lazy: an entry carries a stamp that no other entry of the heap has, and is void when its tenant has another
stamp. A key that fell gets a new entry at once; a key that rose is found when its entry surfaces, which then sinks to
its place. Keys rise with every token, so the token path never touches the heap.
"""

from collections.abc import Callable, Iterator
from heapq import heapify, heappop, heappush, heapreplace
from itertools import count
from typing import Any, Generic, Protocol, TypeVar

SPARE_ENTRIES = 64  # void entries tolerated before the heap is rebuilt


class Place:
    """A tenant's place in a heap: `stamp` identifies its current entry (0: none), `entry_key` is that entry's key."""

    __slots__ = ("entry_key", "stamp", "tenant_id")

    def __init__(self, tenant_id: str) -> None:
        self.tenant_id = tenant_id
        self.stamp = 0
        self.entry_key: Any = 0.0


P = TypeVar("P", bound=Place)


class ByKey(Protocol[P]):
    """Waiting tenants, smallest key first, ties by tenant id."""

    def push(self, place: P, waiting: int) -> None: ...

    def first(self) -> P | None: ...

    def first_of(self, eligible: Callable[[P], bool]) -> P | None: ...


class TenantHeap(Generic[P]):
    """Places of waiting tenants, smallest key first, ties by tenant id. Keys are numbers, or tuples of numbers."""

    def __init__(self, key: Callable[[P], Any], stamps: Iterator[int] | None = None) -> None:
        """Heaps that share places, each in one heap at a time, need a common `stamps`."""
        self._key = key
        self._entries: list[tuple[Any, str, int, P]] = []
        # Stamps are never reused, even if a tenant is forgotten and returns.
        self._stamps = count(1) if stamps is None else stamps

    def push(self, place: P, waiting: int) -> None:
        """Add the place, or add it again because its key fell; `waiting` is the number of places in use."""
        place.stamp, place.entry_key = next(self._stamps), self._key(place)
        heappush(self._entries, (place.entry_key, place.tenant_id, place.stamp, place))
        if len(self._entries) > 2 * waiting + SPARE_ENTRIES:
            self._entries = [entry for entry in self._entries if entry[2] == entry[3].stamp]
            heapify(self._entries)

    def first(self) -> P | None:
        """The place with the smallest key as of now."""
        entries = self._entries
        while entries:
            key, tenant_id, stamp, place = entries[0]
            if stamp != place.stamp:
                heappop(entries)
            elif key < (key_now := self._key(place)):
                place.entry_key = key_now
                heapreplace(entries, (key_now, tenant_id, stamp, place))
            else:
                return place
        return None

    def first_of(self, eligible: Callable[[P], bool]) -> P | None:
        """The eligible place with the smallest key; costs O(log n) per ineligible one before it."""
        place = self.first()
        if place is None or eligible(place):
            return place
        passed_over: list[tuple[Any, str, int, P]] = []
        while place is not None and not eligible(place):
            passed_over.append(heappop(self._entries))
            place = self.first()
        for entry in passed_over:
            heappush(self._entries, entry)
        return place

    def pop(self) -> P | None:
        """Remove and return the place with the smallest key as of now."""
        place = self.first()
        if place is not None:
            heappop(self._entries)
            place.stamp = 0
        return place
