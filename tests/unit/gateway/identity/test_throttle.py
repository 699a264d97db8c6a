import pytest

from gateway.identity.throttle import ADDRESSES_MAX, FAILURES_BURST, FAILURES_PER_S, FailureThrottle


def used_up(address="192.0.2.1"):
    throttle = FailureThrottle()
    for _ in range(int(FAILURES_BURST)):
        assert throttle.failed(address, 0.0) is None
    return throttle


def test_an_address_may_fail_in_a_burst_and_then_is_told_to_wait():
    assert used_up().failed("192.0.2.1", 0.0) == pytest.approx(1 / FAILURES_PER_S)


def test_after_the_wait_that_it_was_told_one_more_failure_is_heard():
    throttle = used_up()
    wait_s = throttle.failed("192.0.2.1", 0.0)
    assert throttle.failed("192.0.2.1", wait_s) is None
    assert throttle.failed("192.0.2.1", wait_s) is not None


def test_the_failures_of_one_address_are_not_those_of_another():
    assert used_up().failed("192.0.2.2", 0.0) is None


@pytest.mark.parametrize(
    ("one", "other"), [("2001:db8::1", "2001:db8::ffff:1"), ("192.0.2.1", "::ffff:192.0.2.1"), (None, "")]
)
def test_addresses_of_one_customer_are_one(one, other):
    assert used_up(one).failed(other, 0.0) is not None


def test_a_hundred_thousand_addresses_take_no_more_memory_than_the_limit():
    throttle = FailureThrottle()
    for number in range(100_000):
        throttle.failed(f"10.{number >> 16}.{number >> 8 & 255}.{number & 255}", 0.0)
    assert len(throttle._buckets._buckets) == ADDRESSES_MAX


def test_silence_earns_no_more_than_the_burst():
    throttle = used_up()
    heard = sum(throttle.failed("192.0.2.1", 1e6) is None for _ in range(3 * int(FAILURES_BURST)))
    assert heard == FAILURES_BURST
