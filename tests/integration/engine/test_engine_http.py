"""The embedded engine through its HTTP face: vLLM's bytes, vLLM's behaviour, and nothing left behind."""

import asyncio
import json
import re

import pytest
from engine_client import (
    CHAT,
    COMPLETIONS,
    HELLO,
    events,
    official_client,
    post,
    serving,
)


def stencil(text: str) -> str:
    """Replace what differs from one answer to the next: ids, time, words, token ids, numbers of the prompt."""
    text = re.sub(r'"id":"(chatcmpl|cmpl)-[^"]*"', r'"id":"\1-X"', text)
    text = re.sub(r'"created":\d+', '"created":0', text)
    text = re.sub(r"vllm-0\.32\.0-\w+", "vllm-0.32.0-F", text)
    text = re.sub(r'"(content|text|token)":"(?:[^"\\]|\\.)+"', r'"\1":"T"', text)
    text = re.sub(r'"(prompt_tokens|total_tokens)":\d+', r'"\1":0', text)
    return re.sub(r'"(token_ids|prompt_token_ids|bytes)":\[[^\]]+\]', r'"\1":[0]', text)


def chat_chunk(rest: str) -> str:
    return '{"id":"chatcmpl-X","object":"chat.completion.chunk","created":0,"model":"tiny","choices":[' + rest


def text_chunk(rest: str) -> str:
    return '{"id":"cmpl-X","object":"text_completion","created":0,"model":"tiny","choices":[' + rest


def chat_usage(tokens: int) -> str:
    return (
        f'"usage":{{"prompt_tokens":0,"total_tokens":0,"completion_tokens":{tokens},"completion_tokens_details":null}}'
    )


def text_usage(tokens: int) -> str:
    return f'"usage":{{"prompt_tokens":0,"total_tokens":0,"completion_tokens":{tokens}}}'


# The expected lines below were recorded from vLLM 0.32.0 and passed through `stencil`.
CHAT_ROLE = '{"index":0,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}]'
CHAT_TOKEN = '{"index":0,"delta":{"content":"T"},"logprobs":null,"finish_reason":null,"token_ids":null}]'
CHAT_LAST = (
    '{"index":0,"delta":{"content":"T"},"logprobs":null,"finish_reason":"length","stop_reason":null,"token_ids":null}]'
)
CHAT_PROMPT = '"prompt_token_ids":null,"prompt_text":null}'
TEXT_TOKEN = (
    '{"index":0,"text":"T","logprobs":null,"finish_reason":null,"stop_reason":null,'
    '"prompt_token_ids":null,"token_ids":null}]'
)
TEXT_LAST = TEXT_TOKEN.replace('"finish_reason":null', '"finish_reason":"length"')
FINGERPRINT = '"system_fingerprint":"vllm-0.32.0-F"}'


async def test_a_chat_stream_with_continuous_usage_is_vllms_byte_for_byte():
    options = {"include_usage": True, "continuous_usage_stats": True}
    async with serving() as (_, session):
        body = {"model": "tiny", "messages": HELLO, "max_tokens": 3, "ignore_eos": True, "stream_options": options}
        got = await events(session, CHAT, body)
    assert [stencil(line) for line in got] == [
        chat_chunk(f"{CHAT_ROLE},{chat_usage(0)},{CHAT_PROMPT}"),
        chat_chunk(f"{CHAT_TOKEN},{chat_usage(1)}}}"),
        chat_chunk(f"{CHAT_TOKEN},{chat_usage(2)}}}"),
        chat_chunk(f"{CHAT_LAST},{chat_usage(3)}}}"),
        chat_chunk(f"],{text_usage(3)},{FINGERPRINT}"),
        "[DONE]",
    ]
    prompt_tokens = json.loads(got[0])["usage"]["prompt_tokens"]
    totals = [json.loads(line)["usage"]["total_tokens"] - prompt_tokens for line in got[:-1]]
    assert totals == [0, 1, 2, 3, 3]


