"""The gap between tenants that wait side by side: what counts as waiting, and what as a gap."""

from math import inf

import pytest

from gateway.observability.metrics.service_gap import Evenness, GapBound, ServiceGap, TenantService, jain_index
from policies.fairness.bounds import BOUNDS


def observe(gap, now, tenants):
    """The evenness of each tier, with the steps of the observation taken at once."""
    found = {}
    for _ in gap.observing(now, tenants, found):
        pass
    return found


def checkpoint(*tenants):
    """(service, weight=1, spell=1, tier) by name a, b, c ..."""
    return {
        "abcdef"[number]: TenantService(
            each.get("tier", "t"), each.get("weight", 1.0), each["service"], each.get("spell", 1)
        )
        for number, each in enumerate(tenants)
    }


def of(*services, **common):
    return checkpoint(*({"service": service, **common} for service in services))


def test_the_gap_is_of_what_was_received_since_both_wait_and_not_of_all_that_ever_was():
    gap = ServiceGap((10.0,))
    assert observe(gap, 0.0, of(1000, 0)) == {}
    assert observe(gap, 1.0, of(1030, 10)) == {"t": Evenness(20.0, pytest.approx(1600 / (2 * 1000)))}


def test_service_counts_over_weight():
    gap = ServiceGap((10.0,))
    observe(gap, 0.0, checkpoint({"service": 0, "weight": 3.0}, {"service": 0}))
    found = observe(gap, 1.0, checkpoint({"service": 30, "weight": 3.0}, {"service": 10}))
    assert found == {"t": Evenness(0.0, 1.0)}


@pytest.mark.parametrize("change", [{"spell": 2}, {"spell": 0}, {"weight": 2.0}, {"tier": "u"}])
def test_a_tenant_that_stopped_waiting_or_changed_meanwhile_is_not_compared(change):
    gap = ServiceGap((10.0,))
    observe(gap, 0.0, of(0, 0, 0))
    after = checkpoint({"service": 5}, {"service": 7}, {"service": 900, **change})
    assert observe(gap, 1.0, after)["t"].gap == 2.0


def test_one_that_waits_alone_is_compared_with_none():
    gap = ServiceGap((10.0,))
    observe(gap, 0.0, of(0))
    assert observe(gap, 1.0, of(50)) == {}


def test_tiers_are_apart():
    gap = ServiceGap((10.0,))
    tiers = [{"tier": "x"}, {"tier": "x"}, {"tier": "y"}, {"tier": "y"}]
    observe(gap, 0.0, checkpoint(*({"service": 0, **tier} for tier in tiers)))
    after = checkpoint(*({"service": service, **tier} for service, tier in zip((1, 3, 100, 100), tiers, strict=True)))
    assert {tier: each.gap for tier, each in observe(gap, 1.0, after).items()} == {"x": 2.0, "y": 0.0}


def test_a_stretch_is_never_longer_than_its_window_and_half_as_long_at_least():
    gap = ServiceGap((10.0,))
    for second in range(100):
        found = observe(gap, float(second), of(second * 3, second))
        if second >= 5:
            assert 5 * 2 <= found["t"].gap <= 10 * 2


def test_the_largest_of_all_windows_counts_and_the_evenness_of_the_longest():
    gap = ServiceGap((2.0, 20.0))
    observe(gap, 0.0, of(0, 0))
    for second in range(1, 10):
        found = observe(gap, float(second), of(10 * second, 0))
    assert found == {"t": Evenness(90.0, 0.5)}


def test_jains_index_is_1_for_equal_parts_and_a_share_of_1_where_one_has_all():
    assert jain_index([4.0, 4.0, 4.0]) == pytest.approx(1.0)
    assert jain_index([9.0, 0.0, -1.0]) == pytest.approx(1 / 3)
    assert jain_index([200.0, 100.0, 100.0]) == pytest.approx(0.8889, abs=1e-4)
    assert jain_index([0.0, 0.0]) is None


def test_the_promise_is_that_of_the_documentation():
    vtc, slack, dlpm = BOUNDS["vtc"], BOUNDS["slack"], BOUNDS["dlpm"]
    assert GapBound(vtc, is_capped=False).gap_max(20_000, 1.0) == 40_000  # 2 U
    assert GapBound(slack, 500.0, is_capped=False).gap_max(20_000, 1.0) == 41_000  # 2 (U + K)
    assert GapBound(vtc).gap_max(20_000, 1.0) == 80_000  # 2 (U + G)
    assert GapBound(vtc).gap_max(20_000, 0.5) == 160_000
    assert GapBound(dlpm, 500.0, is_capped=False).gap_max(20_000, 1.0) == 81_000
    assert GapBound(vtc).gap_max(inf, 1.0) == inf
