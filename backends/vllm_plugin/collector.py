"""Collector: the garbage collection of the engine's process, at moments that delay no request.

An engine's process holds hundreds of thousands of objects that live as long as it does. After the start they are
frozen, so that no collection visits them, and automatic collections are switched off. A collection runs when no prompt
waits and every answer is well ahead of its deadlines (FairBatching, arXiv 2510.14392). However busy the engine is, a
collection runs when OBJECTS_MAX objects have accumulated.
"""

import gc
from collections.abc import Callable
from typing import Final

OBJECTS_MIN: Final = 5_000  # objects allocated less those freed; fewer are not worth a collection
OBJECTS_MAX: Final = 200_000  # collect even if a request waits
PAUSE_S_AT_FIRST: Final = 0.020
SLACK_TIMES: Final = 4.0  # slack that answers must have, in multiples of the longest recent pause


class Collector:
    """The Python garbage collection of an engine's process. It collects at moments that delay no request, in place of
    the interpreter's own. `clock` returns seconds.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._pause_s_max = PAUSE_S_AT_FIRST

    def begin(self) -> None:
        """Freeze all objects that exist now, and switch automatic collection off."""
        gc.collect()
        gc.freeze()
        gc.disable()

    def collect_if_calm(self, *, slack_s: float, prompts_wait: bool) -> float:
        """Collect if the moment is good or OBJECTS_MAX is reached; return the seconds spent, 0.0 for none."""
        objects = gc.get_count()[0]
        calm = not prompts_wait and slack_s >= SLACK_TIMES * self._pause_s_max
        if objects < OBJECTS_MIN or not (calm or objects >= OBJECTS_MAX):
            return 0.0
        began_at = self._clock()
        gc.collect()
        pause_s = self._clock() - began_at
        self._pause_s_max = max(pause_s, 0.9 * self._pause_s_max)
        return pause_s
