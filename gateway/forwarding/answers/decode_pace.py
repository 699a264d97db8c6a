"""DecodePace: an estimate of the tokens that a backend has decoded of an answer that has not arrived yet.

An answer that is not streamed arrives whole or not at all. When its client disconnects, the gateway aborts the
backend's work, but charges the tenant for the tokens decoded by then. If the backend counts its steps, these give the
tokens (backends/step_counts.py). For any other backend, the estimate is the time since the expected first token over
the time per token. Both times are averages over the completed answers of this backend, so they follow its load.
"""

from collections.abc import Callable
from dataclasses import dataclass

Counted = Callable[[float, float], float | None]
"""How many tokens did each sequence get whose decoding began and ended so many seconds ago? None: it is not counted."""

TOKEN_S_AT_FIRST = 0.02
"""Until an answer has come to its end: 50 tokens a second, a middling model under load."""
ALPHA_MIN = 0.1


@dataclass(slots=True)
class _PaceAverage:
    value: float
    observations: int = 0

    def observe(self, value: float) -> None:
        """The first values count in full, the later ones by ALPHA_MIN."""
        self.observations += 1
        self.value += max(1 / self.observations, ALPHA_MIN) * (value - self.value)


class DecodePace:
    """An estimator of how many tokens one backend has decoded of an answer that is not streamed, from the time since
    the call was sent. Times are seconds; tokens are of one sequence of the answer. Mutable.
    """

    def __init__(self, counted: Counted = lambda _begun_s, _ended_s: None) -> None:
        self.counted = counted
        self._first_s = _PaceAverage(0.0)
        self._token_s = _PaceAverage(TOKEN_S_AT_FIRST)

    @property
    def token_s(self) -> float | None:
        """The average time per token of a sequence in seconds; None before the first answer."""
        return self._token_s.value if self._token_s.observations else None

    def streamed(self, *, tokens: float, first_s: float, duration_s: float) -> None:
        """Observe a completed stream, with its first token after `first_s` and its last after `duration_s`."""
        self._first_s.observe(first_s)
        if tokens > 1 and duration_s > first_s:
            self._token_s.observe((duration_s - first_s) / (tokens - 1))

    def whole(self, *, tokens: float, duration_s: float) -> None:
        """Observe an answer that was not streamed and came after `duration_s`."""
        if tokens > 0:
            self._token_s.observe(max(duration_s - self._first_s.value, 0.0) / tokens)

    def tokens_after(self, elapsed_s: float, ended_s: float = 0.0) -> float:
        """The estimated tokens of one sequence that was sent `elapsed_s` ago and ended `ended_s` ago."""
        if (counted := self.counted(elapsed_s, ended_s)) is not None:
            return counted
        # At least one, because decoding may have begun.
        return 1.0 + self._by_the_clock(elapsed_s - ended_s - self._first_s.value)

    def tokens_in(self, seconds: float) -> float:
        """The estimated tokens that one running sequence got in the last `seconds`."""
        counted = self.counted(seconds, 0.0)
        return self._by_the_clock(seconds) if counted is None else counted

    def _by_the_clock(self, seconds: float) -> float:
        if seconds <= 0.0:
            return 0.0
        return seconds / self._token_s.value if self._token_s.value > 0.0 else float("inf")
