"""Responses, messages, embeddings, batches: through the gateway as from the backend, and charged."""

import asyncio
import json
import re

import pytest
from gateway_rig import (
    HELLO,
    MODEL,
    engine,
    gateway,
    gateway_and_engine,
    http,
    running,
    scripted,
    stream,
    tokens_emitted,
    until,
    wire,
)

RESPONSES, MESSAGES, EMBEDDINGS = "/v1/responses", "/v1/messages", "/v1/embeddings"
BATCH, COUNT = "/v1/chat/completions/batch", "/v1/messages/count_tokens"
BODIES = {
    RESPONSES: {"model": MODEL, "input": "Hello there", "max_output_tokens": 8},
    MESSAGES: {"model": MODEL, "messages": HELLO, "max_tokens": 8},
    EMBEDDINGS: {"model": MODEL, "input": ["Hello there", "and you"]},
    BATCH: {"model": MODEL, "messages": [HELLO, HELLO], "max_tokens": 4},
}
STREAMED = [RESPONSES, MESSAGES]
AT_ONCE_S = 0.5
streamed = pytest.mark.parametrize("path", STREAMED)


def same(body):
    """Without what differs between two answers to one call."""
    return re.sub(rb'"created(_at)?":\d+|(resp|msg)_[0-9a-f]+|(chatcmpl|embd)-[\w-]+', b"", body)


async def both(rig, server, path, body):
    through = await rig.post(body, path)
    async with rig.session.post(server.url + path, json=body) as response:
        return through, await response.read()


def used(path, answer):
    usage = answer["usage"]
    names = ("input_tokens", "output_tokens") if path in STREAMED else ("prompt_tokens", "completion_tokens")
    return tuple(usage[name] for name in names)


@pytest.mark.parametrize("path", BODIES)
async def test_a_whole_answer_is_the_backends_and_charged_by_its_usage(path):
    async with gateway_and_engine() as (rig, server):
        through, direct = await both(rig, server, path, BODIES[path])
        assert through.status == 200
        assert same(through.body) == same(direct)
        prompt, output = used(path, through.json)
        assert output == (0 if path == EMBEDDINGS else 8)
        assert rig.service() == prompt + 2 * output


@streamed
async def test_a_streamed_answer_is_the_backends_byte_for_byte_and_charged_at_its_end(path):
    async with gateway_and_engine() as (rig, server):
        through, direct = await both(rig, server, path, {**BODIES[path], "stream": True})
        assert through.headers["Content-Type"] == "text/event-stream; charset=utf-8"
        assert same(through.body) == same(direct)
        prompt, output = used(path, (await rig.post(BODIES[path], path)).json)
        assert rig.service() == 2 * (prompt + 2 * output)


@pytest.mark.jumping  # on a busy machine, lines of several steps would be there at once
@streamed
async def test_the_counter_moves_while_the_stream_runs(path):
    async with gateway_and_engine(speed=0.1) as (rig, _), wire(rig) as connection:
        body = {**BODIES[path], "stream": True, "max_tokens": 30, "max_output_tokens": 30}
        connection.send(http(body, path=path))
        await connection.head()
        seen = set()
        while rig.snapshot().in_flight_requests:
            await connection.reader.readline()
            seen.add(rig.service())
        assert len(seen) > 15


@streamed
async def test_a_client_that_leaves_in_mid_stream_is_charged_what_passed_and_the_backend_stops(path, tmp_path):
    log = {"access_log": {"enabled": True, "path": str(tmp_path / "log")}}
    async with gateway_and_engine(log, speed=0.1) as (rig, server), wire(rig) as connection:
        connection.send(
            http({**BODIES[path], "stream": True, "max_tokens": 1000, "max_output_tokens": 1000}, path=path)
        )
        await connection.head()
        passed = 0
        while passed < 5:
            passed += b"delta\n" in await connection.reader.readline()
        connection.reset()
        await until(lambda: not running(server), AT_ONCE_S)
        await until(rig.idle, AT_ONCE_S)
        emitted = tokens_emitted(server)
        prompt, output = used(path, (await rig.post(BODIES[path], path)).json)
        charged = rig.service() - (prompt + 2 * output)
        assert 2 * 5 <= charged - prompt * (path == MESSAGES) <= prompt * 3 + 3 * emitted
    left, whole = map(json.loads, (tmp_path / "log").read_text().splitlines())
    assert (left["outcome"], left["estimated"], whole["estimated"]) == ("client_gone", True, False)


