"""Exclusions: the streams that cannot be continued at another backend, decided from the call before it is queued.

A continuation is a completion of token ids: those of the prompt and of the output so far. State that is not in these
ids is lost: the state of a grammar, counts of generated tokens, images, the tokens of other choices. A call that
depends on such state is excluded here, and so is a call with a field that is not known here. Some backends (without
token ids, or with a reasoning parser) exclude a stream when its first event arrives (gateway/continuation/stream.py).
docs/continue.md names the fields that exclude a stream.

Facts about vLLM 0.32: vllm/entrypoints/openai/{chat_completion,completion}/protocol.py, vllm/sampling_params.py.
"""

from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import Any, Final

from gateway.api.endpoints import CHAT, COMPLETIONS, Endpoint
from gateway.api.fields import BODY_FIELDS, LEFT_OUT
from gateway.api.prompts import TEXT_PARTS
from gateway.continuation.body import DONE_OR_CHATS


class Exclusion(StrEnum):
    """The reason why a stream cannot be continued at another backend."""

    DISABLED = "disabled"  # by the configuration
    API = "api"  # no stream of chat completions or completions
    CHOICES = "choices"  # more than one sequence
    GRAMMAR = "grammar"  # the state of a grammar is not in the tokens
    TOOLS = "tools"  # a parser of tool calls holds text back, and has a state
    REASONING = "reasoning"  # so does one of reasoning
    MEDIA = "media"  # the prompt is more than token ids
    PROMPT_LOGPROBS = "prompt_logprobs"
    ECHO = "echo"
    TOP_LOGPROBS = "top_logprobs"  # completions name alternatives by their text, so two of one text are one
    PENALTIES = "penalties"  # they count generated tokens; in a continuation those are prompt
    GENERATED = "generated_tokens"  # another rule over generated tokens, which would begin anew
    ARGUMENTS = "engine_arguments"  # of the client, for what the operator put into the engine
    NAMES = "names_of_tokens"  # log probabilities name tokens by their ids, so their texts are not told
    SPECIAL = "special_tokens"  # tokens without text among those that stop strings are searched for in
    UNKNOWN = "unknown_field"
    SPACING = "special_token_spacing"  # the space before a special token depends on the token before it
    BACKEND = "backend"  # it reports no token ids
    MEMORY = "memory"  # the ids of all streams need more than BYTES_MAX of held_bytes.py
    BYTES = "bytes"  # its token ids may need more than TOKEN_BYTES_MAX of stream.py


Excludes = Callable[[Any], bool]


def _if_set(value: Any) -> bool:
    return bool(value)


def _if_given(value: Any) -> bool:
    return value is not None


def _if_not_true(value: Any) -> bool:
    """Whether a flag that is true by default is set otherwise. vLLM reads 0 and "no" as false, too."""
    return value is not None and value is not True


def _if_structured(response_format: Any) -> bool:
    return response_format is not None and response_format != {"type": "text"}


_FIELDS: Final[Mapping[str, tuple[Exclusion, Excludes]]] = {
    "use_beam_search": (Exclusion.CHOICES, _if_set),
    "response_format": (Exclusion.GRAMMAR, _if_structured),
    "structured_outputs": (Exclusion.GRAMMAR, _if_given),
    "guided_json": (Exclusion.GRAMMAR, _if_given),  # names until vLLM 0.11
    "guided_regex": (Exclusion.GRAMMAR, _if_given),
    "guided_choice": (Exclusion.GRAMMAR, _if_given),
    "guided_grammar": (Exclusion.GRAMMAR, _if_given),
    "structural_tag": (Exclusion.GRAMMAR, _if_given),
    "tools": (Exclusion.TOOLS, _if_set),
    "functions": (Exclusion.TOOLS, _if_set),
    "thinking_token_budget": (Exclusion.REASONING, _if_given),
    "include_reasoning": (Exclusion.REASONING, _if_not_true),  # it hides token ids
    "prompt_embeds": (Exclusion.MEDIA, _if_set),
    "prompt_logprobs": (Exclusion.PROMPT_LOGPROBS, _if_given),
    "echo": (Exclusion.ECHO, _if_set),
    "presence_penalty": (Exclusion.PENALTIES, _if_set),
    "frequency_penalty": (Exclusion.PENALTIES, _if_set),
    "bad_words": (Exclusion.GENERATED, _if_set),
    "repetition_detection": (Exclusion.GENERATED, _if_given),
    "watermarking": (Exclusion.GENERATED, _if_set),
    "logits_processors": (Exclusion.GENERATED, _if_set),
    "vllm_xargs": (Exclusion.ARGUMENTS, _if_set),
    "spaces_between_special_tokens": (Exclusion.SPACING, _if_not_true),
    "ignore_eos": (Exclusion.SPECIAL, _if_set),
    "top_logprobs": (Exclusion.TOP_LOGPROBS, _if_set),
    "logprob_token_ids": (Exclusion.TOP_LOGPROBS, _if_set),
    "return_tokens_as_token_ids": (Exclusion.NAMES, _if_set),
}
_NAMES: Final = frozenset(_FIELDS)
_AS_THEY_ARE: Final = frozenset(
    {
        "model", "temperature", "top_p", "top_k", "min_p", "repetition_penalty", "length_penalty", "logit_bias",
        "allowed_token_ids", "stop_token_ids", "include_stop_str_in_output", "skip_special_tokens", "stream_interval",
        "cache_salt", "session_id", "user", "logprobs", "routed_experts_prompt_start", "return_token_offsets",
        "mm_payload", "return_mm_kwargs",
        # OpenAI's, which change no answer; vLLM reads none of them.
        "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key",
    }
)  # fmt: skip
_NOT_FORWARDED: Final = frozenset(name for name, rewrite in BODY_FIELDS.items() if rewrite(None) is LEFT_OUT)
KNOWN: Final = _NAMES | _AS_THEY_ARE | _NOT_FORWARDED | DONE_OR_CHATS
"""The fields for which it was decided how a continuation treats them."""
# Where such a field excludes nothing after all.
_UNLESS: Final[Mapping[str, Callable[[Mapping[str, Any]], bool]]] = {
    # Tools are a part of the prompt alone.
    "tools": lambda call: call.get("tool_choice") == "none",
    # `/detokenize` writes special tokens, and a stream of such tokens that are skipped does not.
    "ignore_eos": lambda call: not call.get("stop") or call.get("skip_special_tokens") is False,
}


def exclusion(endpoint: Endpoint, call: Mapping[str, Any], *, choices: int) -> Exclusion | None:
    """The reason why this stream cannot be continued; None: it can be continued, as far as its call shows. `choices` is
    the number of sequences in its answer.
    """
    if endpoint is not CHAT and endpoint is not COMPLETIONS:
        return Exclusion.API
    if choices != 1:
        return Exclusion.CHOICES
    if any(call[name] is not None for name in call.keys() - KNOWN):
        return Exclusion.UNKNOWN
    if not _NAMES.isdisjoint(call):
        for name in _NAMES.intersection(call):
            reason, excludes = _FIELDS[name]
            if excludes(call[name]) and not (name in _UNLESS and _UNLESS[name](call)):
                return reason
    return Exclusion.MEDIA if endpoint is CHAT and _has_media(call["messages"]) else None


def _has_media(messages: list[dict[str, Any]]) -> bool:
    """Whether any content of this conversation is not text."""
    return any(
        type(part) is dict and part.get("type") not in TEXT_PARTS
        for message in messages
        if type(content := message.get("content")) is list
        for part in content
    )
