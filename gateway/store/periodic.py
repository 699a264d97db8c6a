"""Something that is done again and again, with a pause between, until it is stopped.

It is asked to stop and not cancelled: what it is in the middle of (a transaction, an exchange with a server) comes to
its end, which takes no longer than its own bound.
"""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable

log = logging.getLogger(__name__)


class Periodic:
    """Runs on one loop. What it does should not raise; if it does, that is logged, and it is done again."""

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
        """Do it no more; called by the work itself, which `stop` would wait for."""
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
