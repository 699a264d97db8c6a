"""How promptly did an answer come, as the FairBatching paper reads it? In constant memory, while it comes.

policies/slo/timeliness.py judges an answer, here as in the gateway; a leap of an engine is told to it step by step.
Beside it a second reading of the time per output token since the first was due, the largest over an answer's tokens
(arXiv 2510.14392, 5.1): where the first token came late it is since it came, or being late would count twice. An answer
is inside its envelope when its first token came by its target and this reading is at most the target of time per token:
then every token came by arrival + TTFT + j * TPOT. The reading since the first token came may exceed the target all
the same, where that came early and the second one took its time.
"""

from policies.slo.timeliness import ROUNDING_S, Timeliness
from policies.types import Request, SloEnvelope, Timing


class AnswerPace:
    """The tokens of one answer against what was asked for: the request has an envelope."""

    __slots__ = ("_due_at", "_last_at", "_timeliness", "_tokens", "tpot_envelope_s")

    def __init__(self, request: Request) -> None:
        self._timeliness = Timeliness(request)
        assert request.envelope is not None, "what was promised nothing is not judged"
        ttft_s = request.envelope.ttft_s
        self._due_at = None if ttft_s is None else request.arrived_at + ttft_s
        self._last_at = 0.0
        self._tokens = 0
        self.tpot_envelope_s: float | None = None
        """The second reading; None until the second token."""

    def emitted(self, tokens: int, now: float) -> None:
        """So many tokens more, the last of them now; the others since the last call, at equal distances.

        The second reading looks at the first and the last of them: between equal distances a mean moves one way only.
        """
        before, last_at = self._tokens, self._last_at
        self._tokens, self._last_at = before + tokens, now
        each_s = (now - last_at) / tokens
        for number in range(1, tokens):
            self._timeliness.passed(before + number, last_at + number * each_s)
        self._timeliness.passed(before + tokens, now)
        if before:
            self._address_allowlist(before, last_at + each_s)
            if tokens > 1:
                self._address_allowlist(before + tokens - 1, now)
        else:
            assert tokens == 1, "a first token comes alone"
            # Without a target the first token is due when it comes.
            self._due_at = now if self._due_at is None else max(now, self._due_at)

    def timing(self) -> Timing:
        """As the gateway would judge it."""
        return self._timeliness.timing()

    def _address_allowlist(self, number: int, at: float) -> None:
        assert self._due_at is not None
        since_due_s = (at - self._due_at) / number
        if self.tpot_envelope_s is None or since_due_s > self.tpot_envelope_s:
            self.tpot_envelope_s = since_due_s


def is_inside(envelope: SloEnvelope, *, ttft_s: float | None, tpot_envelope_s: float | None) -> bool:
    """Whether an answer that came to its end kept its targets; a target that is None is kept."""
    if ttft_s is None:
        return False
    if envelope.ttft_s is not None and ttft_s > envelope.ttft_s + ROUNDING_S:
        return False
    return envelope.tpot_s is None or tpot_envelope_s is None or tpot_envelope_s <= envelope.tpot_s + ROUNDING_S
