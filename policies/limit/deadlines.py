"""Prompts by deadline: which prompts an engine with fair batching computes before a given one.

Such an engine orders prompts by slack, not by arrival. So the prompts that are due no later are computed first, and
prompts without a deadline last.
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
    """The prompts sent to one backend whose first token has not come yet, in order of the time at which it is due. An
    engine with FairBatching computes them in this order. A backend has a few tens of such prompts, so sums over them
    are computed on demand. Mutable.
    """

    def __init__(self) -> None:
        self.tokens = 0
        """The tokens of all prompts."""
        self._prompts: list[_Prompt] = []

    def add(self, reservation: Reservation) -> None:
        insort(self._prompts, _prompt(reservation))
        self.tokens += reservation.prefill_tokens

    def remove(self, reservation: Reservation) -> None:
        place = bisect_right(self._prompts, _prompt(reservation)) - 1
        del self._prompts[place]
        self.tokens -= reservation.prefill_tokens

    def tokens_by(self, due_at: float) -> int:
        """The prompt tokens that are due by `due_at`; all of them where it is infinite."""
        if due_at == inf:
            return self.tokens
        return sum(prompt.tokens for prompt in self._prompts[: bisect_right(self._prompts, (due_at, inf))])

    def tokens_due(self) -> int:
        return sum(prompt.tokens for prompt in self._prompts if prompt.due_at < inf)

    def largest(self) -> int:
        """The number of tokens of the longest prompt; 0 without any."""
        return max((prompt.tokens for prompt in self._prompts), default=0)


def computed_by(reservation: Reservation) -> float:
    """The deadline of a prompt, by which an engine orders prompts; infinite, and so last, without a deadline."""
    due_at = reservation.first_due_at
    return inf if due_at == -inf else due_at


def _prompt(reservation: Reservation) -> _Prompt:
    return _Prompt(computed_by(reservation), reservation.number, reservation.prefill_tokens)
