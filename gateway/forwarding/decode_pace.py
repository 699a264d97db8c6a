"""How fast does a backend answer, and so: how much has it probably produced of an answer that nobody saw?

An answer that is not streamed comes whole or not at all. Its client may leave at any time; the backend's work is
then aborted, but what was decoded by then was decoded for this tenant. A backend that counts its steps has counted it
(backends/step_counts.py). Of any other it is the time since a first token was to be expected, over the time per token:
both are averages over the answers of this backend that came to their end, so they follow its load.
"""

from collections.abc import Callable
from dataclasses import dataclass

Counted = Callable[[float, float], float | None]
"""How many tokens did each sequence get whose decoding began and ended so many seconds ago? None: it is not counted."""

TOKEN_S_AT_FIRST = 0.02
"""Until an answer has come to its end: 50 tokens a second, a middling model under load."""
ALPHA_MIN = 0.1


@dataclass(slots=True)
class _Average:
    value: float
    observations: int = 0

    def observe(self, value: float) -> None:
        """The first values count in full, the later ones by ALPHA_MIN."""
        self.observations += 1
        self.value += max(1 / self.observations, ALPHA_MIN) * (value - self.value)


class DecodePace:
    """One backend's pace. Times are seconds; tokens are of one sequence of the answer."""

    def __init__(self, counted: Counted = lambda _begun_s, _ended_s: None) -> None:
        self.counted = counted
        self._first_s = _Average(0.0)
        self._token_s = _Average(TOKEN_S_AT_FIRST)

    def streamed(self, *, tokens: float, first_s: float, duration_s: float) -> None:
        """A stream ended that had its first token after `first_s` and its last after `duration_s`."""
        self._first_s.observe(first_s)
        if tokens > 1 and duration_s > first_s:
            self._token_s.observe((duration_s - first_s) / (tokens - 1))

    def whole(self, *, tokens: float, duration_s: float) -> None:
        """An answer that was not streamed came after `duration_s`."""
        if tokens > 0:
            self._token_s.observe(max(duration_s - self._first_s.value, 0.0) / tokens)

    def tokens_after(self, elapsed_s: float, ended_s: float = 0.0) -> float:
        """How many tokens one sequence has probably got that was sent so long ago, and ended so long ago."""
        if (counted := self.counted(elapsed_s, ended_s)) is not None:
            return counted
        # One at least, for it may have begun.
        return 1.0 + self._by_the_clock(elapsed_s - ended_s - self._first_s.value)

    def tokens_in(self, seconds: float) -> float:
        """How many tokens one sequence has probably got in the last so many seconds."""
        counted = self.counted(seconds, 0.0)
        return self._by_the_clock(seconds) if counted is None else counted

    def _by_the_clock(self, seconds: float) -> float:
        if seconds <= 0.0:
            return 0.0
        return seconds / self._token_s.value if self._token_s.value > 0.0 else float("inf")
