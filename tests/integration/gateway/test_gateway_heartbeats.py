"""A stream that waits for long gets its head and comments, where that is configured; what fails then is an event."""

import asyncio
import json

import openai
import pytest
from gateway_rig import (
    CHAT,
    COMPLETIONS,
    HELLO,
    answer,
    call,
    engine,
    fall_silent,
    gateway,
    hang_up,
    http,
    running,
    scripted,
    stream,
    tokens_emitted,
    until,
    wire,
)

pytestmark = pytest.mark.jumping

BEAT = b": waiting\n\n"
EVERY_S = 0.05
RESPONSES, MESSAGES, COHERE = "/v1/responses", "/v1/messages", "/cohere/v2/chat"
CALLS = {
    CHAT: call(stream=True),
    COMPLETIONS: {"model": "tiny", "prompt": "Hello", "max_tokens": 8, "stream": True},
    RESPONSES: {"model": "tiny", "input": "Hello", "stream": True},
    MESSAGES: call(stream=True),
    COHERE: call(stream=True),
}
apis = pytest.mark.parametrize("path", CALLS)
TOKEN = b'data: {"choices":[{"index":0,"delta":{"content":"a"}}]}\n\n'
USAGE = b'data: {"choices":[],"usage":{"prompt_tokens":9,"completion_tokens":1,"total_tokens":10}}\n\n'
DONE = b"data: [DONE]\n\n"
STREAM = stream(TOKEN, USAGE, DONE)


class Held:
    """An action of a backend that waits until a client has had its second comment."""

    def __init__(self, act):
        self._act = act
        self._beats = 0
        self._is_due = asyncio.Event()

    async def __call__(self, reader, writer):
        await self._is_due.wait()
        return await self._act(reader, writer)

    async def told(self, connection):
        """What this client is told when the action was let go."""
        return told(await connection.reply(self._passed))

    def _passed(self, piece):
        self._beats += piece.count(BEAT)
        if self._beats >= 2:
            self._is_due.set()


def beating(*backends, tmp_path=None, **config):
    log = {} if tmp_path is None else {"access_log": {"enabled": True, "path": str(tmp_path / "log")}}
    queue = {"heartbeat_s": EVERY_S, **config.pop("queue", {})}
    return gateway(*backends, queue=queue, **log, **config)


def slot(server):
    return {"name": "b0", "url": server.url, "requests_running_max": 1}


async def logged(tmp_path, lines=1):
    log = tmp_path / "log"
    await until(lambda: log.exists() and log.read_text().count("\n") >= lines)
    return [json.loads(line) for line in log.read_text().splitlines()]


def told(reply):
    """What follows the comments, of which there is one at least."""
    assert reply.status == 200
    assert reply.headers["Content-Type"].startswith("text/event-stream")
    assert reply.headers["x-request-id"]
    assert reply.body.startswith(BEAT)
    rest = reply.body
    while rest.startswith(BEAT):
        rest = rest.removeprefix(BEAT)
    assert BEAT not in rest
    return rest


def assert_told_why(path, event, *, code, reason, kind):
    """The event is the error of this API."""
    name, _, data = event.removesuffix(b"\n\n").rpartition(b"data: ")
    if path in (CHAT, COMPLETIONS):
        error = json.loads(data)["error"]
        assert (name, error["code"], error["reason"], error["param"]) == (b"", code, reason, None)
    elif path == RESPONSES:
        error = json.loads(data)
        assert (name, error["type"], error["code"]) == (b"event: error\n", "error", reason)
        assert error["sequence_number"] >= 0
    elif path == MESSAGES:
        said = json.loads(data)
        error = said["error"]
        assert (name, said["type"], error["type"]) == (b"event: error\n", "error", kind)
    else:
        end = json.loads(event.split(b"\n\n")[0].removeprefix(b"data: "))
        assert (end["type"], end["delta"]["finish_reason"], data) == ("message-end", "ERROR", b"[DONE]")
        return
    assert error["message"]


