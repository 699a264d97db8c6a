"""Usage and text of an answer, by API: functions from parsed JSON to numbers.

The JSON is untrusted: a count that is not a natural number is 0, and nothing here raises.
"""

from collections.abc import Iterator
from math import ceil
from typing import Any

import orjson

from policies.types import Usage

AUDIO_TOKENS_PER_S = 50  # Whisper's encoder: 1500 positions in 30 s
AUDIO_S_MAX = 1e6

_TEXT_KEYS = frozenset(
    {
        "content",
        "text",
        "reasoning",
        "reasoning_content",
        "thinking",
        "refusal",
        "arguments",
        "partial_json",
        "delta",
        "tool_plan",
    }
)
_ALSO_WALKED = frozenset({"message", "tool_calls", "function", "function_call", "summary"})


def openai_usage(body: Any) -> Usage | None:
    """Return the usage of a chat completion, a completion, or a chunk of either; None if it has none."""
    usage = body.get("usage") if type(body) is dict else None
    if type(usage) is not dict or not ("prompt_tokens" in usage or "completion_tokens" in usage):
        return None
    prompt_tokens, output_tokens = usage.get("prompt_tokens"), usage.get("completion_tokens")
    return Usage(
        prompt_tokens if type(prompt_tokens) is int and prompt_tokens > 0 else count(prompt_tokens),
        _detail(usage, "prompt_tokens_details", "cached_tokens") if "prompt_tokens_details" in usage else 0,
        output_tokens if type(output_tokens) is int and output_tokens > 0 else count(output_tokens),
    )


def response_usage(body: Any) -> Usage | None:
    """Return the usage of a response of the Responses API; None if it has none."""
    usage = _usage_object(body)
    if usage is None:
        return None
    cached = _detail(usage, "input_tokens_details", "cached_tokens")
    return Usage(count(usage.get("input_tokens")), cached, count(usage.get("output_tokens")))


def message_usage(body: Any) -> Usage | None:
    """Return the usage of an Anthropic message, whose `input_tokens` exclude tokens read from or written to a cache."""
    usage = _usage_object(body)
    if usage is None:
        return None
    cached = count(usage.get("cache_read_input_tokens"))
    written = count(usage.get("cache_creation_input_tokens"))
    return Usage(count(usage.get("input_tokens")) + cached + written, cached, count(usage.get("output_tokens")))


def cohere_usage(body: Any) -> Usage | None:
    """Return the usage of an answer of Cohere's chat, or of the delta that ends its stream; None if it has none."""
    usage = _usage_object(body)
    if usage is None or not isinstance(usage.get("tokens"), dict):
        return None
    tokens = usage["tokens"]
    return Usage(
        count(tokens.get("input_tokens")), count(usage.get("cached_tokens")), count(tokens.get("output_tokens"))
    )


def pooling_usage(body: Any) -> Usage | None:
    """Return the usage of an embedding, a score, a rank or a class, which has prompt tokens only. Ranks may report only
    `total_tokens`; Cohere's embeddings have `billed_units`.
    """
    usage = _usage_object(body)
    if usage is None:
        return _billed(body)
    prompt_tokens = count(usage.get("prompt_tokens")) or count(usage.get("total_tokens"))
    return Usage(prompt_tokens, _detail(usage, "prompt_tokens_details", "cached_tokens"), 0)


def _billed(body: Any) -> Usage | None:
    meta = body.get("meta") if isinstance(body, dict) else None
    units = meta.get("billed_units") if isinstance(meta, dict) else None
    if not isinstance(units, dict):
        return None
    return Usage(count(units.get("input_tokens")) + count(units.get("image_tokens")), 0, 0)


def audio_tokens(body: Any) -> int:
    """Return the prompt tokens of audio, from the length that its transcription reports; 0 without one."""
    usage = _usage_object(body) or {}
    raw_seconds: Any = usage.get("seconds") or (body.get("duration") if isinstance(body, dict) else None)
    try:
        seconds = float(raw_seconds)
    except (TypeError, ValueError):
        return 0
    return ceil(seconds * AUDIO_TOKENS_PER_S) if 0 < seconds < AUDIO_S_MAX else 0


def texts(value: Any) -> Iterator[str]:
    """Yield every text that the model wrote in this part of an answer; no names, roles, ids and log probabilities."""
    stack = [value]
    while stack:
        node = stack.pop()
        if type(node) is str:
            yield node
        elif type(node) is list:
            stack.extend(node)
        elif type(node) is dict:
            stack.extend(child for key, child in node.items() if key in _TEXT_KEYS or key in _ALSO_WALKED)
            if (given := node.get("input")) is not None:  # a tool's input, as an object or as text
                yield given if type(given) is str else _json(given)


def text_bytes(value: Any) -> int:
    """Return the number of bytes of all `texts` in this part."""
    return sum(len(text.encode(errors="replace")) for text in texts(value))


def count(value: Any) -> int:
    """Return an untrusted count; 0 for anything but a natural number. A whole floating-point number counts, too: vLLM
    writes some of Cohere's counts so, and the parser makes one of any number beyond 64 bits.
    """
    whole = int(value) if type(value) is float and value.is_integer() else value
    return whole if type(whole) is int and whole > 0 else 0


def _usage_object(body: Any) -> dict[str, Any] | None:
    usage = body.get("usage") if type(body) is dict else None
    return usage if type(usage) is dict else None


def _detail(usage: dict[str, Any], details: str, name: str) -> int:
    found = usage.get(details)
    return count(found.get(name)) if type(found) is dict else 0


def _json(value: Any) -> str:
    try:
        return orjson.dumps(value).decode()
    except orjson.JSONEncodeError:  # nested deeper than orjson writes
        return ""
