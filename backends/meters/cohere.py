"""Meter of Cohere's chat (v2) as vLLM streams it: message-start, blocks with deltas, message-end, [DONE].

Only `message-end` has the usage. Until then deltas of every kind are counted: text, thinking, plans, a tool's
arguments. vLLM always reports usage there. A `message-end` without usage therefore comes from a server that was
stopped, and the [DONE] after it would make the answer look complete.

https://docs.cohere.com/v2/docs/streaming
"""

from collections.abc import Mapping
from typing import Any

import orjson

from backends.meters.events import EventMeter, StreamCall, Uncounted, json_object, payload
from backends.meters.usage import cohere_usage, texts
from policies.types import Usage

STOPPED = "The backend stopped before the answer was complete."
_DELTAS = frozenset({"content-delta", "content-start", "tool-plan-delta", "tool-call-start", "tool-call-delta"})


class CohereMeter(EventMeter):
    """A meter of one stream or answer of Cohere's API."""

    __slots__ = ("_uncounted", "_usage")

    def __init__(self, call: StreamCall) -> None:
        super().__init__(call)
        self._usage: Usage | None = None
        self._uncounted = Uncounted()

    @property
    def usage(self) -> Usage | None:
        if self._usage is None and self.output_tokens:
            return Usage(0, 0, self.output_tokens)
        return self._usage

    @property
    def tokens_estimated(self) -> bool:
        return self._usage is None and self.output_tokens > 0

    def cut(self, message: str, error: Mapping[str, Any] = {}) -> bytes:
        end = {"type": "message-end", "delta": {"error": message, "finish_reason": "ERROR"}}
        return b"data: " + orjson.dumps(end) + b"\n\ndata: [DONE]\n\n"

    def _event(self, event: bytes) -> bytes:
        data = payload(event)
        if data == b"[DONE]":
            return self._done(event)
        message = json_object(data)
        if message is None:
            return event
        kind = message.get("type")
        if kind in _DELTAS:
            if self._passed(texts(message.get("delta")), self._uncounted):
                self.output_tokens = self._uncounted.tokens
        elif kind == "message-end":
            return self._ended(event, message.get("delta"))
        return event

    def _ended(self, event: bytes, delta: Any) -> bytes:
        self._usage = cohere_usage(delta)
        if self._usage is not None:
            self.output_tokens = self._usage.output_tokens
        self.error = isinstance(delta, dict) and delta.get("finish_reason") == "ERROR"
        self.aborted = self._usage is None and not self.error
        return b"" if self.aborted else event

    def _done(self, event: bytes) -> bytes:
        if self.aborted:
            self.error = True
            return self.cut(STOPPED)
        self.done = not self.error
        return event
