"""KeptWindows: the bookings against limits per minute under the previous leader, restored scope by scope.

There may be thousands of scopes with a hundred bookings each, so a scope is restored when a request is about to be
checked against its limit, or never: after a minute none of its bookings counts.
"""

from collections.abc import Iterable

from gateway.cluster.records import part_of
from policies.admission.rate_window import NOTHING_BOOKED, WINDOW_S, Booked, MinuteCheckpoint, WindowCheckpoint
from policies.types import ALONE, ReplicaShare


class KeptWindows:
    """The requests and tokens of the last minute that count against limits per minute, from the checkpoint with which a
    new leader began. An entry for a tenant, group or key is kept until the Scheduler first needs it. Mutable.
    """

    def __init__(
        self, windows: WindowCheckpoint = NOTHING_BOOKED, since: float = 0.0, share: ReplicaShare = ALONE
    ) -> None:
        """The ages of bookings in `windows` are as of the time `since`; `share` is this process's part of every
        limit.
        """
        self._windows, self._since, self._share = windows, since, share
        self._left = set(self._windows)

    def __contains__(self, scope: str) -> bool:
        return scope in self._left

    def __bool__(self) -> bool:
        return bool(self._left)

    def take(self, scopes: Iterable[str], now: float) -> WindowCheckpoint:
        """The bookings to restore in these scopes; each scope is returned once."""
        found: dict[str, MinuteCheckpoint] = {}
        if now - self._since >= WINDOW_S:
            self._left.clear()
        for scope in self._left.intersection(scopes):
            self._left.discard(scope)
            minute = self._windows[scope]
            kept = MinuteCheckpoint(*[self._later(booked, now) for booked in minute])
            found[scope] = kept if self._share == ALONE else part_of(kept, self._share)
        return found

    def _later(self, booked: Iterable[Booked], now: float) -> tuple[Booked, ...]:
        older_s = now - self._since
        return tuple(Booked(age_s + older_s, amount) for age_s, amount in booked if age_s + older_s < WINDOW_S)
