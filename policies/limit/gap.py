"""How much may a backend run of which nothing is known but how fast its streams come?

The idea of limits on concurrency that adapt (TCP Vegas, Netflix's concurrency-limits): compare the time that a token
takes now with the least that it ever took, and run less where it has grown too much, more where the limit is met and
it has not. A batch always makes a step longer, so what is too much is not the first millisecond, it is the knee: the
same multiple of the shortest step by which the model's default target is defined (knee.py).

Additive increase, multiplicative decrease, once per as many ended streams as run: each tells of a time when the
limit before was still at work. The least time is forgotten after a while, or an engine that was changed for a slower
one would never be forgiven.
"""

from math import inf

from policies.limit.knee import STEP_RATIO_MAX

SHRINK_RATIO = 0.9
SEQUENCES_MIN = 4  # fewer tell nothing
STREAMS_REMEMBERED = 500  # the least time is that of the last one to two times as many
STREAM_TOKENS_MIN = 8  # of a shorter stream the time per token says nothing


class GapLimit:
    """Sequences that one backend may run, learnt from the time per token of streams that have ended. Mutable."""

    def __init__(self) -> None:
        self.sequences_max: float = inf
        """No more than its seats in any case; infinite: no stream was too slow yet."""
        self._leasts = [inf, inf]  # of the streams before these, and of these
        self._streams = 0
        self._too_slow = self._judged = 0

    def ended(self, token_s: float, tokens: int, running: int) -> None:
        """A stream of so many tokens has ended, which took so long for each; so many sequences run with it."""
        if tokens < STREAM_TOKENS_MIN or token_s <= 0.0:
            return
        self._streams += 1
        if self._streams > STREAMS_REMEMBERED:
            self._leasts, self._streams = [self._leasts[1], inf], 1
        self._leasts[1] = min(self._leasts[1], token_s)
        self._judged += 1
        self._too_slow += token_s > STEP_RATIO_MAX * min(self._leasts)
        if self._judged >= running:
            self._judge(running)

    def _judge(self, running: int) -> None:
        if self._too_slow * 2 > self._judged:
            self.sequences_max = max(SEQUENCES_MIN, min(self.sequences_max, running) * SHRINK_RATIO)
        elif running >= self.sequences_max - 1:
            self.sequences_max += 1
        self._too_slow = self._judged = 0
