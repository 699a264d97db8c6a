"""Use of one engine: how busy it is, how much time it spends on recomputation, and how long turns and gaps last there.

Rates cover about the last WINDOW_S: older time counts for a tenth at most. Engine time is counted as processor sharing:
while n calls run, each has one n-th of the time. So no step-time model is needed for the engine time of a session.
"""

from math import exp, inf, log
from typing import Final

from policies.types import Usage

WINDOW_S: Final = 10.0
FADE_S: Final = WINDOW_S / log(10.0)
RATE_TOKENS_MIN: Final = 256  # a shorter prefill says more of the step than of its tokens
RATE_SAMPLES: Final = 32


class EngineUse:
    """The use of one engine's time: how busy it is, and how much of that goes into computing contexts of sessions
    again. Mutable.
    """

    __slots__ = (
        "_at",
        "_busy_s",
        "_context_tokens",
        "_gaps",
        "_gaps_s",
        "_least_token_s",
        "_prefill_s",
        "_samples",
        "_turns",
        "_turns_s",
        "computed",
        "engine_s",
        "recomputed_s",
        "running",
        "tells_cached",
        "token_s",
    )

    def __init__(self) -> None:
        self.running = 0
        """Calls that run, with a session or without."""
        self.engine_s = 0.0
        """Engine time that a call would have had that ran since the start."""
        self.computed = 0.0
        """Tokens computed since the start."""
        self.tells_cached = False
        """Whether it says how much of a prompt was cached: it has, and many engines leave out a zero."""
        self.token_s: float | None = None
        """Seconds of prefill per token, as the model of its steps says; None: not known."""
        self._at = -inf
        self.recomputed_s = 0.0
        """Its time that was lately spent on computing again."""
        self._busy_s = 0.0
        self._turns = self._turns_s = self._context_tokens = self._gaps = self._gaps_s = 0.0
        self._samples = 0
        self._least_token_s = (inf, inf)  # of prefills: of the RATE_SAMPLES before, and of those since
        self._prefill_s = 0.0  # the least of both; none yet

    def advance(self, now: float) -> None:
        """Count the time from the last call until `now`."""
        passed_s = now - self._at
        if passed_s <= 0.0:
            return
        self._at = now
        fade = exp(-passed_s / FADE_S)
        self.recomputed_s *= fade
        self._busy_s *= fade
        self._turns *= fade
        self._turns_s *= fade
        self._context_tokens *= fade
        self._gaps *= fade
        self._gaps_s *= fade
        if self.running:
            self.engine_s += passed_s / self.running
            self._busy_s += FADE_S * (1.0 - fade)

    # -- facts -------------------------------------------------------------------------------------------------

    def left(self, now: float) -> None:
        """A call runs no more."""
        self.advance(now)
        self.running -= 1

    def ended(self, usage: Usage, now: float) -> None:
        """A call that ran has ended with this usage."""
        self.left(now)
        prompt, cached, output = usage
        self.computed += prompt - cached + output
        if cached > 0:
            self.tells_cached = True

    def prefilled(self, tokens: int, seconds: float) -> None:
        """A call got its first token `seconds` after it was sent, with `tokens` of its prompt to compute."""
        if tokens < RATE_TOKENS_MIN:
            return
        before, since = self._least_token_s
        self._samples += 1
        if self._samples % RATE_SAMPLES == 0:
            before, since = since, inf
        self._least_token_s = before, min(since, seconds / tokens)
        self._prefill_s = min(self._least_token_s)

    def turned(self, turn_s: float, context: int) -> None:
        """A turn of a session took `turn_s` seconds and left a context of `context` tokens."""
        self._turns += 1.0
        self._turns_s += turn_s
        self._context_tokens += context

    def returned(self, gap_s: float) -> None:
        """A session came back after a gap of `gap_s` seconds."""
        self._gaps += 1.0
        self._gaps_s += gap_s

    # -- rates -------------------------------------------------------------------------------------------------

    def ratios(self, now: float) -> tuple[float, float]:
        """`busy_ratio` and `recomputed_ratio` as of `now`; changes no state."""
        fade = exp(-max(0.0, now - self._at) / FADE_S)
        busy_s = self._busy_s * fade + (FADE_S * (1.0 - fade) if self.running else 0.0)
        return busy_s / FADE_S, self.recomputed_s * fade / busy_s if busy_s > 0.0 else 0.0

    @property
    def busy_ratio(self) -> float:
        """The part of the time in which any call ran."""
        return self._busy_s / FADE_S

    @property
    def recomputed_ratio(self) -> float:
        """The part of the busy time that was spent on recomputation."""
        return self.recomputed_s / self._busy_s if self._busy_s > 0.0 else 0.0

    @property
    def prefill_s_per_token(self) -> float:
        """Seconds to prefill one prompt token: by the step-time model, or else as the fastest recent prefill shows."""
        if self.token_s is not None:
            return self.token_s
        return self._prefill_s

    @property
    def turns_per_s(self) -> float:
        return self._turns / FADE_S

    @property
    def turn_s(self) -> float:
        """Mean seconds of a turn, from its dispatch to its end."""
        return self._turns_s / self._turns if self._turns > 0.0 else 0.0

    @property
    def gap_s(self) -> float:
        """Mean gap, in seconds, of the sessions that came back."""
        return self._gaps_s / self._gaps if self._gaps > 0.0 else 0.0

    @property
    def context_mean(self) -> float:
        return self._context_tokens / self._turns if self._turns > 0.0 else 0.0
