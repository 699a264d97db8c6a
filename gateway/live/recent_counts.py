"""RecentCounts: how often each of a few events happened lately, in equal parts of time; old parts are dropped.

`quantiles` reads counts of latencies. These are counted in buckets that grow by a fourth of an octave, so a quantile is
wrong by at most 9 %. Empty buckets, which are most, are not kept: the latencies of one tenant take about a kilobyte.
"""

from bisect import bisect_left
from collections.abc import Hashable, Iterable, Mapping, Sequence
from itertools import accumulate
from math import log2
from typing import Final, Generic, TypeVar

PER_OCTAVE: Final = 4
LEAST_S: Final = 0.0001
BUCKET_MAX: Final = 24 * PER_OCTAVE  # about half an hour

K = TypeVar("K", bound=Hashable)


class RecentCounts(Generic[K]):
    """Counts of recent events by kind. Time is divided into numbered parts of equal length, of which the last few
    count. Mutable; the number of the present part only grows.
    """

    __slots__ = ("_parts", "_parts_max", "counts")

    def __init__(self, parts_max: int) -> None:
        self.counts: dict[K, int] = {}
        self._parts_max = parts_max
        self._parts: list[tuple[int, dict[K, int]]] = []  # by number, the oldest first

    def count(self, what: K, part: int) -> None:
        """Count one more event of this kind in this part."""
        self.expire(part)
        if not self._parts or self._parts[-1][0] != part:
            self._parts.append((part, {}))
        counts = self._parts[-1][1]
        counts[what] = counts.get(what, 0) + 1
        self.counts[what] = self.counts.get(what, 0) + 1

    def expire(self, part: int) -> bool:
        """Drop the parts that are too old; returns whether there were any."""
        has_dropped = False
        while self._parts and self._parts[0][0] <= part - self._parts_max:
            for what, count in self._parts.pop(0)[1].items():
                self.counts[what] -= count
                if not self.counts[what]:
                    del self.counts[what]
            has_dropped = True
        return has_dropped


def summed(many: Iterable[Mapping[K, int]]) -> dict[K, int]:
    """The sum of these counts, by kind of event."""
    total: dict[K, int] = {}
    for counts in many:
        for what, count in counts.items():
            total[what] = total.get(what, 0) + count
    return total


def bucket_of(seconds: float) -> int:
    """The bucket that a latency is counted in."""
    return 0 if seconds <= LEAST_S else min(BUCKET_MAX, 1 + int(PER_OCTAVE * log2(seconds / LEAST_S)))


def quantiles(counts: Mapping[int, int], of: Sequence[float]) -> tuple[float, ...] | None:
    """The quantiles `of` (ascending) of these latencies in seconds, each as the geometric middle of its bucket; None:
    no latency was counted.
    """
    if not counts:
        return None
    buckets = sorted(counts)
    upto = list(accumulate(counts[each] for each in buckets))
    found = (buckets[bisect_left(upto, quantile * upto[-1])] for quantile in of)
    return tuple(LEAST_S * 2 ** ((bucket - 0.5) / PER_OCTAVE) for bucket in found)
