"""Tasks: what a process does in the background, how that is ended, and how long work is done in turns of the loop."""

import asyncio
from collections.abc import AsyncIterator, Coroutine, Iterable
from itertools import islice
from typing import Any, TypeVar

T = TypeVar("T")


class Tasks:
    """A set of background coroutines, which run until they end or are cancelled together. Made on the loop."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()

    def start(self, work: Coroutine[Any, Any, Any]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def finish(self) -> None:
        """Wait for the ends of all."""
        await asyncio.gather(*self._tasks)

    async def cancel(self) -> None:
        """Cancel all, and wait for their ends."""
        await cancel(*self._tasks)


async def cancel(*tasks: asyncio.Task[Any] | None) -> None:
    """Cancel these tasks, and wait for their ends; None: it was never begun."""
    begun = [task for task in tasks if task is not None]
    for task in begun:
        task.cancel()
    await asyncio.gather(*begun, return_exceptions=True)


async def in_turns(rows: Iterable[T], rows_max: int) -> AsyncIterator[list[T]]:
    """Yield the rows in lists of at most `rows_max`, with a turn of the event loop after each."""
    rest = iter(rows)
    while part := list(islice(rest, rows_max)):
        yield part
        await asyncio.sleep(0)
