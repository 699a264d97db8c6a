"""Shared steps: prompts at an engine where one prompt gets at most a part of a step.

This models vLLM's --long-prefill-token-threshold. A long prompt, which takes several steps, leaves a part of each, and
a short prompt is computed in that part beside it, however much is still owed of long ones.

A long prompt that was computed leaves its part of the steps free until the gateway has heard of it and the next one is
there, several steps later. So the next long prompt is sent earlier: until the first has ended, it takes the part that
is left to short ones. That is soon enough for a short prompt that arrives meanwhile to be in time. The step-time model
gives the time at which a prompt will be computed, corrected by how late earlier prompts were.
"""

from collections import deque
from collections.abc import Iterable
from math import ceil, inf
from typing import NamedTuple

from policies.reservation import Reservation

ROUNDING_S = 1e-9
STEP_UNDER_WAY = 1.0  # the current step, which does not include a prompt that is sent now
LATEST = 16  # prompts that tell how late long ones are and what short ones need: as many as `held_s` of a backend is of


class _Long(NamedTuple):
    """A long prompt: the step of the clock at which it was sent, and the number of steps that it needs."""

    sent_at: float
    steps: int


class _Short(NamedTuple):
    """A short prompt with a TTFT target: the second of the clock at which it was sent, and its tokens."""

    sent_at: float
    tokens: int
    ttft_s: float


class SharedSteps:
    """The prompts that wait for their first token at one backend whose engine shares each step among several prompts: a
    step computes at most `share_tokens` tokens of each. The object predicts when a prompt will be computed, by a clock
    that counts engine steps of `step_s` seconds each. Mutable.
    """

    __slots__ = (
        "_late_steps", "_lateness", "_long", "_seconds", "_short_tokens", "_shorts", "_steps", "long_max",
        "share_tokens", "step_s",
    )  # fmt: skip

    def __init__(self, share_tokens: int, prompts: Iterable[Reservation], *, long_max: int) -> None:
        """A step computes at most `share_tokens` of one prompt. `prompts` are the prompts that have no first token now.
        Up to `long_max` long prompts may be computed at a time, so that a part of every step is left for short ones.
        """
        self.share_tokens = share_tokens
        self.long_max = long_max
        self.step_s = inf
        self._seconds = self._steps = 0.0
        self._long: dict[Reservation, _Long] = {}
        self._short_tokens = 0
        self._shorts: deque[_Short] = deque(maxlen=LATEST)
        self._lateness = deque[float](maxlen=LATEST)  # steps by which first tokens of long prompts came later
        self._late_steps: float | None = None  # the largest of them
        for each in prompts:
            self.add(each)

    def passed(self, seconds: float) -> None:
        """Advance the clock by this many seconds."""
        self._seconds += seconds
        self._steps += seconds / self.step_s

    @property
    def long_prompts(self) -> int:
        """The number of prompts that take several steps."""
        return len(self._long)

    @property
    def tokens_a_step(self) -> int:
        """The prompt tokens that the next step computes, if the step has room for them."""
        return self.long_prompts * self.share_tokens + self._short_tokens

    def add(self, prompt: Reservation) -> None:
        tokens, envelope = prompt.prefill_tokens, prompt.envelope
        if tokens > self.share_tokens:
            self._long[prompt] = _Long(self._steps, ceil(tokens / self.share_tokens))
            return
        self._short_tokens += tokens
        if envelope is not None and envelope.ttft_s is not None:
            self._shorts.append(_Short(self._seconds, tokens, envelope.ttft_s_given or envelope.ttft_s))

    def started(self, prompt: Reservation) -> None:
        """The first token of a long prompt has come. Called before the prompt is removed."""
        long = self._long.get(prompt)
        if long is not None:
            self._lateness.append(self._steps - long.sent_at - long.steps)
            self._late_steps = max(self._lateness)

    def remove(self, prompt: Reservation) -> None:
        if self._long.pop(prompt, None) is None:
            self._short_tokens -= prompt.prefill_tokens

    def short_s(self, tokens: float, chunk_tokens: int, chunk_s: float) -> float:
        """Seconds until all short prompts, and `tokens` more, are computed. They use the part of the steps that long
        prompts leave; a full step computes `chunk_tokens` in `chunk_s`.
        """
        free_tokens = max(1, chunk_tokens - min(self.long_prompts, self.long_max) * self.share_tokens)
        return ((self._short_tokens + tokens) / free_tokens + STEP_UNDER_WAY) * chunk_s

    def opens_in_s(self, chunk_tokens: int, chunk_s: float) -> float:
        """Seconds until one more long prompt may be sent; infinite where that needs more than time."""
        if self.long_prompts < self.long_max:
            return 0.0
        if self.long_prompts > self.long_max or self._late_steps is None:
            return inf
        spare_s = self._spare_s(chunk_tokens, chunk_s)
        if spare_s < 0.0:
            return inf
        wait_s = self._end_s() - spare_s
        return wait_s if wait_s > ROUNDING_S else 0.0

    def _spare_s(self, chunk_tokens: int, chunk_s: float) -> float:
        """Seconds that short prompts can wait until long ones leave them a part of the steps again. It is assumed that
        as many come at a time as came recently. One full step where no short prompt has a target.
        """
        shorts = self._shorts
        if not shorts:
            return chunk_s
        ttft_s = min(each.ttft_s for each in shorts)
        at_most_s = ttft_s - self.short_s(max(each.tokens for each in shorts), chunk_tokens, chunk_s)
        if at_most_s < 0.0:
            return at_most_s
        first, tokens, most = 0, 0, 0
        for each in shorts:
            tokens += each.tokens
            while shorts[first].sent_at < each.sent_at - at_most_s:
                tokens -= shorts[first].tokens
                first += 1
            most = max(most, tokens)
        return ttft_s - self.short_s(most, chunk_tokens, chunk_s)

    def _end_s(self) -> float:
        """Seconds until the expected first token of the long prompt that is computed first."""
        end = min(long.sent_at + long.steps for long in self._long.values()) + (self._late_steps or 0.0)
        return max(0.0, end - self._steps) * self.step_s
