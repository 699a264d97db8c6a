"""Which calls are traced, by what their callers say and by chance."""

from random import Random

import pytest

from gateway.config.telemetry import SAMPLERS
from gateway.observability.tracing.sampling import Sampling, read_traceparent, write_traceparent

TRACE, SPAN = 0x0AF7651916CD43DD8448EB211C80319C, 0xB7AD6B7169203331
SAMPLED = {"traceparent": write_traceparent(TRACE, SPAN, is_sampled=True)}
NOT_SAMPLED = {"traceparent": write_traceparent(TRACE, SPAN, is_sampled=False)}


def sampling(sampler="parentbased_traceidratio", ratio=0.01):
    return Sampling(sampler, ratio, Random(4))


def test_what_is_written_is_read_again():
    assert read_traceparent(SAMPLED["traceparent"]) == (TRACE, SPAN, True)
    assert read_traceparent(NOT_SAMPLED["traceparent"]) == (TRACE, SPAN, False)


@pytest.mark.parametrize(
    "value",
    [
        "",
        "00",
        f"00-{0:032x}-{SPAN:016x}-01",
        f"00-{TRACE:032x}-{0:016x}-01",
        f"ff-{TRACE:032x}-{SPAN:016x}-01",
        f"00-{TRACE:032X}-{SPAN:016x}-01",
        f"00-{TRACE:032x}-{SPAN:016x}-01-more",
        f"00-{TRACE:032x}-{SPAN:016x}-1",
        f" 00-{TRACE:032x}-{SPAN:016x}-01",
    ],
)
def test_a_malformed_traceparent_is_none(value):
    assert read_traceparent(value) is None


def test_a_later_version_may_have_more_fields():
    assert read_traceparent(f"01-{TRACE:032x}-{SPAN:016x}-03-more") == (TRACE, SPAN, True)


@pytest.mark.parametrize("sampler", [name for name, each in SAMPLERS.items() if each.follows_parent])
def test_parent_based_samplers_do_as_the_caller_does_whatever_the_ratio(sampler):
    assert sampling(sampler, 0.0).decide(SAMPLED).is_sampled
    assert not sampling(sampler, 1.0).decide(NOT_SAMPLED).is_sampled


def test_the_ratio_of_roots_is_taken():
    decide = sampling(ratio=0.25).decide
    assert sum(decide({}).is_sampled for _ in range(4000)) == pytest.approx(1000, rel=0.1)


@pytest.mark.parametrize(("ratio", "is_sampled"), [(0.0, False), (1.0, True)])
def test_none_and_all_are_ratios_too(ratio, is_sampled):
    assert {sampling(ratio=ratio).decide({}).is_sampled for _ in range(200)} == {is_sampled}


def test_two_hops_that_sample_by_the_same_ratio_take_the_same_traces():
    first, second = sampling("traceidratio", 0.5), Sampling("traceidratio", 0.5, Random(99))
    for _ in range(100):
        decision = first.decide({})
        told = decision.traceparent or write_traceparent(decision.trace_id, 1, is_sampled=True)
        assert second.decide({"traceparent": told}).is_sampled == decision.is_sampled


def test_a_root_that_is_not_taken_says_so_to_its_backend_and_one_of_a_caller_is_left_as_it_is():
    root = sampling(ratio=0.0).decide({})
    assert root.traceparent is not None
    assert not read_traceparent(root.traceparent).is_sampled
    assert sampling(ratio=0.0).decide(NOT_SAMPLED).traceparent is None


def test_a_caller_is_overruled_by_a_sampler_that_does_not_follow_it():
    decision = sampling("always_off").decide(SAMPLED)
    assert not decision.is_sampled
    assert decision.traceparent == NOT_SAMPLED["traceparent"]
