"""Learnt reserve: how much of a backend is kept free so that a request of a tier that cannot wait finds room there.

An arrival of the tier takes a slot of the reserve, and the next slot that comes free anywhere on the backend refills
it. So the missing part of a reserve behaves as a queue: arrivals of the tier join it, requests that end leave it. An
arrival finds a slot if fewer are missing than the reserve has. What 99 of 100 arrivals need is therefore the 99th
percentile of the missing part that they found, themselves included. It is measured, not computed: arrivals need not be
Poisson (if they were, and rho were their part of all ends, the share that needs more than n slots would be rho^n). The
measure includes how often the tier arrives and how long a slot takes to come free. KV tokens are counted the same way.

Only a tier that cannot wait for a slot to come free needs a reserve: one whose first token is due sooner than the mean
time that a request holds a slot. The reserve is dropped when no request of the tier arrives for RESERVE_S.
"""

from bisect import bisect_left, insort
from collections import deque
from math import ceil
from typing import Generic, NamedTuple, TypeVar

N = TypeVar("N", int, float)

SERVED_RATIO = 0.99  # of arrivals: latency targets are stated as a p99
ARRIVALS = 200  # that are remembered: enough that their 99th percentile is not their maximum
RESERVE_S = 60.0  # without an arrival: longer than the gap between two arrivals of a tier that is worth a slot


class Room(NamedTuple):
    """The free capacity of a backend, as a number of sequences and of KV tokens. Negative: more is in use than the
    limit allows.
    """

    sequences: int
    tokens: float


NONE = Room(0, 0.0)


class FloatingReserve:
    """The reserve of one tier at one backend: the slots and KV tokens to keep free for it, learnt from its arrivals.
    Mutable.
    """

    __slots__ = ("_last_at", "_missing", "_needed", "_sequences", "_tokens")

    def __init__(self) -> None:
        self._sequences, self._tokens = _Last[int](), _Last[float]()  # what arrivals found missing
        self._last_at = float("-inf")
        self._missing = NONE
        self._needed = NONE

    def came(self, sequences: int, tokens: float, now: float) -> None:
        """Record an arrival of the tier that takes `sequences` and KV `tokens`."""
        if now - self._last_at > RESERVE_S:
            self._sequences, self._tokens = _Last[int](), _Last[float]()
            self._missing = NONE
        self._last_at = now
        missing = self._missing = Room(self._missing.sequences + sequences, self._missing.tokens + tokens)
        self._needed = Room(self._sequences.with_one(missing.sequences), self._tokens.with_one(missing.tokens))

    def ended(self, sequences: int, tokens: float, *, is_roomy: bool) -> None:
        """Record the slots and KV tokens that an ended request of any tier freed. Where the backend `is_roomy` (less
        than half in use), nothing is missing any more.
        """
        missing = self._missing
        if missing is NONE:
            return
        left = Room(missing.sequences - sequences, max(0.0, missing.tokens - tokens))
        self._missing = NONE if is_roomy or left.sequences <= 0 else left

    def needed(self, now: float) -> Room:
        """The room that the next arrival needs; none when the tier has sent nothing for RESERVE_S."""
        return self._needed if now - self._last_at <= RESERVE_S else NONE

    def free(self, now: float) -> Room:
        """The room to keep free now: the part of `needed` that is not missing."""
        needed, missing = self.needed(now), self._missing
        return Room(max(0, needed.sequences - missing.sequences), max(0.0, needed.tokens - missing.tokens))


class _Last(Generic[N]):
    """The last ARRIVALS numbers, sorted by size."""

    __slots__ = ("_came", "_ranked")

    def __init__(self) -> None:
        self._came: deque[N] = deque()
        self._ranked: list[N] = []

    def with_one(self, number: N) -> N:
        """Add a number, and return the SERVED_RATIO quantile (nearest rank) of the numbers kept."""
        came, ranked = self._came, self._ranked
        if len(came) == ARRIVALS:
            del ranked[bisect_left(ranked, came.popleft())]
        came.append(number)
        insort(ranked, number)
        return ranked[ceil(SERVED_RATIO * len(ranked)) - 1]
