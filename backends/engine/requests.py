"""Bodies of /v1/chat/completions and /v1/completions: vLLM's types, defaults, checks and complaints.

Unknown fields are ignored, as vLLM does. Every refusal is a `WireError` with vLLM's own message, in
vLLM's order: JSON, types, combinations of fields, model, a busy engine, context length, values.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import isfinite
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from backends.engine.text import Prompt, render_chat, text_prompt, token_prompt

CHOICES_MAX = 16_384
"""vLLM's VLLM_MAX_N_SEQUENCES."""
COMPLETION_TOKENS_DEFAULT = 16
LOGPROBS_MAX = 20
BUSY = "The engine is currently busy and cannot accept new requests. Please try again later or on a different instance."


class WireError(Exception):
    """A refusal as vLLM words it: HTTP status, message, type, the parameter it is about."""

    def __init__(
        self, message: str, *, kind: str = "BadRequestError", status: int = 400, param: str | None = None
    ) -> None:
        super().__init__(message)
        self.status = status
        self.body: dict[str, Any] = {"error": {"message": message, "type": kind, "param": param, "code": status}}


class UnreadableBodyError(WireError):
    """A body that is not even text: refused by vLLM's framework, in its own shape."""

    def __init__(self) -> None:
        super().__init__("There was an error parsing the body")
        self.body = {"detail": str(self)}


TokenId = Annotated[int, Field(ge=0)]


class StreamOptions(BaseModel):
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
    role: str
    content: str | list[Any] | None = None


class ChatBody(_Body):
    messages: list[Message]
    max_completion_tokens: int | None = None
    tools: list[dict[str, Any]] | None = None
    logprobs: bool | None = False
    top_logprobs: int | None = 0


class CompletionBody(_Body):
    prompt: list[TokenId] | list[list[TokenId]] | str | list[str]
    logprobs: int | None = None


BodyT = TypeVar("BodyT", ChatBody, CompletionBody)


@dataclass(frozen=True, slots=True)
class Limits:
    """What the server holds every body against. Tokens; `models` are the names it answers to."""

    models: tuple[str, ...]
    max_model_len: int
    block_tokens: int
    choices_free: int | None = None
    """Sequences that may still be queued; None for any number."""


@dataclass(frozen=True, slots=True)
class Call:
    """A request that was accepted. Choice i belongs to prompt i // n; tokens_max is per prompt."""

    prompts: tuple[Prompt, ...]
    tokens_max: tuple[int, ...]
    tokens_min: int
    n: int
    stream: bool
    include_usage: bool
    continuous_usage: bool
    stops: tuple[str, ...]
    ignore_eos: bool
    seed: int | None
    priority: int
    request_id: str | None
    token_ids: bool
    stream_interval: int
    top_logprobs: int | None
    """Alternatives to list per token; None for no logprobs at all."""
    echo: bool
    prompt_only: bool
    """echo with max_tokens 0: the token that is computed is not shown."""


def parse_chat(data: bytes, content_type: str, limits: Limits) -> Call:
    """WireError: whatever vLLM refuses."""
    raw = _load(data, content_type)
    _check_stream_options(raw)
    _check_logprobs(raw, "top_logprobs")
    if raw.get("top_logprobs") and not raw.get("logprobs"):
        raise _invalid("when using `top_logprobs`, `logprobs` must be set to true.", "top_logprobs")
    _check_salt(raw)
    body = _validate(ChatBody, raw)
    _check_model(body, limits)
    _check_busy(body, limits)
    if not body.messages:
        raise WireError("Cannot apply chat template to an empty conversation. Provide at least one message.")
    text = render_chat([(message.role, message.content) for message in body.messages], body.tools)
    prompt = text_prompt(text, block_tokens=limits.block_tokens, salt=body.cache_salt or "")
    asked = body.max_tokens if body.max_completion_tokens is None else body.max_completion_tokens
    top_logprobs = (body.top_logprobs or 0) if body.logprobs else None
    return _call(body, (prompt,), asked=asked, top_logprobs=top_logprobs, limits=limits)


