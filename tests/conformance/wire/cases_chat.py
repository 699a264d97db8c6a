"""Chat completions: whole and streamed, with every option that changes what is sent back."""

from case import Case, same
from exchange import post

PATH = "/v1/chat/completions"
HELLO = [{"role": "user", "content": "Hello"}]
BASE = {"model": "tiny", "messages": HELLO, "temperature": 0, "max_tokens": 4}
WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "What is the weather like?",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
NAMED = {"type": "function", "function": {"name": "weather"}}
SCHEMA = {
    "type": "object",
    "properties": {"ok": {"type": "boolean"}, "n": {"type": "integer", "maximum": 9, "minimum": 0}},
    "required": ["ok", "n"],
    "additionalProperties": False,
}
JSON_SCHEMA = {"type": "json_schema", "json_schema": {"name": "answer", "schema": SCHEMA, "strict": True}}
TALK = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": [{"type": "text", "text": "How is it "}, {"type": "text", "text": "in Rome?"}]},
    {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": "call_1", "type": "function", "function": {"name": "weather", "arguments": "{}"}}],
    },
    {"role": "tool", "tool_call_id": "call_1", "content": "sunny"},
]
USAGES = {
    "usage": {"include_usage": True},
    "usage in every chunk": {"include_usage": True, "continuous_usage_stats": True},
    "usage refused": {"include_usage": False},
    "continuous usage alone": {"continuous_usage_stats": True},
    "usage at the end only": {"include_usage": True, "continuous_usage_stats": False},
    "no usage, but in every chunk": {"include_usage": False, "continuous_usage_stats": True},
    "empty options": {},
    "null options": None,
}
OPTIONS = {
    "plain": {},
    "log probabilities": {"logprobs": True, "top_logprobs": 2},
    "log probabilities without alternatives": {"logprobs": True},
    "token ids": {"return_token_ids": True},
    "two choices": {"n": 2, "temperature": 1.0, "seed": 3},
    "stop": {"stop": ["o", "e"], "max_tokens": 40},
    "stop that is shown": {"stop": "e", "include_stop_str_in_output": True, "max_tokens": 40},
    "stop token": {"stop_token_ids": list(range(4, 4096)), "max_tokens": 40},
    "end of sequence": {"logit_bias": {"2": 100}},
    "ignored end of sequence": {"logit_bias": {"2": 100}, "ignore_eos": True, "skip_special_tokens": False},
    "max_completion_tokens": {"max_completion_tokens": 3},
    "both limits": {"max_completion_tokens": 3, "max_tokens": 7},
    "a conversation": {"messages": TALK, "tools": [WEATHER]},
    "tools, none used": {"tools": [WEATHER], "tool_choice": "none"},
    "tools, automatic": {"tools": [WEATHER], "max_tokens": 8},
    "one tool": {"tools": [WEATHER], "tool_choice": NAMED, "max_tokens": 24},
    "some tool": {"tools": [WEATHER], "tool_choice": "required", "max_tokens": 24},
    "a JSON schema": {"response_format": JSON_SCHEMA, "max_tokens": 40},
    "JSON": {"response_format": {"type": "json_object"}, "max_tokens": 12},
    "a choice": {"structured_outputs": {"choice": ["yes", "no"]}},
    "a pattern": {"structured_outputs": {"regex": "[0-9]{3}-[0-9]{3}"}, "max_tokens": 12},
    "not ASCII": {"messages": [{"role": "user", "content": "häß 漢字 🎉 \u2028"}], "max_tokens": 12},
    "halves of characters": {"logit_bias": {str(token): 100 for token in range(132, 196)}, "max_tokens": 9},
    "a prefix to go on with": {
        "messages": [*HELLO, {"role": "assistant", "content": "Hel"}],
        "continue_final_message": True,
        "add_generation_prompt": False,
    },
    "unknown fields": {"zebra": {"a": [1, {"b": None}]}, "user": "somebody", "metadata": {"a": "b"}, "store": False},
    "sampled with a seed": {"temperature": 1.0, "seed": 11, "top_p": 0.9, "top_k": 40, "min_p": 0.01},
    "penalties": {"presence_penalty": 0.5, "frequency_penalty": 0.5, "repetition_penalty": 1.1},
    "min_tokens": {"min_tokens": 3, "logit_bias": {"2": 100}},
    "prompt log probabilities": {"prompt_logprobs": 1},
    "echo": {"echo": True, "add_generation_prompt": True},
    "no model": {"model": None},
    "a cache salt": {"cache_salt": "salt"},
    "reasoning effort": {"reasoning_effort": "low", "chat_template_kwargs": {"a": 1}},
}
STREAM_ONLY = {
    "four tokens an event": {"stream_interval": 4, "max_tokens": 9},
    "long": {"max_tokens": 300, "ignore_eos": True, "stream_interval": 16},
}

CASES: dict[str, Case] = {}
for name, fields in OPTIONS.items():
    CASES[f"chat: {name}"] = same(post(PATH, {**BASE, **fields}))
    if name != "prompt log probabilities":  # vLLM has none of a stream
        CASES[f"chat, streamed: {name}"] = same(post(PATH, {**BASE, **fields, "stream": True}))
for name, fields in STREAM_ONLY.items():
    CASES[f"chat, streamed: {name}"] = same(post(PATH, {**BASE, **fields, "stream": True}))
for name, options in USAGES.items():
    CASES[f"chat, streamed: {name}"] = same(post(PATH, {**BASE, "stream": True, "stream_options": options}))
    CASES[f"chat, streamed, two choices: {name}"] = same(
        post(PATH, {**BASE, "n": 2, "seed": 3, "temperature": 1.0, "stream": True, "stream_options": options})
    )
CASES |= {
    "chat: no field `model`": same(post(PATH, {name: value for name, value in BASE.items() if name != "model"})),
    "chat: long answer": same(post(PATH, {**BASE, "max_tokens": 600, "ignore_eos": True})),
    "chat: a request id": same(post(PATH, BASE, x_request_id="my-id.1")),
    "chat: an origin": same(post(PATH, BASE, origin="https://example.com")),
    "chat: a content type with a charset": same(post(PATH, BASE, content_type="application/json; charset=utf-8")),
    "chat: spaces and line breaks in the body": same(post(PATH, b' {"messages" : [{"role":"user","content":"Hello"}],\n'
        b'"temperature":0, "max_tokens" : 4 }\r\n')),
    "chat: a key twice": same(post(PATH, b'{"max_tokens":2,"messages":[{"role":"user","content":"Hello"}],'
        b'"temperature":0,"max_tokens":4}')),
    "chat: whole floats": same(post(PATH, {**BASE, "max_tokens": 4.0, "n": 1.0})),
    "batch": same(post(f"{PATH}/batch", {**BASE, "messages": [HELLO, TALK[:1], HELLO]})),
    "batch: log probabilities": same(post(f"{PATH}/batch", {**BASE, "messages": [HELLO, HELLO], "logprobs": True})),
}  # fmt: skip
