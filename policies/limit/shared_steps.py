"""Shared steps: prompts at an engine where one prompt gets at most a part of a step.

This models vLLM's --long-prefill-token-threshold. A long prompt, which takes several steps, leaves a part of each, and
a short prompt is computed in that part beside it, however much is still owed of long ones.
"""

from collections.abc import Iterable
from math import ceil

from policies.reservation import Reservation


class SharedSteps:
    """The prompts without a first token at one backend, long ones and short ones. Mutable."""

    __slots__ = ("_short_tokens", "long_prompts", "share_tokens")

    def __init__(self, share_tokens: int, prompts: Iterable[Reservation]) -> None:
        """A step computes at most `share_tokens` of one prompt. `prompts` are those without a first token now."""
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
        """How many long prompts may be computed at a time so that a part of every step is left for short ones."""
        return engines * max(1, ceil(step_tokens_max / self.share_tokens) - 1)

    def short_steps(self, tokens: float, *, chunk_tokens: int) -> float:
        """Steps until all short prompts and `tokens` more are computed in what long ones leave of `chunk_tokens`."""
        free_tokens = max(1, chunk_tokens - self.long_prompts * self.share_tokens)
        return (self._short_tokens + tokens) / free_tokens

    def _count(self, prompt: Reservation, sign: int) -> None:
        if prompt.prefill_tokens > self.share_tokens:
            self.long_prompts += sign
        else:
            self._short_tokens += sign * prompt.prefill_tokens
