"""Window: how many sequences may be sent to an engine of unknown size. (vLLM does not publish max_num_seqs.)

Requests that wait inside an engine wait outside the scheduler's fairness. So the window bounds the sequences in flight
there, as TCP's window bounds segments. These rules set its size:

- It grows as sequences start. A first token shows at once, and without a poll, that a sequence runs. An eighth more may
  be sent than have been seen to run at once, so at most an eighth of an engine's slots wait there.
- For answers that are not streamed, only scrapes show how many run. As many more may be sent as the last two scrapes
  have both shown.
- When the window is full and a scrape finds requests waiting, the window becomes the number of running sequences. It
  then grows only as more sequences start: by one at first, and by more with every scrape that finds none waiting.
- If no sequence starts beyond it, one more is sent now and then, at intervals that double, to see whether it runs.

Requests also wait for room in the steps of an engine that computes long prompts. So it takes two scrapes in a row to
make the window smaller than the number of sequences that have run before.
"""

from typing import Final

START: Final = 4  # sequences before any is seen to run: TCP's initial window (RFC 3390)
PART: Final = 8  # one in so many of what runs may wait for a moment
PROBE_S, PROBE_S_MAX = 0.5, 32.0  # from a limit to the first probe, and between probes of one that stands


class Window:
    """A limit on the sequences that may be in flight at one engine of unknown size. It is learnt from the number of
    sequences that were seen to run there at once. Mutable.
    """

    __slots__ = (
        "_beyond", "_has_grown", "_is_contradicted", "_probe_at", "_probe_s", "_ran", "_unseen", "_unseen_last",
        "_widest", "is_known",
    )  # fmt: skip

    def __init__(self) -> None:
        self.is_known = False
        """Whether requests have waited beyond the window; until then, the numbers that have run set its size."""
        self._ran = 0  # sequences that have run at once
        self._has_grown = False  # since the last scrape
        self._beyond = 0  # how many more may be sent, where it is known
        self._unseen = self._unseen_last = 0  # sequences that only scrapes show to run: the last two, and the last
        self._widest = 1  # sequences of the latest request
        self._is_contradicted = False  # less ran at the last scrape, with requests waiting
        self._probe_s, self._probe_at = PROBE_S, 0.0

    @property
    def is_open(self) -> bool:
        """Whether more sequences may be sent than are known to run."""
        return not self.is_known or self._beyond > 0

    @property
    def sequences_max(self) -> int:
        # One, too, where all that was sent waits: an idle engine takes a request in any case.
        return max(1, self._ran + self._beyond) if self.is_known else max(START, self._ran + self._beyond_max)

    @property
    def _beyond_max(self) -> int:
        return max(self._widest, self._ran // PART, self._unseen)

    def sent(self, sequences: int) -> None:
        """Record the dispatch of a request."""
        self._widest = sequences

    def started(self, running: int) -> bool:
        """Record that `running` sequences run; return whether the window has changed."""
        if running <= self._ran:
            return False
        self._ran, self._has_grown, self._probe_s = running, True, PROBE_S
        return True

    def measured(self, running: int, waiting: int, *, seen: int, is_used: bool, now: float) -> None:
        """Apply a scrape that counts `running` and `waiting` sequences of ours, while `seen` were seen to run. If the
        window is not full (without `is_used`), requests wait for another reason than its size.
        """
        was_contradicted, self._is_contradicted = self._is_contradicted, False
        unseen = running - seen if running - seen > running // PART else 0  # fewer are about to start
        self._unseen, self._unseen_last = min(unseen, self._unseen_last), unseen
        if not waiting:
            self.started(running)
        if is_used and waiting:
            if running < self._ran and not was_contradicted and self.is_known:
                self._is_contradicted = True
                return
            if running < self._ran and self.is_known:
                self._ran, self._probe_s = max(1, min(running, seen + self._unseen)), PROBE_S
            self._beyond, self.is_known = max(0, running - self._ran), True
            self._probe_at = now + self._probe_s
        elif is_used and self._has_grown:
            self._beyond = min(self._beyond + max(1, self._beyond // PART), self._beyond_max)
        elif is_used and self.is_known and now >= self._probe_at:
            self._beyond += self._widest
            self._probe_s = min(2 * self._probe_s, PROBE_S_MAX)
            self._probe_at = now + self._probe_s
        self._has_grown = False
