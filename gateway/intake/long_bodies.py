"""A long body is read without holding up everybody else.

Parsing holds the interpreter until it is done, on the loop or in a thread: 15 MB of small objects take a second. So a
body of LONG_BYTES or more is searched first, in slices with a turn for all others between them, for how many values it
holds. With more than are allowed it is refused before it costs more than that: a server behind us would stop for longer
still, and with it all that stream from it. What is allowed is parsed in a thread, whose steps are each as short as that
makes them: a long text, an image's base64, hashes. One body at a time, or the loop would wait for several.
"""

import asyncio
from collections.abc import Callable
from typing import Final, ParamSpec, TypeVar

from backends.meters import long
from gateway.api.bodies import in_utf_8
from gateway.api.errors import BODY_TOO_COMPLEX, Problem

LONG_BYTES: Final = long.LONG_BYTES
# Measured with orjson: 110 to 220 ns for an object or list, 100 ns for a text, 16 to 70 ns for a number. Numbers count
# less than that, because prompts of token ids are nothing else.
NUMBERS_TO_A_VALUE: Final = 10

Taken = ParamSpec("Taken")
Result = TypeVar("Result")


class TooComplexError(Exception):
    """The body holds too many values."""

    problem: Problem = BODY_TOO_COMPLEX


class LongBodies:
    """Reads long bodies, one at a time. Mutable."""

    def __init__(self, values_max: int) -> None:
        self._values_max = values_max
        self._reading = asyncio.Lock()

    async def checked(self, body: bytes) -> bytes:
        """The JSON body, in UTF-8. Raises TooComplexError."""
        async with self._reading:
            body = await asyncio.to_thread(in_utf_8, body)
        room = self._values_max * NUMBERS_TO_A_VALUE
        for outside, quotes in long.slices(body, 0, len(body)):
            values = (quotes + 1) // 2 + outside.count(b"{") + outside.count(b"[")
            # Behind every comma is a value: a number, or one that counts so much more.
            room -= NUMBERS_TO_A_VALUE * values + outside.count(b",")
            if room < 0:
                raise TooComplexError
            await asyncio.sleep(0)
        return body

    async def run(self, read: Callable[Taken, Result], *args: Taken.args, **kwargs: Taken.kwargs) -> Result:
        """What this function makes of a long body, in a thread. Raises what it raises."""
        async with self._reading:
            return await asyncio.to_thread(read, *args, **kwargs)
