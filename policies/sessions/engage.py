"""Engagement: when turns of sessions are held, which is only where it pays.

If a session is held, the engine has less to do during the gaps of the others. In return, the engine recomputes fewer
contexts. With N sessions of which M fit, a mean gap of g seconds, and turns of L seconds of which the part q goes into
recomputation: all N at once end N / (g + L) turns each second; M at once, without recomputation, end M / (g + L (1 - q)
M / N). The second rate is higher where q L > g (N - M) / M, on an engine that is busy step after step.

While sessions are held, no context is recomputed, and q shows nothing. Then holding ends where the engine would have
time left even if it computed every turn's whole prompt, or where no turn had to be held for a while.
"""

from collections.abc import Iterable
from math import inf
from typing import Final

from mypy_extensions import mypyc_attr

from policies.sessions.engine_use import WINDOW_S
from policies.sessions.working_set import WorkingSet

BUSY_RATIO_MIN: Final = 0.9
RECOMPUTED_RATIO_MIN: Final = 0.1


@mypyc_attr(allow_interpreted_subclasses=True)
class Engagement:
    """The switch that decides whether turns (calls of agents' sessions) are held in one pool. A held turn waits until
    there is room for its context, so that engines have to recompute fewer contexts. The switch is turned on when more
    turns are predicted to end per second with holding than without, and off when holding is not needed any more.
    Mutable.
    """

    def __init__(self) -> None:
        self.is_on = False
        self._since = self._needed_at = -inf

    def begin(self, now: float) -> None:
        """Hold sessions from now on."""
        self.is_on, self._since, self._needed_at = True, now, now

    def update(self, sets: Iterable[WorkingSet], *, is_needed: bool, now: float) -> None:
        """Decide anew whether sessions are held. `is_needed`: a turn is held, or an admitted session would not fit."""
        if not self.is_on:
            if any(_pays(each) for each in sets):
                self.begin(now)
            return
        if is_needed:
            self._needed_at = now
        is_idle = now - self._since >= 2.0 * WINDOW_S and all(_has_time_for_all(each) for each in sets)
        self.is_on = now - self._needed_at < WINDOW_S and not is_idle


def _pays(backend: WorkingSet) -> bool:
    if backend.pool_tokens == inf:
        return False  # nothing can be said to fit or not
    use = backend.use
    again = use.recomputed_ratio
    if use.busy_ratio <= BUSY_RATIO_MIN or again <= RECOMPUTED_RATIO_MIN or use.context_mean <= 0.0:
        return False
    fit = max(1.0, backend.eta * backend.pool_tokens / use.context_mean)
    sessions = use.turns_per_s * (use.turn_s + use.gap_s)  # that are active, about: Little's law
    return again * use.turn_s > use.gap_s * (sessions - fit) / fit


def _has_time_for_all(backend: WorkingSet) -> bool:
    """Whether the engine would have time left, if it computed the whole context of each turn again."""
    use = backend.use
    return use.busy_ratio + use.turns_per_s * use.context_mean * use.prefill_s_per_token < BUSY_RATIO_MIN
