"""Which running request has the least time to spare? Kept by a clock of steps.

All that run step together, so a request gets one token with every step, and each token is due one TPOT target after the
one before. Counted from step 0 its tokens are then due at base + step * TPOT, and the base never changes while it
keeps the pace of the others. Of those with one target the smallest base is the most urgent, now and later.
"""

from collections.abc import Callable, Iterable, Iterator
from heapq import heapify, heappop, heappush
from typing import NamedTuple

from policies.reservation import Reservation

Entry = tuple[float, int, Reservation]  # base, number, and whose it is


class Stall(NamedTuple):
    """Steps with prompts in them: which is the last full one, and by when it is done; the same of the last of all."""

    last_full: float
    full_s: float
    last: float
    all_s: float


class DueTokens:
    """The bases of what runs, one heap per TPOT target. What was noted anew or is gone is dropped when it comes up."""

    def __init__(self) -> None:
        self._heaps: dict[float, list[Entry]] = {}
        self._bases: dict[Reservation, float] = {}

    @property
    def is_empty(self) -> bool:
        """Whether nobody's tokens are due at any time."""
        return not self._heaps

    def note(self, reservation: Reservation, tpot_s: float, base: float) -> None:
        """From now on this is when its tokens are due."""
        self._bases[reservation] = base
        heappush(self._heaps.setdefault(tpot_s, []), (base, reservation.number, reservation))

    def forget(self, reservation: Reservation) -> None:
        """It has ended, or nothing makes it punctual any more."""
        self._bases.pop(reservation, None)

    def settle(self, running: Iterable[tuple[Reservation, float, float]]) -> None:
        """These are all that run, with TPOT target and base: what else there was is there no more."""
        self._heaps.clear()
        self._bases.clear()
        for reservation, tpot_s, base in running:
            self._bases[reservation] = base
            self._heaps.setdefault(tpot_s, []).append((base, reservation.number, reservation))
        for heap in self._heaps.values():
            heapify(heap)

    def most_urgent(self, is_lost: Callable[[float, float], bool] | None = None) -> Iterator[tuple[float, float]]:
        """TPOT target and base of the most urgent of each kind, of those that are not lost by them; None: nobody is."""
        for tpot_s, heap in self._heaps.items():
            while heap:
                base, _, reservation = heap[0]
                if self._bases.get(reservation) == base:
                    if is_lost is None or not is_lost(tpot_s, base):
                        yield tpot_s, base
                        break
                    self.forget(reservation)
                heappop(heap)
