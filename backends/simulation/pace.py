"""How promptly did an answer come, token by token? In constant memory, while it comes.

Two readings of time per output token, both the largest over an answer's tokens (FairBatching, arXiv 2510.14392, 5.1):
since its first token, (o(j) - o(0)) / j, and since the first token was due, (o(j) - arrival - TTFT target) / j; where
it came later than that, since it came, or being late would count twice. An answer is inside its envelope when its first
token came by its target and the second reading is at most the target of time per token: then every token came by
arrival + TTFT + j * TPOT. The first reading may exceed the target all the same, where the first token came early and
the second one took its time.
"""

from policies.types import SloEnvelope

ROUNDING_S = 1e-9  # a sum of step times that ends on its deadline is in time


class Pace:
    """The tokens of one answer against what was asked for."""

    __slots__ = ("_due_at", "_first_at", "_last_at", "_tokens", "tpot_envelope_s", "tpot_s")

    def __init__(self, arrived_at: float, envelope: SloEnvelope) -> None:
        self._due_at = None if envelope.ttft_s is None else arrived_at + envelope.ttft_s
        self._first_at = self._last_at = 0.0
        self._tokens = 0
        self.tpot_s: float | None = None
        """None until the second token."""
        self.tpot_envelope_s: float | None = None

    def emitted(self, tokens: int, now: float) -> None:
        """So many tokens more, the last of them now; the others since the last call, at equal distances.

        What is looked at is the first and the last of them: between equal distances a mean moves one way only.
        """
        if self._tokens:
            self._reach(self._tokens, self._last_at + (now - self._last_at) / tokens)
            if tokens > 1:
                self._reach(self._tokens + tokens - 1, now)
        else:
            assert tokens == 1, "a first token comes alone"
            self._first_at = now
            # Without a target the first token is due when it comes.
            self._due_at = now if self._due_at is None else max(now, self._due_at)
        self._tokens += tokens
        self._last_at = now

    def _reach(self, number: int, at: float) -> None:
        assert self._due_at is not None
        since_first_s, since_due_s = (at - self._first_at) / number, (at - self._due_at) / number
        if self.tpot_s is None or since_first_s > self.tpot_s:
            self.tpot_s = since_first_s
        if self.tpot_envelope_s is None or since_due_s > self.tpot_envelope_s:
            self.tpot_envelope_s = since_due_s


def is_inside(envelope: SloEnvelope, *, ttft_s: float | None, tpot_envelope_s: float | None) -> bool:
    """Whether an answer that came to its end kept its targets; a target that is None is kept."""
    if ttft_s is None:
        return False
    if envelope.ttft_s is not None and ttft_s > envelope.ttft_s + ROUNDING_S:
        return False
    return envelope.tpot_s is None or tpot_envelope_s is None or tpot_envelope_s <= envelope.tpot_s + ROUNDING_S
