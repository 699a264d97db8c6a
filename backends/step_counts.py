"""Step counts of one backend: the number of tokens that each of its decoded sequences got in a past interval.

Every decoded sequence gets one token per step, or with speculative decoding as many more as were accepted. So the steps
during a sequence's time give its tokens, whatever else runs. Scrapes give the number of steps so far. Between two
scrapes the steps are taken as evenly spread; after the last one, as fast as in the last busy interval. While no request
runs there are no steps: those counted by the next scrape belong to requests that were sent meanwhile. A request that
was sent and has not ended may be on its way to the engine, so it counts as one that runs.
"""

from bisect import bisect_right

from backends.metrics import EngineMetrics

COUNTS_MAX = 256  # a minute of scrapes of a busy server; of older ones ever fewer are kept


class StepCounts:
    """A record of how many tokens each decoding sequence of one backend got in any past interval. It follows from the
    engine steps that scrapes count. Mutable; times are seconds on one clock and do not go back.
    """

    def __init__(self) -> None:
        self._at: list[float] = []
        self._tokens: list[float] = []  # of one sequence, cumulative
        self._before: EngineMetrics | None = None
        self._is_idle = False
        self._awaited: set[str] = set()
        self._token_s: float | None = None

    @property
    def is_counting(self) -> bool:
        """Whether the backend counts steps, as far as the last scrape showed."""
        return bool(self._at)

    @property
    def token_s(self) -> float | None:
        """Seconds for a token of one sequence between the last two scrapes; None while idle or without step counts."""
        return None if self._is_idle else self._token_s

    def scraped(self, metrics: EngineMetrics, *, at: float) -> None:
        """Apply one scrape, made at the time `at`."""
        before, self._before = self._before, metrics
        if not metrics.engine_steps:
            self.silent()
            return
        tokens = None if before is None else _tokens_between(before, metrics)
        if tokens is None or not self._at:  # the first scrape, or a restarted server
            self._at, self._tokens = [at], [0.0]
        else:
            at = max(at, self._at[-1])
            if tokens and at > self._at[-1]:
                self._token_s = (at - self._at[-1]) / tokens
            self._add(at, self._tokens[-1] + tokens)
        self._is_idle = not (self._awaited or metrics.requests_running or metrics.requests_waiting)

    def silent(self) -> None:
        """Record that a poll failed: the activity until the next scrape is unknown."""
        self._at, self._tokens, self._before, self._is_idle = [], [], None, False

    def sent(self, request_id: str, at: float) -> None:
        """Record that a request was sent to the backend."""
        self._awaited.add(request_id)
        if self._is_idle:
            self._is_idle = False
            self._add(max(at, self._at[-1]), self._tokens[-1])

    def ended(self, request_id: str) -> None:
        """Record that this request has left the backend. Idempotent."""
        self._awaited.discard(request_id)

    def tokens_between(self, start: float, end: float) -> float | None:
        """Return the tokens of a sequence that was decoded for all of this interval; None if there are no counts for
        it.
        """
        if not self._at or start < self._at[0]:
            return None
        # An idle backend has made no steps since its last scrape.
        last, first = self._tokens[-1] if self._is_idle else self._by(end), self._by(start)
        return None if last is None or first is None else max(0.0, last - first)

    def _by(self, at: float) -> float | None:
        number = bisect_right(self._at, at)
        if number == len(self._at):
            late_s = at - self._at[-1]
            if not late_s:
                return self._tokens[-1]
            return None if self._token_s is None else self._tokens[-1] + late_s / self._token_s
        start, before = self._at[number - 1], self._tokens[number - 1]
        return before + (self._tokens[number] - before) * (at - start) / (self._at[number] - start)

    def _add(self, at: float, tokens: float) -> None:
        self._at.append(at)
        self._tokens.append(tokens)
        if len(self._at) > COUNTS_MAX:
            del self._at[1 : COUNTS_MAX // 2 : 2], self._tokens[1 : COUNTS_MAX // 2 : 2]


def _tokens_between(before: EngineMetrics, after: EngineMetrics) -> float | None:
    """The tokens of one sequence: the mean steps of the engines that made any. None for a restarted server."""
    counts = {engine.engine: engine.steps_total for engine in before.engine_steps}
    if counts.keys() != {engine.engine for engine in after.engine_steps}:
        return None
    steps = [engine.steps_total - counts[engine.engine] for engine in after.engine_steps]
    if min(steps) < 0:
        return None
    made = [each for each in steps if each]
    drafts = (after.drafts_total or 0) - (before.drafts_total or 0)
    accepted = (after.draft_tokens_accepted_total or 0) - (before.draft_tokens_accepted_total or 0)
    return sum(made) / len(made) * (1 + max(accepted, 0) / drafts if drafts > 0 else 1) if made else 0.0
