"""Step clock: the duration of each step, from its start to the start of the next, as the step-time model defines it.

An engine starts the next step when it has processed the outcome of the last one. So a step takes the time since the
previous outcome or, after an idle time, since the step was formed. The rule holds for engines that wait for each step
and for engines that form the next step meanwhile (asynchronous scheduling).
"""

from collections import deque
from collections.abc import Hashable
from typing import NamedTuple

IN_FLIGHT_MAX = 64  # steps; an engine has at most one more than pipeline stages


class StepReport(NamedTuple):
    """The report of one engine step: tokens computed, KV tokens read, requests, and the duration in seconds."""

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
    """A measurement of the duration of each engine step that computes tokens. Times are seconds on one clock."""

    def __init__(self) -> None:
        self._begun: deque[_Begun] = deque(maxlen=IN_FLIGHT_MAX)
        self._free_since: float | None = None  # when the next step could have begun
        self._paused_s = 0.0

    @property
    def in_flight(self) -> int:
        """The number of steps that were formed and have not ended."""
        return len(self._begun)

    def began(self, key: Hashable, now: float, *, new_tokens: int, context_tokens: int, requests: int) -> None:
        """Record a step when it is formed, under a key that its outcome will have."""
        self._begun.append(_Begun(key, now, new_tokens, context_tokens, requests))

    def ended(self, key: Hashable, now: float) -> StepReport | None:
        """Return the report of a step whose outcome has arrived; None for an unknown step."""
        while self._begun:
            begun = self._begun.popleft()
            if begun.key == key:
                since = begun.at if self._free_since is None else self._free_since
                duration_s = max(0.0, now - since - self._paused_s)
                self._free_since, self._paused_s = now, 0.0
                return StepReport(begun.new_tokens, begun.context_tokens, begun.requests, duration_s)
        return None

    def idle(self) -> None:
        """Record that the engine is idle after the last outcome: the time until the next step belongs to no step."""
        if not self._begun:
            self._free_since, self._paused_s = None, 0.0

    def paused(self, pause_s: float) -> None:
        """Exclude this much of the time since the last outcome, because it was not the engine's work."""
        self._paused_s += pause_s