@pytest.mark.parametrize("options", [None, {"continuous_usage_stats": True}])
async def test_a_chat_stream_without_usage_carries_the_fingerprint_on_its_last_chunk(options):
    async with serving() as (_, session):
        body = {"messages": HELLO, "max_tokens": 2, "ignore_eos": True, "stream_options": options}
        got = await events(session, CHAT, body)
    assert [stencil(line) for line in got] == [
        chat_chunk(f"{CHAT_ROLE},{CHAT_PROMPT}"),
        chat_chunk(f"{CHAT_TOKEN}}}"),
        chat_chunk(f"{CHAT_LAST},{FINGERPRINT}"),
        "[DONE]",
    ]


async def test_a_chat_stream_with_include_usage_alone_has_usage_in_its_last_chunk_only():
    async with serving() as (_, session):
        body = {"messages": HELLO, "max_tokens": 1, "ignore_eos": True, "stream_options": {"include_usage": True}}
        got = await events(session, CHAT, body)
    assert [stencil(line) for line in got] == [
        chat_chunk(f"{CHAT_ROLE},{CHAT_PROMPT}"),
        chat_chunk(f"{CHAT_LAST}}}"),
        chat_chunk(f"],{text_usage(1)},{FINGERPRINT}"),
        "[DONE]",
    ]


async def test_a_completion_stream_with_continuous_usage_is_vllms_byte_for_byte():
    options = {"include_usage": True, "continuous_usage_stats": True}
    async with serving() as (_, session):
        body = {"prompt": "one two", "max_tokens": 2, "ignore_eos": True, "stream_options": options}
        got = await events(session, COMPLETIONS, body)
    assert [stencil(line) for line in got] == [
        text_chunk(f"{TEXT_TOKEN},{text_usage(1)}}}"),
        text_chunk(f"{TEXT_LAST},{text_usage(2)}}}"),
        text_chunk(f"],{text_usage(2)},{FINGERPRINT}"),
        "[DONE]",
    ]


async def test_bodies_that_are_not_streamed_are_vllms_byte_for_byte():
    details = '"prompt_tokens_details":null,"completion_tokens_details":null'
    tail = f'"kv_transfer_params":null,"ec_transfer_params":null,"metrics":null{"}"}'
    tiers = '"service_tier":null,"system_fingerprint":"vllm-0.32.0-F"'
    async with serving() as (_, session):
        _, chat = await post(session, CHAT, {"messages": HELLO, "max_tokens": 2, "ignore_eos": True})
        _, text = await post(session, COMPLETIONS, {"prompt": "one two", "max_tokens": 2, "ignore_eos": True})
    assert stencil(chat.decode()) == (
        '{"id":"chatcmpl-X","object":"chat.completion","created":0,"model":"tiny","choices":[{"index":0,"message":'
        '{"role":"assistant","content":"T","refusal":null,"annotations":null,"audio":null,"function_call":null,'
        '"reasoning":null},"logprobs":null,"finish_reason":"length","stop_reason":null,"token_ids":null,'
        f'"routed_experts":null}}],{tiers},{text_usage(2)[:-1]},{details}}},'
        f'"prompt_logprobs":null,"prompt_token_ids":null,"prompt_text":null,{tail}'
    )
    assert stencil(text.decode()) == text_chunk(
        '{"index":0,"text":"T","logprobs":null,"finish_reason":"length","stop_reason":null,"token_ids":null,'
        '"prompt_logprobs":null,"prompt_token_ids":null,"routed_experts":null}],'
        f"{tiers},{text_usage(2)[:-1]},{details}}},{tail}"
    )


async def test_usage_is_per_choice_while_it_streams_and_summed_at_the_end():
    options = {"include_usage": True, "continuous_usage_stats": True}
    async with serving() as (_, session):
        body = {"prompt": ["one two", "three four five"], "n": 2, "max_tokens": 2, "ignore_eos": True}
        got = await events(session, COMPLETIONS, {**body, "stream_options": options})
    chunks = [json.loads(line) for line in got[:-1]]
    seen = sorted(
        (c["choices"][0]["index"], c["usage"]["prompt_tokens"], c["usage"]["total_tokens"]) for c in chunks[:-1]
    )
    assert seen == [(0, 2, 3), (0, 2, 4), (1, 2, 3), (1, 2, 4), (2, 4, 5), (2, 4, 6), (3, 4, 5), (3, 4, 6)]
    assert chunks[-1]["usage"] == {"prompt_tokens": 6, "total_tokens": 14, "completion_tokens": 8}


