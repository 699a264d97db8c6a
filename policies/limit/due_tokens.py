"""Due tokens: the running requests with the least slack, kept by a clock of steps.

All running requests step together: each gets one token per step, and each token is due one TPOT target after the one
before. So a request's tokens are due at base + step * TPOT, counted from step 0, and the base does not change while
the request keeps the pace of the others. Among requests with one target, the smallest base is the most urgent, now and
later.
"""

from collections.abc import Callable, Iterable, Iterator
from heapq import heapify, heappop, heappush
from typing import NamedTuple

from policies.reservation import Reservation

Entry = tuple[float, int, Reservation]  # base, number, and the request's reservation


class Stall(NamedTuple):
    """The delay of decodes (running requests that produce tokens) while an engine computes a number of prompt tokens.
    Two engine steps describe it; steps are counted from 0, the next step. `last_full` is the last step that is full of
    prompt tokens; this step ends in `full_s` seconds. `last` is the last step with any prompt tokens; it ends in
    `all_s` seconds.
    """

    last_full: float
    full_s: float
    last: float
    all_s: float


class DueTokens:
    """The times at which the next tokens of one backend's running requests are due, to find the most urgent request for
    each TPOT target (one heap each). A stale entry is dropped when it reaches the top of its heap. Mutable.
    """

    def __init__(self) -> None:
        self._heaps: dict[float, list[Entry]] = {}
        self._bases: dict[Reservation, float] = {}

    @property
    def is_empty(self) -> bool:
        """Whether no request has a token with a due time."""
        return not self._heaps

    def note(self, reservation: Reservation, tpot_s: float, base: float) -> None:
        """Set the base of a request."""
        self._bases[reservation] = base
        heappush(self._heaps.setdefault(tpot_s, []), (base, reservation.number, reservation))

    def forget(self, reservation: Reservation) -> None:
        """Drop a request, because it has ended or will be late in any case."""
        self._bases.pop(reservation, None)

    def settle(self, running: Iterable[tuple[Reservation, float, float]]) -> None:
        """Replace all entries by these running requests, each given with its TPOT target and base."""
        self._heaps.clear()
        self._bases.clear()
        for reservation, tpot_s, base in running:
            self._bases[reservation] = base
            self._heaps.setdefault(tpot_s, []).append((base, reservation.number, reservation))
        for heap in self._heaps.values():
            heapify(heap)

    def most_urgent(self, is_lost: Callable[[float, float], bool] | None = None) -> Iterator[tuple[float, float]]:
        """The TPOT target and the base of the most urgent request of each target. Requests for which `is_lost` is true
        are dropped and skipped.
        """
        for tpot_s, heap in self._heaps.items():
            while heap:
                base, _, reservation = heap[0]
                if self._bases.get(reservation) == base:
                    if is_lost is None or not is_lost(tpot_s, base):
                        yield tpot_s, base
                        break
                    self.forget(reservation)
                heappop(heap)
