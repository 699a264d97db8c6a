"""Margin: the part by which nine tenths of the last steps exceeded the model's prediction at most.

A step is sized to end when the most urgent token is due. The model is right in the mean, and steps have a long tail, so
without a margin nearly half of these tokens would be late. The margin is measured on steps with prompts in them,
because those are divided.
"""

from collections import deque
from typing import Final

IN_TIME_RATIO: Final = 0.9  # part of the steps that must end in time
STEPS_KEPT: Final = 128
SORT_EVERY: Final = 8
RATIO_AT_FIRST: Final = 0.25
RATIO_MIN, RATIO_MAX = 0.02, 1.0


class Margin:
    """The safety margin for the step times of one engine, learnt from its steps. `ratio` is the part of a step's
    predicted time that is added to the prediction. Mutable.
    """

    def __init__(self) -> None:
        self.ratio = RATIO_AT_FIRST
        self._excesses: deque[float] = deque(maxlen=STEPS_KEPT)
        self._unsorted = 0

    def seen(self, took_s: float, *, said_s: float) -> None:
        """Record a step's time and the model's prediction of it, which is above zero."""
        self._excesses.append(took_s / said_s - 1.0)
        self._unsorted += 1
        if self._unsorted >= SORT_EVERY:
            self._unsorted = 0
            ranked = sorted(self._excesses)
            self.ratio = min(max(ranked[int(IN_TIME_RATIO * len(ranked))], RATIO_MIN), RATIO_MAX)
