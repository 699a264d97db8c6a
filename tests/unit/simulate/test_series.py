"""Figures in bounded memory say what all values together would."""

import random
import statistics

import pytest

from gateway.simulate.report.series import BINS_MAX, LatencyHistogram, Timeline


def test_a_series_stays_small_and_loses_nothing_however_long_the_run():
    timeline = Timeline()
    sums, peaks = timeline.series(), timeline.series(max)
    for second in range(100_000):
        number = timeline.bin_at(second)
        sums.put(number, 1.0)
        peaks.put(number, second)
    assert len(sums.bins) <= BINS_MAX
    assert len(sums.bins) > BINS_MAX / 2
    assert sums.total() == 100_000
    assert sums.bins[0] == timeline.bin_s
    assert peaks.bins[0] == timeline.bin_s - 1
    assert max(peaks.bins.values()) == 99_999


def test_an_amount_is_spread_evenly_over_its_span():
    timeline = Timeline()
    series = timeline.series()
    timeline.spread(series, 0.5, 2.5, 8.0)
    assert series.bins == {0: 2.0, 1: 4.0, 2: 2.0}
    timeline.spread(series, 1.0, 1.0, 3.0)
    assert series.bins[1] == 7.0


def test_spreading_past_the_last_bin_widens_all_of_them():
    timeline = Timeline()
    series = timeline.series()
    series.put(1, 5.0)
    timeline.spread(series, 0.0, 2.0 * BINS_MAX - 0.5, 10.0)
    assert timeline.bin_s == 2.0
    assert series.total() == pytest.approx(15.0)
    assert series.bins[0] == pytest.approx(5.0 + 10.0 * 2.0 / (2.0 * BINS_MAX - 0.5))


def test_quantiles_are_within_one_percent():
    rng = random.Random(5)
    values = [rng.lognormvariate(0.0, 2.0) for _ in range(20_000)]
    histogram = LatencyHistogram()
    for value in values:
        histogram.add(value)
    cuts = statistics.quantiles(values, n=100)
    assert histogram.quantile(0.5) == pytest.approx(cuts[49], rel=0.02)
    assert histogram.quantile(0.99) == pytest.approx(cuts[98], rel=0.02)
    assert len(histogram.counts) < 1000


def test_a_distribution_rises_to_one_and_two_together_are_both():
    one, other = LatencyHistogram(), LatencyHistogram()
    for latency_s in (0.0, 0.1, 0.1, 30.0):
        one.add(latency_s)
    other.add(2.0)
    one.merge(other)
    latencies, parts = zip(*one.cdf(), strict=True)
    assert parts == (0.2, 0.6, 0.8, 1.0)
    assert latencies == pytest.approx((0.001, 0.1, 2.0, 30.0), rel=0.01)


def test_no_latency_has_no_quantile():
    assert LatencyHistogram().quantile(0.5) is None
    assert LatencyHistogram().cdf() == []
