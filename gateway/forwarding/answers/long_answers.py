"""Reads members of an answer that was not streamed, without blocking the event loop.

A short answer is parsed. A long one is searched for the requested members of its top level (backends/meters/long.py).
"""

from collections.abc import Iterable
from typing import Any

import orjson

from backends.meters import long
from backends.meters.events import json_object
from gateway.intake.long_bodies import in_turns


def is_long(body: bytes | bytearray) -> bool:
    """Whether the answer is long enough (LONG_BYTES) to be searched instead of parsed."""
    return len(body) >= long.LONG_BYTES


async def read_answer(body: bytes | bytearray, members: Iterable[str], *, search: bool = False) -> dict[str, Any]:
    """The parsed answer; if it is long, or with `search`, only the named members. Empty if it is no JSON object."""
    if not search and len(body) < long.LONG_BYTES:
        return json_object(body) or {}
    found = {name: await in_turns(long.member(body, name)) for name in members}
    return {name: value for name, value in found.items() if value is not None}


async def is_whole_json(body: bytes | bytearray) -> bool:
    """Whether the body is complete JSON."""
    if is_long(body):
        return bool(await in_turns(long.is_whole(body)))
    try:
        orjson.loads(body)
    except orjson.JSONDecodeError:
        return False
    return True
