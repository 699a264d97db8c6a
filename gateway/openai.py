"""The API's shape, in and out: a body becomes a ParsedCall, a refusal becomes an answer.

Pure: bytes and values in, values out. What a person should know of it:

* Only what scheduling needs is read; every other field passes to the backend as it came. What is read
  is read strictly (a bool is no number, "4" is no number), so that a lenient backend cannot run more
  than was charged. Of duplicate keys the last one counts, here as in vLLM.
* A body is forwarded byte for byte. Only a stream gets stream_options, without which its tokens could
  not be charged as they pass.
* Errors are OpenAI error objects and never repeat what was sent. `REFUSALS` is the one place that says
  what a Reason looks like from outside; `FAULTS` does the same for everything that is not a decision
  of the scheduler.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final

import orjson

from gateway.prompts import BadRequest, Prompt, chat_prompt, completion_prompt, prefix_hashes
from policies.types import Reason

NESTING_MAX = 128
MODEL_CHARS_MAX = 512
RETRY_AFTER_S_MAX = 3600
DROPPED_REASON_HEADER = "x-llm-d-request-dropped-reason"


class Endpoint(StrEnum):
    """The calls that generate tokens, by path."""

    CHAT = "/v1/chat/completions"
    COMPLETIONS = "/v1/completions"


@dataclass(frozen=True, slots=True)
class GenerationLimits:
    """Largest call accepted: `n` or `best_of`, prompts in one call, and tokens of one choice."""

    choices_max: int
    prompts_max: int
    output_tokens_max: int


@dataclass(frozen=True, slots=True)
class ParsedCall:
    """What the gateway knows of a generation call before anything is counted.

    `choices` is the number of sequences (n or best_of, times `prompts`). `output_tokens_max` counts all of
    them, and is None where the call sets no limit. `prompt_bytes` is the text that becomes prompt;
    `prompt_token_ids` its exact tokens where it came as token ids. A block of `prefix` has
    `PREFIX_BLOCK_BYTES` of those bytes.
    """

    model: str | None
    stream: bool
    choices: int
    prompts: int
    output_tokens_max: int | None
    client_wants_usage: bool
    client_wants_continuous_usage: bool
    prompt_bytes: int
    prompt_token_ids: int | None
    prefix: tuple[int, ...]
    upstream_body: bytes


@dataclass(frozen=True, slots=True)
class _Shape:
    """How one endpoint writes a call. The first of `output_fields` that is set wins, as in vLLM."""

    prompt: Callable[[dict[str, Any]], Prompt]
    output_fields: tuple[str, ...]
    output_tokens_default: int | None


_SHAPES: Final = {
    Endpoint.CHAT: _Shape(
        prompt=chat_prompt, output_fields=("max_completion_tokens", "max_tokens"), output_tokens_default=None
    ),
    # The API's own default of completions is 16 tokens; chat has none.
    Endpoint.COMPLETIONS: _Shape(prompt=completion_prompt, output_fields=("max_tokens",), output_tokens_default=16),
}
_USAGE_OPTIONS: Final = {"include_usage": True, "continuous_usage_stats": True}
_USAGE_TAIL: Final = b',"stream_options":' + orjson.dumps(_USAGE_OPTIONS) + b"}"


def parse_generation(endpoint: Endpoint, body: bytes, limits: GenerationLimits) -> ParsedCall:
    """Read a generation call. Raises BadRequest, and nothing else, whatever the bytes are."""
    call = _json_object(body)
    shape = _SHAPES[endpoint]
    model = call.get("model")
    if model is not None and (type(model) is not str or len(model) > MODEL_CHARS_MAX):
        raise BadRequest(f"'model' must be a string of at most {MODEL_CHARS_MAX} characters.", param="model")
    stream = _flag(call, "stream")
    wants_usage, wants_continuous, upstream_body = _stream_options(call, body, stream=stream)
    sequences = max(_count(call, "n", limits.choices_max) or 1, _count(call, "best_of", limits.choices_max) or 1)
    output_tokens = _output_tokens(call, shape, limits.output_tokens_max)
    prompt = shape.prompt(call)
    if prompt.prompts > limits.prompts_max:
        raise BadRequest(f"'prompt' must hold at most {limits.prompts_max} prompts.", param="prompt")
    choices = sequences * prompt.prompts
    return ParsedCall(
        model=model,
        stream=stream,
        choices=choices,
        prompts=prompt.prompts,
        output_tokens_max=None if output_tokens is None else output_tokens * choices,
        client_wants_usage=wants_usage,
        client_wants_continuous_usage=wants_continuous,
        prompt_bytes=len(prompt.text),
        prompt_token_ids=prompt.token_ids,
        prefix=prefix_hashes(prompt, call),
        upstream_body=upstream_body,
    )


def prompt_text(endpoint: Endpoint, body: bytes) -> str:
    """Return the text that becomes prompt, of a body that has passed `parse_generation`, for a tokenizer.

    Apart from the ParsedCall, which lives as long as its request: most gateways never need the text.
    """
    return _SHAPES[endpoint].prompt(orjson.loads(body)).text.decode(errors="replace")


def _json_object(body: bytes) -> dict[str, Any]:
    try:
        call = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise BadRequest(f"The body is not valid JSON (at character {error.pos}).", code="invalid_json") from None
    if type(call) is not dict:
        raise BadRequest("The body must be a JSON object.", code="invalid_json")
    # Counting brackets is far cheaper than walking the value, and almost always enough.
    if body.count(b"[") + body.count(b"{") > NESTING_MAX:
        _check_nesting(call)
    return call


def _check_nesting(call: dict[str, Any]) -> None:
    """Refuse what could exhaust the backend's recursion (templates, schema compilers) and look like its failure."""
    level: list[Any] = [call]
    for _ in range(NESTING_MAX):
        level = [
            child
            for node in level
            for child in (node.values() if type(node) is dict else node)
            if type(child) is dict or type(child) is list
        ]
        if not level:
            return
    raise BadRequest(f"The body is nested more than {NESTING_MAX} levels deep.", code="invalid_json")


