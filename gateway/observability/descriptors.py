"""Descriptors: logs when the process has no file descriptor left for new connections; the event loop does not.

Without a free descriptor, uvloop (libuv) accepts a connection with a spare one and closes it at once: no error handler
is called, and the client sees a connection that ends. So this component opens and closes a descriptor once a second,
which costs two system calls.
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
    """Logs an error when no descriptor is left, once a minute at most. Mutable; `start` it on its loop, `stop` it."""

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
        try:
            os.close(os.dup(2))
        except OSError as error:
            if error.errno in (errno.EMFILE, errno.ENFILE) and now - self._said_at >= SAID_AGAIN_S:
                self._said_at = now
                log.error(  # noqa: TRY400 - there is nothing to trace
                    "no file descriptor is left (%s): new connections are closed at once; raise the limit (ulimit -n)",
                    error.strerror,
                )