async def test_every_choice_of_a_chat_opens_with_its_role():
    async with serving() as (_, session):
        got = await events(session, CHAT, {"messages": HELLO, "n": 3, "max_tokens": 1, "ignore_eos": True})
    deltas = [json.loads(line)["choices"][0] for line in got[:-1]]
    assert [(d["index"], "role" in d["delta"]) for d in deltas] == [(i, r) for r in (True, False) for i in range(3)]


async def test_the_official_client_streams_a_chat():
    async with official_client() as (_, client):
        stream = await client.chat.completions.create(
            model="tiny",
            messages=HELLO,
            max_tokens=5,
            stream=True,
            stream_options={"include_usage": True},
            extra_body={"ignore_eos": True},
        )
        chunks = [chunk async for chunk in stream]
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert len(text.split()) == 5
    assert chunks[-2].choices[0].finish_reason == "length"
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == 5


async def test_the_official_client_gets_n_choices_logprobs_and_models():
    async with official_client() as (_, client):
        answer = await client.chat.completions.create(
            model="tiny", messages=HELLO, max_tokens=4, n=2, logprobs=True, top_logprobs=3, extra_body={"min_tokens": 4}
        )
        models = await client.models.list()
    assert [choice.index for choice in answer.choices] == [0, 1]
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 8
    content = answer.choices[0].logprobs.content
    assert "".join(token.token for token in content) == answer.choices[0].message.content
    assert all(len(token.top_logprobs) == 3 for token in content)
    assert models.data[0].id == "tiny"
    assert models.data[0].max_model_len == 4096


async def test_a_request_id_of_strange_bytes_comes_back_as_text():
    async with serving() as (_, session):
        body = {"prompt": "x", "max_tokens": 1}
        _, answer = await post(session, COMPLETIONS, body, headers={"X-Request-Id": "caf\u00e9"})
    assert json.loads(answer)["id"] == "cmpl-caf\u00c3\u00a9"


async def test_the_callers_request_id_becomes_the_id_of_the_answer():
    async with serving() as (_, session):
        headers = {"X-Request-Id": "abc-123"}
        body = {"prompt": "x", "max_tokens": 1}
        both = [post(session, COMPLETIONS, body, headers=headers) for _ in range(2)]  # even twice at a time
        for _, answer in await asyncio.gather(*both):
            assert json.loads(answer)["id"] == "cmpl-abc-123"
        got = await events(session, CHAT, {"messages": HELLO, "request_id": "mine", "max_tokens": 1})
        assert json.loads(got[0])["id"] == "chatcmpl-mine"


async def test_equal_seeds_give_equal_bytes():
    answers = []
    for _ in range(2):
        async with serving() as (_, session):
            body = {"messages": HELLO, "seed": 3, "max_tokens": 50, "stream": True}
            answers.append(re.sub(rb'"created":\d+', b"", (await post(session, CHAT, body))[1]))
            await post(session, COMPLETIONS, {"prompt": "something else"})
    assert answers[0] == answers[1]
    async with serving(seed=8) as (_, session):
        other = re.sub(rb'"created":\d+', b"", (await post(session, CHAT, body))[1])
    assert other != answers[0]


async def test_answers_end_by_themselves_unless_they_are_told_not_to():
    async with serving(output_tokens_mean=20) as (_, session):
        body = {"prompt": [[token] for token in range(1, 65)], "max_tokens": 1000}
        choices = json.loads((await post(session, COMPLETIONS, body))[1])["choices"]
        lengths = [len(choice["text"].split()) for choice in choices]
        assert {choice["finish_reason"] for choice in choices} == {"stop"}
        assert 10 < sum(lengths) / len(lengths) < 40
        body = {"prompt": "x", "max_tokens": 200, "ignore_eos": True}
        usage = json.loads((await post(session, COMPLETIONS, body))[1])["usage"]
        assert usage["completion_tokens"] == 200


