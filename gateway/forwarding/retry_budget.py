"""RetryBudget: a limit on retries, so that calls that failed at one backend do not flood the others.

When a backend fails, all its running calls go to other backends at once, and again if these cannot be reached, too: a
call that was not sent is retried without a count. So only a part of the running calls may be retries that no backend
has accepted yet. Further retries wait until others have a connection; a retry fails because of the budget only if it
waits for too long. How many calls a backend holds is the Scheduler's to say, and how often a call that was sent is sent
again is LossEvidence's. So no retry waits for the answer of another, which takes minutes where it is whole.

The numbers are Envoy's defaults (retry_budget of cluster.CircuitBreakers.Thresholds): 20 % of the active requests, but
at least 3.
"""

import asyncio
from collections import deque
from typing import Final

RETRIES_RATIO_MAX: Final = 0.2
RETRIES_MIN: Final = 3
WAIT_S_MAX: Final = 5.0  # for the connections of other retries


class RetryBudget:
    """A limit on the retries of one gateway: of the calls that run, at most 20 % (but at least 3) may be retries
    without a connection yet. Mutable; used on one loop.
    """

    def __init__(self) -> None:
        self.running = 0  # calls that are at a backend, retries included
        self.retrying = 0  # those of them that are retries without a connection yet
        self._waiting: deque[asyncio.Future[None]] = deque()

    @property
    def retries_max(self) -> int:
        return max(RETRIES_MIN, int(RETRIES_RATIO_MAX * self.running))

    async def enter(self) -> None:
        """Count one retry, when the budget has room for it. Raises TimeoutError."""
        while self.retrying >= self.retries_max:
            waiting = asyncio.get_running_loop().create_future()
            self._waiting.append(waiting)
            try:
                async with asyncio.timeout(WAIT_S_MAX):
                    await waiting
            except BaseException:
                if waiting in self._waiting:
                    self._waiting.remove(waiting)
                else:  # its turn has come, and its client has just disconnected
                    self._wake_next()
                raise
        self.retrying += 1

    def leave(self) -> None:
        """A retry has a connection, or has ended."""
        self.retrying -= 1
        self._wake_next()

    def _wake_next(self) -> None:
        while self._waiting:
            waiting = self._waiting.popleft()
            if not waiting.done():
                waiting.set_result(None)
                break
