"""Body checks as in vLLM: JSON, types, model, a busy engine, context length, with vLLM's error messages.

Unknown fields are ignored, as in vLLM. Every rejection is a `WireError` with vLLM's own message, in vLLM's order.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from backends.engine.text import PromptText

BUSY = "The engine is currently busy and cannot accept new requests. Please try again later or on a different instance."


class WireError(Exception):
    """An error answer as vLLM writes it: HTTP status, message, type, and the parameter that is wrong."""

    def __init__(
        self, message: str, *, kind: str = "BadRequestError", status: int = 400, param: str | None = None
    ) -> None:
        super().__init__(message)
        self.status = status
        self.body: dict[str, Any] = {"error": {"message": message, "type": kind, "param": param, "code": status}}


class UnreadableBodyError(WireError):
    """An error answer to a request body that is no valid text or nested too deep; a body with wrong JSON syntax gets
    another error. The answer's shape is that of vLLM's web framework.
    """

    def __init__(self) -> None:
        super().__init__("There was an error parsing the body")
        self.body = {"detail": str(self)}


BodyT = TypeVar("BodyT", bound=BaseModel)
SUMMARY_CHARS_MAX = 256


@dataclass(frozen=True, slots=True)
class EngineLimits:
    """The limits that every body is checked against, in tokens; `models` are the model names that the server knows."""

    models: tuple[str, ...]
    max_model_len: int
    block_tokens: int
    choices_free: int | None = None
    """Sequences that may still be queued; None for any number."""


def load(data: bytes, content_type: str) -> dict[str, Any]:
    """Parse a JSON object. Raises WireError for another content type, or for a body that is not an object."""
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
    """Raise WireError for half of a surrogate pair, which JSON can contain but no tokenizer takes."""
    try:
        json.dumps(raw, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise WireError(
            "TextEncodeInput must be Union[TextInputSequence, Tuple[InputSequence, InputSequence]]"
        ) from None


def validate(model: type[BodyT], raw: dict[str, Any]) -> BodyT:
    """Check the types of a body's fields. Raises WireError."""
    try:
        return model.model_validate(raw, from_attributes=True)  # as FastAPI does; its messages show this
    except ValidationError as error:
        raise _type_error(error.errors(include_url=False)) from None


def _type_error(errors: Iterable[Mapping[str, Any]]) -> WireError:
    """Convert type errors to vLLM's form: each as a Python dict, its location without names of Python types."""
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


def _summary(value: Any) -> str:
    if isinstance(value, list | dict):
        return f"<{type(value).__name__} of {len(value)} items>"
    text = str(value)
    return text if len(text) <= SUMMARY_CHARS_MAX else text[:SUMMARY_CHARS_MAX] + "...[truncated]"


def invalid(message: str, param: str, value: Any = None) -> WireError:
    where = f"parameter={param}" + ("" if value is None else f", value={value}")
    return WireError(f"{message} ({where})", param=param)


def check_model(model: str | None, limits: EngineLimits) -> None:
    """Raise WireError (404) for a model that the server does not serve."""
    if model and model not in limits.models:
        message = f"The model `{model}` does not exist. Valid aliases: {', '.join(limits.models)}."
        raise WireError(message, kind="NotFoundError", status=404, param="model")


def check_busy(sequences: int, limits: EngineLimits) -> None:
    """Raise WireError (503) if this many more sequences cannot be queued."""
    if limits.choices_free is not None and sequences > limits.choices_free:
        raise WireError(BUSY, kind="Service Unavailable", status=503)


def check_output(tokens_max: int) -> int:
    """Return `tokens_max`. Raises WireError (400) if the answer could have no token."""
    if tokens_max < 1:
        raise invalid(f"max_tokens must be at least 1, got {tokens_max}.", "max_tokens", tokens_max)
    return tokens_max


def output_limit(asked: int | None, prompt: PromptText, limits: EngineLimits, *, name: str = "max_tokens") -> int:
    """Return the most tokens of an answer to this prompt: never beyond the model's length."""
    length = limits.max_model_len
    if asked is not None and asked > length:
        message = f"{name}={asked} cannot be greater than max_model_len={length}. Please request fewer output tokens."
        raise invalid(message, name, asked)
    if prompt.tokens > length:
        # vLLM stops tokenizing one token beyond the limit, so it knows the exact length only of token ids.
        tokens = prompt.tokens if prompt.token_ids is not None else length + 1
        counted = f"{tokens}" if tokens > length + 1 else f"at least {tokens}"
        message = (
            f"This model's maximum context length is {length} tokens. However, your prompt contains {counted} input"
            " tokens, which exceeds this limit even without any output tokens. Please reduce the length of the input"
            " prompt."
        )
        raise invalid(message, "input_tokens", tokens)
    return length - prompt.tokens if asked is None else min(asked, length - prompt.tokens)
