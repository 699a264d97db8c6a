"""Servers that are not vLLM: found out, asked for no more than they can say, passed on untouched, and charged."""

import asyncio
import json

import pytest
from gateway_rig import CHAT, MODEL, answer, call, gateway, scripted, until
from stand_ins import KINDS, OUTPUT_TOKENS, PROMPT_TOKENS, WORDS, stand_in

CHARGE = PROMPT_TOKENS + 2 * OUTPUT_TOKENS
FOUND = {
    "sglang": ("sglang", {"include_usage": True, "continuous_usage_stats": True}),
    "llama.cpp": ("llama.cpp", {"include_usage": True}),
    "tgi": ("tgi", {"include_usage": True}),
    "openai": ("openai", {"include_usage": True}),
    "openai with usage on its finish event": ("openai", {"include_usage": True}),
    "openai without usage": ("openai", {"include_usage": True}),
}
counting = pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "openai without usage"])


def asked_options(backend):
    return json.loads(backend.calls[-1].body).get("stream_options")


async def direct(rig, backend, body):
    async with rig.session.post(backend.url + CHAT, json=body) as response:
        return await response.read()


@pytest.mark.parametrize("kind", KINDS)
async def test_a_server_is_found_out_and_asked_for_what_it_can_say(kind):
    found, options = FOUND[kind]
    async with stand_in(kind) as backend, gateway(backend) as rig:
        assert rig.gateway.backends["b0"].known_kind.name == found
        await rig.post(call(stream=True))
        assert asked_options(backend) == options
        await rig.post(call())
        assert asked_options(backend) is None


@pytest.mark.parametrize("asked", [None, {"include_usage": True}, {"include_usage": False}], ids=str)
@pytest.mark.parametrize("kind", KINDS)
async def test_a_stream_is_byte_for_byte_the_backends_and_settled_by_its_last_word(kind, asked):
    body = call(stream=True) | ({"stream_options": asked} if asked else {})
    async with stand_in(kind) as backend, gateway(backend) as rig:
        through = await rig.post(body)
        assert through.body == await direct(rig, backend, body)
        if kind != "openai without usage":
            assert rig.service() == CHARGE


@counting
async def test_a_whole_answer_is_charged_by_its_usage(kind):
    async with stand_in(kind) as backend, gateway(backend) as rig:
        assert (await rig.post(call())).status == 200
        assert rig.service() == CHARGE


@pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])
async def test_a_server_that_never_counts_is_charged_by_estimate_and_marked(stream, tmp_path):
    log = tmp_path / "access.log"
    async with (
        stand_in("openai without usage") as backend,
        gateway(backend, access_log={"enabled": True, "path": str(log)}) as rig,
    ):
        await rig.post(call(stream=stream))
        prompt_tokens = rig.service() - 2 * len(WORDS) if stream else 0
        assert rig.service() > 2 * len(WORDS)
    record = json.loads(log.read_text())
    assert record["estimated"]
    assert record["output_tokens"] >= len(WORDS)
    if stream:
        assert record["prompt_tokens"] == prompt_tokens


@pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])
async def test_a_charge_that_was_put_right_at_the_end_is_no_estimate(stream, tmp_path):
    log = tmp_path / "access.log"
    async with (
        stand_in("llama.cpp") as backend,
        gateway(backend, access_log={"enabled": True, "path": str(log)}) as rig,
    ):
        await rig.post(call(stream=stream))
    record = json.loads(log.read_text())
    assert (record["estimated"], record["output_tokens"]) == (False, OUTPUT_TOKENS)


async def test_a_server_that_refuses_the_options_is_asked_again_without_and_never_with_them_again():
    async with stand_in("openai without usage", refuses="stream_options") as backend, gateway(backend) as rig:
        for _ in range(2):
            reply = await rig.post(call(stream=True))
            assert reply.body == await direct(rig, backend, call(stream=True))
            backend.calls.pop()
        assert rig.gateway.backends["b0"].known_kind.name == "openai-basic"
        assert rig.gateway.backends.states()["b0"] == "healthy"
        asked = ["stream_options" in json.loads(each.body) for each in backend.calls]
        assert asked == [True, False, False]


async def test_a_refusal_of_options_that_the_client_gave_is_the_clients():
    body = call(stream=True, stream_options={"include_usage": True})
    async with stand_in("openai without usage", refuses="stream_options") as backend, gateway(backend) as rig:
        reply = await rig.post(body)
        assert (reply.status, len(backend.calls)) == (400, 1)
        assert reply.body == await direct(rig, backend, body)
        assert rig.service() == 0


