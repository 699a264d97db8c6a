"""Answer pace: the speed of an answer against its SLO envelope, as the FairBatching paper measures it, in constant
memory.

policies/slo/timeliness.py measures an answer, here as in the gateway; a leap of an engine is passed to it step by step.
This class adds a second reading of the time per output token, counted from when the first token was due, the largest
over an answer's tokens (arXiv 2510.14392, 5.1). If the first token came late, it counts from when it came, because
lateness would otherwise count twice. An answer is inside its envelope if its first token met its target and this
reading is at most the TPOT target: then every token came by arrival + TTFT + j * TPOT. The reading since the first
token came may still exceed the target, if the first token came early and the second one late.
"""

from policies.slo.timeliness import Timeliness
from policies.types import Request


class AnswerPace:
    """A measurement of the latency of one simulated answer against the targets of its request. The request must have an
    envelope.
    """

    __slots__ = ("_due_at", "_last_at", "_tokens", "timeliness", "tpot_envelope_s")

    def __init__(self, request: Request) -> None:
        self.timeliness = Timeliness(request)
        """As the gateway would measure it. To read."""
        assert request.envelope is not None, "what was promised nothing is not judged"
        ttft_s = request.envelope.ttft_s
        self._due_at = None if ttft_s is None else request.arrived_at + ttft_s
        self._last_at = 0.0
        self._tokens = 0
        self.tpot_envelope_s: float | None = None
        """The second reading; None until the second token."""

    def emitted(self, tokens: int, now: float) -> None:
        """Record more tokens: the last one came now, the others since the previous call at equal distances. The second
        reading uses only the first and the last of these tokens: at equal distances the mean is monotonic.
        """
        before, last_at = self._tokens, self._last_at
        self._tokens, self._last_at = before + tokens, now
        each_s = (now - last_at) / tokens
        for number in range(1, tokens):
            self.timeliness.passed(before + number, last_at + number * each_s)
        self.timeliness.passed(before + tokens, now)
        if before:
            self._raise_tpot(before, last_at + each_s)
            if tokens > 1:
                self._raise_tpot(before + tokens - 1, now)
        else:
            assert tokens == 1, "a first token comes alone"
            # Without a TTFT target the first token is due when it comes.
            self._due_at = now if self._due_at is None else max(now, self._due_at)

    def _raise_tpot(self, number: int, at: float) -> None:
        assert self._due_at is not None
        since_due_s = (at - self._due_at) / number
        if self.tpot_envelope_s is None or since_due_s > self.tpot_envelope_s:
            self.tpot_envelope_s = since_due_s