async def test_a_stream_that_waits_in_the_queue_gets_its_head_and_comments_and_then_its_answer():
    held = Held(answer())
    async with (
        scripted(STREAM, held) as backend,
        beating(slot(backend)) as rig,
        wire(rig) as first,
        wire(rig) as second,
    ):
        first.send(http(call()))
        await until(lambda: backend.calls)
        second.send(http(call(stream=True)))
        assert await held.told(second) == TOKEN + DONE
        await until(rig.idle)
        second.send(http(call(stream=True)))  # the connection is as good as before
        assert (await second.reply()).body == TOKEN + DONE


async def test_a_long_prompt_is_waited_for_with_comments():
    long = [{"role": "user", "content": "word " * 3000}]
    async with engine(speed=0.01) as server, beating(server) as rig, wire(rig) as connection:
        connection.send(http(call(stream=True, messages=long, max_tokens=2)))
        assert told(await connection.reply()).endswith(DONE)
        assert tokens_emitted(server) == 2


@apis
async def test_a_refusal_after_the_head_is_an_event_of_its_api_and_a_status_in_the_log(path, tmp_path):
    async with (
        scripted(fall_silent) as backend,
        beating(slot(backend), tmp_path=tmp_path, queue={"wait_s_max": 4 * EVERY_S}) as rig,
        wire(rig) as first,
        wire(rig) as second,
    ):
        first.send(http(call()))
        await until(lambda: backend.calls)
        second.send(http(CALLS[path], path=path))
        event = told(await second.reply())
        assert_told_why(path, event, code=429, reason="rate_limit_exceeded", kind="rate_limit_error")
        assert not rig.snapshot().queued_requests
        (line,) = await logged(tmp_path)
        assert (line["status"], line["reason"], line["backend"]) == (429, "queue_timeout", None)
        metrics = (await rig.gateway.metrics.exposition()).decode()
        assert 'fairlead_tenant_refusals_total{reason="queue_timeout",tenant="anonymous"} 1' in metrics
        assert 'fairlead_tenant_requests_total{outcome="refused",tenant="anonymous"} 1' in metrics


@apis
async def test_a_backend_that_fails_after_the_head_is_an_event_of_its_api(path, tmp_path):
    held = Held(hang_up)
    async with (
        scripted(held) as backend,
        beating(backend, tmp_path=tmp_path) as rig,
        wire(rig) as connection,
    ):
        connection.send(http(CALLS[path], path=path))
        event = await held.told(connection)
        assert_told_why(path, event, code=502, reason="backend_failed", kind="api_error")
        assert len(backend.calls) == 2, "it was sent once more"
        (line,) = await logged(tmp_path)
        assert (line["status"], line["output_tokens"], rig.service()) == (502, None, 0)


@pytest.mark.parametrize("shape", ["nested", "flat", "strange"])
async def test_a_backends_own_error_after_the_head_passes_as_an_event(shape, tmp_path):
    error = {"message": "max_tokens is too large", "type": "BadRequestError", "param": "max_tokens", "code": 400}
    body = {"nested": {"error": error}, "flat": {"object": "error", **error}, "strange": ["?"]}[shape]
    held = Held(answer(body, status=400))
    async with (
        scripted(held) as backend,
        beating(backend, tmp_path=tmp_path) as rig,
        wire(rig) as connection,
    ):
        connection.send(http(call(stream=True)))
        said = json.loads((await held.told(connection)).removeprefix(b"data: "))["error"]
        assert said["code"] == 400
        assert said["message"] == (
            "The backend refused it with status 400." if shape == "strange" else error["message"]
        )
        (line,) = await logged(tmp_path)
        assert (line["status"], rig.service()) == (400, 0)


async def test_an_answer_that_was_not_streamed_after_the_head_is_one_event():
    held = Held(answer())
    async with scripted(held) as backend, beating(backend) as rig, wire(rig) as connection:
        connection.send(http(call(stream=True)))
        event = await held.told(connection)
        assert json.loads(event.removeprefix(b"data: "))["usage"]["completion_tokens"] == 3


async def test_a_call_is_sent_to_the_next_backend_also_after_the_head():
    held = Held(hang_up)
    async with scripted(STREAM, held) as backend, beating(backend) as rig, wire(rig) as connection:
        connection.send(http(call(stream=True)))
        assert await held.told(connection) == TOKEN + DONE
        assert len(backend.calls) == 2
        await until(rig.idle)
        assert rig.service() == 9 + 2


