"""Windows of service: what each tenant was served in the last 10 s, minute and 15 minutes, and its share of it."""

import pytest

from gateway.live.record import WINDOWS_S, PoolRecord
from gateway.live.shares import shares_of
from gateway.live.windows import CACHED_TOKENS, NOTHING, OUTPUT_TOKENS, SERVICE, WAITED_S, ServiceWindow
from policies.types import Attainment, Tenant, TenantView, Usage


def view(service, *, waits=False, used=(0, 0, 0), attainment=None):
    return TenantView(
        queued_requests=0, queued_bytes=0, in_flight_requests=0, in_flight_tokens=0, service=service, counter=0.0,
        rank=0.0, waiting_spell=int(waits), attainment=attainment or Attainment(), used=Usage(*used),
    )  # fmt: skip


def read(window, now, **views):
    if window.is_due(now):
        window.begin(now)
        window.saw(views)
        window.end()


def run(window, seconds, totals):
    """Read the window once a second; `totals` returns the views at a time."""
    for now in range(int(seconds) + 1):
        read(window, float(now), **totals(float(now)))


@pytest.mark.parametrize(("length_s", "bucket_s"), WINDOWS_S)
def test_a_window_has_what_was_served_within_its_length_and_a_bucket(length_s, bucket_s):
    window = ServiceWindow(length_s, bucket_s)
    run(window, 2 * length_s + 7, lambda now: {"a": view(7.0 * now, used=(now, 0, 2 * now))})
    amounts = window.amounts["a"]
    assert length_s <= window.covered_s <= length_s + 1.1 * bucket_s
    assert amounts[SERVICE] == pytest.approx(7.0 * window.covered_s)
    assert amounts[OUTPUT_TOKENS] == pytest.approx(2.0 * window.covered_s)


def test_a_young_window_covers_the_time_since_its_first_reading():
    window = ServiceWindow(900.0, 30.0)
    run(window, 3, lambda now: {"a": view(5.0 * now)})
    assert window.amounts["a"][SERVICE] == 15.0
    assert window.covered_s == 3.0


def test_what_was_served_before_the_first_reading_counts_for_nothing_and_a_new_tenant_for_all_it_got():
    window = ServiceWindow(10.0, 1.0)
    read(window, 0.0, old=view(1000.0))
    read(window, 1.0, old=view(1000.0), new=view(30.0))
    assert window.amounts.keys() == {"new"}
    assert window.amounts["new"][SERVICE] == 30.0


def test_a_tenant_that_was_not_served_within_the_window_leaves_nothing_behind():
    window = ServiceWindow(10.0, 1.0)
    run(window, 5, lambda now: {"a": view(0.1 * now), "b": view(0.0)})
    assert window.amounts.keys() == {"a"}
    for now in range(6, 30):
        read(window, float(now), a=view(0.5), b=view(0.0))
    assert not window.amounts


def test_sums_stay_exact_however_long_buckets_come_and_go():
    window = ServiceWindow(10.0, 1.0)
    run(window, 5000, lambda now: {"a": view(now * 1e9), "b": view(now // 3 * 0.1)})
    assert window.amounts["b"][SERVICE] == pytest.approx(0.1 * window.covered_s / 3, abs=0.11)
    assert window.amounts["a"][SERVICE] == pytest.approx(1e9 * window.covered_s)


def test_waiting_is_counted_in_seconds():
    window = ServiceWindow(10.0, 1.0)
    run(window, 20, lambda now: {"a": view(0.0, waits=now % 4 < 2), "b": view(0.0, waits=True)})
    assert window.amounts["a"][WAITED_S] == pytest.approx(window.covered_s / 4, abs=1.0)
    assert window.amounts["b"][WAITED_S] == window.covered_s


def test_a_reading_in_progress_is_not_mixed_with_another():
    record = PoolRecord()
    first = record.begin(0.0)
    assert record.begin(0.0) is None
    first.saw({"a": view(1.0)})
    first.ended()
    assert record.begin(0.1) is None, "no window is due"
    second = record.begin(1.0)
    second.saw({"a": view(4.0)})
    second.ended()
    assert [window.amounts["a"][SERVICE] for window in record.windows] == [3.0, 3.0, 3.0]


# -- shares ----------------------------------------------------------------------------------------------------------


def tenants(**weights_and_tiers):
    return {name: (Tenant(name, weight, tier), view(0.0)) for name, (weight, tier) in weights_and_tiers.items()}


def window_of(**service_and_waits):
    """A window of 10 s in which tenants got this service, and waited or not."""
    window = ServiceWindow(10.0, 1.0)
    run(
        window, 10,
        lambda now: {name: view(got * now / 10, waits=waits) for name, (got, waits) in service_and_waits.items()},
    )  # fmt: skip
    return window


def test_shares_are_of_the_service_of_the_pool_and_sum_to_one():
    shares = shares_of(window_of(a=(30, True), b=(10, True)), tenants(a=(1, "x"), b=(1, "x")), {"x": 1.0})
    assert shares.tenants.got == {"a": 0.75, "b": 0.25}
    assert shares.tenants.due == {"a": 0.5, "b": 0.5}
    assert shares.tiers.got == shares.tiers.due == {"x": 1.0}


def test_what_tenants_are_due_goes_by_their_weights_and_those_of_their_tiers():
    window = window_of(a=(30, True), b=(30, True), c=(40, True))
    found = shares_of(window, tenants(a=(3, "x"), b=(1, "x"), c=(9, "y")), {"x": 1.0, "y": 4.0})
    assert found.tenants.due == {"a": 0.15, "b": 0.05, "c": 0.8}
    assert found.tiers.due == {"x": 0.2, "y": 0.8}
    assert found.tiers.got == {"x": 0.6, "y": 0.4}


def test_a_tenant_that_did_not_wait_is_due_what_it_got_and_the_others_part_the_rest():
    window = window_of(modest=(10, False), a=(60, True), b=(30, True))
    found = shares_of(window, tenants(modest=(1, "x"), a=(1, "x"), b=(1, "x")), {"x": 1.0})
    assert found.tenants.due == {"modest": 0.1, "a": 0.45, "b": 0.45}


def test_a_tenant_that_waited_for_less_than_half_of_the_window_did_not_wait():
    window = ServiceWindow(10.0, 1.0)
    run(window, 10, lambda now: {"a": view(now, waits=now > 7), "b": view(9 * now, waits=True)})
    assert shares_of(window, tenants(a=(1, "x"), b=(1, "x")), {"x": 1.0}).tenants.due == {"a": 0.1, "b": 0.9}


def test_a_tenant_that_is_gone_has_no_share_and_a_refund_is_no_negative_one():
    window = ServiceWindow(10.0, 1.0)
    read(window, 0.0, a=view(0.0), b=view(50.0), gone=view(0.0))
    read(window, 1.0, a=view(5.0), b=view(20.0), gone=view(5.0))
    assert shares_of(window, tenants(a=(1, "x"), b=(1, "x")), {"x": 1.0}).tenants.got == {"a": 1.0, "b": 0.0}


def test_cached_tokens_and_envelopes_are_counted_in_the_window():
    window = ServiceWindow(900.0, 30.0)
    read(window, 0.0, a=view(0.0))
    read(window, 1.0, a=view(1.0, used=(100, 25, 7), attainment=Attainment(requests=4, met=3)))
    assert window.amounts["a"][CACHED_TOKENS] == 25
    assert window.amounts["a"][4:6] == [4, 3]
    assert window.amounts.get("b", NOTHING)[SERVICE] == 0.0
