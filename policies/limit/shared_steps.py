"""Prompts that share steps: no prompt gets more than a part of one, whoever is in front of it.

vLLM's --long-prefill-token-threshold. Long prompts, which take several steps, then leave something of every step, and
a short one is computed in that beside them, however much they are owed.
"""

from collections.abc import Iterable
from math import ceil

from policies.reservation import Reservation


class SharedSteps:
    """The prompts without a first token at one backend, long ones and short ones. Mutable."""

    __slots__ = ("_short_tokens", "long_prompts", "share_tokens")

    def __init__(self, share_tokens: int, prompts: Iterable[Reservation]) -> None:
        """A step computes at most `share_tokens` of one prompt; these are there."""
        self.share_tokens = share_tokens
        self.long_prompts = 0
        """Those that are longer than that."""
        self._short_tokens = 0
        for each in prompts:
            self.add(each)

    def add(self, prompt: Reservation) -> None:
        self._count(prompt, 1)

    def remove(self, prompt: Reservation) -> None:
        self._count(prompt, -1)

    def long_prompts_max(self, *, step_tokens_max: int, engines: int) -> int:
        """How many may be computed at a time so that something of every step is left for short ones."""
        return engines * max(1, ceil(step_tokens_max / self.share_tokens) - 1)

    def short_steps(self, tokens: float, *, chunk_tokens: int) -> float:
        """Steps until so many tokens more of short prompts are computed in what long ones leave of `chunk_tokens`."""
        free_tokens = max(1, chunk_tokens - self.long_prompts * self.share_tokens)
        return (self._short_tokens + tokens) / free_tokens

    def _count(self, prompt: Reservation, sign: int) -> None:
        if prompt.prefill_tokens > self.share_tokens:
            self.long_prompts += sign
        else:
            self._short_tokens += sign * prompt.prefill_tokens