def _flag(options: dict[str, Any], name: str) -> bool:
    value = options.get(name)
    if value is None:
        return False
    if type(value) is not bool:
        raise BadRequest(f"'{name}' must be true or false.", param=name)
    return value


def _count(call: dict[str, Any], name: str, value_max: int, value_min: int = 1) -> int | None:
    value = call.get(name)
    if value is None:
        return None
    # 16.0 is 16: some languages have only one kind of number.
    if type(value) is float and value.is_integer():
        value = int(value)
    if type(value) is not int:
        raise BadRequest(f"'{name}' must be an integer.", param=name)
    if not value_min <= value <= value_max:
        raise BadRequest(f"'{name}' must be from {value_min} to {value_max}.", param=name)
    return value


def _output_tokens(call: dict[str, Any], shape: _Shape, value_max: int) -> int | None:
    # vLLM takes max_tokens 0 with echo, to score a prompt, and still decodes one token.
    value_min = 0 if call.get("echo") is True else 1
    given = [_count(call, name, value_max, value_min) for name in shape.output_fields]
    value = next((count for count in given if count is not None), shape.output_tokens_default)
    return None if value is None else max(value, 1)


def _stream_options(call: dict[str, Any], body: bytes, *, stream: bool) -> tuple[bool, bool, bytes]:
    """Return whether the client wants usage, whether in every chunk, and the body to forward."""
    options = call.get("stream_options")
    if options is not None and type(options) is not dict:
        raise BadRequest("'stream_options' must be an object.", param="stream_options")
    if not stream:
        if options:
            raise BadRequest("'stream_options' may only be set when 'stream' is true.", param="stream_options")
        return False, False, body
    wants_usage = _flag(options, "include_usage") if options else False
    wants_continuous = _flag(options, "continuous_usage_stats") if options else False
    if wants_usage and wants_continuous:
        return True, True, body
    if "stream_options" in call:
        call = {**call, "stream_options": {**(options or {}), **_USAGE_OPTIONS}}
        return wants_usage, False, orjson.dumps(call)
    return wants_usage, False, body.rstrip()[:-1] + _USAGE_TAIL


@dataclass(frozen=True, slots=True)
class Answer:
    """A whole response of our own: `body` is JSON."""

    status: int
    body: bytes
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Refusal:
    """What a Reason looks like from outside. 429: capacity exists, but is contended; 503: there is none."""

    status: int
    type: str
    code: str
    message: str
    dropped_reason: str


