"""Health of one backend: a circuit breaker for its requests, and a check of whether it answers at all.

Two kinds of failure are counted separately, because they have different consequences:

- No answer: a poll failed, or a connection was refused. After FAILURES_MAX in a row the backend is DOWN, whatever the
  other backends do.
- A broken exchange: a stream cut in the middle, or an error before the first byte. After FAILURES_MAX in a row the
  backend is EJECTED. An ejection is a judgement, so `keep_half` prevents that ejections remove more than half of the
  backends that answer. A good poll says nothing about broken exchanges and does not reset this count.

One incident counts once, however many exchanges it breaks. A failure is not counted if its request was sent before the
last counted failure and no poll was answered since then, or if it was sent before the backend last returned to TRIAL.

"The engine is currently busy" (503) is no failure. A backend returns half open. The first good poll after its backoff
puts it on TRIAL, where one more failure ejects it again for twice as long. A served request makes it HEALTHY; where it
was DOWN, TRIAL_POLLS good polls do, too. A DOWN backend that answers before its backoff ends is EJECTED until then, so
that `keep_half` can choose it when there are too few others.

An ejection for broken exchanges lasts EJECTED_S_MIN at least: polls were good all the time, so they do not show when
the backend is well again. A DOWN backend is back when a poll is good, so its backoff only dampens a server that flaps.

Pure: events come in with their times; it does no I/O and reads no clock.
"""

from collections.abc import Iterable
from enum import StrEnum
from math import inf

FAILURES_MAX = 3
TRIAL_POLLS = 3
BACKOFF_S_MIN = 1.0
BACKOFF_S_MAX = 16.0
EJECTED_S_MIN = 10.0  # nginx's fail_timeout
EJECTED_S_MAX = 300.0  # Envoy's max_ejection_time
EJECTED_RATIO_MAX = 0.5


class Evidence(StrEnum):
    """What one exchange with a backend shows about the backend's health. A client's own error or disconnect shows
    nothing.
    """

    SERVED = "served"  # answered to the end; a 4xx too
    BUSY = "busy"  # vLLM's 503: its queue is full; the server is healthy
    UNREACHABLE = "unreachable"  # no connection, or no answer to a poll
    BROKEN = "broken"  # answered, then cut the stream or failed with a 5xx


class HealthState(StrEnum):
    """The state of a backend's health. A backend gets requests while it is HEALTHY or on TRIAL (after a failure)."""

    UNKNOWN = "unknown"  # not polled yet
    HEALTHY = "healthy"
    TRIAL = "trial"
    EJECTED = "ejected"
    DOWN = "down"


class BackendHealth:
    """The health of one backend, as a circuit breaker: it takes the outcomes of polls and of exchanges, and decides
    whether the backend gets requests. The methods that record events return nothing; read `state` after them. Mutable.
    """

    def __init__(self, backend_id: str) -> None:
        self.backend_id = backend_id
        self.state = HealthState.UNKNOWN
        self.retry_at = 0.0  # no trial before this time
        self._left = 0  # how often in a row, without a long healthy time in between
        self._pause_s = 0.0  # the last one
        self._was_down = False
        self._unreachable = 0
        self._broken = 0
        self._trial_polls = 0
        self._healthy_since = 0.0
        self._failed_at = -inf  # the last failure that counted
        self.heard_at = -inf  # the last poll that it answered
        self.back_at = -inf  # the last time that it was put on trial

    @property
    def available(self) -> bool:
        """Whether requests may be sent to the backend."""
        return self.state in {HealthState.HEALTHY, HealthState.TRIAL}

    def report(self, evidence: Evidence, *, sent_at: float, now: float) -> None:
        """Record the outcome of a request that was sent at `sent_at`."""
        if evidence is Evidence.SERVED:
            self._unreachable = self._broken = 0
            if self.state is HealthState.TRIAL:
                self._become_healthy(now)
        elif evidence is Evidence.BROKEN:
            if not self._is_news(sent_at):
                return
            self._failed_at = now
            self._broken += 1
            if self.available and (self.state is HealthState.TRIAL or self._broken >= FAILURES_MAX):
                self._leave(HealthState.EJECTED, now)
        elif evidence is Evidence.UNREACHABLE:
            self.poll_failed(now)

    def poll_failed(self, now: float) -> None:
        """Record a failed health poll, or a connection that could not be made."""
        self._unreachable += 1
        if self.state is HealthState.EJECTED and self._unreachable >= FAILURES_MAX:
            self.state, self._was_down = HealthState.DOWN, True
            self.retry_at = min(self.retry_at, now + BACKOFF_S_MIN)  # what answers again has been restarted
        elif self.available and (self.state is HealthState.TRIAL or self._unreachable >= FAILURES_MAX):
            self._leave(HealthState.DOWN, now)
        elif self.state is HealthState.UNKNOWN and self._unreachable >= FAILURES_MAX:
            self.state = HealthState.DOWN

    def poll_answered(self, now: float) -> None:
        """Record a good health poll."""
        self._unreachable = 0
        self.heard_at = now
        if self.state is HealthState.UNKNOWN:
            self._become_healthy(now)
        elif self.state is HealthState.TRIAL:
            self._trial_polls += 1
            if self._was_down and self._trial_polls >= TRIAL_POLLS:
                self._become_healthy(now)
        elif not self.available:
            if now >= self.retry_at:
                self.take_back(now)
            else:
                self.state = HealthState.EJECTED

    def take_back(self, now: float) -> None:
        """Put the backend on trial."""
        self.state, self._trial_polls, self._unreachable, self.back_at = HealthState.TRIAL, 0, 0, now

    def _is_news(self, sent_at: float) -> bool:
        """Whether a failed request that was sent at `sent_at` is another incident than the last failure."""
        return sent_at > self.back_at and max(sent_at, self.heard_at) > self._failed_at

    def _become_healthy(self, now: float) -> None:
        self.state, self._broken, self._healthy_since = HealthState.HEALTHY, 0, now

    def _leave(self, state: HealthState, now: float) -> None:
        if self.state is HealthState.HEALTHY and now - self._healthy_since > max(BACKOFF_S_MAX, self._pause_s):
            self._left = 0  # after so long the backoff starts anew
        self._was_down = state is HealthState.DOWN
        shortest, longest = (BACKOFF_S_MIN, BACKOFF_S_MAX) if self._was_down else (EJECTED_S_MIN, EJECTED_S_MAX)
        self._pause_s = min(shortest * 2.0 ** min(self._left, 16), longest)
        self._left += 1
        self.state, self.retry_at = state, now + self._pause_s


def keep_half(pool: Iterable[BackendHealth], now: float) -> list[BackendHealth]:
    """Put ejected backends on trial while more than half of the answering backends are ejected; return them. A doubtful
    backend is better than none, and when most backends fail, the requests may be the cause.
    """
    answering = [h for h in pool if h.available or h.state is HealthState.EJECTED]
    ejected = sorted((h for h in answering if h.state is HealthState.EJECTED), key=lambda h: (h.retry_at, h.backend_id))
    taken_back = ejected[: max(0, len(ejected) - int(EJECTED_RATIO_MAX * len(answering)))]
    for health in taken_back:
        health.take_back(now)
    return taken_back
