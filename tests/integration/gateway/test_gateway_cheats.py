"""What a tenant tries that wants more than its share, or another's: nothing is gained by any of it.

Each trick is sent to a backend that notes what reaches it. Where the call is served, what is forwarded says nothing of
urgency, place or another's name; where it is refused, nothing is forwarded and nothing charged.
"""

import asyncio
import gzip
import json
import zlib

import aiohttp
import pytest
from gateway_rig import (
    CHAT,
    COMPLETIONS,
    HELLO,
    MODEL,
    assert_untouched,
    bearer,
    call,
    engine,
    gateway,
    gateway_and_engine,
    http,
    running,
    scripted,
    tokens_emitted,
    until,
    wire,
)

RAW = json.dumps(call()).encode()
JSON = {"Content-Type": "application/json"}
MESSAGES = "/v1/messages"


def raw(text):
    """The call with this JSON text written into it."""
    return RAW[:-1] + b"," + text.encode() + b"}"


# Bodies that are served, none of which tells the backend anything of urgency, place or names.
TOLD_NOTHING = {
    "priority": raw('"priority": -9999999'),
    "priority as text": raw('"priority": "-9999999"'),
    "priority twice": raw('"priority": 0, "priority": -9999999'),
    "priority in escapes": raw('"\\u0070r\\u0069ority": -9999999'),
    "priority in front": b'{"priority": -9999999, ' + RAW[1:],
    "priority in the arguments of the engine": raw('"vllm_xargs": {"priority": -9999999, "slo_ttft_ms": -9999999}'),
    "the arguments of the engine twice": raw('"vllm_xargs": {}, "vllm_xargs": {"tenant": -9999999}'),
    "priority among Dynamo's hints": raw('"nvext": {"agent_hints": {"priority": -9999999}}'),
    "another rank": raw('"data_parallel_rank": -9999999, "routed_dp_rank": -9999999'),
    "another slot": raw('"id_slot": -9999999'),
    "another's name": raw('"request_id": "-9999999", "rid": "-9999999"'),
    "another's memory": raw('"kv_transfer_params": {"remote_block_ids": [-9999999]}'),
    "UTF-16": raw('"priority": -9999999').decode().encode("utf-16"),
    "a byte order mark": b"\xef\xbb\xbf" + raw('"priority": -9999999'),
    "streamed": raw('"stream": true, "priority": -9999999'),
    "streamed with usage": raw('"priority": -9999999, "stream": true, "stream_options": {"include_usage": true}'),
}


@pytest.mark.parametrize("name", TOLD_NOTHING)
async def test_no_spelling_tells_a_backend_what_is_urgent_or_where_it_runs(name):
    headers = {
        "X-Vllm-Priority": "-9999999",
        "x-vllm-PRIORITY": "-9999999",
        "X-Data-Parallel-Rank": "-9999999",
        "priority": "-9999999",
    }
    async with scripted() as backend, gateway(backend) as rig:
        reply = await rig.post(TOLD_NOTHING[name], f"{CHAT}?priority=-9999999", headers=headers)
        assert reply.status == 200
        (asked,) = backend.calls
        assert asked.target == CHAT
        assert "-9999999" not in asked.body.decode()
        assert "-9999999" not in str(asked.headers)
        assert asked.headers["x-vllm-priority"] == "0"


# What no vLLM reads passes as it came: the engine runs first what came first all the same.
READ_BY_NOBODY = ('"Priority": -9999999', '"extra_body": {"priority": -9999999}', '"metadata": {"priority": -9999999}')


async def in_order(server, url, bodies):
    """The order in which these calls, sent one after the other, are answered by an engine of one seat."""
    order = []

    async def asked(session, number, body):
        async with session.post(url + CHAT, data=body, headers=JSON) as response:
            assert response.status == 200
        order.append(number)

    async with aiohttp.ClientSession() as session:
        tasks = []
        for number, body in enumerate(bodies):
            tasks.append(asyncio.create_task(asked(session, number, body)))
            await until(lambda: running(server) == len(tasks))
        await asyncio.gather(*tasks)
    return order


@pytest.mark.jumping
async def test_what_no_engine_reads_makes_no_call_first():
    """To the engine itself the last one would say that it is urgent, and be heard."""
    first = json.dumps(call(max_tokens=200)).encode()
    async with (
        engine(speed=0.2, order="priority", requests_running_max=1) as server,
        gateway({"url": server.url, "requests_running_max": 8}) as rig,
    ):
        assert await in_order(server, server.url, [first, RAW, raw('"priority": -9999999')]) == [0, 2, 1]
        for text in ('"priority": -9999999', *READ_BY_NOBODY):
            assert await in_order(server, rig.url, [first, RAW, raw(text)]) == [0, 1, 2]


