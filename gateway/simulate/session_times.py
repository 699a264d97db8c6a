"""Session times: how long sessions and their turns take in a run, and how many are held and paused.

A turn waits from its arrival to its dispatch. A session takes from its first arrival to its latest end. Whether a
session goes on is not known before the run ends, so sessions are remembered; of too many, the oldest counts as ended.
"""

from typing import Final

from gateway.simulate.report.series import LatencyHistogram
from gateway.simulate.session_findings import SessionFindings
from policies.types import Request, SessionState, SessionsView

REMEMBERED_MAX: Final = 100_000


class SessionTimes:
    """A measurement of how long sessions take in one simulated run, and how long their turns (calls) wait. Mutable; it
    gets every call, with or without a session.
    """

    def __init__(self) -> None:
        self._spans: dict[tuple[str, str], tuple[float, float]] = {}  # first arrival and latest end
        self._sessions = self._turns = 0
        self._waits, self._durations = LatencyHistogram(), LatencyHistogram()
        self._wait_s_max = 0.0
        self._held_max = self._paused_max = 0

    @property
    def has_any(self) -> bool:
        return self._sessions > 0

    def arrived(self, request: Request, now: float) -> None:
        if request.program_id is None:
            return
        key = request.tenant_id, request.program_id
        if key not in self._spans:
            self._sessions += 1
            self._spans[key] = now, now
            if len(self._spans) > REMEMBERED_MAX:
                began_at, ended_at = self._spans.pop(next(iter(self._spans)))
                self._durations.add(ended_at - began_at)

    def dispatched(self, request: Request, now: float) -> None:
        if request.program_id is not None:
            wait_s = now - request.arrived_at
            self._turns += 1
            self._waits.add(wait_s)
            self._wait_s_max = max(self._wait_s_max, wait_s)

    def ended(self, request: Request, now: float) -> None:
        if request.program_id is not None and (request.tenant_id, request.program_id) in self._spans:
            key = request.tenant_id, request.program_id
            self._spans[key] = self._spans[key][0], now

    def sampled(self, view: SessionsView | None) -> None:
        """Take a sample of the Scheduler's view of sessions."""
        if view is not None:
            self._held_max = max(self._held_max, view.states[SessionState.HELD])
            self._paused_max = max(self._paused_max, view.states[SessionState.PAUSED])

    def findings(self, view: SessionsView | None) -> SessionFindings | None:
        """The findings about sessions, or None. `view` is the Scheduler's last view of them; None: it holds none."""
        if not self.has_any:
            return None
        durations = LatencyHistogram()
        durations.merge(self._durations)
        for began_at, ended_at in self._spans.values():
            durations.add(ended_at - began_at)
        held_turns = 0 if view is None else sum(view.wait_counts)
        return SessionFindings(
            sessions=self._sessions,
            turns=self._turns,
            turn_wait_p50_s=self._waits.quantile(0.5),
            turn_wait_p99_s=self._waits.quantile(0.99),
            turn_wait_max_s=self._wait_s_max,
            session_p50_s=durations.quantile(0.5),
            session_p90_s=durations.quantile(0.9),
            held_turns=held_turns,
            held_mean_s=view.wait_s / held_turns if view is not None and held_turns else None,
            held_max=self._held_max,
            paused_max=self._paused_max,
            pauses=0 if view is None else view.pauses,
            yields=0 if view is None else view.yields,
            etas={} if view is None else {name: each.eta for name, each in sorted(view.backends.items())},
        )
