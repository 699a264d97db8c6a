"""How much may a backend run of which nothing is known but how fast it answers?

The idea of limits on concurrency that adapt (TCP Vegas, Netflix's concurrency-limits): compare the time that a token
takes now, from the request's sending to its end, with the least that it ever took; run less where it has grown too
much, and more where the limit is met and it has not. A batch always makes a step longer, so what is too much is not the
first millisecond, it is the knee: the same multiple of the shortest step by which the model's default target is
defined (knee.py). Answers of long prompts take longer at any time, so it is too much only where even the fastest of as
many answers as run was too slow.

Additive increase, multiplicative decrease, once per so many answers: each tells of a time when the limit before was
still at work. The least time is forgotten after a while, or an engine that was changed for a slower one would never be
forgiven.
"""

from math import inf

from policies.limit.knee import STEP_RATIO_MAX

SHRINK_RATIO = 0.9
SEQUENCES_MIN = 4  # fewer tell nothing
ANSWERS_REMEMBERED = 500  # the least time is that of the last one to two times as many
ANSWERS_JUDGED_MIN = 8
ANSWER_TOKENS_MIN = 16  # of a shorter one the time per token is that of its prompt
STEP_S_MIN = 0.5e-3  # no engine's steps are shorter: what is below is the noise of a server that need not compute


class GapLimit:
    """Sequences that one backend may run, learnt from the time per token of its answers. Mutable."""

    def __init__(self) -> None:
        self.sequences_max: float = inf
        """No more than its seats in any case; infinite: answers were never all too slow yet."""
        self._leasts_s = [inf, inf]  # of the answers before these, and of these
        self._answers = 0
        self._judged = 0
        self._fastest_s = inf  # of those that are judged next

    def answered(self, token_s: float, tokens: int, running: int) -> None:
        """Of so many tokens, each of which took so long; so many sequences run with it."""
        if tokens < ANSWER_TOKENS_MIN or token_s <= 0.0:
            return
        self._answers += 1
        if self._answers > ANSWERS_REMEMBERED:
            self._leasts_s, self._answers = [self._leasts_s[1], inf], 1
        self._leasts_s[1] = min(self._leasts_s[1], token_s)
        self._fastest_s = min(self._fastest_s, token_s)
        self._judged += 1
        if self._judged >= max(running, ANSWERS_JUDGED_MIN):
            self._judge(running)

    def _judge(self, running: int) -> None:
        if self._fastest_s > STEP_RATIO_MAX * max(STEP_S_MIN, min(self._leasts_s)):
            self.sequences_max = max(SEQUENCES_MIN, min(self.sequences_max, running) * SHRINK_RATIO)
        elif running >= self.sequences_max - 1:
            self.sequences_max += 1
        self._judged, self._fastest_s = 0, inf
