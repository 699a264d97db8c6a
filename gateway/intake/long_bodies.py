"""LongBodies: reads long bodies without blocking the event loop for long.

Parsing holds the interpreter lock until it is done, on the loop or in a thread: 15 MB of small objects take a second.
So a body of LONG_BYTES or more is searched first, in slices with a turn of the loop between them, for the number of its
values. A body with too many is rejected at that cost: a backend would stop for even longer, and with it all of its
streams. An allowed body is parsed in a thread, whose steps are short because its values are few: a long text, an
image's base64, hashes. One body is read at a time, so that the loop waits for one at most.
"""

import asyncio
from collections.abc import Callable
from typing import Final, ParamSpec, TypeVar

from backends.meters import long
from gateway.api.bodies import in_utf_8
from gateway.api.errors import BODY_TOO_COMPLEX, Problem

LONG_BYTES: Final = long.LONG_BYTES
# Measured with orjson: 110 to 220 ns for an object or list, 100 ns for a string, 16 to 70 ns for a number. Numbers
# count less than in proportion, because prompts of token ids are nothing but numbers.
NUMBERS_TO_A_VALUE: Final = 10

Taken = ParamSpec("Taken")
Result = TypeVar("Result")


class TooComplexError(Exception):
    """The body has too many values."""

    problem: Problem = BODY_TOO_COMPLEX


class LongBodies:
    """Reads long bodies, one at a time. Mutable; used on one loop."""

    def __init__(self, values_max: int) -> None:
        self._values_max = values_max
        self._reading = asyncio.Lock()

    async def checked(self, body: bytes) -> bytes:
        """The JSON body in UTF-8, with at most `values_max` values. Raises TooComplexError."""
        async with self._reading:
            body = await asyncio.to_thread(in_utf_8, body)
        room = self._values_max * NUMBERS_TO_A_VALUE
        for outside, quotes in long.slices(body, 0, len(body)):
            values = (quotes + 1) // 2 + outside.count(b"{") + outside.count(b"[")
            # After every comma is a value: a number, or one that has been counted as more than that.
            room -= NUMBERS_TO_A_VALUE * values + outside.count(b",")
            if room < 0:
                raise TooComplexError
            await asyncio.sleep(0)
        return body

    async def run(self, read: Callable[Taken, Result], *args: Taken.args, **kwargs: Taken.kwargs) -> Result:
        """Call the function in a thread and return its result. Raises what it raises."""
        async with self._reading:
            return await asyncio.to_thread(read, *args, **kwargs)