async def test_a_configured_kind_is_not_looked_for():
    async with stand_in("openai") as backend:
        entry = {"name": "b0", "url": backend.url, "kind": "openai-basic"}
        async with gateway(entry) as rig:
            await rig.post(call(stream=True))
            assert asked_options(backend) is None
        assert {poll.target for poll in backend.polls} <= {"/health", "/metrics", "/v1/models"}


SIZES = {  # most requests running, KV tokens; running, waiting, KV used; context
    "sglang": ((12, 50_000), (3, 2, 0.25), 4096),
    "llama.cpp": ((4, 8192), (2, 1, None), 2048),
    "tgi": ((None, 16_000), (4, 7, None), 2048),
}


@pytest.mark.parametrize(("kind", "sizes"), SIZES.items(), ids=SIZES)
async def test_size_and_load_are_read_where_the_kind_says_them(kind, sizes):
    async with stand_in(kind) as backend, gateway(backend) as rig:
        ((load,),) = rig.gateway.backends.loads().values()
        assert sizes == (
            (load.requests_running_max, load.kv_tokens_max),
            (load.requests_running, load.requests_waiting, load.kv_used_ratio),
            rig.gateway.backends.catalog.model(MODEL).max_model_len,
        )


async def test_what_is_configured_goes_before_what_a_server_says():
    async with stand_in("llama.cpp") as backend:
        entry = {"name": "b0", "url": backend.url, "requests_running_max": 2, "kv_tokens_max": 5000}
        async with gateway(entry) as rig:
            ((load,),) = rig.gateway.backends.loads().values()
            assert (load.requests_running_max, load.kv_tokens_max) == (2, 5000)


@pytest.mark.parametrize("page", ["nonsense", [1], {"total_slots": "many"}, {"total_slots": 4}], ids=repr)
async def test_a_size_that_makes_no_sense_is_no_size(page):
    async with stand_in("llama.cpp", pages={"/props": page}) as backend, gateway(backend) as rig:
        ((load,),) = rig.gateway.backends.loads().values()
        assert load.available
        assert load.kv_tokens_max is None
        assert (await rig.post(call())).status == 200


async def test_a_server_that_never_answers_where_its_size_would_be_holds_nothing_up():
    async with stand_in("llama.cpp", pages={}) as backend:
        poll = backend._poll
        backend._poll = lambda target: b"" if target == "/props" else poll(target)  # the connection stays open
        async with asyncio.timeout(4), gateway(backend) as rig:
            assert (await rig.post(call())).status == 200


async def test_a_full_tgi_is_tried_again_and_a_full_sglang_too():
    busy = {"tgi": ({"error": "Model is overloaded", "error_type": "overloaded"}, 429)}
    busy["sglang"] = ({"object": "error", "message": "The request queue is full.", "code": 503}, 503)
    for kind, (body, status) in busy.items():
        async with stand_in(kind) as backend, gateway(backend) as rig:
            backend.script[:] = [answer(body, status=status)]
            assert (await rig.post(call())).status == 200
            assert len(backend.calls) == 2
            assert rig.gateway.backends.states()["b0"] == "healthy"


async def test_a_429_that_does_not_say_overloaded_is_the_clients():
    limited = answer({"error": {"message": "slow down"}}, status=429)
    async with scripted(limited) as backend, gateway(backend) as rig:
        reply = await rig.post(call())
        assert (reply.status, len(backend.calls)) == (429, 1)


async def test_a_server_that_comes_back_as_another_kind_is_found_out_again():
    async with stand_in("llama.cpp") as backend, gateway(backend) as rig:
        assert rig.gateway.backends["b0"].known_kind.name == "llama.cpp"
        backend.healthy = False
        await until(lambda: rig.gateway.backends.states()["b0"] == "down")
        backend.owned_by, backend.pages = "sglang", {"/metrics": "", "/get_server_info": {"max_running_requests": 5}}
        backend.healthy = True
        await until(lambda: rig.gateway.backends["b0"].known_kind.name == "sglang")
        await until(lambda: rig.gateway.backends.loads()[MODEL][0].requests_running_max == 5)


async def test_a_server_without_a_path_for_health_is_well_while_it_says_what_it_serves():
    async with stand_in("openai") as backend:
        poll, gone = backend._poll, b"HTTP/1.1 404 X\r\ncontent-length: 0\r\n\r\n"
        backend._poll = lambda target: gone if target == "/health" else poll(target)
        async with gateway(backend) as rig:
            assert rig.gateway.backends.states()["b0"] == "healthy"
            assert (await rig.post(call())).status == 200
            backend._poll = lambda _target: gone
            await until(lambda: rig.gateway.backends.states()["b0"] == "down")
