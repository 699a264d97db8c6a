"""Turns: when the order of one process takes its next turn on the event loop."""

import asyncio
from collections.abc import Callable
from math import inf


class Turns:
    """The timer that tells one process when to do its part in a shared order (a leader decides for several processes).
    A turn is one run of this work (processes do not alternate): the process handles what has arrived and sends its
    messages. Mutable; made and used on one loop.
    """

    def __init__(self, turn: Callable[[], None]) -> None:
        """`turn` takes a turn, and calls `begun` at its beginning."""
        self._turn = turn
        self._loop = asyncio.get_running_loop()
        self._is_soon = False
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = inf

    def soon(self) -> None:
        """Take a turn in the next turn of the loop."""
        if not self._is_soon:
            self._is_soon = True
            self._loop.call_soon(self._take_if_due)

    def within(self, seconds: float) -> None:
        """Take a turn within this number of seconds."""
        self.by(self._loop.time() + seconds)

    def by(self, at: float) -> None:
        """Take a turn at this time of the loop, if none is due earlier."""
        if self._timer is not None and self._timer_at <= at:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = at
        self._timer = self._loop.call_at(at, self._on_timer)

    def begun(self) -> None:
        """Note that a turn begins now."""
        self._is_soon = False

    def stop(self) -> None:
        """Let the timer start no more turns."""
        if self._timer is not None:
            self._timer.cancel()

    def _take_if_due(self) -> None:
        if self._is_soon:
            self._turn()

    def _on_timer(self) -> None:
        self._timer, self._timer_at = None, inf
        self.soon()
