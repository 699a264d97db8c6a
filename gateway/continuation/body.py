"""Continuation body: a completion call with the token ids of the prompt and of the output so far.

Fields that completions do not have, or whose effect is already in the token ids (templates, truncation), are left out.
Limits are reduced to the part that is left. All other fields stay unchanged, since both paths of vLLM read the same
sampling parameters; a call with an unknown field has been excluded (exclusions.py).
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import orjson

from backends.meters.token_ids import TokenIds
from backends.upstream import UpstreamProtocolError
from gateway.api.values import flag, integer

PATH: Final = "/v1/completions"
DEFAULT_OUTPUT_TOKENS: Final = 16  # of completions without max_tokens, in OpenAI's API and in vLLM
SEED_MAX: Final = 2**63 - 1
DONE_OR_CHATS: Final = frozenset(
    {
        "prompt", "suffix", "echo", "stop", "n", "best_of", "max_tokens", "max_completion_tokens", "min_tokens", "seed",
        "stream", "stream_options", "return_token_ids", "truncate_prompt_tokens", "truncation_side",
        "add_special_tokens", "messages", "tools", "tool_choice", "functions", "function_call", "parallel_tool_calls",
        "response_format", "top_logprobs", "add_generation_prompt", "continue_final_message", "documents",
        "chat_template", "chat_template_kwargs", "media_io_kwargs", "mm_processor_kwargs", "include_reasoning",
        "reasoning_effort", "return_prompt_text", "prompt_embeds",
    }
)  # fmt: skip
# What a question about the prompt shares with its call: how it decodes, and which cached prompts it may use and be.
OF_QUESTIONS: Final = ("skip_special_tokens", "cache_salt")


def stop_strings(call: Mapping[str, Any]) -> Sequence[str]:
    """The stop strings of a call that its backend has accepted."""
    stop = call.get("stop") or ()
    return (stop,) if isinstance(stop, str) else tuple(stop)


def continuation_body(
    call: Mapping[str, Any], ids: TokenIds, *, is_chat: bool, context_tokens_max: int | None
) -> bytes:
    """The body of a completion that continues the call after these token ids. `context_tokens_max` bounds a chat that
    sets no limit. Raises UpstreamProtocolError where it is None although it is needed.
    """
    outputs = len(ids.output)
    fields = {name: value for name, value in call.items() if name not in DONE_OR_CHATS}
    fields |= {"stream": True, "stream_options": {"include_usage": True}, "return_token_ids": True}
    limit = _output_limit(call, ids, is_chat=is_chat, context_tokens_max=context_tokens_max)
    fields["max_tokens"] = max(1, limit - outputs)
    if tokens_min := integer(call, "min_tokens"):
        fields["min_tokens"] = max(0, tokens_min - outputs)
    if (seed := integer(call, "seed")) is not None:
        fields["seed"] = (seed + outputs) % SEED_MAX  # with the same one, the same random numbers would come again
    if is_chat:
        fields.pop("logprobs", None)
        if flag(call, "logprobs"):
            fields["logprobs"] = 0
    if stop_strings(call):  # the text of each token, where several come at once
        fields["return_tokens_as_token_ids"] = False
        if fields.get("logprobs") is None:
            fields["logprobs"] = 0
    output = b",".join(b"%d" % each for each in ids.output)
    prompt = b",".join(filter(None, (ids.prompt, output)))
    return orjson.dumps(fields)[:-1] + b',"prompt":[' + prompt + b"]}"


def _output_limit(call: Mapping[str, Any], ids: TokenIds, *, is_chat: bool, context_tokens_max: int | None) -> int:
    """The most output tokens of the whole answer."""
    names = ("max_completion_tokens", "max_tokens") if is_chat else ("max_tokens",)
    limits = [limit for name in names if (limit := integer(call, name)) is not None]
    if limits:
        return limits[0]
    if not is_chat:
        return DEFAULT_OUTPUT_TOKENS
    if context_tokens_max is None:
        raise UpstreamProtocolError("the size of its context is not known")
    return context_tokens_max - ids.prompt_tokens
