"""When is Python's garbage collected? When nobody waits for it.

An engine's process holds hundreds of thousands of objects that live as long as it does. What stands after the start
is frozen, so that no collection looks at it; automatic collections are switched off, and one is made when no prompt
waits and every answer is well ahead of its deadlines (FairBatching, arXiv 2510.14392). However busy the engine is, one
is made before too much has piled up.
"""

import gc
from collections.abc import Callable
from typing import Final

OBJECTS_MIN: Final = 5_000  # allocated and not freed by counting: worth a collection
OBJECTS_MAX: Final = 200_000  # a collection is due, whoever waits
PAUSE_S_AT_FIRST: Final = 0.020
SLACK_TIMES: Final = 4.0  # the longest pause so far, that answers must be ahead


class Collector:
    """`clock` gives seconds, to time collections with."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._pause_s_max = PAUSE_S_AT_FIRST
        self.collections_total = 0

    def begin(self) -> None:
        """What exists now stays."""
        gc.collect()
        gc.freeze()
        gc.disable()

    def collect_if_calm(self, *, slack_s: float, prompts_wait: bool) -> float:
        """Collect if this is a good moment, or has to be; return for how many seconds that took."""
        objects = gc.get_count()[0]
        calm = not prompts_wait and slack_s >= SLACK_TIMES * self._pause_s_max
        if objects < OBJECTS_MIN or not (calm or objects >= OBJECTS_MAX):
            return 0.0
        began_at = self._clock()
        gc.collect()
        pause_s = self._clock() - began_at
        self._pause_s_max = max(pause_s, 0.9 * self._pause_s_max)
        self.collections_total += 1
        return pause_s
