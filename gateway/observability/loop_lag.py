"""LoopLag: the delay of the event loop, which adds to the latency of every call.

A timer fires every INTERVAL_S; the seconds by which it is late are observed.
"""

import asyncio
from typing import Final

from gateway.observability.metrics.histograms import Histogram

INTERVAL_S: Final = 0.1


class LoopLag:
    """A measurement of how late the event loop's timers fire. Mutable; call `start`, and `stop` at the end."""

    def __init__(self, into: Histogram) -> None:
        self._loop = asyncio.get_running_loop()
        self._into = into
        self._timer: asyncio.TimerHandle | None = None
        self._due_at = 0.0

    def start(self) -> None:
        self._due_at = self._loop.time() + INTERVAL_S
        self._timer = self._loop.call_at(self._due_at, self._tick)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _tick(self) -> None:
        self._into.observe(max(0.0, self._loop.time() - self._due_at))
        self.start()
