"""Meter of the Responses API: `response.created`, deltas of every kind, and one event that ends the stream.

Only the last event has usage (`response.completed`, `.incomplete`, `.failed`). Until then deltas are counted (text,
reasoning, arguments of tools), and the usage corrects the count. There is no [DONE]. The gateway asks for nothing that
the client did not ask for, so every event passes unchanged.

https://platform.openai.com/docs/api-reference/responses-streaming
"""

from collections.abc import Mapping
from typing import Any, Final

from backends.meters.events import EventMeter, StreamCall, Uncounted, json_object, named_event, payload
from backends.meters.usage import count, response_usage, texts
from policies.types import Usage

_ENDS: Final = frozenset({"response.completed", "response.incomplete", "response.failed"})
_FAILURES: Final = frozenset({"response.failed", "error"})


class ResponsesMeter(EventMeter):
    """A meter of one stream of OpenAI's Responses API: it reads, from the stream's events, how many tokens the call has
    used so far, and how the answer ends.
    """

    __slots__ = ("_sequence_number", "_uncounted", "_usage")

    def __init__(self, call: StreamCall) -> None:
        super().__init__(call)
        self._usage: Usage | None = None  # as the server reports it
        self._uncounted = Uncounted()
        self._sequence_number = -1

    @property
    def usage(self) -> Usage | None:
        if self._usage is not None:
            return self._usage
        return Usage(0, 0, self.output_tokens) if self.output_tokens else None

    @property
    def tokens_estimated(self) -> bool:
        return self._usage is None and self.output_tokens > 0

    def cut(self, message: str, error: Mapping[str, Any] = {}) -> bytes:
        code = error.get("reason") or error.get("type") or "server_error"
        body = {"type": "error", "code": code, "message": message, "param": error.get("param")}
        return named_event("error", {**body, "sequence_number": self._sequence_number + 1})

    def _event(self, event: bytes) -> bytes:
        message = json_object(payload(event))
        if message is None or type(kind := message.get("type")) is not str:
            return event
        self._sequence_number = count(message.get("sequence_number"))
        if kind.endswith(".delta"):
            self._passed(texts(message.get("delta")), self._uncounted)
            self.output_tokens = self._uncounted.tokens
        elif kind == "response.created":
            self._created(message.get("response"))
        elif kind in _ENDS:
            self._ended(message.get("response"))
        self.error = self.error or kind in _FAILURES
        return event

    def _created(self, response: Any) -> None:
        id_ = response.get("id") if isinstance(response, dict) else None
        if type(id_) is str and self.call.on_id is not None:
            self.call.on_id(id_)

    def _ended(self, response: Any) -> None:
        self.done = True
        self._usage = response_usage(response)
        if self._usage is not None:
            self.output_tokens = self._usage.output_tokens
