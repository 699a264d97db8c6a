"""The one table of paths: what may be asked, in whose shape, and how it is charged.

A path that is not here does not exist, whatever the backend has at it, unless the operator lists it. Everything
that generates is queued and charged token by token; what only reads (embeddings, scores) is queued and charged by
its prompt; utilities go to a backend at once, a few at a time for each tenant, and cost a unit; the rest is
answered by the gateway itself and costs nothing.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final, Literal

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

# An id in a path, as it may go into the path that a backend is asked for.
ID: Final = re.compile(r"[A-Za-z0-9_-]{1,128}")


class ChargeRule(StrEnum):
    """What a call costs its tenant."""

    USAGE = "usage"  # prompt and output tokens, as they pass
    PROMPT = "prompt"  # prompt tokens: it generates none
    UNIT = "unit"  # always the same
    NOTHING = "nothing"


@dataclass(frozen=True, slots=True, kw_only=True)
class BodyShape:
    """How a body says what is to be generated. The first of `output_fields` that is set wins, as in vLLM.

    `usage_options`: it takes `stream_options`, by which a stream can be made to report usage as it passes.
    """

    prompt: Callable[[dict[str, Any]], Prompt]
    output_fields: tuple[str, ...] = ()
    output_tokens_default: int | None = None
    usage_options: bool = False


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Endpoint:
    """One path. A path with "{id}" stands for all ids; a `shape` is there where a body is to be queued."""

    path: str
    methods: tuple[str, ...] = ("POST",)
    api: Api = Api.OPENAI
    charge: ChargeRule
    shape: BodyShape | None = None
    answer: AnswerKind = AnswerKind.NONE
    multipart: bool = False

    @property
    def queued(self) -> bool:
        return self.charge in (ChargeRule.USAGE, ChargeRule.PROMPT)

    @property
    def may_be_empty(self) -> bool:
        """Whether it is asked without a body too, and so without a model."""
        return "GET" in self.methods

    def target(self, path_id: str) -> str:
        """The path with this id in it."""
        return self.path.replace("{id}", path_id)


_CHAT: Final = BodyShape(prompt=chat_prompt, output_fields=("max_completion_tokens", "max_tokens"), usage_options=True)
# The API's own default of completions is 16 tokens; chat has none.
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
# As vLLM has it with VLLM_ENABLE_COHERE_API.
COHERE_CHAT: Final = _generates("/cohere/v2/chat", _COHERE_CHAT, AnswerKind.COHERE, Api.COHERE)
EMBEDDINGS: Final = _reads("/v1/embeddings", _INPUT)
RESPONSE: Final = _utility("/v1/responses/{id}", "GET")
RESPONSE_CANCEL: Final = _utility("/v1/responses/{id}/cancel")
COUNT_TOKENS: Final = _utility("/v1/messages/count_tokens", api=Api.ANTHROPIC)
MODELS: Final = _own("/v1/models")
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
    HEALTH,
    LIVEZ,
    READYZ,
    PING,
    VERSION,
    REALTIME,
)


ListedCharge = Literal["generation", "unit"]


def passthrough_endpoint(path: str, charge: ListedCharge) -> Endpoint:
    """A path of the backends that an operator lets through."""
    if charge == "generation":
        return _generates(path, _UNKNOWN, AnswerKind.CHOICES)
    return Endpoint(path=path, methods=("GET", "POST"), charge=ChargeRule.UNIT)


class PathTable:
    """Which endpoint is at a path? Exact paths first; those with an id are few."""

    def __init__(self, endpoints: Iterable[Endpoint]) -> None:
        endpoints = tuple(endpoints)
        self._exact: Mapping[str, Endpoint] = {each.path: each for each in endpoints if "{id}" not in each.path}
        self._patterns = [
            (re.compile(re.escape(each.path).replace(r"\{id\}", f"({ID.pattern})")), each)
            for each in endpoints
            if "{id}" in each.path
        ]

    def exact(self, target: str) -> Endpoint | None:
        """The endpoint whose path this is as it stands: as nearly all call it, and found without reading it."""
        return self._exact.get(target)

    def find(self, path: str) -> tuple[Endpoint | None, str]:
        """The endpoint, None where there is none; and the id in its path, "" where that has none."""
        endpoint = self._exact.get(path)
        if endpoint is not None:
            return endpoint, ""
        for pattern, candidate in self._patterns:
            match = pattern.fullmatch(path)
            if match is not None:
                return candidate, match.group(1)
        return None, ""


def api_of(path: str) -> Api:
    """In whose shape an error at this path is, also where there is nothing."""
    if path.startswith(_COHERE):
        return Api.COHERE
    return Api.ANTHROPIC if path.startswith(MESSAGES.path) else Api.OPENAI
