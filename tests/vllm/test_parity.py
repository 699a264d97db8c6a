"""The same call to vLLM and through the gateway: every event and body has the same fields with the same types."""

import json

import pytest
from wire import CHAT, COMPLETIONS, Call, fetch

BASE = {"model": "tiny", "temperature": 0, "ignore_eos": True, "max_tokens": 64}
CHAT_BODY = {**BASE, "messages": [{"role": "user", "content": "Hello"}]}
TEXT_BODY = {**BASE, "prompt": "import os"}
CALLS = {
    "chat": (CHAT, CHAT_BODY),
    "completion": (COMPLETIONS, TEXT_BODY),
    "log probabilities": (CHAT, {**CHAT_BODY, "logprobs": True, "top_logprobs": 1}),
    "token ids": (COMPLETIONS, {**TEXT_BODY, "return_token_ids": True}),
    "two prompts": (COMPLETIONS, {**TEXT_BODY, "prompt": ["a", "b"]}),
    "eight tokens per event": (CHAT, {**CHAT_BODY, "stream_interval": 8}),
}
TRIES = 5  # which tokens share an event is a matter of timing, and so is which shapes one run shows
USAGES = {
    "no usage": None,
    "usage at the end": {"include_usage": True},
    "usage in every event": {"include_usage": True, "continuous_usage_stats": True},
    "usage refused": {"include_usage": False},
}


def shape(value):
    """Names and types, without the values."""
    if isinstance(value, dict):
        return tuple(sorted((name, shape(inner)) for name, inner in value.items()))
    if isinstance(value, list):
        return tuple(sorted({shape(inner) for inner in value}, key=repr))
    return "number" if isinstance(value, (int, float)) else type(value).__name__


def generated(messages):
    """Take out what was generated, by choice: the text, and the tokens' entries among the log probabilities."""
    texts, tokens = {}, {}
    for choice in (choice for message in messages for choice in message["choices"]):
        index, logprobs = choice["index"], choice.get("logprobs") or {}
        piece = choice["text"] if "text" in choice else choice["delta"].get("content") or ""
        texts[index] = texts.get(index, "") + piece
        tokens.setdefault(index, []).extend((t["token"], shape(t)) for t in logprobs.pop("content", []))
    return texts, tokens


def streamed(url, path, body):
    with Call(url, path, {**body, "stream": True}) as call:
        assert call.response.status == 200
        assert call.response.headers["content-type"] == "text/event-stream; charset=utf-8"
        *events, done = call.events()
    assert done == "[DONE]"
    return [json.loads(event) for event in events]


@pytest.mark.parametrize("usage", USAGES)
@pytest.mark.parametrize("name", CALLS)
def test_a_stream_through_the_gateway_has_the_events_of_vllm(vllm, gateway, name, usage):
    path, body = CALLS[name]
    body = body if USAGES[usage] is None else {**body, "stream_options": USAGES[usage]}
    our_shapes, their_shapes = set(), set()
    for _ in range(TRIES):
        ours, theirs = (streamed(server.url, path, body) for server in (gateway, vllm))
        assert generated(ours) == generated(theirs)
        assert [shape(ours[i]) for i in (0, -1)] == [shape(theirs[i]) for i in (0, -1)]
        our_shapes |= {shape(event) for event in ours}
        their_shapes |= {shape(event) for event in theirs}
        if our_shapes == their_shapes:
            break
    assert our_shapes == their_shapes


@pytest.mark.parametrize("name", CALLS)
def test_a_whole_answer_through_the_gateway_is_that_of_vllm(vllm, gateway, name):
    path, body = CALLS[name]
    answers = []
    for server in (gateway, vllm):
        status, answer = fetch(server.url, path, body)
        assert status == 200
        answers.append({field: value for field, value in json.loads(answer).items() if field not in {"id", "created"}})
    ours, theirs = answers
    assert shape(ours) == shape(theirs)
    for field in ("choices", "usage", "model", "object"):
        assert drop_volatile(ours[field]) == drop_volatile(theirs[field])


def drop_volatile(value):
    """Without the log probabilities' last digits and the prefix cache's part, which differ from run to run."""
    if isinstance(value, dict):
        return {k: drop_volatile(v) for k, v in value.items() if k not in {"logprob", "prompt_tokens_details"}}
    return [drop_volatile(inner) for inner in value] if isinstance(value, list) else value