REFUSED = {
    "n": {"n": 10_000},
    "n as text": {"n": "10_000"},
    "n as a fraction that is none": {"n": 1e6},
    "best_of": {"best_of": 10_000},
    "beams": {"use_beam_search": True, "n": 4},
    "endless stops": {"stop": ["a"] * 90_000},
    "endless bad words": {"bad_words": ["a"] * 90_000},
    "endless tokens": {"max_tokens": 10**9},
    "no limit of tokens": {"max_tokens": -1},
    "no limit of tokens as text": {"max_completion_tokens": "-1"},
    "tokens over 64 bits": {"max_tokens": 2**63},
    "fewer than none": {"n": -1},
    "a best_of of fewer than none": {"best_of": -1},
    "all alternatives": {"logprobs": True, "top_logprobs": -1},
    "endless alternatives": {"logprobs": True, "top_logprobs": 100_000},
    "endless alternatives of the prompt": {"prompt_logprobs": 100_000},
    "endless prompts": {"prompt": ["a"] * 90_000},
    "endless tokens as text": {"max_completion_tokens": "1_000_000_000"},
    "a flag that is none": {"stream": "maybe"},
    "depth": {"metadata": json.loads("[" * 200 + "]" * 200)},
}


@pytest.mark.parametrize("name", REFUSED)
async def test_what_would_be_too_much_reaches_no_backend(name):
    async with scripted() as backend, gateway(backend) as rig:
        reply = await rig.post(call(**REFUSED[name]), COMPLETIONS if "prompt" in REFUSED[name] else CHAT)
        assert (reply.status, reply.error["type"]) == (400, "invalid_request_error")
        assert_untouched(rig, backend)


@pytest.mark.parametrize("coding", ["gzip", "deflate", "br", "zstd"])
async def test_a_body_in_a_coding_is_refused_with_the_reason_and_reaches_no_backend(coding):
    packed = {"gzip": gzip.compress(RAW), "deflate": zlib.compress(RAW)}.get(coding, b"\x1b" + RAW)
    async with scripted() as backend, gateway(backend) as rig:
        for body in (packed, RAW):
            async with wire(rig) as connection:
                connection.send(http(body, f"Content-Encoding: {coding}"))
                assert (await connection.reply()).status == 415
        assert_untouched(rig, backend)


async def test_a_body_without_a_coding_is_no_json_whatever_its_header_says():
    async with scripted() as backend, gateway(backend) as rig, wire(rig) as connection:
        for body, status in ((gzip.compress(RAW), 400), (RAW, 200)):
            connection.send(http(body, "Content-Encoding: identity"))
            assert (await connection.reply()).status == status
        assert [asked.body for asked in backend.calls] == [RAW]
        assert "content-encoding" not in backend.calls[0].headers


PATHS = [
    "//v1/chat/completions", "/v1//chat/completions", "/v1/..;/v1/chat/completions", "/./v1/chat/completions",
    "/v1/%2e%2e/metrics", "/%2e%2e/metrics", "/v1/chat/completions;x=y", "/v1/chat/completions%00",
    "/v1/chat/completions%20", "/v1/chat/completions%0a", "/V1/chat/completions", "/metrics", "/%6detrics",
    "/v1/chat/completions/../../../metrics", "/v1/responses/../../metrics", "/v1/responses/%2e%2e", "\\metrics",
    "/inference/v1/generate", "/v1/chat/completions?/../../metrics/x", "/v1/load_lora_adapter",
]  # fmt: skip


@pytest.mark.parametrize("path", PATHS)
async def test_no_path_leads_where_none_is_offered(path):
    async with scripted() as backend, gateway(backend) as rig, wire(rig) as connection:
        connection.send(http(RAW, path=path))
        status = (await connection.reply()).status
        assert (status, [asked.target for asked in backend.calls]) in ([(200, [CHAT]), (404, []), (400, [])])
        assert (status == 200) == (path.partition("?")[0] == CHAT)


# -- in the engine, what is charged ---------------------------------------------------------------------------------


async def charged(rig, body, path=CHAT, *headers):
    before = rig.service()
    async with rig.session.post(rig.url + path, json=body, headers=dict(headers)) as response:
        said = await response.read()
        assert response.status == 200, said
    await until(rig.idle)
    return rig.service() - before


COSTLY = {
    "choices": (call(n=4), 4 * 8),
    "choices, streamed": (call(n=4, stream=True), 4 * 8),
    "log probabilities": (call(logprobs=True, top_logprobs=5), 8),
    "log probabilities, streamed": (call(logprobs=True, top_logprobs=5, stream=True), 8),
    "lumps": (call(stream_interval=1000, stream=True), 8),
    "usage switched off": (call(stream=True, stream_options={"include_usage": False}), 8),
    "its own continuous usage": (
        call(stream=True, stream_options={"include_usage": True, "continuous_usage_stats": True}),
        8,
    ),
    "a flag as text": (call(stream="yes"), 8),
    "a limit as text": (call(max_tokens="8"), 8),
    "two limits": (call(max_tokens=1, max_completion_tokens=8), 8),
}


