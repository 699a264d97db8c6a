"""Descriptors: a log line when file descriptors are short, so that the ports accept no connection (ports/listener.py).

Clients then only see that connections take long, and metrics cannot be read where each read is a connection.
"""

import asyncio
import logging
from math import inf
from typing import Final

from gateway.ports.listener import are_descriptors_short

LOOK_S: Final = 1.0
SAID_AGAIN_S: Final = 60.0

log = logging.getLogger(__name__)


class Descriptors:
    """A watch on this process's file descriptors, which logs an error when they are short, once a minute at most.
    Mutable; `start` it on its loop, `stop` it.
    """

    def __init__(self) -> None:
        self._timer: asyncio.TimerHandle | None = None
        self._said_at = -inf

    def start(self) -> None:
        """Check once a second from now on."""
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(LOOK_S, self._look, loop)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _look(self, loop: asyncio.AbstractEventLoop) -> None:
        self.look(loop.time())
        self._timer = loop.call_later(LOOK_S, self._look, loop)

    def look(self, now: float) -> None:
        """Check now; `now` is in seconds."""
        if are_descriptors_short() and now - self._said_at >= SAID_AGAIN_S:
            self._said_at = now
            log.error("file descriptors are short: no connection is accepted until some are free; raise ulimit -n")
