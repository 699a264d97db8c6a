"""Stand-ins for traces: what was published of them comes out, and a seed is a trace."""

from itertools import pairwise
from random import Random
from statistics import fmean

import pytest

from tests.evidence.slo_workloads import TRACES, Lengths

PUBLISHED = {
    "burst": ((688, 1599), (237, 470)),
    "qwen": ((892, 1776), (377, 742)),
    "azure": ((1604, 3561), (114, 392)),
}


@pytest.mark.parametrize("part", ["prompt", "output"])
@pytest.mark.parametrize("name", PUBLISHED)
def test_lengths_have_the_published_mean_and_90th_percentile(name, part):
    rng = Random(2)
    lengths = sorted(getattr(TRACES[name], part).draw(rng) for _ in range(40_000))
    mean, p90 = PUBLISHED[name][part == "output"]
    assert fmean(lengths) == pytest.approx(mean, rel=0.06)
    assert lengths[36_000] == pytest.approx(p90, rel=0.06)


def test_lengths_that_are_all_alike_are():
    lengths, rng = Lengths(8000, 8000, 8000), Random(1)
    assert {lengths.draw(rng) for _ in range(10)} == {8000}


def test_a_trace_has_its_rate_and_comes_out_the_same_for_a_seed():
    def arrivals(seed: int):
        return list(TRACES["burst"].arrivals("t", 20.0, duration_s=200.0, rng=Random(seed)))

    assert len(arrivals(1)) == pytest.approx(4000, rel=0.1)
    assert arrivals(1) == arrivals(1) != arrivals(2)
    assert [each.at_s for each in arrivals(1)] == sorted(each.at_s for each in arrivals(1))


def test_gaps_of_the_bursty_trace_are_twice_as_irregular_as_those_of_the_others():
    def variation(name: str) -> float:
        times = [each.at_s for each in TRACES[name].arrivals("t", 20.0, duration_s=300.0, rng=Random(3))]
        gaps = [after - before for before, after in pairwise(times)]
        mean = fmean(gaps)
        return fmean((gap - mean) ** 2 for gap in gaps) ** 0.5 / mean

    assert variation("burst") == pytest.approx(2.0, rel=0.1)
    assert variation("qwen") == pytest.approx(1.0, rel=0.1)
