"""Responses, kept and asked for later; and Anthropic's messages."""

import re
import time

from case import Case, differs, refused_alike, same
from cases_chat import HELLO, JSON_SCHEMA, WEATHER
from exchange import Ask, Got, get, post

PATH = "/v1/responses"
BASE = {"model": "tiny", "input": "Hello", "temperature": 0, "max_output_tokens": 4}
FUNCTION = {"type": "function", **WEATHER["function"]}
TURNS = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": [{"type": "input_text", "text": "How is it?"}]},
]
OPTIONS = {
    "plain": {},
    "turns": {"input": TURNS, "instructions": "Be kind."},
    "kept": {"store": True},
    "not kept": {"store": False},
    "a JSON schema": {
        "text": {"format": {"type": "json_schema", **JSON_SCHEMA["json_schema"]}},
        "max_output_tokens": 40,
    },
    "tools": {"tools": [FUNCTION], "max_output_tokens": 8},
    "some tool": {"tools": [FUNCTION], "tool_choice": "required", "max_output_tokens": 24},
    "log probabilities": {"include": ["message.output_text.logprobs"], "top_logprobs": 2},
    "metadata": {"metadata": {"a": "b"}, "user": "somebody", "truncation": "auto", "service_tier": "auto"},
    "not ASCII": {"input": "häß 漢字 🎉", "max_output_tokens": 12},
    "end of sequence": {"logit_bias": {"2": 100}},
    "no limit on a long prompt": {"input": "a " * 4080, "max_output_tokens": None},
}


def id_of(got: Got) -> str:
    return re.search(rb'"id": ?"(resp_[^"]+)"', got.body)[1].decode()


def again(got: Got) -> Ask:
    return get(f"{PATH}/{id_of(got)}")


def cancel(got: Got) -> Ask:
    return post(f"{PATH}/{id_of(got)}/cancel", None)


def next_turn(got: Got) -> Ask:
    return post(PATH, {**BASE, "previous_response_id": id_of(got), "input": "And then?"})


def done(got: Got) -> Ask:
    time.sleep(BACKGROUND_S)
    return again(got)


BACKGROUND_S = 0.3  # in which four tokens are made
MESSAGES = "/v1/messages"
MESSAGE = {"model": "tiny", "messages": HELLO, "temperature": 0, "max_tokens": 4}
TOOL = {"name": "weather", "description": "Weather?", "input_schema": WEATHER["function"]["parameters"]}
MESSAGE_OPTIONS = {
    "plain": {},
    "system": {"system": "Be brief."},
    "system in parts": {"system": [{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}]},
    "parts": {
        "messages": [{"role": "user", "content": [{"type": "text", "text": "Hel"}, {"type": "text", "text": "lo"}]}]
    },
    "stop": {"stop_sequences": ["o", "e"], "max_tokens": 40},
    "tools": {"tools": [TOOL], "max_tokens": 8},
    "one tool": {"tools": [TOOL], "tool_choice": {"type": "tool", "name": "weather"}, "max_tokens": 24},
    "some tool": {"tools": [TOOL], "tool_choice": {"type": "any"}, "max_tokens": 24},
    "a tool's result": {
        "tools": [TOOL],
        "messages": [
            *HELLO,
            {"role": "assistant", "content": [{"type": "tool_use", "id": "toolu_1", "name": "weather", "input": {}}]},
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "toolu_1", "content": "sunny"}]},
        ],
    },
    "not ASCII": {"messages": [{"role": "user", "content": "häß 漢字 🎉"}], "max_tokens": 12},
    "metadata": {"metadata": {"user_id": "somebody"}, "top_p": 0.9, "top_k": 40},
}

CASES: dict[str, Case] = {}
for name, fields in OPTIONS.items():
    CASES[f"responses: {name}"] = same(post(PATH, {**BASE, **fields}))
    CASES[f"responses, streamed: {name}"] = same(post(PATH, {**BASE, **fields, "stream": True}))
for name, fields in MESSAGE_OPTIONS.items():
    CASES[f"messages: {name}"] = same(post(MESSAGES, {**MESSAGE, **fields}))
    CASES[f"messages, streamed: {name}"] = same(post(MESSAGES, {**MESSAGE, **fields, "stream": True}))
    counted = {
        key: value for key, value in {**MESSAGE, **fields}.items() if key in {"model", "messages", "system", "tools"}
    }
    CASES[f"count_tokens: {name}"] = same(post(f"{MESSAGES}/count_tokens", counted))
CASES |= {
    "responses: asked for later": same(post(PATH, {**BASE, "store": True}), again),
    "responses: the next turn": same(post(PATH, {**BASE, "store": True}), next_turn),
    "responses: cancelled when it is over": same(post(PATH, {**BASE, "store": True}), cancel),
    "responses: in the background, cancelled": same(
        post(PATH, {**BASE, "background": True, "store": True, "max_output_tokens": 4000}), cancel
    ),
    "responses: in the background, asked for later": same(
        post(PATH, {**BASE, "background": True, "store": True}), done
    ),
    # No client could read it, and it would cost nothing.
    "responses: in the background, streamed": differs(
        post(PATH, {**BASE, "background": True, "stream": True, "store": True}), theirs=200, ours=400
    ),
    "responses: an id that is none": refused_alike(get(f"{PATH}/resp_0123456789abcdef")),
    "responses: cancel of an id that is none": refused_alike(post(f"{PATH}/resp_0123456789abcdef/cancel", None)),
    "responses: no id of a response": refused_alike(get(f"{PATH}/zebra")),
    "responses: turn after one that is none": refused_alike(
        post(PATH, {**BASE, "previous_response_id": "resp_0123456789abcdef"})
    ),
    "messages: Anthropic's headers": same(
        post(MESSAGES, MESSAGE, anthropic_version="2023-06-01", anthropic_beta="tools-2024-04-04", x_api_key="sk-x")
    ),
}
