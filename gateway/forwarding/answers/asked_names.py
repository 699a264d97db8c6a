"""The model's name in answers: the name that the client asked for replaces the name that the backend wrote.

The name is found by byte search (backends/meters/long.py) and replaced in place; all other bytes stay unchanged. A call
that asked for a model by its own name uses none of this module.

Every chunk of a completion begins with the same bytes, up to the end of the name. After the first chunk these bytes are
only compared, without a search.
"""

from collections.abc import Mapping
from typing import Any, Final

import orjson

from backends.meters import AnswerKind
from backends.meters.events import StreamMeter, event_ends, is_one_event
from backends.meters.long import at_once, member_at, with_text
from backends.upstream import HttpExchange
from gateway.api.bodies import compact
from gateway.forwarding.answers.long_answers import is_long
from gateway.intake.long_bodies import in_turns
from policies.types import Usage

_MODEL: Final = b'"model"'
_NEVER: Final = b"\0"  # begins no event
# The APIs whose events hold the answer, and so the name of its model, in a member of this name.
_INSIDE: Final[Mapping[AnswerKind, str]] = {AnswerKind.RESPONSES: "response", AnswerKind.MESSAGES: "message"}


async def renamed(exchange: HttpExchange, body: bytes | bytearray, asked: str) -> bytes | bytearray:
    """The body of an answer that was not streamed; if it is JSON, with the model name `asked`."""
    if "json" not in exchange.headers.get("content-type", ""):
        return body
    return await rename_whole(body, asked)


def renaming(meter: StreamMeter, asked: str, answer: AnswerKind) -> StreamMeter:
    """A meter like `meter` whose client sees the model name `asked`."""
    return RenamingMeter(meter, EventRenamer(asked, answer))


async def rename_whole(body: bytes | bytearray, asked: str) -> bytes | bytearray:
    """A JSON answer that was not streamed, with the model name `asked`; unchanged where it names no model."""
    if body.find(_MODEL) < 0:
        return body
    steps = member_at(body, "model")
    at = await in_turns(steps) if is_long(body) else at_once(steps)
    new = with_text(body, at, asked)
    return body if new is None else new


class EventRenamer:
    """A filter of one stream's events: it replaces the backend's model name with the name that the client asked for,
    such as an alias. Mutable.
    """

    __slots__ = ("_asked", "_inside", "_new", "_old", "_written")

    def __init__(self, asked: str, answer: AnswerKind) -> None:
        self._asked, self._written = asked, compact(orjson.dumps(asked))
        self._inside = _INSIDE.get(answer)
        self._old, self._new = _NEVER, b""  # the first bytes of the last event, up to the name, before and after

    def __call__(self, events: bytes) -> bytes:
        """Whole events, with the asked name."""
        if events.startswith(self._old) and is_one_event(events):
            return self._new + events[len(self._old) :]
        if events.find(_MODEL) < 0:
            return events
        out, start = [], 0
        for end in event_ends(events, 0):
            out.append(self._event(events[start:end]))
            start = end
        return b"".join((*out, events[start:]))

    def _event(self, event: bytes) -> bytes:
        if event.find(_MODEL) < 0:
            return event
        at = self._name_at(event)
        new = with_text(event, at, self._asked)
        if new is None or at is None:
            return event
        if self._inside is None:
            end = len(event) - len(new) + at + len(self._written)  # of the name before
            self._old, self._new = event[:end], event[:at] + self._written
        return new

    def _name_at(self, event: bytes) -> int | None:
        inside = self._inside
        at: int | None = at_once(member_at(event, "model", level=1 if inside is None else 2))
        if inside is None or at is None:
            return at
        holder = at_once(member_at(event, inside))
        return at if holder is not None and holder < at else None


class RenamingMeter:
    """A meter of a stream (it counts tokens) that also puts the model name that the client asked for into events."""

    __slots__ = ("_feed", "_meter", "_rename")

    def __init__(self, meter: StreamMeter, rename: EventRenamer) -> None:
        self._meter = meter
        self._feed = meter.feed
        self._rename = rename

    def feed(self, data: bytes) -> bytes:
        out = self._feed(data)
        return self._rename(out) if out else out

    def finish(self) -> bytes:
        return self._rename(self._meter.finish())

    def cut(self, message: str, error: Mapping[str, Any] = {}) -> bytes:
        return self._meter.cut(message, error)

    @property
    def output_tokens(self) -> int:
        return self._meter.output_tokens

    @property
    def pieces(self) -> int:
        return self._meter.pieces

    @property
    def done(self) -> bool:
        return self._meter.done

    @property
    def error(self) -> bool:
        return self._meter.error

    @property
    def aborted(self) -> bool:
        return self._meter.aborted

    @property
    def rejected(self) -> bool:
        return self._meter.rejected

    @property
    def usage(self) -> Usage | None:
        return self._meter.usage

    @property
    def tokens_estimated(self) -> bool:
        return self._meter.tokens_estimated
