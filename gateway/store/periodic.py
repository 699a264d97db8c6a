"""Periodic work: an async function that runs again and again, with a pause between, until it is stopped.

`stop` waits for the work in progress (a transaction, an exchange with a server) instead of cancelling it; the work has
its own time limit.
"""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable

log = logging.getLogger(__name__)


class Periodic:
    """A periodic task: it runs `work` again and again on one loop, with pauses of `pause_s` seconds. If `work` raises,
    the exception is logged, and `work` runs again.
    """

    def __init__(self, work: Callable[[], Awaitable[None]], pause_s: float, name: str) -> None:
        self._work = work
        self._pause_s = pause_s
        self._name = name
        self._stopping = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.create_task(self._run(), name=self._name)

    async def stop(self) -> None:
        self._stopping.set()
        if self._task is not None:
            await self._task
            self._task = None

    def finish(self) -> None:
        """End the repetition from within `work`, where `stop` would wait for itself."""
        self._stopping.set()

    @property
    def is_running(self) -> bool:
        return self._task is not None

    async def _run(self) -> None:
        while not self._stopping.is_set():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._pause_s):
                    await self._stopping.wait()
                return
            try:
                await self._work()
            except Exception:
                log.exception("failed to %s", self._name)