REFUSALS: Final[Mapping[Reason, Refusal]] = {
    Reason.TENANT_QUEUE_FULL: Refusal(
        429, "rate_limit_error", "rate_limit_exceeded", "Your queue is full.", "rejected-saturated"
    ),
    Reason.QUEUE_FULL: Refusal(
        429, "overloaded_error", "rate_limit_exceeded", "All queues together are full.", "rejected-saturated"
    ),
    Reason.QUEUE_TIMEOUT: Refusal(
        429, "overloaded_error", "rate_limit_exceeded", "No capacity became free in time.", "rejected-ttl-expired"
    ),
    Reason.RATE_LIMITED: Refusal(
        429, "rate_limit_error", "rate_limit_exceeded", "You are over your rate limit.", "rejected-saturated"
    ),
    # Trying again cannot help: no status that a client library retries.
    Reason.REQUEST_TOO_LARGE: Refusal(
        400,
        "invalid_request_error",
        "request_too_large",
        "The prompt alone is larger than your limit of tokens per minute.",
        "rejected-request-too-large",
    ),
    # llm-d has no value for a tenant that does not exist: one of ours, in its style.
    Reason.TENANT_UNKNOWN: Refusal(
        403, "authentication_error", "tenant_unknown", "Your key belongs to no known tenant.", "rejected-tenant-unknown"
    ),
    Reason.NO_BACKEND: Refusal(
        503, "overloaded_error", "service_unavailable", "No backend is available.", "rejected-no-endpoints"
    ),
    Reason.DRAINING: Refusal(
        503, "overloaded_error", "service_unavailable", "The gateway is shutting down.", "rejected-shutting-down"
    ),
}


@dataclass(frozen=True, slots=True)
class Fault:
    """An error that is no decision of the scheduler."""

    status: int
    type: str
    code: str
    message: str
    headers: Mapping[str, str] = field(default_factory=dict)


INVALID_API_KEY: Final = Fault(
    401,
    "authentication_error",
    "invalid_api_key",
    "No valid API key was given. Send it as 'Authorization: Bearer KEY'.",
    {"www-authenticate": "Bearer"},
)
MODEL_NOT_FOUND: Final = Fault(404, "invalid_request_error", "model_not_found", "The model does not exist here.")
BODY_TIMEOUT: Final = Fault(408, "invalid_request_error", "body_timeout", "The body did not arrive in time.")
BODY_TOO_LARGE: Final = Fault(413, "invalid_request_error", "body_too_large", "The body is too large.")
HEADER_TOO_LARGE: Final = Fault(431, "invalid_request_error", "header_too_large", "The header is too large.")
MALFORMED_HTTP: Final = Fault(400, "invalid_request_error", "malformed_http", "The request is not valid HTTP.")
INTERNAL: Final = Fault(500, "api_error", "internal_error", "The gateway failed. This is its fault, not yours.")
BACKEND_FAILED: Final = Fault(502, "api_error", "backend_failed", "The backend failed while it answered.")
BACKEND_TIMEOUT: Final = Fault(504, "api_error", "backend_timeout", "The backend did not answer in time.")
FAULTS: Final = (
    INVALID_API_KEY,
    MODEL_NOT_FOUND,
    BODY_TIMEOUT,
    BODY_TOO_LARGE,
    HEADER_TOO_LARGE,
    MALFORMED_HTTP,
    INTERNAL,
    BACKEND_FAILED,
    BACKEND_TIMEOUT,
)

# Paths and methods we do not have are answered as vLLM answers them.
NOT_FOUND: Final = Answer(404, b'{"detail":"Not Found"}')


def method_not_allowed(allow: str) -> Answer:
    return Answer(405, b'{"detail":"Method Not Allowed"}', {"allow": allow})


def error_body(message: str, *, type: str, param: str | None = None, code: str | None = None) -> bytes:  # noqa: A002
    return orjson.dumps({"error": {"message": message, "type": type, "param": param, "code": code}})


def refused(reason: Reason, retry_after_s: float) -> Answer:
    """Answer a Reject. Retry-After is whole seconds from 1 (RFC 9110, 10.2.3), where a retry can help."""
    refusal = REFUSALS[reason]
    headers = {DROPPED_REASON_HEADER: refusal.dropped_reason}
    if refusal.status in (429, 503):
        headers["retry-after"] = str(_whole_seconds(retry_after_s))
    return Answer(refusal.status, error_body(refusal.message, type=refusal.type, code=refusal.code), headers)


def failed(fault: Fault, *, param: str | None = None) -> Answer:
    return Answer(fault.status, error_body(fault.message, type=fault.type, param=param, code=fault.code), fault.headers)


def bad_request(error: BadRequest) -> Answer:
    return Answer(400, error_body(error.message, type="invalid_request_error", param=error.param, code=error.code))


def _whole_seconds(retry_after_s: float) -> int:
    if not math.isfinite(retry_after_s):
        return RETRY_AFTER_S_MAX
    return min(max(math.ceil(retry_after_s), 1), RETRY_AFTER_S_MAX)
