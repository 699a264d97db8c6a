"""Long bodies: a reader that does not block the event loop for long.

A body of LONG_BYTES or more is read in slices with a turn of the loop between them (long_json.py), and its values are
counted. A body with too many values is rejected then, because a backend would stop for even longer, and all of its
streams with it. Other slow work on a long body is done in a thread. Only one body is read at a time, so that the loop
is delayed by one body at most.
"""

import asyncio
from collections.abc import Callable, Generator
from typing import Any, Final, ParamSpec, TypeVar

from backends.meters import long
from gateway.api.bodies import JsonBody, in_utf_8
from gateway.intake.long_json import read_object

LONG_BYTES: Final = long.LONG_BYTES
# Objects, lists and texts; ten numbers count as one. A million numbers are 40 MB as objects of a list
# (docs/results/load.md).
VALUES_MAX: Final = 100_000

Taken = ParamSpec("Taken")
Result = TypeVar("Result")


class LongBodies:
    """A parser of long request bodies, one at a time, in small steps or in a thread, so that the event loop is not
    blocked. Mutable; used on one loop.
    """

    def __init__(self, values_max: int = VALUES_MAX) -> None:
        self._values_max = values_max
        self._reading = asyncio.Lock()

    async def read_json(self, body: bytes | bytearray) -> JsonBody:
        """Parse one JSON object with at most this reader's `values_max` values. Raises ProblemError."""
        async with self._reading:
            body = await asyncio.to_thread(in_utf_8, body)
            return JsonBody(body, await in_turns(read_object(body, self._values_max)))

    async def run(self, read: Callable[Taken, Result], *args: Taken.args, **kwargs: Taken.kwargs) -> Result:
        """Call the function in a thread and return its result, or raise its error."""
        async with self._reading:
            return await asyncio.to_thread(read, *args, **kwargs)


async def in_turns(steps: Generator[None, None, Any]) -> Any:
    """The result of these steps, with a turn of the event loop between two steps."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return end.value
        await asyncio.sleep(0)
