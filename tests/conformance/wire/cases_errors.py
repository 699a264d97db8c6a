"""Bad input: what the gateway sees to be wrong it refuses itself; what only vLLM can know passes through."""

import json

from case import MARKER, Case, differs, refused_alike, same
from cases_chat import BASE as CHAT
from cases_chat import HELLO
from cases_chat import PATH as CHAT_PATH
from cases_completions import BASE as TEXT
from cases_completions import PATH as TEXT_PATH
from cases_responses import BASE as RESPONSE
from cases_responses import MESSAGE, MESSAGES
from cases_responses import PATH as RESPONSE_PATH
from exchange import post

APIS = {
    "chat": (CHAT_PATH, CHAT, "messages"),
    "completions": (TEXT_PATH, TEXT, "prompt"),
    "responses": (RESPONSE_PATH, RESPONSE, "input"),
    "messages": (MESSAGES, MESSAGE, "messages"),
}
BODIES = {
    "nothing": b"",
    "half": b'{"model": "tiny", "messages": [',
    "no JSON": f"hello {MARKER}".encode(),
    "a list": b"[1]",
    "a number": b"7",
    "a string": f'"{MARKER}"'.encode(),
    "null": b"null",
    "no UTF-8": b'{"model": "\xff\xfe"}',
    "two values": b'{"model": "tiny"} {"model": "tiny"}',
}
# What the gateway does not look at, vLLM does.
FIELDS = {
    "a temperature below 0": {"temperature": -3},
    "a temperature that is text": {"temperature": MARKER},
    "top_p over 1": {"top_p": 1.5},
}
OWN_FIELDS = {
    "stream that is text": {"stream": MARKER},
    "a model that is a number": {"model": 7},
    "an unknown model": {"model": "none"},
}
LONG = {
    "messages": [{"role": "user", "content": "a " * 5000}],
    "prompt": [7] * 5000,
    "input": "a " * 5000,
}
LIMITS = {"chat": "max_tokens", "completions": "max_tokens", "responses": "max_output_tokens", "messages": "max_tokens"}

CASES: dict[str, Case] = {}
for api, (path, body, prompt) in APIS.items():
    limit = LIMITS[api]
    CASES |= {f"{api}: {name} for a body": refused_alike(post(path, data)) for name, data in BODIES.items()}
    CASES |= {f"{api}: {name}": same(post(path, {**body, **fields})) for name, fields in FIELDS.items()}
    CASES |= {f"{api}: {name}": refused_alike(post(path, {**body, **fields})) for name, fields in OWN_FIELDS.items()}
    CASES |= {
        f"{api}: another content type": refused_alike(post(path, body, content_type="text/plain")),
        f"{api}: no content type": refused_alike(post(path, body, content_type="")),
        f"{api}: no {prompt}": refused_alike(
            post(path, {name: value for name, value in body.items() if name != prompt})
        ),
        f"{api}: {prompt} null": refused_alike(post(path, {**body, prompt: None})),
        f"{api}: {prompt} a number": refused_alike(post(path, {**body, prompt: 7})),
        f"{api}: {limit} 0": same(post(path, {**body, limit: 0})),
        f"{api}: {limit} -1": refused_alike(post(path, {**body, limit: -1})),
        f"{api}: {limit} over the model": same(post(path, {**body, limit: 9999})),
        f"{api}: {limit} text": refused_alike(post(path, {**body, limit: MARKER})),
        f"{api}: {limit} a number as text": same(post(path, {**body, limit: "4"})),
        f"{api}: a prompt over the model": same(post(path, {**body, prompt: LONG[prompt]})),
        f"{api}: a prompt over the model, streamed": same(post(path, {**body, prompt: LONG[prompt], "stream": True})),
    }
