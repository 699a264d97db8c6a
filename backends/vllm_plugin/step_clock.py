"""How long did each step take? From the start of one to the start of the next, as the step-time model has it.

An engine starts the next step when it has dealt with the outcome of the last one. So a step has taken the time
since the outcome before it; after a pause in which nothing was left to do, the time since it was formed. That is one
rule for engines that wait for each step and for those that form the next one meanwhile (asynchronous scheduling).
"""

from collections import deque
from collections.abc import Hashable
from typing import NamedTuple

IN_FLIGHT_MAX = 64  # steps; an engine has at most as many as it has pipeline stages, and one


class StepReport(NamedTuple):
    """One step: tokens that were computed, KV tokens that were read, requests in it, and seconds."""

    new_tokens: int
    context_tokens: int
    requests: int
    duration_s: float


class _Begun(NamedTuple):
    key: Hashable
    at: float
    new_tokens: int
    context_tokens: int
    requests: int


class StepClock:
    """Told of every step that computes anything, in order. Times are seconds on any one clock."""

    def __init__(self) -> None:
        self._begun: deque[_Begun] = deque(maxlen=IN_FLIGHT_MAX)
        self._free_since: float | None = None  # when the next step could have begun
        self._paused_s = 0.0

    @property
    def in_flight(self) -> int:
        return len(self._begun)

    def began(self, key: Hashable, now: float, *, new_tokens: int, context_tokens: int, requests: int) -> None:
        """Note a step, under a key that its outcome will have, when it is formed."""
        self._begun.append(_Begun(key, now, new_tokens, context_tokens, requests))

    def ended(self, key: Hashable, now: float) -> StepReport | None:
        """Return the report of a step whose outcome is there; None for one that was not noted."""
        while self._begun:
            begun = self._begun.popleft()
            if begun.key == key:
                since = begun.at if self._free_since is None else self._free_since
                duration_s = max(0.0, now - since - self._paused_s)
                self._free_since, self._paused_s = now, 0.0
                return StepReport(begun.new_tokens, begun.context_tokens, begun.requests, duration_s)
        return None

    def idle(self) -> None:
        """Nothing is left to do after the outcome that ended last: the time until the next step is nobody's."""
        if not self._begun:
            self._free_since, self._paused_s = None, 0.0

    def paused(self, pause_s: float) -> None:
        """So much of the time since the last outcome was not the engine's work."""
        self._paused_s += pause_s
