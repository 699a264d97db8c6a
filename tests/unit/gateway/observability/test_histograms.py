"""Our histograms say what prometheus_client's own would say of the same observations."""

from random import Random

import pytest
from prometheus_client import CollectorRegistry, disable_created_metrics
from prometheus_client import Histogram as Theirs
from prometheus_client.exposition import generate_latest

from gateway.observability.metrics.histograms import HistogramFamily
from gateway.observability.metrics.instruments import Histograms

BOUNDS = (0.001, 0.25, 1.0, 2.5, 100.0)


class Ours:
    """What is written of one family."""

    def __init__(self, family):
        self.family = family

    def collect(self):
        yield self.family.metric(self.family.series())


def test_the_text_is_theirs_for_any_observations():
    disable_created_metrics()
    rng, registry = Random(7), CollectorRegistry()
    ours = HistogramFamily("waits_seconds", "How long.", ("tier", "outcome"), bounds=BOUNDS)
    theirs = Theirs("waits_seconds", "How long.", ("tier", "outcome"), buckets=BOUNDS, registry=registry)
    for _ in range(500):
        labels = rng.choice("xy"), rng.choice(["a", 'with "quotes"\n'])
        seconds = rng.choice([rng.expovariate(1.0), rng.choice(BOUNDS), 0.0, 1e6])
        ours.of(*labels).observe(seconds)
        theirs.labels(*labels).observe(seconds)
    assert generate_latest(Ours(ours)) == generate_latest(registry)


@pytest.mark.parametrize(("seconds", "bucket"), [(0.0, 0), (0.001, 0), (0.0011, 1), (100.0, 4), (100.1, 5)])
def test_a_bound_belongs_to_the_bucket_that_it_ends(seconds, bucket):
    series = HistogramFamily("h", "", bounds=BOUNDS).of()
    series.observe(seconds)
    assert series.counts.index(1) == bucket


def test_the_same_labels_are_the_same_series():
    family = HistogramFamily("h", "", ("tier",), bounds=BOUNDS)
    assert family.of("x") is family.of("x") is not family.of("y")


def test_the_bounds_of_every_family_ascend():
    for family in vars(Histograms()).values():
        assert list(family._bounds) == sorted(set(family._bounds)), family.name