CASES |= {
    "chat: a byte order mark": same(post(CHAT_PATH, b"\xef\xbb\xbf" + json.dumps(CHAT).encode())),
    "chat: UTF-16": same(post(CHAT_PATH, json.dumps(CHAT).encode("utf-16"))),
    "chat: UTF-32 without a mark": same(post(CHAT_PATH, json.dumps(CHAT).encode("utf-32-le"))),
    "chat: beams": differs(post(CHAT_PATH, {**CHAT, "use_beam_search": True, "n": 2}), theirs=200, ours=400),
    "chat: too many strings to stop at": refused_alike(post(CHAT_PATH, {**CHAT, "stop": [MARKER] * 200})),
    "chat: no messages": refused_alike(post(CHAT_PATH, {**CHAT, "messages": []})),
    "chat: a message without a role": refused_alike(post(CHAT_PATH, {**CHAT, "messages": [{"content": MARKER}]})),
    "chat: an unknown role": same(post(CHAT_PATH, {**CHAT, "messages": [{"role": MARKER, "content": "x"}]})),
    "chat: content that is a number": refused_alike(
        post(CHAT_PATH, {**CHAT, "messages": [{"role": "user", "content": 7}]})
    ),
    "chat: an image for a text model": same(
        post(CHAT_PATH, {**CHAT, "messages": [{"role": "user", "content": [
            {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}]}]})
    ),
    "chat: n 0": same(post(CHAT_PATH, {**CHAT, "n": 0})),
    "chat: n text": refused_alike(post(CHAT_PATH, {**CHAT, "n": MARKER})),
    "chat: n 2 and greedy": same(post(CHAT_PATH, {**CHAT, "n": 2})),
    "chat: stream_options without a stream": same(post(CHAT_PATH, {**CHAT, "stream_options": {"include_usage": True}})),
    "chat: stream_options that are text": refused_alike(
        post(CHAT_PATH, {**CHAT, "stream": True, "stream_options": MARKER})
    ),
    "chat: too many log probabilities": refused_alike(
        post(CHAT_PATH, {**CHAT, "logprobs": True, "top_logprobs": 99})
    ),
    "chat: alternatives without log probabilities": same(post(CHAT_PATH, {**CHAT, "top_logprobs": 2})),
    "chat: a schema that is none": same(post(CHAT_PATH, {**CHAT, "response_format": {
        "type": "json_schema", "json_schema": {"name": "a", "schema": {"type": 7}}}})),
    "chat: a pattern that is none": same(post(CHAT_PATH, {**CHAT, "structured_outputs": {"regex": "(("}})),
    "chat: an unknown format": same(post(CHAT_PATH, {**CHAT, "response_format": {"type": MARKER}})),
    "chat: a tool choice without tools": same(post(CHAT_PATH, {**CHAT, "tool_choice": "required"})),
    "chat: stop that is a number": same(post(CHAT_PATH, {**CHAT, "stop": 7})),
    "chat: a seed that is text": same(post(CHAT_PATH, {**CHAT, "seed": MARKER})),
    "chat: a bias out of range": same(post(CHAT_PATH, {**CHAT, "logit_bias": {"99999": 1}})),
    "chat: prompt log probabilities of a stream": same(post(CHAT_PATH, {**CHAT, "prompt_logprobs": 1, "stream": True})),
    "completions: a token id that is none": same(post(TEXT_PATH, {**TEXT, "prompt": [99999]})),
    "completions: an empty prompt": refused_alike(post(TEXT_PATH, {**TEXT, "prompt": ""})),
    "completions: an empty list": refused_alike(post(TEXT_PATH, {**TEXT, "prompt": []})),
    "completions: text among token ids": refused_alike(post(TEXT_PATH, {**TEXT, "prompt": [1, "a"]})),
    "completions: a suffix": same(post(TEXT_PATH, {**TEXT, "suffix": "b"})),
    "messages: an unknown role": same(post(MESSAGES, {**MESSAGE, "messages": [{"role": MARKER, "content": "x"}]})),
    "messages: no limit": same(post(MESSAGES, {"model": "tiny", "messages": HELLO})),
}  # fmt: skip
