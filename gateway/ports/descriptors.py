"""Descriptors: a log line when file descriptors are short. The ports then accept no connection (ports/listener.py).

Clients then only see that connections take long, and metrics cannot be read where each read is a connection.
"""

import asyncio
import logging
from math import inf
from typing import Final

from gateway.ports.listener import are_descriptors_short
from gateway.store.periodic import Periodic

LOOK_S: Final = 1.0
SAID_AGAIN_S: Final = 60.0

log = logging.getLogger(__name__)


class Descriptors:
    """A watch on this process's file descriptors, which logs an error, once a minute, if too few are free. Mutable."""

    def __init__(self) -> None:
        self.looks = Periodic(self._look, LOOK_S, "look at file descriptors")
        """Checks once a second."""
        self._said_at = -inf

    async def _look(self) -> None:
        self.look(asyncio.get_running_loop().time())

    def look(self, now: float) -> None:
        """Check now; `now` is in seconds."""
        if are_descriptors_short() and now - self._said_at >= SAID_AGAIN_S:
            self._said_at = now
            log.error("file descriptors are short: no connection is accepted until some are free; raise ulimit -n")
