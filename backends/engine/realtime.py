"""Real-time driver of an engine on the event loop: steps take as long as the arithmetic says.

A step ends at the end of the previous one plus its duration, not when a timer happens to fire, so a late loop does not
slow the engine down; overdue steps are delivered one per loop iteration. Only a loop that is late by more than
`LAG_S_MAX` costs the engine time.
"""

import asyncio
from collections.abc import Callable, Iterable
from typing import Protocol

from backends.engine.engine import Engine, StepResult
from backends.engine.sequence import EngineRequest

LAG_S_MAX = 0.1


class StepListener(Protocol):
    """The interface of a listener that gets the tokens of one request from a PacedEngine."""

    def prefilled(self, cached_tokens: int) -> None:
        """The prompt is computed, with `cached_tokens` from the prefix cache; the first token follows at once."""
        ...

    def token(self) -> None:
        """One more token was produced."""
        ...


class PacedEngine:
    """A driver that runs one simulated engine in real time on an event loop, `speed` times as fast as the engine that
    it simulates.
    """

    def __init__(
        self,
        engine: Engine,
        *,
        loop: asyncio.AbstractEventLoop,
        speed: float,
        on_step: Callable[[StepResult], None],
    ) -> None:
        self.engine = engine
        self._speed = speed
        self._on_step = on_step
        self._loop = loop
        self._listeners: dict[str, StepListener] = {}
        self._timer: asyncio.Handle | None = None
        self._ends_at = 0.0

    def submit(self, request: EngineRequest, listener: StepListener) -> None:
        """Start a request. Raises ValueError, see Engine.submit."""
        self.engine.submit(request, self._loop.time())
        self._listeners[request.id] = listener
        if self._timer is None:
            # Requests that arrive in one loop iteration share the first step.
            self._timer = self._loop.call_soon(self._begin, self._loop.time())

    def abort(self, request_id: str) -> None:
        """Stop a request if it is still in flight."""
        if self.engine.abort(request_id):
            del self._listeners[request_id]

    @property
    def requests_in_flight(self) -> int:
        return len(self._listeners)

    def stop(self) -> None:
        """Start no more steps."""
        if self._timer is not None:
            self._timer.cancel()

    def _begin(self, begun_at: float) -> None:
        plan = self.engine.step_begin(begun_at)
        if plan is None:
            self._timer = None
            return
        self._ends_at = begun_at + plan.duration_s / self._speed
        self._timer = self._loop.call_at(self._ends_at, self._end)

    def _end(self) -> None:
        report = self.engine.step_end()
        self._on_step(report)
        finished = set(report.finished)
        for request_id in report.emitted:
            listener = self._listeners.pop(request_id) if request_id in finished else self._listeners[request_id]
            if request_id in report.prefilled:
                listener.prefilled(report.prefilled[request_id])
            listener.token()
        self._begin(max(self._ends_at, self._loop.time() - LAG_S_MAX))


def least_loaded(engines: Iterable[PacedEngine]) -> PacedEngine:
    """Choose an engine as vLLM's data-parallel front end does: a waiting request weighs as much as four
    running ones.
    """

    def load(paced: PacedEngine) -> int:
        now = paced.engine.snapshot()
        return 4 * now.requests_waiting + now.requests_running

    return min(engines, key=load)
