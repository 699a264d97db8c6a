"""How much has to be free at a backend so that a request which cannot wait finds room there?

Who comes takes a seat, and the next that comes free anywhere on the backend takes its place in the reserve. So what is
missing of a reserve is a queue: arrivals of the tier join it, whatever ends there leaves it. Whoever comes while fewer
are missing than are held finds a seat. What 99 of 100 arrivals need is thus the 99th percentile of what they found
missing, themselves included. It is measured, not computed: arrivals need not be Poisson (for such, at a part rho of all
ends, the share of those that need more than n is rho^n). KV tokens are counted the same way. How often the tier comes
and how long a seat takes to come free are both in it.

Only a tier that cannot wait for a seat to turn over needs any: one whose first token is due sooner than a seat is held
in the mean. What is held is given back when none of it came for RESERVE_S.
"""

from bisect import bisect_left, insort
from collections import deque
from math import ceil
from typing import Generic, NamedTuple, TypeVar

N = TypeVar("N", int, float)

SERVED_RATIO = 0.99  # of arrivals: latencies are promised as a p99
ARRIVALS = 200  # the least of which a 99th percentile is not their maximum
RESERVE_S = 60.0  # quiet for longer than the gap between two arrivals of a tier that is worth a seat


class Room(NamedTuple):
    """Sequences and KV tokens; negative where more is taken than there is."""

    sequences: int
    tokens: float


NONE = Room(0, 0.0)


class FloatingReserve:
    """What is held free at one backend for one tier."""

    __slots__ = ("_last_at", "_missing", "_needed", "_sequences", "_tokens")

    def __init__(self) -> None:
        self._sequences, self._tokens = _Last[int](), _Last[float]()  # that arrivals found missing
        self._last_at = float("-inf")
        self._missing = NONE
        self._needed = NONE

    def came(self, sequences: int, tokens: float, now: float) -> None:
        """A request of the tier took so much."""
        if now - self._last_at > RESERVE_S:
            self._sequences, self._tokens = _Last[int](), _Last[float]()
            self._missing = NONE
        self._last_at = now
        missing = self._missing = Room(self._missing.sequences + sequences, self._missing.tokens + tokens)
        self._needed = Room(self._sequences.with_one(missing.sequences), self._tokens.with_one(missing.tokens))

    def ended(self, sequences: int, tokens: float, *, is_roomy: bool) -> None:
        """So much came free, whoever had it; where more is free than anybody asks for nothing is missing."""
        missing = self._missing
        if missing is NONE:
            return
        left = Room(missing.sequences - sequences, max(0.0, missing.tokens - tokens))
        self._missing = NONE if is_roomy or left.sequences <= 0 else left

    def needed(self, now: float) -> Room:
        """What has to be free for the next arrival."""
        return self._needed if now - self._last_at <= RESERVE_S else NONE

    def free(self, now: float) -> Room:
        """What of it is not taken, or has come free again."""
        needed, missing = self.needed(now), self._missing
        return Room(max(0, needed.sequences - missing.sequences), max(0.0, needed.tokens - missing.tokens))


class _Last(Generic[N]):
    """The last of some numbers, in order of size."""

    __slots__ = ("_came", "_ranked")

    def __init__(self) -> None:
        self._came: deque[N] = deque()
        self._ranked: list[N] = []

    def with_one(self, number: N) -> N:
        """Which so many of them do not exceed, now that this one is there."""
        came, ranked = self._came, self._ranked
        if len(came) == ARRIVALS:
            del ranked[bisect_left(ranked, came.popleft())]
        came.append(number)
        insort(ranked, number)
        return ranked[ceil(SERVED_RATIO * len(ranked)) - 1]
