"""Endpoints: the table of all paths, with the API of each and the way its calls are charged.

A path that is not in the table gets 404, whatever the backends serve there, unless the operator lists it. Endpoints
that generate are queued and charged token by token. Endpoints that only read a prompt (embeddings, scores) are queued
and charged by the prompt. Utilities are forwarded without queueing, a few at a time for each tenant, and cost one unit.
The gateway answers all other endpoints itself, at no cost.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final, Literal
from urllib.parse import quote

from backends.meters import AnswerKind
from gateway.api.errors import Api
from gateway.api.inputs import inputs_prompt, pairs_prompt
from gateway.api.prompts import (
    Prompt,
    audio_prompt,
    batch_prompt,
    chat_prompt,
    completion_prompt,
    messages_prompt,
    responses_prompt,
    unknown_prompt,
)

# An id in a path: the characters that may be copied into the path of a backend's URL.
ID: Final = re.compile(r"[A-Za-z0-9_-]{1,128}")


MODEL_NAME: Final = r"[^\x00-\x1f\x7f]*[^\x00-\x1f\x7f/]"  # in a path; the gateway alone reads it


class ChargeRule(StrEnum):
    """The rule for what a tenant is charged for a call."""

    USAGE = "usage"  # prompt and output tokens, as they pass
    PROMPT = "prompt"  # prompt tokens alone: nothing is generated
    UNIT = "unit"  # a fixed price
    NOTHING = "nothing"


@dataclass(frozen=True, slots=True, kw_only=True)
class BodyShape:
    """The rules for reading the prompt and the limit of output tokens from a JSON body. `output_fields` are the names
    of the limit: the first one that is set counts. `usage_options`: the body takes `stream_options`, by which a stream
    is asked to report usage.
    """

    prompt: Callable[[dict[str, Any]], Prompt]
    output_fields: tuple[str, ...] = ()
    output_tokens_default: int | None = None
    usage_options: bool = False


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Endpoint:
    """One path of the data port's API, and how its calls are read and answered. A path with "{id}" matches every id;
    one with "{model}" every model name, even with slashes. `shape` is set if calls have a prompt and are queued.
    """

    path: str
    methods: tuple[str, ...] = ("POST",)
    api: Api = Api.OPENAI
    charge: ChargeRule
    shape: BodyShape | None = None
    answer: AnswerKind = AnswerKind.NONE
    multipart: bool = False

    @property
    def queued(self) -> bool:
        """Whether calls to the endpoint are queued and scheduled."""
        return self.charge in (ChargeRule.USAGE, ChargeRule.PROMPT)

    @property
    def may_be_empty(self) -> bool:
        """Whether the endpoint is also called without a body, and so without a model."""
        return "GET" in self.methods

    def target(self, path_id: str) -> str:
        """The path with "{id}" or "{model}" replaced by `path_id`."""
        return self.path.replace("{id}", path_id).replace("{model}", quote(path_id))


_CHAT: Final = BodyShape(prompt=chat_prompt, output_fields=("max_completion_tokens", "max_tokens"), usage_options=True)
# OpenAI's default for completions is 16 tokens; chat has none.
_COMPLETION: Final = BodyShape(
    prompt=completion_prompt, output_fields=("max_tokens",), output_tokens_default=16, usage_options=True
)
_BATCH: Final = BodyShape(prompt=batch_prompt, output_fields=("max_completion_tokens", "max_tokens"))
_RESPONSE: Final = BodyShape(prompt=responses_prompt, output_fields=("max_output_tokens",))
_MESSAGE: Final = BodyShape(prompt=messages_prompt, output_fields=("max_tokens",))
_AUDIO: Final = BodyShape(prompt=audio_prompt, output_fields=("max_completion_tokens",), usage_options=True)
_UNKNOWN: Final = BodyShape(
    prompt=unknown_prompt, output_fields=("max_completion_tokens", "max_tokens", "max_output_tokens")
)
_INPUT: Final = BodyShape(prompt=inputs_prompt("input", "messages", "data"))
_COHERE_CHAT: Final = BodyShape(prompt=chat_prompt, output_fields=("max_tokens",))
_EMBED: Final = BodyShape(prompt=inputs_prompt("texts", "images", "inputs"))
_PAIRS: Final = BodyShape(prompt=pairs_prompt)


def _generates(path: str, shape: BodyShape, answer: AnswerKind, api: Api = Api.OPENAI) -> Endpoint:
    return Endpoint(path=path, charge=ChargeRule.USAGE, shape=shape, answer=answer, api=api)


def _hears(path: str) -> Endpoint:
    return Endpoint(path=path, charge=ChargeRule.USAGE, shape=_AUDIO, answer=AnswerKind.TRANSCRIPTION, multipart=True)


def _reads(path: str, shape: BodyShape) -> Endpoint:
    return Endpoint(path=path, charge=ChargeRule.PROMPT, shape=shape, answer=AnswerKind.POOLING)


def _utility(path: str, method: str = "POST", api: Api = Api.OPENAI) -> Endpoint:
    return Endpoint(path=path, methods=(method,), charge=ChargeRule.UNIT, api=api)


def _own(path: str, *methods: str) -> Endpoint:
    return Endpoint(path=path, methods=methods or ("GET",), charge=ChargeRule.NOTHING)


CHAT: Final = _generates("/v1/chat/completions", _CHAT, AnswerKind.CHOICES)
COMPLETIONS: Final = _generates("/v1/completions", _COMPLETION, AnswerKind.CHOICES)
RESPONSES: Final = _generates("/v1/responses", _RESPONSE, AnswerKind.RESPONSES)
MESSAGES: Final = _generates("/v1/messages", _MESSAGE, AnswerKind.MESSAGES, Api.ANTHROPIC)
BATCH: Final = _generates("/v1/chat/completions/batch", _BATCH, AnswerKind.CHOICES)
TRANSCRIPTIONS: Final = _hears("/v1/audio/transcriptions")
# vLLM serves this path when VLLM_ENABLE_COHERE_API is set.
COHERE_CHAT: Final = _generates("/cohere/v2/chat", _COHERE_CHAT, AnswerKind.COHERE, Api.COHERE)
EMBEDDINGS: Final = _reads("/v1/embeddings", _INPUT)
RESPONSE: Final = _utility("/v1/responses/{id}", "GET")
RESPONSE_CANCEL: Final = _utility("/v1/responses/{id}/cancel")
COUNT_TOKENS: Final = _utility("/v1/messages/count_tokens", api=Api.ANTHROPIC)
MODELS: Final = _own("/v1/models")
MODEL: Final = _own("/v1/models/{model}")
HEALTH: Final = _own("/health")
LIVEZ: Final = _own("/livez")
READYZ: Final = _own("/readyz")
PING: Final = _own("/ping", "GET", "POST")
VERSION: Final = _own("/version")
REALTIME: Final = _own("/v1/realtime")

_COHERE: Final = "/cohere/"

ENDPOINTS: Final = (
    CHAT,
    COMPLETIONS,
    RESPONSES,
    MESSAGES,
    BATCH,
    COHERE_CHAT,
    TRANSCRIPTIONS,
    _hears("/v1/audio/translations"),
    EMBEDDINGS,
    _reads("/v2/embed", _EMBED),
    _reads("/score", _PAIRS),
    _reads("/v1/score", _PAIRS),
    _reads("/rerank", _PAIRS),
    _reads("/v1/rerank", _PAIRS),
    _reads("/v2/rerank", _PAIRS),
    _reads("/pooling", _INPUT),
    _reads("/classify", _INPUT),
    RESPONSE,
    RESPONSE_CANCEL,
    COUNT_TOKENS,
    _utility("/tokenize"),
    _utility("/detokenize"),
    MODELS,
    MODEL,
    HEALTH,
    LIVEZ,
    READYZ,
    PING,
    VERSION,
    REALTIME,
)


ListedCharge = Literal["generation", "unit"]


def passthrough_endpoint(path: str, charge: ListedCharge) -> Endpoint:
    """An endpoint for a backend path that the operator lists."""
    if charge == "generation":
        return _generates(path, _UNKNOWN, AnswerKind.CHOICES)
    return Endpoint(path=path, methods=("GET", "POST"), charge=ChargeRule.UNIT)


class PathTable:
    """A table that finds the endpoint of a path: exact paths first, then the few patterns with an id."""

    def __init__(self, endpoints: Iterable[Endpoint]) -> None:
        endpoints = tuple(endpoints)
        self.exact: Mapping[str, Endpoint] = {each.path: each for each in endpoints if "{" not in each.path}
        self._patterns = [(_pattern(each.path), each) for each in endpoints if "{" in each.path]

    def find(self, path: str) -> tuple[Endpoint | None, str]:
        """The endpoint (None where there is none), and the id in the path ("" where the path has none)."""
        endpoint = self.exact.get(path)
        if endpoint is not None:
            return endpoint, ""
        for pattern, candidate in self._patterns:
            match = pattern.fullmatch(path)
            if match is not None:
                return candidate, match.group(1)
        return None, ""


def _pattern(path: str) -> re.Pattern[str]:
    pattern = re.escape(path)
    for name, values in (("id", ID.pattern), ("model", MODEL_NAME)):
        pattern = pattern.replace(rf"\{{{name}\}}", f"({values})")
    return re.compile(pattern)


def api_of(path: str) -> Api:
    """The API whose error format is used at this path, whether or not the path exists."""
    if path.startswith(_COHERE):
        return Api.COHERE
    return Api.ANTHROPIC if path.startswith(MESSAGES.path) else Api.OPENAI
