"""Which prompts does an engine compute before this one? Those that are due no later, where it goes by deadlines.

An engine that batches fairly computes prompts by their slack, whatever order they came in. So what stands before a
prompt is what is owed of those that are due no later; what nobody said a time for is computed last.
"""

from bisect import bisect_right, insort
from math import inf
from typing import NamedTuple

from policies.reservation import Reservation


class _Prompt(NamedTuple):
    due_at: float
    number: int
    tokens: int


class PromptsByDeadline:
    """The prompts without a first token, by when that is due. A few tens of them: sums are added up when asked for."""

    def __init__(self) -> None:
        self.tokens = 0
        """Of all of them."""
        self._prompts: list[_Prompt] = []

    def add(self, reservation: Reservation) -> None:
        insort(self._prompts, _prompt(reservation))
        self.tokens += reservation.prefill_tokens

    def remove(self, reservation: Reservation) -> None:
        place = bisect_right(self._prompts, _prompt(reservation)) - 1
        del self._prompts[place]
        self.tokens -= reservation.prefill_tokens

    def tokens_by(self, due_at: float) -> int:
        """Of those that are due at this time or sooner; infinite: of all."""
        if due_at == inf:
            return self.tokens
        return sum(prompt.tokens for prompt in self._prompts[: bisect_right(self._prompts, (due_at, inf))])

    def tokens_due(self) -> int:
        """Of those that are due at some time."""
        return sum(prompt.tokens for prompt in self._prompts if prompt.due_at < inf)

    def largest(self) -> int:
        """Tokens of the longest."""
        return max((prompt.tokens for prompt in self._prompts), default=0)


def computed_by(reservation: Reservation) -> float:
    """When its prompt is due, by which they are computed; infinite where nobody said: after all others."""
    due_at = reservation.first_due_at
    return inf if due_at == -inf else due_at


def _prompt(reservation: Reservation) -> _Prompt:
    return _Prompt(computed_by(reservation), reservation.number, reservation.prefill_tokens)
