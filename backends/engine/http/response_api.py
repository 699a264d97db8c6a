"""/v1/responses as vLLM serves it: items in, typed events or one object out. Answers are not kept, as by default.

The fields of an event are in alphabetical order, as in vLLM. Only the last event has usage.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import orjson
from pydantic import BaseModel, ConfigDict, Field

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
from backends.engine.text import render_chat, text_prompt

STORE_MISSING = (
    "This vLLM engine does not support `store=True` and therefore does not support the background mode. To enable these"
    " features, set the environment variable `VLLM_ENABLE_RESPONSES_API_STORE=1` when launching the vLLM server."
)


class ResponseBody(BaseModel):
    """The request body of a call to /v1/responses, not its answer."""

    model_config = ConfigDict(extra="ignore")

    input: str | list[dict[str, Any]]
    model: str | None = None
    instructions: str | None = None
    max_output_tokens: int | None = None
    max_tool_calls: int | None = None
    metadata: dict[str, str] | None = None
    parallel_tool_calls: bool | None = True
    previous_response_id: str | None = None
    reasoning: dict[str, Any] | None = None
    service_tier: str = "auto"
    store: bool | None = True
    background: bool | None = False
    stream: bool | None = False
    temperature: float | None = None
    top_p: float | None = None
    tools: list[dict[str, Any]] = Field(default_factory=list)
    tool_choice: Any = "auto"
    truncation: str | None = "disabled"
    user: str | None = None
    seed: int | None = None
    stop: str | list[str] | None = None
    ignore_eos: bool = False
    priority: int = 0
    request_id: str | None = None
    cache_salt: str | None = None


def parse_response(
    data: bytes, content_type: str, limits: EngineLimits, *, stores: bool = False
) -> tuple[EngineCall, ResponseBody]:
    """Parse the body of /v1/responses. Raises WireError for bodies that vLLM refuses. `stores`: responses are kept, and
    may be computed in the background.
    """
    body = validate(ResponseBody, load(data, content_type))
    check_model(body.model, limits)
    check_busy(1, limits)
    if body.background and not stores:
        raise WireError(STORE_MISSING, kind="invalid_request_error", param="background")
    turns = list(_turns(body.input))
    if body.instructions:
        turns.insert(0, ("system", body.instructions))
    prompt = text_prompt(
        render_chat(turns, body.tools or None), block_tokens=limits.block_tokens, salt=body.cache_salt or ""
    )
    stops = [body.stop] if isinstance(body.stop, str) else body.stop or []
    call = EngineCall(
        model=body.model,
        prompts=(prompt,),
        tokens_max=(check_output(output_limit(body.max_output_tokens, prompt, limits, name="max_output_tokens")),),
        stream=bool(body.stream),
        stops=tuple(stops),
        ignore_eos=body.ignore_eos,
        seed=body.seed,
        priority=body.priority,
        request_id=body.request_id,
    )
    return call, body


def _turns(given: str | list[dict[str, Any]]) -> Iterator[tuple[str, Any]]:
    if isinstance(given, str):
        yield "user", given
        return
    for item in given:
        content = item.get("content", item.get("output", item.get("arguments")))
        yield str(item.get("role", item.get("type", "user"))), content


@dataclass(frozen=True, slots=True)
class ResponseReply(EngineReply):
    """The reply to /v1/responses: a response with one message of one text."""

    body: ResponseBody

    def accepted(self) -> bytes:
        said = self.said("in_progress")
        return self._event("response.created", 0, response=said) + self._event("response.in_progress", 1, response=said)

    def begun(self) -> bytes:
        item = {"id": self._item_id, "content": [], "role": "assistant", "status": "in_progress", "type": "message"}
        part = {"annotations": [], "text": "", "type": "output_text", "logprobs": []}
        return self._event("response.output_item.added", 2, item={**item, "phase": None}, output_index=0) + self._event(
            "response.content_part.added", 3, **self._place, part=part
        )

    def tokens(self, choice: int, begin: int, end: int) -> bytes:
        text = self.answers[choice].text(begin, end)
        if not text:
            return b""
        return self._event("response.output_text.delta", 4 + begin, **self._place, delta=text, logprobs=[])

    def ended(self, cached_tokens: int | None) -> bytes:
        last = 4 + self.answers[0].tokens
        part, item = self._part(), self._item()
        return (
            self._event("response.output_text.done", last, **self._place, logprobs=[], text=part["text"])
            + self._event("response.content_part.done", last + 1, **self._place, part=part)
            + self._event("response.output_item.done", last + 2, item=item, output_index=0)
            + self._event("response.completed", last + 3, response=self.whole(cached_tokens))
        )

    def whole(self, cached_tokens: int | None) -> Json:
        length = self.answers[0].finish_reason == "length"
        return self.said(
            "incomplete" if length else "completed", output=[self._item()], usage=self._usage(cached_tokens)
        )

    def said(self, status: str, *, output: list[Json] | None = None, usage: Json | None = None) -> Json:
        """Return the response object with this status."""
        body = self.body
        return {
            "id": self.id,
            "created_at": self.created,
            "incomplete_details": {"reason": "max_output_tokens"} if status == "incomplete" else None,
            "instructions": body.instructions,
            "metadata": body.metadata,
            "model": self.model,
            "object": "response",
            "output": output or [],
            "parallel_tool_calls": body.parallel_tool_calls is not False,
            "temperature": 1.0 if body.temperature is None else body.temperature,
            "tool_choice": body.tool_choice if body.tools else "none",
            "tools": body.tools,
            "top_p": 1.0 if body.top_p is None else body.top_p,
            "background": bool(body.background),
            "max_output_tokens": self.call.tokens_max[0],
            "max_tool_calls": body.max_tool_calls,
            "previous_response_id": body.previous_response_id,
            "prompt": None,
            "reasoning": body.reasoning,
            "service_tier": body.service_tier,
            "status": status,
            "text": None,
            "top_logprobs": None,
            "truncation": body.truncation,
            "usage": usage,
            "user": body.user,
            "presence_penalty": 0.0,
            "frequency_penalty": 0.0,
            "kv_transfer_params": None,
            "ec_transfer_params": None,
            "input_messages": None,
            "output_messages": None,
        }

    @property
    def _item_id(self) -> str:
        return "msg_" + self.id.removeprefix("resp_")

    @property
    def _place(self) -> Json:
        return {"content_index": 0, "item_id": self._item_id, "output_index": 0}

    def _part(self) -> Json:
        answer = self.answers[0]
        return {"annotations": [], "text": answer.text(0, answer.tokens), "type": "output_text", "logprobs": None}

    def _item(self) -> Json:
        item = {"id": self._item_id, "content": [self._part()], "role": "assistant", "status": "completed"}
        return {**item, "type": "message", "phase": None}

    def _usage(self, cached_tokens: int | None) -> Json:
        prompt, output = self._prompt_tokens(), self._completion_tokens()
        per_turn: Json = {"input_tokens_per_turn": [], "cached_tokens_per_turn": []}
        spent: Json = {"reasoning_tokens": 0, "tool_output_tokens": 0}
        return {
            "input_tokens": prompt,
            "input_tokens_details": {"cached_tokens": cached_tokens or 0, "cache_write_tokens": 0, **per_turn},
            "output_tokens": output,
            "output_tokens_details": {**spent, "output_tokens_per_turn": [], "tool_output_tokens_per_turn": []},
            "total_tokens": prompt + output,
        }

    def _event(self, kind: str, number: int, **fields: Any) -> bytes:
        body = dict(sorted({**fields, "sequence_number": number, "type": kind}.items()))
        return b"event: " + kind.encode() + b"\ndata: " + orjson.dumps(body) + b"\n\n"


def not_found(id_: str) -> WireError:
    """The error for a response that is not kept."""
    message = f"Response with id '{id_}' not found."
    return WireError(message, kind="invalid_request_error", status=404, param="response_id")
