"""Leaderless: how long a member's requests wait while no leader decides for it (rule 24)."""

from collections.abc import Iterable
from heapq import heapify, heappop, heappush
from math import inf
from typing import Final

from gateway.cluster.follower.member_requests import OwnRequest

LEADERLESS_S_MAX: Final = 5.0  # rule 24
REFUSED_MAX: Final = 100  # at once


class Leaderless:
    """The deadlines of the queued requests of one member (a process of the cluster) while no leader decides for it. A
    request is refused at its deadline: when its queue timeout ends or after 5 s without a leader, whichever is earlier.
    For a request whose output has begun, and which waits again, only the 5 s count. Mutable.
    """

    def __init__(self, wait_s_max: float, now: float) -> None:
        """`wait_s_max` is the queue timeout of the configuration. There is no leader at first."""
        self._wait_s_max = wait_s_max
        self._since: float | None = now
        self._waiting: list[tuple[float, int, OwnRequest]] = []  # by deadline, with void entries

    def begins(self, requests: Iterable[OwnRequest], now: float) -> None:
        """There is no leader from now on, and these requests may wait for one."""
        if self._since is None:
            self._since = now
            self._waiting = [(self._until(now, own), own.number, own) for own in requests if own.dispatch is None]
            heapify(self._waiting)

    def ends(self) -> None:
        """There is a leader."""
        self._since, self._waiting = None, []

    def waits(self, own: OwnRequest) -> None:
        """The request waits from now on, whether or not there is a leader."""
        if self._since is not None:
            heappush(self._waiting, (self._until(self._since, own), own.number, own))

    def due(self) -> float:
        """The earliest time at which a request may have waited too long; inf: no time is known."""
        return self._waiting[0][0] if self._waiting else inf

    def overdue(self, now: float) -> list[OwnRequest]:
        """Requests that have waited too long; requests that have ended or run may be among them."""
        found = list[OwnRequest]()
        while self._since is not None and self._waiting and self._waiting[0][0] <= now and len(found) < REFUSED_MAX:
            own = heappop(self._waiting)[2]
            if self._until(self._since, own) <= now:  # it may have run since, and wait anew
                found.append(own)
        return found

    def is_over(self, own: OwnRequest, now: float) -> bool:
        """Whether the request's queue timeout has ended; if not, it is refused because there is no leader."""
        return now >= own.request.arrived_at + self._wait_s_max and not own.request.produced_tokens

    def _until(self, since: float, own: OwnRequest) -> float:
        since = max(since, own.request.arrived_at)
        if own.request.produced_tokens:  # it waits anew, and its answer is worth waiting for
            return since + LEADERLESS_S_MAX
        return min(own.request.arrived_at + self._wait_s_max, since + LEADERLESS_S_MAX)
