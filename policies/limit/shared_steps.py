"""Shared steps: prompts at an engine where one prompt gets at most a part of a step.

This models vLLM's --long-prefill-token-threshold. A long prompt, which takes several steps, leaves a part of each, and
a short prompt is computed in that part beside it, however much is still owed of long ones.

A long prompt that was computed leaves its part of the steps free until the gateway has heard of it and the next one is
there, several steps later. So the next one is sent before that: it takes the part that is left to short ones until the
other has ended, which is so soon that a short prompt which comes meanwhile is in time all the same. When a prompt will
be computed follows from the step-time model, and from by how much earlier ones were later than that.
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
    """A long prompt: when it was sent, in steps of the clock, and how many it needs."""

    sent_at: float
    steps: int


class _Short(NamedTuple):
    """A short prompt with a TTFT target: when it was sent, in seconds of the clock."""

    sent_at: float
    tokens: int
    ttft_s: float


class SharedSteps:
    """The prompts without a first token at one backend, long ones and short ones. Mutable.

    A clock counts steps, of `step_s` seconds each.
    """

    __slots__ = (
        "_late_steps", "_lateness", "_long", "_seconds", "_short_tokens", "_shorts", "_steps", "long_max",
        "share_tokens", "step_s",
    )  # fmt: skip

    def __init__(self, share_tokens: int, prompts: Iterable[Reservation], *, long_max: int) -> None:
        """A step computes at most `share_tokens` of one prompt. `prompts` are those without a first token now.
        `long_max` is how many long ones may be computed at a time so that a part of every step is left for short ones.
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
        """So much time has passed."""
        self._seconds += seconds
        self._steps += seconds / self.step_s

    @property
    def long_prompts(self) -> int:
        """Those that take several steps."""
        return len(self._long)

    @property
    def tokens_a_step(self) -> int:
        """Prompt tokens that the next step computes, if it holds as many."""
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
        """The first token of a long prompt has come. It is still here."""
        long = self._long.get(prompt)
        if long is not None:
            self._lateness.append(self._steps - long.sent_at - long.steps)
            self._late_steps = max(self._lateness)

    def remove(self, prompt: Reservation) -> None:
        if self._long.pop(prompt, None) is None:
            self._short_tokens -= prompt.prefill_tokens

    def short_s(self, tokens: float, chunk_tokens: int, chunk_s: float) -> float:
        """Seconds until all short prompts and `tokens` more are computed in what `long_max` leave of full steps, which
        compute `chunk_tokens` in `chunk_s`.
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
        """Seconds that short prompts can wait until long ones leave a part of the steps to them again, if as many come
        at a time as came among the latest. One full step where none has a target.
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
        """Seconds until the first token of a long prompt is expected."""
        end = min(long.sent_at + long.steps for long in self._long.values()) + (self._late_steps or 0.0)
        return max(0.0, end - self._steps) * self.step_s
