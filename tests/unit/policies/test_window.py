"""What counts within a minute: a limit and the wait that it tells are of one mind, to the instant."""

import pytest

from policies.admission.rate_window import WINDOW_S, FixedWindow, SlidingWindow


@pytest.mark.parametrize("make", [SlidingWindow, FixedWindow])
@pytest.mark.parametrize("booked_at", [0.0, 7.25, 59.0, 1e6 + 0.1])
def test_after_the_wait_that_it_tells_the_amount_fits_and_not_before(make, booked_at):
    window = make()
    window.book(10, booked_at)
    wait_s = window.wait_s(1, 10, booked_at)
    assert 0.0 < wait_s <= WINDOW_S
    before, then = booked_at + wait_s - 0.001, booked_at + wait_s
    assert window.used(before) == 10
    assert window.wait_s(1, 10, then) is None
    assert window.used(then) == 0


def test_a_booking_slides_out_sixty_seconds_after_it_was_made():
    window = SlidingWindow()
    window.book(3, 0.0)
    window.book(4, 30.0)
    assert [window.used(at) for at in (59.999, 60.0, 89.999, 90.0)] == [7, 4, 4, 0]


def test_what_is_amended_when_it_counts_no_more_changes_nothing():
    window = SlidingWindow()
    booking = window.book(3, 0.0)
    window.book(1, 59.0)
    window.amend(booking, 30, 60.0)
    assert window.used(60.0) == 1
