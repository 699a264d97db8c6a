"""Meter of Anthropic's Messages API: message_start, blocks with their deltas, message_delta, message_stop.

`message_start` has the prompt tokens; `message_delta` near the end has the output tokens, cumulative. Until then deltas
of every kind are counted: text, thinking, a tool's partial JSON. There is no [DONE].

A `message_delta` whose `stop_reason` is null comes from a server that was stopped (vLLM on SIGTERM): the API says that
it is never null there. The message_stop that follows would make the answer look complete. After a stop reason the
answer is complete, also where message_stop is lost.

https://docs.anthropic.com/en/docs/build-with-claude/streaming
"""

from collections.abc import Mapping
from typing import Any

from backends.meters.events import EventMeter, StreamCall, Uncounted, json_object, named_event, payload
from backends.meters.usage import message_usage, texts
from policies.types import Usage

STOPPED = "The backend stopped before the answer was complete."


class MessagesMeter(EventMeter):
    """A meter of one stream of Anthropic's Messages API."""

    __slots__ = ("_cached_tokens", "_counted", "_is_whole", "_known", "_prompt_tokens", "_uncounted")

    def __init__(self, call: StreamCall) -> None:
        super().__init__(call)
        self._prompt_tokens = self._cached_tokens = 0
        self._known = False
        self._is_whole = False
        self._counted = False  # the server has counted the output
        self._uncounted = Uncounted()

    @property
    def usage(self) -> Usage | None:
        return Usage(self._prompt_tokens, self._cached_tokens, self.output_tokens) if self._known else None

    @property
    def tokens_estimated(self) -> bool:
        return self.output_tokens > 0 and not self._counted

    def cut(self, message: str, error: Mapping[str, Any] = {}) -> bytes:
        return named_event("error", {"type": "error", "error": {"type": "api_error", "message": message, **error}})

    def finish(self) -> bytes:
        rest = super().finish()
        if self._is_whole and not (self.done or self.error or self.aborted):
            self.done = True
            return rest + named_event("message_stop", {"type": "message_stop"})
        return rest

    def _event(self, event: bytes) -> bytes:
        message = json_object(payload(event))
        if message is None:
            return event
        match message.get("type"):
            case "content_block_delta":
                self._delta(message.get("delta"))
            case "message_start":
                self._started(message.get("message"))
            case "message_delta":
                self._ended(message)
            case "message_stop":
                return self._stop(event)
            case "error":
                self.error = True
        return event

    def _delta(self, delta: Any) -> None:
        if self._passed(texts(delta), self._uncounted):
            self._known, self._counted = True, False
            self.output_tokens = self._uncounted.tokens

    def _started(self, message: Any) -> None:
        usage = message_usage(message)
        if usage is not None:
            self._prompt_tokens, self._cached_tokens, _ = usage  # its output tokens are only the server's guess
            self._known = True

    def _ended(self, message: dict[str, Any]) -> None:
        usage, delta = message_usage(message), message.get("delta")
        if usage is not None:
            self._prompt_tokens = usage.prompt_tokens or self._prompt_tokens
            self._cached_tokens = usage.cached_tokens or self._cached_tokens
            self.output_tokens = usage.output_tokens
            self._known = self._counted = True
        if isinstance(delta, dict):
            self._is_whole = delta.get("stop_reason") is not None
            self.aborted = not self._is_whole

    def _stop(self, event: bytes) -> bytes:
        if self.aborted:
            self.error = True
            return self.cut(STOPPED)
        self.done = not self.error
        return event