def parse_completion(data: bytes, content_type: str, limits: Limits) -> Call:
    """WireError: whatever vLLM refuses."""
    raw = _load(data, content_type)
    if raw.get("prompt") is None or raw["prompt"] == "":
        raise _invalid("Either prompt or prompt_embeds must be provided and non-empty.", "prompt")
    _check_stream_options(raw)
    _check_logprobs(raw, "logprobs")
    _check_salt(raw)
    body = _validate(CompletionBody, raw)
    _check_model(body, limits)
    _check_busy(body, limits)
    prompts = tuple(_prompts(body.prompt, limits.block_tokens, body.cache_salt or ""))
    if not prompts:
        raise WireError("You must pass at least one prompt")
    asked = COMPLETION_TOKENS_DEFAULT if body.max_tokens is None else body.max_tokens
    return _call(body, prompts, asked=asked, top_logprobs=body.logprobs, limits=limits)


def _call(
    body: ChatBody | CompletionBody,
    prompts: tuple[Prompt, ...],
    *,
    asked: int | None,
    top_logprobs: int | None,
    limits: Limits,
) -> Call:
    prompt_only = isinstance(body, CompletionBody) and bool(body.echo) and asked == 0
    tokens_max = tuple(_tokens_max(1 if prompt_only else asked, prompt, limits) for prompt in prompts)
    _check_values(body, tokens_max=min(tokens_max), top_logprobs=top_logprobs)
    options = body.stream_options or StreamOptions()
    stops = [body.stop] if isinstance(body.stop, str) else body.stop or []
    return Call(
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


def _load(data: bytes, content_type: str) -> dict[str, Any]:
    if content_type.partition(";")[0].strip().lower() != "application/json":
        message = "1 validation error:\n  Unsupported Media Type: Only 'application/json' is allowed"
        raise WireError(message, kind="Bad Request")
    if not data:
        raise _type_error([{"type": "missing", "loc": (), "msg": "Field required", "input": None}])
    try:
        raw = json.loads(data)
    except json.JSONDecodeError as error:
        problem = {"type": "json_invalid", "loc": (error.pos,), "msg": "JSON decode error", "input": {}}
        raise _type_error([{**problem, "ctx": {"error": error.msg}}]) from None
    except (ValueError, RecursionError):
        raise UnreadableBodyError from None
    if not isinstance(raw, dict):
        message = "Input should be a valid dictionary or object to extract fields from"
        raise _type_error([{"type": "model_attributes_type", "loc": (), "msg": message, "input": raw}])
    if rb"\ud" in data.lower():
        _check_surrogates(raw)
    return raw


def _check_surrogates(raw: dict[str, Any]) -> None:
    """Refuse half of a surrogate pair: JSON can spell it, no tokenizer takes it."""
    try:
        json.dumps(raw, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise WireError(
            "TextEncodeInput must be Union[TextInputSequence, Tuple[InputSequence, InputSequence]]"
        ) from None


def _validate(model: type[BodyT], raw: dict[str, Any]) -> BodyT:
    try:
        return model.model_validate(raw, from_attributes=True)  # as FastAPI does, which shows in its messages
    except ValidationError as error:
        raise _type_error(error.errors(include_url=False)) from None


def _type_error(errors: Iterable[Mapping[str, Any]]) -> WireError:
    """Word type errors as vLLM does: each as a Python dict, its place without names of Python types."""
    lines, params = [], []
    for error in errors:
        params.append(".".join(["body", *(str(part) for part in error["loc"] if not _is_type_name(str(part)))]))
        shown = {"type": error["type"], "loc": params[-1], "msg": error["msg"], "input": _summary(error["input"])}
        if "ctx" in error:
            shown["ctx"] = error["ctx"]
        lines.append(f"  {shown}")
    label = "error" if len(lines) == 1 else "errors"
    return WireError(f"{len(lines)} validation {label}:\n" + "\n".join(lines), kind="Bad Request", param=params[0])


def _is_type_name(part: str) -> bool:
    return "[" in part or part in {"str", "int", "float", "bool", "list", "dict"}


def _summary(value: Any, chars_max: int = 256) -> str:
    if isinstance(value, list | dict):
        return f"<{type(value).__name__} of {len(value)} items>"
    text = str(value)
    return text if len(text) <= chars_max else text[:chars_max] + "...[truncated]"


def _invalid(message: str, param: str, value: Any = None) -> WireError:
    where = f"parameter={param}" + ("" if value is None else f", value={value}")
    return WireError(f"{message} ({where})", param=param)


def _check_stream_options(raw: dict[str, Any]) -> None:
    if raw.get("stream_options") and not raw.get("stream"):
        raise _invalid("Stream options can only be defined when `stream=True`.", "stream_options")


def _check_logprobs(raw: dict[str, Any], name: str) -> None:
    value = raw.get(name)
    if value is not None and not isinstance(value, int | float):
        raise _invalid(f"`{name}` must be an integer.", name, value)
    if value is not None and value < 0 and value != -1:
        raise _invalid(f"`{name}` must be a positive value or -1.", name, value)


def _check_salt(raw: dict[str, Any]) -> None:
    if raw.get("cache_salt") == "":
        raise _invalid("Parameter 'cache_salt' must be a non-empty string if provided.", "cache_salt")


def _check_model(body: _Body, limits: Limits) -> None:
    if body.model and body.model not in limits.models:
        message = f"The model `{body.model}` does not exist. Valid aliases: {', '.join(limits.models)}."
        raise WireError(message, kind="NotFoundError", status=404, param="model")


def _check_busy(body: _Body, limits: Limits) -> None:
    if limits.choices_free is not None and (body.n or 1) > limits.choices_free:
        raise WireError(BUSY, kind="Service Unavailable", status=503)


def _check_values(body: _Body, *, tokens_max: int, top_logprobs: int | None) -> None:
    if body.n is not None and body.n < 1:
        raise WireError(f"n must be at least 1, got {body.n}.")
    if body.n is not None and body.n > CHOICES_MAX:
        limit = f"n must be at most {CHOICES_MAX}, got {body.n}."
        raise WireError(f"{limit} To increase this limit, set the VLLM_MAX_N_SEQUENCES environment variable.")
    _check_sampling(body)
    if tokens_max < 1:
        raise _invalid(f"max_tokens must be at least 1, got {tokens_max}.", "max_tokens", tokens_max)
    if body.min_tokens < 0:
        raise WireError(f"min_tokens must be greater than or equal to 0, got {body.min_tokens}.")
    if body.min_tokens > tokens_max:
        message = f"min_tokens must be less than or equal to max_tokens={tokens_max}, got {body.min_tokens}."
        raise WireError(message)
    if body.stop is not None and not all([body.stop] if isinstance(body.stop, str) else body.stop):
        raise WireError("stop cannot contain an empty string.")
    if top_logprobs is not None and top_logprobs > LOGPROBS_MAX:
        message = f"Requested sample logprobs of {top_logprobs}, which is greater than max allowed: {LOGPROBS_MAX}"
        raise _invalid(message, "logprobs", top_logprobs)


def _check_sampling(body: _Body) -> None:
    if body.temperature is not None and not isfinite(body.temperature):
        message = f"temperature must be a finite number, got {body.temperature}."
        raise _invalid(message, "temperature", body.temperature)
    if body.temperature is not None and body.temperature < 0:
        raise _invalid(f"temperature must be non-negative, got {body.temperature}.", "temperature", body.temperature)
    if body.top_p is not None and not 0 < body.top_p <= 1:
        raise _invalid(f"top_p must be in (0, 1], got {body.top_p}.", "top_p", body.top_p)


def _tokens_max(asked: int | None, prompt: Prompt, limits: Limits) -> int:
    """Most tokens this prompt may be answered with: never beyond the model's length."""
    length = limits.max_model_len
    if asked is not None and asked > length:
        message = (
            f"max_tokens={asked} cannot be greater than max_model_len={length}. Please request fewer output tokens."
        )
        raise _invalid(message, "max_tokens", asked)
    if prompt.tokens > length:
        # vLLM stops tokenizing one token beyond the limit, so it knows the length of token ids only.
        tokens = prompt.tokens if prompt.token_ids is not None else length + 1
        counted = f"{tokens}" if tokens > length + 1 else f"at least {tokens}"
        message = (
            f"This model's maximum context length is {length} tokens. However, your prompt contains {counted} input"
            " tokens, which exceeds this limit even without any output tokens. Please reduce the length of the input"
            " prompt."
        )
        raise _invalid(message, "input_tokens", tokens)
    return length - prompt.tokens if asked is None else min(asked, length - prompt.tokens)


def _prompts(prompt: list[int] | list[list[int]] | str | list[str], block_tokens: int, salt: str) -> Iterable[Prompt]:
    listed: list[Any] = [prompt] if isinstance(prompt, str) or (prompt and isinstance(prompt[0], int)) else list(prompt)
    for item in listed:
        if not item:
            raise WireError("The decoder prompt cannot be empty")
        if isinstance(item, str):
            yield text_prompt(item, block_tokens=block_tokens, salt=salt)
        else:
            yield token_prompt(item, block_tokens=block_tokens, salt=salt)
