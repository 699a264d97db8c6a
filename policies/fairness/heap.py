"""Tenant heap: waiting tenants by a key that changes while they wait, at O(log n) per change.

Deletion is lazy. Each entry of the heap has a number of its own, the stamp; an entry whose stamp is not its tenant's
current one is void. A key that fell gets a new entry at once. A key that rose is noticed when its entry reaches the
top, and the entry then sinks to its right place. Keys rise with every token, so tokens cost the heap no work.

A search that passes over tenants moves their entries to a sorted list beside the heap, because the next search usually
passes over the same tenants.
"""

from bisect import insort
from collections.abc import Callable, Collection, Iterator
from heapq import heapify, heappop, heappush, heapreplace
from itertools import count
from typing import Any, Generic, Protocol, TypeVar

SPARE_ENTRIES = 64  # void entries tolerated before the heap is rebuilt


class Place:
    """A tenant's place in a TenantHeap. `stamp` is the number of the tenant's current heap entry (0: it has none),
    which tells this entry from outdated ones; `entry_key` is the entry's key.
    """

    __slots__ = ("entry_key", "stamp", "tenant_id")

    def __init__(self, tenant_id: str) -> None:
        self.tenant_id = tenant_id
        self.stamp = 0
        self.entry_key: Any = 0.0


P = TypeVar("P", bound=Place)


class ByKey(Protocol[P]):
    """The interface of a heap of waiting tenants: which one has the smallest key? Ties go by tenant id."""

    def push(self, place: P, waiting: int) -> None: ...

    def first(self) -> P | None: ...

    def first_of(self, eligible: Callable[[P], bool], besides: Collection[str] = ()) -> P | None: ...

    def in_order(self, besides: Collection[str] = ()) -> Iterator[P]: ...


class TenantHeap(Generic[P]):
    """A heap of waiting tenants, smallest key first, ties by tenant id. The keys are numbers or tuples of numbers, such
    as a tenant's rank. Mutable.
    """

    def __init__(self, key: Callable[[P], Any], stamps: Iterator[int] | None = None) -> None:
        """`stamps` numbers the entries. Heaps that share places (each in one heap at a time) need the same one."""
        self._key = key
        self._entries: list[tuple[Any, str, int, P]] = []
        self._passed_over: list[tuple[Any, str, int, P]] = []  # entries beside the heap, in order
        # Stamps are never reused, even if a tenant is forgotten and returns.
        self._stamps = count(1) if stamps is None else stamps

    def push(self, place: P, waiting: int) -> None:
        """Add the place, or add it again because its key fell. `waiting` is the number of places in use."""
        place.stamp, place.entry_key = next(self._stamps), self._key(place)
        heappush(self._entries, (place.entry_key, place.tenant_id, place.stamp, place))
        if len(self._entries) + len(self._passed_over) > 2 * waiting + SPARE_ENTRIES:
            entries = self._entries + self._passed_over
            self._entries = [entry for entry in entries if entry[2] == entry[3].stamp]
            self._passed_over.clear()
            heapify(self._entries)

    def first(self) -> P | None:
        """The place with the smallest key at this moment."""
        return self._first()[0] if self._passed_over else self._top()

    def first_of(self, eligible: Callable[[P], bool], besides: Collection[str] = ()) -> P | None:
        """The eligible place with the smallest key, of a tenant that is not in `besides`. Costs O(log n) for each place
        before it that no earlier search has passed over.
        """
        for place in self.in_order(besides):
            if eligible(place):
                return place
        return None

    def in_order(self, besides: Collection[str] = ()) -> Iterator[P]:
        """The places of tenants that are not in `besides`, the one with the smallest key first. The caller stops
        iterating when any key or place changes.
        """
        passed_over, at, top = self._passed_over, 0, self._top()
        ends = len(passed_over)  # counted, because a search walks over many
        while at < ends:
            key, tenant_id, stamp, place = passed_over[at]
            if tenant_id in besides:
                at += 1
            elif stamp != place.stamp:
                del passed_over[at]
                ends -= 1
            elif key < (key_now := self._key(place)):
                del passed_over[at]
                ends -= 1
                self._put_back(place, key_now)
                top = self._top()
            elif top is not None and self._entries[0] < passed_over[at]:
                if top.tenant_id not in besides:
                    yield top
                insort(passed_over, heappop(self._entries))
                at, ends, top = at + 1, ends + 1, self._top()
            else:
                yield place
                at += 1
        while top is not None:
            if top.tenant_id not in besides:
                yield top
            insort(passed_over, heappop(self._entries))
            top = self._top()

    def pop(self) -> P | None:
        """Remove and return the place with the smallest key at this moment."""
        place, is_top = self._first()
        if place is not None:
            if is_top:
                heappop(self._entries)
            else:
                del self._passed_over[0]
            place.stamp = 0
        return place

    def _first(self) -> tuple[P | None, bool]:
        """The place with the smallest key, and whether it is the top of the heap."""
        passed_over = self._passed_over
        while passed_over:
            key, _, stamp, place = passed_over[0]
            if stamp != place.stamp:
                del passed_over[0]
            elif key < (key_now := self._key(place)):
                del passed_over[0]
                self._put_back(place, key_now)
            else:
                top = self._top()
                is_top = top is not None and self._entries[0] <= passed_over[0]
                return (top, True) if is_top else (place, False)
        return self._top(), True

    def _put_back(self, place: P, key: Any) -> None:
        """Return a passed-over place to the heap, because its key rose to `key`."""
        place.entry_key = key
        heappush(self._entries, (key, place.tenant_id, place.stamp, place))

    def _top(self) -> P | None:
        """The place at the top of the heap, after all keys there are brought up to date."""
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
