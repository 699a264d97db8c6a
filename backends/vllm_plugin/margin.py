"""How much longer than the model says may a step turn out to be? As much as all but a tenth of the last ones.

A step is made to end when the most urgent token is due. The model is right in the mean, and steps have a long tail, so
without a margin nearly half of these tokens would be late. Judged by steps with prompts in them: those are divided.
"""

from collections import deque
from typing import Final

IN_TIME_RATIO: Final = 0.9  # of the steps, that are to end when they were meant to
STEPS_KEPT: Final = 128
SORT_EVERY: Final = 8
RATIO_AT_FIRST: Final = 0.25
RATIO_MIN, RATIO_MAX = 0.02, 1.0


class Margin:
    """`ratio` of a step's time is to be kept free."""

    def __init__(self) -> None:
        self.ratio = RATIO_AT_FIRST
        self._excesses: deque[float] = deque(maxlen=STEPS_KEPT)
        self._unsorted = 0

    def seen(self, took_s: float, *, said_s: float) -> None:
        """A step took so long, and the model says so much of it, above zero."""
        self._excesses.append(took_s / said_s - 1.0)
        self._unsorted += 1
        if self._unsorted >= SORT_EVERY:
            self._unsorted = 0
            ranked = sorted(self._excesses)
            self.ratio = min(max(ranked[int(IN_TIME_RATIO * len(ranked))], RATIO_MIN), RATIO_MAX)
