"""Running limit: how many sequences a server runs at once. (vLLM does not publish max_num_seqs.)

A server with room for another sequence starts it. So if requests wait although KV memory is free, and the number
running returns to the same value while sequences finish and are replaced, that number is the limit. The turnover
matters: the prefill of a long prompt also makes requests wait at a constant number running, but then a finished
sequence is not replaced.

A learnt limit may be wrong, or the server may have restarted with another one, and a scheduler that obeys it would
never find out. So every PROBE_S one more than the limit is allowed: if it runs, the limit is forgotten; if it waits,
the limit stands.
"""

from dataclasses import dataclass

from backends.metrics import EngineMetrics

KV_USED_RATIO_MAX = 0.9  # above it requests wait for memory, which says nothing about slots
PROBE_S = 30.0


@dataclass(frozen=True, slots=True)
class _Peak:
    requests_running: int
    finished_total: int | None


class RunningLimit:
    """Learns the most sequences that all engines of one server run at once, from its scrapes."""

    def __init__(self) -> None:
        self._limit: int | None = None
        self._probe_at = 0.0
        self._peak: _Peak | None = None  # the most seen running since requests began to wait

    def limit(self, now: float) -> int | None:
        """Return the number of sequences it may be given, None while the limit is unknown."""
        if self._limit is None:
            return None
        return self._limit + (now >= self._probe_at)

    def observe(self, metrics: EngineMetrics, *, now: float) -> None:
        """Take in one scrape; scrapes are of one server and in order."""
        running = metrics.requests_running
        if running is None:
            self._peak = None
            return
        if self._limit is not None and running > self._limit:
            self._limit = self._peak = None
        if not self._waits_for_a_slot(metrics):
            self._peak = None
        elif running == self._limit:
            self._probe_at, self._peak = now + PROBE_S, None
        elif self._peak is None or running > self._peak.requests_running:
            self._peak = _Peak(running, metrics.requests_finished_total)
        elif running == self._peak.requests_running and self._turned_over(metrics.requests_finished_total):
            self._limit, self._probe_at, self._peak = running, now + PROBE_S, None

    @staticmethod
    def _waits_for_a_slot(metrics: EngineMetrics) -> bool:
        waiting = metrics.requests_waiting_for_capacity
        if waiting is None:
            waiting = metrics.requests_waiting
        return bool(waiting) and bool(metrics.requests_running) and (metrics.kv_used_ratio or 0.0) < KV_USED_RATIO_MAX

    def _turned_over(self, finished_total: int | None) -> bool:
        """Whether a sequence has finished since the peak; assumed where the server does not count them."""
        assert self._peak is not None
        before = self._peak.finished_total
        return before is None or finished_total is None or finished_total != before
