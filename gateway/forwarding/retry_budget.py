"""RetryBudget: calls that failed at one backend do not flood the others.

When a backend fails, all calls that it had run go to the others at once, and where those fail too, every call again.
So only a part of the calls that run may be retries that no backend has answered yet. Retries beyond that wait until
others are answered: none fails for the budget, unless it waits for too long.

The numbers are Envoy's defaults (retry_budget of cluster.CircuitBreakers.Thresholds): 20 % of the active requests, but
at least 3.
"""

import asyncio
from collections import deque
from typing import Final, Self

RETRIES_RATIO_MAX: Final = 0.2
RETRIES_MIN: Final = 3
WAIT_S_MAX: Final = 5.0  # for the first bytes of other retries


class RetryBudget:
    """Counts the calls and retries of one gateway. Mutable; used on one loop."""

    def __init__(self) -> None:
        self.running = 0  # calls that are at a backend, retries included
        self.retrying = 0  # those of them that are retries without an answer yet
        self._waiting: deque[asyncio.Future[None]] = deque()

    @property
    def retries_max(self) -> int:
        return max(RETRIES_MIN, int(RETRIES_RATIO_MAX * self.running))

    def call(self) -> "CallRetries":
        """The retries of a call that runs within the `with` block of this."""
        return CallRetries(self)

    async def enter(self) -> None:
        """Count one retry, when the budget has room for it. Raises TimeoutError."""
        while self.retrying >= self.retries_max:
            waiting = asyncio.get_running_loop().create_future()
            self._waiting.append(waiting)
            try:
                async with asyncio.timeout(WAIT_S_MAX):
                    await waiting
            finally:
                if waiting in self._waiting:
                    self._waiting.remove(waiting)
        self.retrying += 1

    def leave(self) -> None:
        """One retry was answered, or has ended."""
        self.retrying -= 1
        while self._waiting:
            waiting = self._waiting.popleft()
            if not waiting.done():
                waiting.set_result(None)
                break


class CallRetries:
    """The retries of one call, of which at most one runs."""

    __slots__ = ("_budget", "_is_retrying")

    def __init__(self, budget: RetryBudget) -> None:
        self._budget = budget
        self._is_retrying = False

    def __enter__(self) -> Self:
        self._budget.running += 1
        return self

    def __exit__(self, *_error: object) -> None:
        self._budget.running -= 1
        self.answered()

    async def begin(self) -> None:
        """Wait for room in the budget: the call is about to be sent again. Raises TimeoutError."""
        self.answered()
        await self._budget.enter()
        self._is_retrying = True

    def answered(self) -> None:
        """The backend has answered the retry, or it has failed. Idempotent."""
        if self._is_retrying:
            self._is_retrying = False
            self._budget.leave()
