"""Histograms that are counted on the event loop and become samples on a scrape.

prometheus_client's own histograms take a lock for every observation, because any thread may count, which costs a
microsecond each. Here one loop counts and reads, so a bucket is a number in a list, and an observation costs a sixth of
that.
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
    """A histogram of one series: the number of observations in each bucket, and their sum. Mutable; not thread-safe."""

    __slots__ = ("_bounds", "counts", "sum")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        """`bounds` are the inclusive upper bounds of the buckets, ascending; one more bucket is unbounded."""
        self._bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def observe(self, value: float) -> None:
        self.counts[bisect_left(self._bounds, value)] += 1
        self.sum += value


class HistogramFamily:
    """A metric with one Histogram for each combination of label values. Mutable."""

    def __init__(self, name: str, help: str, labels: Labels = (), *, bounds: tuple[float, ...]) -> None:  # noqa: A002
        """`help` is the help text in Prometheus' format."""
        self.name: Final = name
        self.help: Final = help
        self.labels: Final = labels
        self._bounds = bounds
        self._les = [floatToGoString(bound) for bound in (*bounds, inf)]  # type: ignore[no-untyped-call]
        self._series: dict[Labels, Histogram] = {}

    def of(self, *labels: str) -> Histogram:
        """The series of these label values: the same object every time."""
        if labels not in self._series:
            self._series[labels] = Histogram(self._bounds)
        return self._series[labels]

    @property
    def samples_per_series(self) -> int:
        """The number of text lines of one series."""
        return len(self._les) + 2

    def series(self) -> list[tuple[Labels, Histogram]]:
        """All present series, by label values."""
        return list(self._series.items())

    def metric(self, series: Iterable[tuple[Labels, Histogram]]) -> HistogramMetricFamily:
        metric = HistogramMetricFamily(self.name, self.help, labels=self.labels)
        for labels, histogram in series:
            buckets = list(zip(self._les, accumulate(histogram.counts), strict=True))
            metric.add_metric(labels, buckets, histogram.sum)
        return metric
