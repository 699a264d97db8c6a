"""Rate windows: the amounts that were booked within a minute, and the time at which there is room for more.

A booking is an amount at a time: one request, or the tokens that a request reserves. It may be amended while it counts,
when the amount turns out smaller. There are two kinds of minute: the last 60 s (sliding), or the time since the clock's
last full minute (fixed). Only the sliding window admits no burst of twice the limit around a boundary.
"""

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import NamedTuple, Protocol

WINDOW_S = 60.0


@dataclass(slots=True)
class Booking:
    """A number of requests or tokens that was used at `booked_at`, and counts against a limit until its window ends."""

    booked_at: float
    amount: int


class Booked(NamedTuple):
    """A booking in a checkpoint: a number of requests or tokens, used `age_s` seconds before the checkpoint."""

    age_s: float
    amount: int


class MinuteCheckpoint(NamedTuple):
    """The bookings that still count against the limits per minute of one tenant, group or API key, oldest first."""

    requests: tuple[Booked, ...] = ()
    tokens: tuple[Booked, ...] = ()


WindowCheckpoint = Mapping[str, MinuteCheckpoint]
"""The minutes of all scopes that have booked anything, by name."""

NOTHING_BOOKED: WindowCheckpoint = MappingProxyType({})


class RateWindow(Protocol):
    """The interface of rate windows. A rate window keeps the bookings (requests or tokens that were used) which still
    count against one limit, such as a tenant's tokens per minute. Mutable; times are in seconds.
    """

    def used(self, now: float) -> int:
        """The sum of the amounts that count now."""
        ...

    def wait_s(self, amount: int, limit: int, now: float) -> float | None:
        """Seconds until the amount fits under the limit if nothing else is booked; None where it fits now. An amount
        over the limit never fits: the result is then a whole window.
        """
        ...

    def reset_s(self, now: float) -> float:
        """Seconds until none of the present bookings counts any more; 0 without any."""
        ...

    def book(self, amount: int, now: float) -> Booking: ...

    def amend(self, booking: Booking, amount: int, now: float) -> None:
        """Change the booking's amount; ignored if it does not count any more."""
        ...

    def booked(self, now: float) -> tuple[Booked, ...]:
        """The bookings that count now. Bookings of one second are merged; their age is that of the latest."""
        ...


@dataclass(slots=True)
class _Second:
    """The bookings of one second that still count: their sum, their number, and the time of the latest."""

    latest_at: float = 0.0
    amount: int = 0
    bookings: int = 0


class SlidingWindow:
    """A rate window in which a booking counts for 60 s. The limit also bounds the number of bookings that are not
    empty, because each of them is at least one request or token.
    """

    def __init__(self) -> None:
        self._bookings: deque[Booking] = deque()  # oldest first
        self._used = 0
        self._seconds: dict[int, _Second] = {}

    def used(self, now: float) -> int:
        while self._bookings and not _counts(self._bookings[0], now):
            gone = self._bookings.popleft()
            self._used -= gone.amount
            second = self._seconds[int(gone.booked_at)]
            second.amount -= gone.amount
            second.bookings -= 1
            if not second.bookings:
                del self._seconds[int(gone.booked_at)]
        return self._used

    def wait_s(self, amount: int, limit: int, now: float) -> float | None:
        excess = self.used(now) + amount - limit
        if excess <= 0:
            return None
        for booking in self._bookings:
            excess -= booking.amount
            if excess <= 0:
                return booking.booked_at + WINDOW_S - now
        return WINDOW_S

    def reset_s(self, now: float) -> float:
        return self._bookings[-1].booked_at + WINDOW_S - now if self.used(now) else 0.0

    def book(self, amount: int, now: float) -> Booking:
        booking = Booking(now, amount)
        self._bookings.append(booking)
        self._used += amount
        second = self._seconds.get(int(now))
        if second is None:
            second = self._seconds[int(now)] = _Second()
        second.latest_at, second.amount, second.bookings = now, second.amount + amount, second.bookings + 1
        return booking

    def amend(self, booking: Booking, amount: int, now: float) -> None:
        self.used(now)
        if _counts(booking, now):
            self._used += amount - booking.amount
            self._seconds[int(booking.booked_at)].amount += amount - booking.amount
            booking.amount = amount

    def booked(self, now: float) -> tuple[Booked, ...]:
        self.used(now)
        return tuple([Booked(now - each.latest_at, each.amount) for each in self._seconds.values() if each.amount])


class FixedWindow:
    """A rate window in which a booking counts until the clock's next full minute."""

    def __init__(self) -> None:
        self._minute = 0
        self._used = 0

    def used(self, now: float) -> int:
        return self._used if _minute(now) == self._minute else 0

    def wait_s(self, amount: int, limit: int, now: float) -> float | None:
        if self.used(now) + amount <= limit:
            return None
        return WINDOW_S if amount > limit else WINDOW_S - now % WINDOW_S

    def reset_s(self, now: float) -> float:
        return WINDOW_S - now % WINDOW_S if self.used(now) else 0.0

    def book(self, amount: int, now: float) -> Booking:
        self._used = self.used(now) + amount
        self._minute = _minute(now)
        return Booking(now, amount)

    def amend(self, booking: Booking, amount: int, now: float) -> None:
        if _minute(booking.booked_at) == _minute(now):
            self._used += amount - booking.amount
            booking.amount = amount

    def booked(self, now: float) -> tuple[Booked, ...]:
        return (Booked(0.0, used),) if (used := self.used(now)) else ()


def _counts(booking: Booking, now: float) -> bool:
    return now < booking.booked_at + WINDOW_S  # consistent with `wait_s`


def _minute(at: float) -> int:
    return int(at // WINDOW_S)


WINDOWS: dict[str, Callable[[], RateWindow]] = {"sliding": SlidingWindow, "fixed": FixedWindow}