@pytest.mark.parametrize("name", COSTLY)
async def test_every_token_that_is_decoded_is_charged(name):
    body, tokens = COSTLY[name]
    async with gateway_and_engine() as (rig, server):
        cost = await charged(rig, body)
        assert tokens_emitted(server) == tokens
        assert 2 * tokens < cost < 2 * tokens + 60  # and a short prompt


async def test_every_prompt_of_a_list_and_what_is_echoed_is_charged():
    async with gateway_and_engine() as (rig, server):
        for body, outputs in (
            ({"prompt": ["word " * 20] * 8, "max_tokens": 4}, 8 * 4),
            ({"prompt": ["word " * 20] * 8, "max_tokens": 4, "n": 2, "stream": True}, 16 * 4),
            ({"prompt": "word " * 160, "max_tokens": 0, "echo": True}, 1),
        ):
            before = tokens_emitted(server)
            cost = await charged(rig, {"model": MODEL, **body}, COMPLETIONS)
            assert tokens_emitted(server) - before == outputs
            assert cost >= 150 * 0.9 + 2 * (outputs - 1)


async def test_a_batch_and_a_message_are_charged_as_what_they_are():
    async with gateway_and_engine() as (rig, server):
        cost = await charged(
            rig, {"model": MODEL, "messages": [HELLO] * 5, "max_tokens": 4}, "/v1/chat/completions/batch"
        )
        assert (tokens_emitted(server), cost > 5 * 2 * 4) == (20, True)
        cost = await charged(
            rig, {"model": MODEL, "messages": HELLO, "max_tokens": 8, "thinking": {"type": "enabled"}}, MESSAGES
        )
        assert cost > 2 * 8


@pytest.mark.jumping
@pytest.mark.parametrize("path", [CHAT, MESSAGES])
@pytest.mark.parametrize("stream", [True, False])
async def test_leaving_again_and_again_at_the_last_moment_is_no_discount(path, stream):
    """A client that leaves with most of the answer has paid for most of it."""
    async with gateway_and_engine(speed=0.1) as (rig, server):
        body = {"model": MODEL, "messages": HELLO, "max_tokens": 40, "stream": stream}
        await charged(rig, body, path)  # the pace is learnt from it
        emitted, before = tokens_emitted(server), rig.service()
        for _ in range(3):
            goal = tokens_emitted(server) + 30
            async with wire(rig) as connection:
                connection.send(http(body, path=path))
                await until(lambda: tokens_emitted(server) >= goal)  # noqa: B023 - it is awaited here
                connection.reset()
                await until(rig.idle)
        decoded = tokens_emitted(server) - emitted
        assert rig.service() - before > 2 * decoded / 2


async def test_pipelined_and_expecting_calls_are_each_charged_once():
    async with gateway_and_engine() as (rig, server), wire(rig) as connection:
        connection.send(http(call(max_tokens=4)) * 3)
        for _ in range(3):
            assert (await connection.reply()).status == 200
        assert tokens_emitted(server) == 12
        one = rig.service() / 3
        connection.send(http(call(max_tokens=4), "Expect: 100-continue"))
        assert (await connection.head())[0] in {100, 200}
        await until(lambda: tokens_emitted(server) == 16)
        await until(rig.idle)
        assert rig.service() == pytest.approx(4 * one)


async def test_a_slow_reader_is_charged_for_all_that_it_made_the_backend_do():
    async with gateway_and_engine(speed=4) as (rig, server), wire(rig) as connection:
        connection.send(http(call(stream=True, max_tokens=3000, logprobs=True, top_logprobs=20)))
        await connection.head()
        connection.reader._limit = 1  # it takes nothing more
        await until(lambda: tokens_emitted(server) == 3000)
        connection.reset()
        await until(rig.idle)
        assert rig.service() > 2 * 3000 * 0.5


async def test_a_salt_gets_no_tenant_into_anothers_cache():
    long = [{"role": "user", "content": "word " * 1000}]
    async with (
        engine(prompt_tokens_details=True) as server,
        gateway(server, auth={"cache_isolation": "tenant"}) as rig,
    ):

        async def cached(key, **fields):
            reply = await rig.post(call(messages=long, **fields), headers=bearer(key))
            return (reply.json["usage"].get("prompt_tokens_details") or {}).get("cached_tokens") or 0

        assert await cached("alice") == 0
        assert await cached("alice") > 500
        assert await cached("bob") == 0
        for guess in ("", "alice", "tenant", None, [], 7):
            assert not await cached(f"carol-{guess}", cache_salt=guess)
