"""Series: the figures of a run of any length in bounded memory, as bins of time that widen and buckets of latencies.

A run's length is not known before it ends. So bins start narrow. Whenever time passes the last bin, each two neighbours
become one bin: a series never has more than `BINS_MAX` points, and never fewer than half of that number once it has
reached it. Latencies fall into buckets 2 % wide, so their quantiles have this accuracy.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from math import ceil, log

BINS_MAX = 256
BIN_S_FIRST = 1.0
LATENCY_S_MIN = 1e-3
BUCKET_GROWTH = 1.02
_LOG_GROWTH = log(BUCKET_GROWTH)

Fold = Callable[[float, float], float]


def added(one: float, other: float) -> float:
    return one + other


class Series:
    """A series of values over the time of a run, one per bin of time; an empty bin has no entry."""

    __slots__ = ("_fold", "bins")

    def __init__(self, fold: Fold) -> None:
        self.bins: dict[int, float] = {}
        self._fold = fold

    def put(self, number: int, value: float) -> None:
        """Fold the value into its bin."""
        here = self.bins.get(number)
        self.bins[number] = value if here is None else self._fold(here, value)

    def halve(self) -> None:
        bins, self.bins = self.bins, {}
        for number, value in sorted(bins.items()):
            self.put(number // 2, value)

    def total(self) -> float:
        return sum(self.bins.values())


class Timeline:
    """The division of a run's time into bins, which is the same for all series."""

    def __init__(self) -> None:
        self.bin_s = BIN_S_FIRST
        self._series: list[Series] = []

    def series(self, fold: Fold = added) -> Series:
        """A new series; `fold` makes one value from two values in the same bin."""
        series = Series(fold)
        self._series.append(series)
        return series

    def bin_at(self, at_s: float) -> int:
        """The bin of this moment, after all bins were widened as far as needed."""
        while at_s >= BINS_MAX * self.bin_s:
            self.bin_s *= 2
            for series in self._series:
                series.halve()
        return int(at_s / self.bin_s)

    def spread(self, series: Series, start_s: float, end_s: float, amount: float) -> None:
        """Spread an amount evenly over the bins from `start_s` to `end_s`."""
        last = self.bin_at(end_s)
        first = self.bin_at(start_s)
        if first == last or end_s <= start_s:
            series.put(last, amount)
            return
        rate = amount / (end_s - start_s)
        for number in range(first, last + 1):
            overlap_s = min(end_s, (number + 1) * self.bin_s) - max(start_s, number * self.bin_s)
            if overlap_s > 0.0:
                series.put(number, rate * overlap_s)


class LatencyHistogram:
    """A histogram of latencies in seconds, as counts per bucket. All latencies below a millisecond share a bucket."""

    __slots__ = ("counts",)

    def __init__(self) -> None:
        self.counts: Counter[int] = Counter()

    def add(self, latency_s: float) -> None:
        bucket = 0 if latency_s <= LATENCY_S_MIN else ceil(log(latency_s / LATENCY_S_MIN) / _LOG_GROWTH)
        self.counts[bucket] += 1

    def quantile(self, ratio: float) -> float | None:
        """The latency that this part of all latencies does not exceed, within 1 %; None without latencies."""
        rank = ceil(ratio * self.counts.total())
        return next((latency_s for latency_s, below in self._cumulated() if below >= rank), None)

    def cdf(self) -> list[tuple[float, float]]:
        """Each latency with the part of all latencies that are not above it, ascending."""
        total = self.counts.total()
        return [(latency_s, below / total) for latency_s, below in self._cumulated()]

    def merge(self, other: "LatencyHistogram") -> None:
        self.counts.update(other.counts)

    def _cumulated(self) -> Iterator[tuple[float, int]]:
        below = 0
        for bucket, count in sorted(self.counts.items()):
            below += count
            yield LATENCY_S_MIN * BUCKET_GROWTH ** (bucket - 0.5 if bucket else 0), below
