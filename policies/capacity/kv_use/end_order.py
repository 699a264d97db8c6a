"""End order: the running requests of one backend, the soonest predicted end first.

A decision reads the order where it seeks room for a request that has none, mostly at one backend many times in a row.
So a new request, or one with more output, is only noted, and gets its place when the order is next read.
"""

from bisect import bisect_left, insort
from collections.abc import Iterable

from policies.reservation import Reservation

SORTED_PART = 4  # to place more than one in so many anew costs as much as to sort all

End = tuple[float, int, Reservation]
"""Steps left, negative where it has outgrown its prediction; its number, which breaks ties; and the reservation."""


class EndOrder:
    """The reservations of one backend, ordered by predicted end (in engine steps from now), the soonest first. It
    serves to find the backend where a waiting request will have room first. Mutable.
    """

    __slots__ = ("_end_of", "_ends", "moved")

    def __init__(self) -> None:
        self.moved: dict[Reservation, None] = {}
        """Those that came, or produced more, since the order was asked for. To be added to."""
        self._ends: list[End] = []
        self._end_of: dict[Reservation, End] = {}

    def remove(self, reservation: Reservation) -> None:
        """Remove the reservation of a request that has ended."""
        if reservation in self.moved:
            del self.moved[reservation]
        if reservation in self._end_of:
            del self._ends[bisect_left(self._ends, self._end_of.pop(reservation))]

    def running(self) -> Iterable[Reservation]:
        """All reservations, in any order."""
        return {**self._end_of, **self.moved}

    def soonest_first(self) -> list[End]:
        """The present ends of all reservations, the soonest first."""
        moved, end_of = self.moved, self._end_of
        if not moved:
            return self._ends
        is_sorted = SORTED_PART * len(moved) > len(self._ends)
        for each in moved:
            before = end_of.get(each)
            end = end_of[each] = (each.output_tokens - each.produced_tokens) / each.sequences, each.number, each
            if not is_sorted:
                if before is not None:
                    del self._ends[bisect_left(self._ends, before)]
                insort(self._ends, end)
        if is_sorted:
            self._ends = sorted(end_of.values())
        moved.clear()
        return self._ends
