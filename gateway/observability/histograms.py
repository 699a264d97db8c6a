"""Histograms that are counted on the event loop and become samples when somebody asks.

prometheus_client's own take a lock for every number, because any thread may count: a microsecond each. Here one loop
counts and the same loop reads, so a bucket is a number in a list; the same call costs a sixth of that.
"""

from bisect import bisect_left
from collections.abc import Iterable
from itertools import accumulate
from math import inf
from typing import Final

from prometheus_client.core import HistogramMetricFamily
from prometheus_client.utils import floatToGoString

Labels = tuple[str, ...]


class Histogram:
    """One series: how many observations there were up to each bound, and their sum. Mutable; not for threads."""

    __slots__ = ("_bounds", "counts", "sum")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        """`bounds` are the upper ends of the buckets, which they belong to, rising; one more bucket has no end."""
        self._bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def observe(self, value: float) -> None:
        self.counts[bisect_left(self._bounds, value)] += 1
        self.sum += value


class HistogramFamily:
    """A metric whose series are histograms, by the values of its labels. Mutable."""

    def __init__(self, name: str, help: str, labels: Labels = (), *, bounds: tuple[float, ...]) -> None:  # noqa: A002
        """`help` says what it measures, as in Prometheus' text."""
        self.name: Final = name
        self.help: Final = help
        self.labels: Final = labels
        self._bounds = bounds
        self._les = [floatToGoString(bound) for bound in (*bounds, inf)]  # type: ignore[no-untyped-call]
        self._series: dict[Labels, Histogram] = {}

    def of(self, *labels: str) -> Histogram:
        """The series of these values of the labels: the same one every time."""
        histogram = self._series.get(labels)
        if histogram is None:
            histogram = self._series[labels] = Histogram(self._bounds)
        return histogram

    @property
    def samples_per_series(self) -> int:
        """Lines of text that one series is."""
        return len(self._les) + 2

    def series(self) -> list[tuple[Labels, Histogram]]:
        """All that there are now, by values of the labels."""
        return list(self._series.items())

    def metric(self, series: Iterable[tuple[Labels, Histogram]]) -> HistogramMetricFamily:
        """With these series."""
        metric = HistogramMetricFamily(self.name, self.help, labels=self.labels)
        for labels, histogram in series:
            buckets = list(zip(self._les, accumulate(histogram.counts), strict=True))
            metric.add_metric(labels, buckets, histogram.sum)
        return metric
