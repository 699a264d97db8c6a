"""Request parsing as in vLLM: bodies of chat completions, batches of them, and completions, with vLLM's types, defaults
and error messages.

Every rejection is a `WireError`, checked in vLLM's order: JSON, types, combinations of fields, model, a busy engine,
context length, values.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from math import isfinite
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from backends.engine.http.wire import (
    EngineLimits,
    WireError,
    check_busy,
    check_model,
    check_output,
    invalid,
    load,
    output_limit,
    validate,
)
from backends.engine.text import PromptText, render_chat, text_prompt, token_prompt

CHOICES_MAX = 16_384
"""vLLM's VLLM_MAX_N_SEQUENCES."""
COMPLETION_TOKENS_DEFAULT = 16
LOGPROBS_MAX = 20
TokenId = Annotated[int, Field(ge=0)]


class StreamOptions(BaseModel):
    """The field `stream_options` of a call: which usage its stream reports."""

    include_usage: bool | None = False
    continuous_usage_stats: bool | None = False


class _Body(BaseModel):
    model_config = ConfigDict(extra="ignore")

    model: str | None = None
    max_tokens: int | None = None
    min_tokens: int = 0
    n: int | None = 1
    stream: bool | None = False
    stream_options: StreamOptions | None = None
    stop: str | list[str] | None = None
    ignore_eos: bool = False
    seed: int | None = Field(default=None, ge=-(2**63), le=2**63 - 1)
    temperature: float | None = None
    top_p: float | None = None
    priority: int = 0
    request_id: str | None = None
    cache_salt: str | None = None
    return_token_ids: bool | None = False
    stream_interval: int | None = Field(default=None, ge=1)
    echo: bool | None = False


class Message(BaseModel):
    """One message of a chat."""

    role: str
    content: str | list[Any] | None = None


class ChatBody(_Body):
    """The body of a call to /v1/chat/completions."""

    messages: list[Message]
    max_completion_tokens: int | None = None
    tools: list[dict[str, Any]] | None = None
    logprobs: bool | None = False
    top_logprobs: int | None = 0


class BatchBody(ChatBody):
    """The body of a call to /v1/chat/completions/batch: several chats at once."""

    messages: list[list[Message]]  # type: ignore[assignment]  # one conversation each


class CompletionBody(_Body):
    """The body of a call to /v1/completions."""

    prompt: list[TokenId] | list[list[TokenId]] | str | list[str]
    logprobs: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineCall:
    """A parsed and checked call to an EngineServer. Choice i belongs to prompt i // n. `tokens_max` has, for each
    prompt, the most output tokens of a choice.
    """

    model: str | None
    prompts: tuple[PromptText, ...]
    tokens_max: tuple[int, ...]
    tokens_min: int = 0
    n: int = 1
    stream: bool = False
    include_usage: bool = False
    continuous_usage: bool = False
    stops: tuple[str, ...] = ()
    ignore_eos: bool = False
    seed: int | None = None
    priority: int = 0
    request_id: str | None = None
    token_ids: bool = False
    stream_interval: int = 1
    top_logprobs: int | None = None
    """Alternatives to list per token; None for no logprobs at all."""
    echo: bool = False
    prompt_only: bool = False
    """echo with max_tokens 0: the token that is computed is not shown."""


def parse_chat(data: bytes, content_type: str, limits: EngineLimits) -> EngineCall:
    """Parse a chat completion. Raises WireError for bodies that vLLM refuses."""
    raw = load(data, content_type)
    _check_stream_options(raw)
    _check_logprobs(raw, "top_logprobs")
    if raw.get("top_logprobs") and not raw.get("logprobs"):
        raise invalid("when using `top_logprobs`, `logprobs` must be set to true.", "top_logprobs")
    _check_salt(raw)
    body = validate(ChatBody, raw)
    check_model(body.model, limits)
    check_busy(body.n or 1, limits)
    return _chat_call(body, [body.messages], limits)


def parse_batch(data: bytes, content_type: str, limits: EngineLimits) -> EngineCall:
    """Parse several conversations, each of which gets one answer. Raises WireError for bodies that vLLM refuses."""
    body = validate(BatchBody, load(data, content_type))
    check_model(body.model, limits)
    check_busy(len(body.messages), limits)
    if body.stream or (body.n or 1) != 1:
        raise WireError("Batched chat completions support neither streaming nor n > 1.")
    return _chat_call(body, body.messages, limits)


def _chat_call(body: ChatBody, conversations: list[list[Message]], limits: EngineLimits) -> EngineCall:
    if not conversations or not all(conversations):
        raise WireError("Cannot apply chat template to an empty conversation. Provide at least one message.")
    prompts = tuple(
        text_prompt(
            render_chat([(message.role, message.content) for message in messages], body.tools),
            block_tokens=limits.block_tokens,
            salt=body.cache_salt or "",
        )
        for messages in conversations
    )
    asked = body.max_tokens if body.max_completion_tokens is None else body.max_completion_tokens
    top_logprobs = (body.top_logprobs or 0) if body.logprobs else None
    return _call(body, prompts, asked=asked, top_logprobs=top_logprobs, limits=limits)


