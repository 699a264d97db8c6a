"""Timeliness: the promptness of the tokens of one answer, measured while it streams, in constant memory and time.

There are three measures (FairBatching, arXiv 2510.14392, 3.1 and 5.1). Two are the time per output token since the
first token came and since the first token was due: (o(j) - o(0)) / j and (o(j) - arrival - TTFT) / j, the largest over
the answer's tokens. The second is within its target exactly if every token came by arrival + TTFT + j * TPOT; the first
may exceed it where the first token came early. The third is the number of tokens that came in time: an answer that
stalled once is not as bad as one that was slow throughout. Tokens of one chunk count as having come at one time.

All tokens of a non-streamed answer come at its end: the answer is judged by when its last token was due.
"""

from math import ceil, inf

from policies.due_times import first_token_due_at
from policies.types import Request, Timing

ROUNDING_S = 1e-9  # a token exactly on its deadline is in time


class Timeliness:
    """A measurement of the TTFT and TPOT of one answer, against the SLO envelope of its request. Mutable."""

    __slots__ = (
        "_arrived_at", "_choices", "_due_at", "_first_at", "_is_whole", "_last_at", "_late", "_since_due_s",
        "_since_first_s", "_token_s", "_tokens",
    )  # fmt: skip

    def __init__(self, request: Request) -> None:
        """The request must have an SLO envelope."""
        assert request.envelope is not None, "what was promised nothing is not judged"
        due_at = first_token_due_at(request)
        self._arrived_at = request.arrived_at
        self._choices = request.choices  # produced in parallel: tokens are counted as one of each choice in turn
        self._token_s = inf if request.envelope.tpot_s is None else request.envelope.tpot_s / request.choices
        self._due_at = inf if due_at is None else due_at  # until the first token comes
        self._first_at = self._last_at = 0.0
        self._since_first_s = self._since_due_s = 0.0  # per token of all choices; the latter of those after _due_at
        self._tokens = self._late = 0
        self._is_whole = False

    def passed(self, tokens: int, now: float) -> None:
        """Record that the answer has `tokens` tokens at `now`. Called for every chunk, hence optimised."""
        before = self._tokens
        if tokens <= before:
            return
        self._tokens, self._last_at = tokens, now
        if before < self._choices:
            self._began(before, tokens, now)
            return
        if now > self._first_at + before * self._since_first_s:
            self._since_first_s = (now - self._first_at) / before
        late_s = now - self._due_at
        if late_s > ROUNDING_S:
            if late_s > before * self._since_due_s:
                self._since_due_s = late_s / before
            if late_s > before * self._token_s + ROUNDING_S:
                self._late += 1 if tokens == before + 1 else self._late_among(before, tokens, late_s)

    def whole(self, tokens: int, now: float) -> None:
        """Record a non-streamed answer of `tokens` tokens, complete at `now`."""
        self._tokens, self._last_at, self._is_whole = tokens, now, True
        late_s, last = now - self._due_at, tokens - 1
        if tokens and late_s > ROUNDING_S and (not last or late_s > last * self._token_s + ROUNDING_S):
            self._late = tokens

    def slack_s(self, now: float) -> float:
        """Seconds until the next token is due; infinite where no token is due, negative where it is late."""
        if not self._tokens:
            return self._due_at - now
        if self._token_s == inf:
            return inf
        return self._due_at + (self._tokens // self._choices) * self._choices * self._token_s - now

    def timing(self) -> Timing:
        """The timing of the answer so far."""
        last, choices = self._tokens - 1, self._choices
        has_second = last >= choices
        since_due_s = self._since_due_s
        if has_second and (self._is_whole or not since_due_s):
            since_due_s = (self._last_at - self._due_at) / last  # before the first token is due: later, and less early
        return Timing(
            ttft_s=self._first_at - self._arrived_at if self._tokens and not self._is_whole else None,
            tpot_s=self._since_first_s * choices if has_second and not self._is_whole else None,
            tpot_envelope_s=since_due_s * choices if has_second and since_due_s > -inf else None,
            tokens=self._tokens,
            tokens_in_time=self._tokens - self._late,
        )

    def _began(self, before: int, tokens: int, now: float) -> None:
        """Record the first token of a choice, and all others of the same chunk."""
        if not before:
            self._first_at = now
            if self._due_at == inf:
                self._due_at = now
        late_s = now - self._due_at
        if tokens > self._choices:
            self._since_first_s = (now - self._first_at) / self._choices
            self._since_due_s = max(late_s, 0.0) / self._choices
        if late_s > ROUNDING_S:
            self._late += self._late_among(before, tokens, late_s)

    def _late_among(self, before: int, tokens: int, late_s: float) -> int:
        """The number of late tokens from number `before` up to `tokens`, `late_s` after the first was due."""
        if self._token_s == inf:
            return max(0, min(tokens, self._choices) - before)
        return max(0, min(tokens, ceil((late_s - ROUNDING_S) / self._token_s)) - before)
