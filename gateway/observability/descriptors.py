"""Is there a file descriptor left for the next connection? The event loop does not say so.

uvloop (libuv) accepts a connection for which there is none by a descriptor that it keeps for that, and closes it at
once: no handler of errors hears of it, and whoever connects sees a gateway that hangs up. So a descriptor is asked for
once a second, which is two calls of the operating system.
"""

import asyncio
import errno
import logging
import os
from math import inf
from typing import Final

LOOK_S: Final = 1.0
SAID_AGAIN_S: Final = 60.0

log = logging.getLogger(__name__)


class Descriptors:
    """Says in the log when there are none, once a minute at most. Mutable; `start` it on its loop, `stop` it."""

    def __init__(self) -> None:
        self._timer: asyncio.TimerHandle | None = None
        self._said_at = -inf

    def start(self) -> None:
        """Look from now on."""
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(LOOK_S, self._look, loop)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _look(self, loop: asyncio.AbstractEventLoop) -> None:
        self.look(loop.time())
        self._timer = loop.call_later(LOOK_S, self._look, loop)

    def look(self, now: float) -> None:
        """Is there one at this time, in seconds?"""
        try:
            os.close(os.dup(2))
        except OSError as error:
            if error.errno in (errno.EMFILE, errno.ENFILE) and now - self._said_at >= SAID_AGAIN_S:
                self._said_at = now
                log.error(  # noqa: TRY400 - there is nothing to trace
                    "no file descriptor is left (%s): new connections are closed at once; raise the limit (ulimit -n)",
                    error.strerror,
                )