async def test_a_stream_that_breaks_after_head_and_token_ends_as_any_other():
    held = Held(stream(TOKEN, end=False))
    async with scripted(held) as backend, beating(backend) as rig, wire(rig) as connection:
        connection.send(http(call(stream=True)))
        token, _, error = (await held.told(connection)).partition(b"\n\n")
        assert token + b"\n\n" == TOKEN
        assert json.loads(error.removeprefix(b"data: "))["error"]["code"] == 502


@pytest.mark.parametrize("waits_at", ["queue", "backend"])
async def test_a_client_that_leaves_after_the_head_leaves_nothing(waits_at, tmp_path):
    async with engine(speed=0.0001) as server, beating(slot(server), tmp_path=tmp_path) as rig, wire(rig) as first:
        if waits_at == "queue":
            first.send(http(call(max_tokens=1000)))
            await until(lambda: running(server))
        async with wire(rig) as connection:
            connection.send(http(call(stream=True), "X-Api-Key: leaver"))
            await connection.head()
            await connection.reader.readuntil(BEAT)
            assert rig.snapshot().in_flight_requests == 1
            assert rig.snapshot().queued_requests == (waits_at == "queue")
            connection.reset()
        await until(lambda: not rig.snapshot().queued_requests)
        first.reset()
        await until(rig.idle)
        await until(lambda: not running(server))
        lines = await logged(tmp_path, 1 + (waits_at == "queue"))
        assert {line["status"] for line in lines} == {499}
        await until(lambda: not [each for each in asyncio.all_tasks() if "Heartbeat" in repr(each)])


@pytest.mark.parametrize(("every_s", "is_stream"), [(None, True), (0.01, False)], ids=["off", "whole"])
async def test_without_the_setting_and_for_whole_answers_the_status_waits(every_s, is_stream):
    async def late(reader, writer):
        await asyncio.sleep(0.2)
        return await answer({"error": {"message": "no"}}, status=400)(reader, writer)

    async with scripted(late) as backend, gateway(backend, queue={"heartbeat_s": every_s}) as rig:
        reply = await rig.post(call(stream=is_stream))
        assert (reply.status, reply.json) == (400, {"error": {"message": "no"}})


async def test_openais_library_passes_over_comments_and_raises_what_comes_after_the_head():
    async def late(reader, writer):
        await asyncio.sleep(10 * EVERY_S)
        return await (error if len(backend.calls) == 1 else STREAM)(reader, writer)

    error = answer({"error": {"message": "no such thing", "code": 404}}, status=404)
    async with scripted(late) as backend, beating(backend) as rig, rig.openai() as client:
        asked = {"model": "tiny", "messages": HELLO, "stream": True}
        with pytest.raises(openai.APIError, match="no such thing") as raised:
            async for _ in await client.chat.completions.create(**asked):
                pass
        assert not isinstance(raised.value, openai.APIStatusError), "it came in the stream"
        chunks = [chunk async for chunk in await client.chat.completions.create(**asked)]
        assert [chunk.choices[0].delta.content for chunk in chunks] == ["a"]


async def test_a_client_of_http_1_0_gets_comments_and_the_end_of_its_connection():
    held = Held(STREAM)
    async with scripted(held) as backend, beating(backend) as rig, wire(rig) as connection:
        connection.send(http(call(stream=True), version="1.0"))
        assert await held.told(connection) == TOKEN + DONE


async def test_a_gateway_that_shuts_down_tells_streams_that_wait_in_an_event():
    async with (
        scripted(fall_silent) as backend,
        beating(slot(backend), shutdown={"lame_duck_s": 0.0, "drain_s": 0.2}) as rig,
        wire(rig) as first,
        wire(rig) as second,
    ):
        first.send(http(call()))
        await until(lambda: backend.calls)
        second.send(http(call(stream=True)))
        await second.head()
        await second.reader.readuntil(BEAT)
        stopping = asyncio.create_task(rig.gateway.stop())
        said = await second.reader.read()
        await stopping
        assert b'"reason":"service_unavailable"' in said
        assert said.endswith(b"0\r\n\r\n")
