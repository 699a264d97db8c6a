"""Tasks: what one process does for its order in the background."""

import asyncio
from collections.abc import Coroutine
from typing import Any


class Tasks:
    """The background tasks of a shared order: coroutines that run until they end, or are cancelled. Made on the
    loop.
    """

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()

    def start(self, work: Coroutine[Any, Any, Any]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def cancel(self) -> None:
        """Cancel all, and wait for their ends."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
