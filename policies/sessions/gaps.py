"""Gaps between the turns of a tenant's sessions: whether, and when, an idle session returns.

The gaps are counted in buckets that double. For each bucket it is known how many gaps reached it and how many ended in
it, so a gap that has not ended counts for the buckets that it has passed (Kaplan and Meier's estimate of survival). So
sessions that never return are learnt, too, although no event reports their end. Before a tenant's gaps are known, a
published distribution counts as a few of them: 86 % of the next turns come within 1 s, 95 % within 10 s
(vllm-project/router #285), and a session ends after 43 turns.
"""

from itertools import pairwise
from math import log2
from typing import Final, NamedTuple

FIRST_S: Final = 1.0 / 64
BUCKETS: Final = 20  # the last one begins after an hour
EDGES_S: Final = (0.0, *(FIRST_S * 2.0**number for number in range(BUCKETS)))
"""Where each bucket begins."""
PRIOR_GAPS: Final = 20.0  # as few as a tenant has seen after half of one session
COUNTED_MAX: Final = 1000.0  # then all counts are halved, so that a tenant's gaps may change

# Published: (seconds, the part of all gaps that are longer). Beyond, a gap is an end: one turn in 43.
_PRIOR: Final[tuple[tuple[float, float], ...]] = (
    (0.0, 1.0),
    (FIRST_S, 0.98),
    (1.0, 0.14),
    (10.0, 0.05),
    (3600.0, 1.0 / 43),
)


def _prior_longer(at_s: float) -> float:
    """The part of published gaps that are longer, linear in the logarithm of time."""
    for (before_s, before), (after_s, after) in pairwise(_PRIOR):
        if at_s <= after_s:
            if before_s <= 0.0:
                return before + (after - before) * at_s / after_s
            return before + (after - before) * log2(at_s / before_s) / log2(after_s / before_s)
    return _PRIOR[-1][1]


PRIOR_REACHED: Final = tuple(PRIOR_GAPS * _prior_longer(edge) for edge in EDGES_S)
PRIOR_ENDED: Final = tuple(
    before - after for before, after in zip(PRIOR_REACHED, (*PRIOR_REACHED[1:], PRIOR_REACHED[-1]), strict=True)
)


def bucket_of(gap_s: float) -> int:
    """The bucket that a gap of this length ends in."""
    return 0 if gap_s < FIRST_S else min(BUCKETS, int(log2(gap_s / FIRST_S)) + 1)


class Outlook(NamedTuple):
    """A forecast for an idle session over a given time: does it return, and is it worth to pause it (give the room of
    its context to others)? `returns` is the probability that the session returns in this time, `away_s` the expected
    seconds of this time in which it is idle. At each moment of this time, the gain of a pause so far is the expected
    seconds idle, minus the expected cost of a return (seconds). `least_gain_s` is the least of these gains, at most 0.
    """

    returns: float
    away_s: float
    least_gain_s: float


class Gaps:
    """The distribution of the idle times between two turns (calls) of a session, learnt over one tenant's sessions.
    Mutable, of constant size.
    """

    __slots__ = ("_ended", "_reached")

    def __init__(self) -> None:
        self._reached = list(PRIOR_REACHED)
        self._ended = list(PRIOR_ENDED)

    def began(self) -> None:
        """A session has become idle."""
        self._reached[0] += 1.0
        if self._reached[0] > COUNTED_MAX:
            self._reached = [each / 2.0 for each in self._reached]
            self._ended = [each / 2.0 for each in self._ended]

    def passed(self, before: int, now: int) -> None:
        """A gap that had reached the bucket `before` has reached the bucket `now`."""
        for bucket in range(before + 1, now + 1):
            self._reached[bucket] += 1.0

    def ended(self, before: int, gap_s: float) -> int:
        """A session has returned after this gap, which had reached the bucket `before`. Returns its last bucket."""
        bucket = 0 if gap_s < FIRST_S else min(BUCKETS, int(log2(gap_s / FIRST_S)) + 1)  # `bucket_of`, inlined
        if bucket > before:
            self.passed(before, bucket)
        self._ended[bucket] += 1.0
        return bucket

    def outlook(self, idle_s: float, horizon_s: float, cost_s: float = 0.0) -> Outlook:
        """The forecast for a session that has been idle for `idle_s` seconds, over the next `horizon_s` seconds, if its
        return costs `cost_s` seconds.
        """
        reached, ended = self._reached, self._ended
        first, end_s = bucket_of(idle_s), idle_s + horizon_s
        at_s, stays, away_s, least = idle_s, 1.0, 0.0, 0.0
        for bucket in range(first, BUCKETS + 1):
            ratio = min(1.0, ended[bucket] / reached[bucket]) if reached[bucket] > 0.0 else 0.0
            if bucket == BUCKETS:
                until_s, after = end_s, stays
            else:
                begin_s, until_s = EDGES_S[bucket], EDGES_S[bucket + 1]
                # Of the gaps that reach the bucket, those that are longer than at_s; ends are even within it.
                longer = 1.0 - ratio * (at_s - begin_s) / (until_s - begin_s)
                shorter_s = min(until_s, end_s)
                after = stays * (1.0 - ratio * (shorter_s - begin_s) / (until_s - begin_s)) / longer if longer else 0.0
                until_s = shorter_s
            away_s += (until_s - at_s) * (stays + after) / 2.0
            at_s, stays = until_s, after
            least = min(least, away_s - (1.0 - stays) * cost_s)
            if at_s >= end_s:
                break
        return Outlook(1.0 - stays, away_s, least)
