"""/v1/messages as vLLM serves it: Anthropic's bodies and events over the chat engine, and count_tokens.

Type errors are answered in OpenAI's shape, as vLLM's framework does; all others in Anthropic's.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any

import orjson
from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from backends.engine.http.requests import EngineCall
from backends.engine.http.responses import EngineReply, Json
from backends.engine.http.wire import (
    EngineLimits,
    WireError,
    check_busy,
    check_model,
    check_output,
    load,
    output_limit,
    validate,
)
from backends.engine.text import PromptText, render_chat, text_prompt


def _positive(value: int) -> int:
    if value <= 0:
        raise ValueError("max_tokens must be positive")
    return value


class _Message(BaseModel):
    role: str
    content: str | list[dict[str, Any]]


class CountBody(BaseModel):
    """The body of a call to /v1/messages/count_tokens."""

    model_config = ConfigDict(extra="ignore")

    model: str
    messages: list[_Message]
    system: str | list[dict[str, Any]] | None = None
    tools: list[dict[str, Any]] | None = None


class MessageBody(CountBody):
    """The body of a call to /v1/messages."""

    max_tokens: Annotated[int, AfterValidator(_positive)]
    stream: bool | None = False
    stop_sequences: list[str] | None = None
    cache_salt: str | None = Field(default=None, min_length=1)


def parse_message(data: bytes, content_type: str, limits: EngineLimits) -> EngineCall:
    """Parse the body of /v1/messages. Raises WireError for bodies that vLLM refuses."""
    body = validate(MessageBody, load(data, content_type))
    with _in_anthropics_words():
        check_model(body.model, limits)
        check_busy(1, limits)
        prompt = _prompt(body, limits, body.cache_salt or "")
        return EngineCall(
            model=body.model,
            prompts=(prompt,),
            tokens_max=(check_output(output_limit(body.max_tokens, prompt, limits, name="max_completion_tokens")),),
            stream=bool(body.stream),
            stops=tuple(body.stop_sequences or ()),
        )


def count_tokens(data: bytes, content_type: str, limits: EngineLimits) -> Json:
    """Answer /v1/messages/count_tokens. Raises WireError for bodies that vLLM refuses."""
    body = validate(CountBody, load(data, content_type))
    with _in_anthropics_words():
        check_model(body.model, limits)
        tokens = _prompt(body, limits, "").tokens
    return {"input_tokens": tokens, "context_management": {"original_input_tokens": tokens}}


class MessageReply(EngineReply):
    """The reply to /v1/messages: a message with one block of text."""

    __slots__ = ()

    def begun(self) -> bytes:
        message = {**self._head(), "content": [], "model": self.model, "stop_reason": None, "stop_sequence": None}
        block = {"type": "text", "text": ""}
        return _event("message_start", message={**message, "usage": self._usage(0, None)}) + _event(
            "content_block_start", content_block=block, index=0
        )

    def tokens(self, choice: int, begin: int, end: int) -> bytes:
        text = self.answers[choice].text(begin, end)
        return _event("content_block_delta", delta={"type": "text_delta", "text": text}, index=0) if text else b""

    def ended(self, cached_tokens: int | None) -> bytes:
        reason, stop = self._stop()
        return (
            _event("content_block_stop", index=0)
            + _event(
                "message_delta",
                delta={"stop_reason": reason, "stop_sequence": stop},
                usage=self._usage(self._completion_tokens(), cached_tokens),
            )
            + _event("message_stop")
        )

    def whole(self, cached_tokens: int | None) -> Json:
        reason, stop = self._stop()
        answer = self.answers[0]
        return {
            **self._head(),
            "content": [{"type": "text", "text": answer.text(0, answer.tokens)}],
            "model": self.model,
            "stop_reason": reason,
            **({} if stop is None else {"stop_sequence": stop}),
            "usage": self._usage(answer.tokens, cached_tokens),
        }

    def _head(self) -> Json:
        return {"id": self.id, "type": "message", "role": "assistant"}

    def _usage(self, output_tokens: int, cached_tokens: int | None) -> Json:
        cached = cached_tokens or 0
        usage = {"input_tokens": self._prompt_tokens() - cached, "output_tokens": output_tokens}
        return usage if cached_tokens is None else {**usage, "cache_read_input_tokens": cached}

    def _stop(self) -> tuple[str, str | None]:
        answer = self.answers[0]
        if answer.finish_reason == "length":
            return "max_tokens", None
        return ("end_turn", None) if answer.stop_reason is None else ("stop_sequence", answer.stop_reason)


def _prompt(body: CountBody, limits: EngineLimits, salt: str) -> PromptText:
    turns = [(message.role, message.content) for message in body.messages]
    if body.system:
        turns.insert(0, ("system", body.system))
    return text_prompt(render_chat(turns, body.tools), block_tokens=limits.block_tokens, salt=salt)


@contextmanager
def _in_anthropics_words() -> Iterator[None]:
    try:
        yield
    except WireError as error:
        detail = error.body["error"]
        error.body = {"type": "error", "error": {"type": detail["type"], "message": detail["message"]}}
        raise


def _event(kind: str, **fields: Any) -> bytes:
    return b"event: " + kind.encode() + b"\ndata: " + orjson.dumps({"type": kind, **fields}) + b"\n\n"