ENDS = {
    RESPONSES: lambda data: data["type"] == "error" and set(data) == {
        "type", "code", "message", "param", "sequence_number",
    },
    MESSAGES: lambda data: data["type"] == "error" and data["error"]["type"] == "api_error",
}  # fmt: skip


@streamed
async def test_a_stream_whose_backend_is_lost_ends_with_an_error_in_its_own_words(path):
    async with gateway_and_engine(cut_stream_after_tokens=3) as (rig, _):
        reply = await rig.post({**BODIES[path], "stream": True}, path)
        last = reply.body.decode().removesuffix("\n\n").split("\n\n")[-1]
        name, data = last.split("\n")
        assert name == "event: error"
        assert ENDS[path](json.loads(data.removeprefix("data: ")))
        assert b"[DONE]" not in reply.body
        assert b"message_stop" not in reply.body
        assert b"response.completed" not in reply.body


async def test_a_message_of_a_server_that_was_stopped_does_not_look_whole():
    start = {"type": "message_start", "message": {"id": "m", "usage": {"input_tokens": 4, "output_tokens": 0}}}
    text = {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "one"}}
    usage = {"input_tokens": 4, "output_tokens": 1}
    stop = {"type": "message_delta", "delta": {"stop_reason": None, "stop_sequence": None}, "usage": usage}
    events = [start, text, stop, {"type": "message_stop"}]
    pieces = [f"event: {event['type']}\ndata: {json.dumps(event)}\n\n".encode() for event in events]
    async with scripted(stream(*pieces)) as backend, gateway(backend) as rig:
        reply = await rig.post({**BODIES[MESSAGES], "stream": True}, MESSAGES)
        assert reply.body.startswith(b"".join(pieces[:-1]) + b"event: error\n")
        assert b"message_stop" not in reply.body
        assert rig.service() == 4 + 2


@pytest.mark.parametrize("path", [*STREAMED, BATCH])
async def test_a_whole_answer_no_client_waits_for_is_charged_by_the_clock(path):
    async with gateway_and_engine(speed=0.1) as (rig, server):
        for _ in range(3):  # the pace is learnt from answers that ended
            await rig.post(BODIES[path], path)
        before, emitted_before = rig.service(), tokens_emitted(server)
        async with wire(rig) as connection:
            connection.send(http({**BODIES[path], "max_tokens": 1000, "max_output_tokens": 1000}, path=path))
            await until(lambda: tokens_emitted(server) - emitted_before > 40)
            connection.reset()
            await until(lambda: not running(server), AT_ONCE_S)
            await until(rig.idle, AT_ONCE_S)
        emitted = tokens_emitted(server) - emitted_before
        charged = rig.service() - before
        assert emitted < charged < 2 * 2.5 * emitted + 100
        assert rig.tenant().rank == rig.tenant().counter


async def test_an_embedding_no_client_waits_for_costs_its_prompt_alone():
    async with gateway_and_engine(speed=0.002) as (rig, server), wire(rig) as connection:
        connection.send(http({"model": MODEL, "input": "word " * 3000}, path=EMBEDDINGS))
        await until(lambda: running(server))
        connection.reset()
        await until(rig.idle, AT_ONCE_S)
        assert 3000 < rig.service() < 6000


# -- adapters that a part of a pool has ---------------------------------------------------------------------------


async def test_adapters_of_different_backends_are_one_list_of_models_and_one_pool():
    async with (
        engine(adapters=("sql", "poems")) as one,
        engine(adapters=("poems", "law")) as two,
        gateway(one, two) as rig,
    ):
        cards = (await rig.get("/v1/models")).json["data"]
        assert {card["id"]: card["parent"] for card in cards} == {
            MODEL: None, "sql": MODEL, "poems": MODEL, "law": MODEL,
        }  # fmt: skip
        assert len(cards) == 4
        pools = rig.gateway.pools
        assert list(pools.dispatchers) == [MODEL]
        assert pools.routes.holders(MODEL) is None
        assert pools.routes.holders("poems") is None
        assert pools.routes.holders("sql") == {"b0"}
        assert pools.routes.holders("law") == {"b1"}


async def test_a_call_for_an_adapter_goes_where_it_is_loaded_however_busy_the_others_are():
    async with engine(adapters=("sql",)) as one, engine(adapters=("law",)) as two, gateway(one, two) as rig:
        calls = [rig.post({"model": "law", "messages": HELLO, "max_tokens": 4}) for _ in range(12)]
        replies = await asyncio.gather(*calls)
        assert [reply.status for reply in replies] == [200] * 12
        assert {reply.json["model"] for reply in replies} == {"law"}
        assert (tokens_emitted(one), tokens_emitted(two)) == (0, 48)