async def test_without_max_tokens_a_chat_runs_to_the_models_length_and_a_completion_to_16():
    async with serving(max_model_len=256, output_tokens_mean=None) as (_, session):
        chat = json.loads((await post(session, CHAT, {"messages": HELLO}))[1])
        text = json.loads((await post(session, COMPLETIONS, {"prompt": "x"}))[1])
    assert chat["usage"]["total_tokens"] == 256
    assert chat["choices"][0]["finish_reason"] == "length"
    assert text["usage"]["completion_tokens"] == 16


async def test_a_stop_string_ends_the_text_before_it():
    async with serving() as (_, session):
        body = {"prompt": "x", "max_tokens": 60, "ignore_eos": True}
        whole = json.loads((await post(session, COMPLETIONS, body))[1])["choices"][0]["text"]
        stop = whole.split()[20]
        at = whole.index(stop)
        stopped = json.loads((await post(session, COMPLETIONS, {**body, "stop": [stop]}))[1])["choices"][0]
        assert (stopped["text"], stopped["finish_reason"], stopped["stop_reason"]) == (whole[:at], "stop", stop)
        got = await events(session, COMPLETIONS, {**body, "stop": stop})
        assert "".join(json.loads(line)["choices"][0]["text"] for line in got[:-1]) == whole[:at]


async def test_echo_puts_the_prompt_first_and_may_be_all_there_is():
    async with serving() as (_, session):
        body = {"prompt": "one two", "max_tokens": 2, "echo": True}
        whole = json.loads((await post(session, COMPLETIONS, body))[1])["choices"][0]["text"]
        got = await events(session, COMPLETIONS, body)
        nothing = json.loads((await post(session, COMPLETIONS, {**body, "max_tokens": 0}))[1])
    assert whole.startswith("one two ")
    assert "".join(json.loads(line)["choices"][0]["text"] for line in got[:-1]) == whole
    assert json.loads(got[0])["choices"][0]["prompt_token_ids"] is not None
    assert nothing["choices"][0]["text"] == "one two"


async def test_token_ids_come_back_where_vllm_puts_them():
    async with serving() as (_, session):
        body = {"prompt": [[1, 2, 3], [4, 5]], "max_tokens": 2, "ignore_eos": True, "return_token_ids": True}
        text = json.loads((await post(session, COMPLETIONS, body))[1])
        body = {"messages": HELLO, "max_tokens": 2, "ignore_eos": True, "return_token_ids": True}
        chat = json.loads((await post(session, CHAT, body))[1])
        got = [json.loads(line) for line in (await events(session, CHAT, body))[:-1]]
    assert [choice["prompt_token_ids"] for choice in text["choices"]] == [[1, 2, 3], [4, 5]]
    assert text["usage"]["prompt_tokens"] == 5
    assert len(chat["prompt_token_ids"]) == chat["usage"]["prompt_tokens"]
    assert got[0]["prompt_token_ids"] == chat["prompt_token_ids"]
    assert [token for chunk in got[1:] for token in chunk["choices"][0]["token_ids"]] == chat["choices"][0]["token_ids"]


@pytest.mark.parametrize(
    ("server_interval", "body_interval", "expected"), [(8, None, [1, 9, 17, 20]), (8, 16, [1, 17, 20])]
)
async def test_a_stream_interval_sends_the_first_token_alone_and_the_rest_in_groups(
    server_interval, body_interval, expected
):
    options = {"include_usage": True, "continuous_usage_stats": True}
    async with serving(stream_interval=server_interval) as (_, session):
        body = {"prompt": "x", "max_tokens": 20, "ignore_eos": True, "stream_options": options}
        got = await events(session, COMPLETIONS, {**body, "stream_interval": body_interval})
    assert [json.loads(line)["usage"]["completion_tokens"] for line in got[:-2]] == expected


async def test_a_server_without_continuous_usage_ignores_the_wish():
    options = {"include_usage": True, "continuous_usage_stats": True}
    async with serving(continuous_usage=False) as (_, session):
        got = await events(session, COMPLETIONS, {"prompt": "x", "max_tokens": 2, "stream_options": options})
    assert ["usage" in json.loads(line) for line in got[:-1]][-1:] == [True]
    assert not any("usage" in json.loads(line) for line in got[:-2])