def parse_completion(data: bytes, content_type: str, limits: EngineLimits) -> EngineCall:
    """Parse a completion. Raises WireError for bodies that vLLM refuses."""
    raw = load(data, content_type)
    if raw.get("prompt") is None or raw["prompt"] == "":
        raise invalid("Either prompt or prompt_embeds must be provided and non-empty.", "prompt")
    _check_stream_options(raw)
    _check_logprobs(raw, "logprobs")
    _check_salt(raw)
    body = validate(CompletionBody, raw)
    check_model(body.model, limits)
    check_busy(body.n or 1, limits)
    prompts = tuple(_prompts(body.prompt, limits.block_tokens, body.cache_salt or ""))
    if not prompts:
        raise WireError("You must pass at least one prompt")
    asked = COMPLETION_TOKENS_DEFAULT if body.max_tokens is None else body.max_tokens
    return _call(body, prompts, asked=asked, top_logprobs=body.logprobs, limits=limits)


def _call(
    body: ChatBody | CompletionBody,
    prompts: tuple[PromptText, ...],
    *,
    asked: int | None,
    top_logprobs: int | None,
    limits: EngineLimits,
) -> EngineCall:
    prompt_only = isinstance(body, CompletionBody) and bool(body.echo) and asked == 0
    tokens_max = tuple(output_limit(1 if prompt_only else asked, prompt, limits) for prompt in prompts)
    _check_values(body, tokens_max=min(tokens_max), top_logprobs=top_logprobs)
    options = body.stream_options or StreamOptions()
    stops = [body.stop] if isinstance(body.stop, str) else body.stop or []
    return EngineCall(
        model=body.model,
        prompts=prompts,
        tokens_max=tokens_max,
        tokens_min=body.min_tokens,
        n=body.n or 1,
        stream=bool(body.stream),
        include_usage=bool(options.include_usage),
        continuous_usage=bool(options.include_usage and options.continuous_usage_stats),
        stops=tuple(stops),
        ignore_eos=body.ignore_eos,
        seed=body.seed,
        priority=body.priority,
        request_id=body.request_id,
        token_ids=bool(body.return_token_ids),
        stream_interval=body.stream_interval or 1,
        top_logprobs=top_logprobs,
        echo=bool(body.echo) and isinstance(body, CompletionBody),
        prompt_only=prompt_only,
    )


def _check_stream_options(raw: dict[str, Any]) -> None:
    if raw.get("stream_options") and not raw.get("stream"):
        raise invalid("Stream options can only be defined when `stream=True`.", "stream_options")


def _check_logprobs(raw: dict[str, Any], name: str) -> None:
    value = raw.get(name)
    if value is not None and not isinstance(value, int | float):
        raise invalid(f"`{name}` must be an integer.", name, value)
    if value is not None and value < 0 and value != -1:
        raise invalid(f"`{name}` must be a positive value or -1.", name, value)


def _check_salt(raw: dict[str, Any]) -> None:
    if raw.get("cache_salt") == "":
        raise invalid("Parameter 'cache_salt' must be a non-empty string if provided.", "cache_salt")


def _check_values(body: _Body, *, tokens_max: int, top_logprobs: int | None) -> None:
    if body.n is not None and body.n < 1:
        raise WireError(f"n must be at least 1, got {body.n}.")
    if body.n is not None and body.n > CHOICES_MAX:
        limit = f"n must be at most {CHOICES_MAX}, got {body.n}."
        raise WireError(f"{limit} To increase this limit, set the VLLM_MAX_N_SEQUENCES environment variable.")
    _check_sampling(body)
    check_output(tokens_max)
    if body.min_tokens < 0:
        raise WireError(f"min_tokens must be greater than or equal to 0, got {body.min_tokens}.")
    if body.min_tokens > tokens_max:
        message = f"min_tokens must be less than or equal to max_tokens={tokens_max}, got {body.min_tokens}."
        raise WireError(message)
    if body.stop is not None and not all([body.stop] if isinstance(body.stop, str) else body.stop):
        raise WireError("stop cannot contain an empty string.")
    if top_logprobs is not None and top_logprobs > LOGPROBS_MAX:
        message = f"Requested sample logprobs of {top_logprobs}, which is greater than max allowed: {LOGPROBS_MAX}"
        raise invalid(message, "logprobs", top_logprobs)


def _check_sampling(body: _Body) -> None:
    if body.temperature is not None and not isfinite(body.temperature):
        message = f"temperature must be a finite number, got {body.temperature}."
        raise invalid(message, "temperature", body.temperature)
    if body.temperature is not None and body.temperature < 0:
        raise invalid(f"temperature must be non-negative, got {body.temperature}.", "temperature", body.temperature)
    if body.top_p is not None and not 0 < body.top_p <= 1:
        raise invalid(f"top_p must be in (0, 1], got {body.top_p}.", "top_p", body.top_p)


def _prompts(
    prompt: list[int] | list[list[int]] | str | list[str], block_tokens: int, salt: str
) -> Iterable[PromptText]:
    listed: list[Any] = [prompt] if isinstance(prompt, str) or (prompt and isinstance(prompt[0], int)) else list(prompt)
    for item in listed:
        if not item:
            raise WireError("The decoder prompt cannot be empty")
        if isinstance(item, str):
            yield text_prompt(item, block_tokens=block_tokens, salt=salt)
        else:
            yield token_prompt(item, block_tokens=block_tokens, salt=salt)
