"""What a client gets through the gateway is what the backend would have sent to it, and is charged for."""

import asyncio
import json

import pytest
from gateway_rig import (
    CHAT,
    COMPLETIONS,
    HELLO,
    MODEL,
    answer,
    call,
    engine,
    gateway,
    gateway_and_engine,
    http,
    scripted,
    stencil,
    stream,
    until,
    wire,
)

USAGE_OPTIONS = {
    "usage not asked": None,
    "options empty": {},
    "usage refused": {"include_usage": False},
    "usage asked": {"include_usage": True},
    "usage continuous": {"include_usage": True, "continuous_usage_stats": True},
    "only continuous": {"continuous_usage_stats": True},
}

TRACE = f"00-{'1' * 32}-{'2' * 16}-03"


def completion(**fields):
    return {"model": MODEL, "prompt": "Once upon a time", "max_tokens": 8, **fields}


async def answers_of(rig, server, body, path):
    """The same call, sent through the gateway and straight to its backend."""
    headers = {"X-Request-Id": "same"}
    through = await rig.post(body, path, headers=headers)
    async with rig.session.post(server.url + path, json=body, headers=headers) as response:
        return through, await response.read()


@pytest.mark.parametrize("n", [1, 2])
@pytest.mark.parametrize("options", USAGE_OPTIONS.values(), ids=USAGE_OPTIONS)
@pytest.mark.parametrize(("path", "make"), [(CHAT, call), (COMPLETIONS, completion)], ids=["chat", "completions"])
async def test_a_streamed_answer_is_byte_for_byte_the_backends(path, make, options, n):
    body = make(n=n, stream=True, temperature=0.5)
    if options is not None:
        body["stream_options"] = options
    async with gateway_and_engine() as (rig, server):
        for _ in range(2):  # the second time the gateway knows the backend's fingerprint
            through, direct = await answers_of(rig, server, body, path)
        assert through.status == 200
        assert through.headers["Content-Type"] == "text/event-stream; charset=utf-8"
        assert events_by_choice(through.body) == events_by_choice(direct)
        if n == 1:
            assert stencil(through.body) == stencil(direct)


@pytest.mark.parametrize("options", USAGE_OPTIONS.values(), ids=USAGE_OPTIONS)
async def test_so_it_is_where_the_backend_says_its_usage_at_the_end_only(options):
    body = call(stream=True) | ({} if options is None else {"stream_options": options})
    async with gateway_and_engine(continuous_usage=False) as (rig, server):
        for _ in range(2):
            through, direct = await answers_of(rig, server, body, CHAT)
            assert stencil(through.body) == stencil(direct)


def events_by_choice(body: bytes) -> dict:
    """Events of each choice in order; which choice is first in a step is the engine's business."""
    sorted_events: dict = {}
    for line in stencil(body).decode().split("\n\n"):
        payload = line.removeprefix("data: ")
        choices = json.loads(payload)["choices"] if payload.startswith("{") else []
        sorted_events.setdefault(choices[0]["index"] if choices else None, []).append(payload)
    return sorted_events


@pytest.mark.parametrize(("path", "make"), [(CHAT, call), (COMPLETIONS, completion)], ids=["chat", "completions"])
async def test_a_whole_answer_is_byte_for_byte_the_backends(path, make):
    async with gateway_and_engine() as (rig, server):
        through, direct = await answers_of(rig, server, make(n=2), path)
    assert through.status == 200
    assert stencil(through.body) == stencil(direct)


async def test_an_error_of_the_backend_passes_untouched_and_costs_nothing():
    async with gateway_and_engine() as (rig, server):
        body = call(messages=[{"role": "user", "content": "word " * 6000}])
        through, direct = await answers_of(rig, server, body, CHAT)
        assert through.status == 400
        assert through.body == direct
        assert rig.service() == 0
        assert rig.idle()


async def test_the_official_client_streams_chats_and_lists_models():
    async with gateway_and_engine() as (rig, _), rig.openai() as client:
        assert [model.id async for model in client.models.list()] == [MODEL]
        chunks = [chunk async for chunk in await client.chat.completions.create(**call(stream=True, n=2))]
        assert {choice.index for chunk in chunks for choice in chunk.choices} == {0, 1}
        assert all(chunk.usage is None for chunk in chunks)
        whole = await client.chat.completions.create(**call())
        assert whole.usage.completion_tokens == 8
        text = await client.completions.create(**completion(logprobs=2))
        assert len(text.choices[0].logprobs.tokens) == 8


@pytest.mark.parametrize("streamed", [True, False], ids=["streamed", "whole"])
@pytest.mark.parametrize("n", [1, 3])
async def test_a_tenant_is_charged_the_prompt_and_twice_the_output(streamed, n):
    async with gateway_and_engine() as (rig, _server):
        async with rig.openai() as client:
            options = {"stream": True, "stream_options": {"include_usage": True}} if streamed else {}
            got = await client.chat.completions.create(**call(n=n, **options))
            usage = [chunk async for chunk in got][-1].usage if streamed else got.usage
        assert usage.completion_tokens == 8 * n
        await until(rig.idle)
        (tenant,) = rig.snapshot().tenants.values()
        assert tenant.service == usage.prompt_tokens + 2 * usage.completion_tokens
        assert tenant.counter == tenant.rank == tenant.service


async def test_several_prompts_in_one_call_are_all_charged():
    async with gateway_and_engine() as (rig, _):
        body = completion(prompt=["one two three", "four five six seven"], n=2, stream=True)
        reply = await rig.post({**body, "stream_options": {"include_usage": True}}, COMPLETIONS)
        usage = json.loads(reply.events[-2])["usage"]
        assert usage["completion_tokens"] == 32
        assert rig.service() == usage["prompt_tokens"] + 2 * 32


async def test_the_counter_moves_with_every_token_while_the_stream_runs():
    let_pass: asyncio.Queue[bytes] = asyncio.Queue()

    async def one_at_a_time(reader, writer):
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n")
        while (piece := await let_pass.get()) != b"end":
            writer.write(b"%x\r\n%b\r\n" % (len(piece), piece))
        writer.write(b"0\r\n\r\n")
        return True

    def token(number):
        usage = {"prompt_tokens": 7, "completion_tokens": number, "total_tokens": 7 + number}
        choices = [{"index": 0, "delta": {"content": "a"}, "finish_reason": None}]
        return b"data: " + json.dumps({"id": "x", "choices": choices, "usage": usage}).encode() + b"\n\n"

    async with scripted(one_at_a_time) as backend, gateway(backend) as rig, wire(rig) as connection:
        connection.send(http(call(stream=True, max_tokens=20)))
        let_pass.put_nowait(token(1))
        await connection.head()
        for number in range(1, 21):
            received = await connection.reader.readuntil(b"\n\n\r\n")
            assert received.count(b"data: ") == 1
            (tenant,) = rig.snapshot().tenants.values()
            assert (tenant.service, tenant.in_flight_requests) == (7 + 2 * number, 1)
            let_pass.put_nowait(token(number + 1) if number < 20 else b"end")
        await until(rig.idle)
        assert rig.service() == 7 + 2 * 20


async def test_a_whole_answer_costs_its_predicted_price_while_it_runs_and_its_true_one_after():
    async with gateway_and_engine(speed=0.1) as (rig, _):
        running = asyncio.create_task(rig.post(call(max_tokens=20)))
        await until(lambda: rig.tenant() and rig.tenant().in_flight_requests)
        assert rig.tenant().rank == rig.tenant().counter + 2 * 20
        usage = (await running).json["usage"]
        assert rig.tenant().rank == rig.service() == usage["prompt_tokens"] + 40


async def test_cached_prompt_tokens_have_their_own_price():
    price = {"prompt": 1.0, "cached_prompt": 0.25, "output": 2.0}
    messages = [{"role": "user", "content": "The same long story. " * 100}]
    async with gateway_and_engine({"scheduling": {"price": price}}, prompt_tokens_details=True) as (rig, _):
        first = (await rig.post(call(messages=messages))).json["usage"]
        paid = rig.service()
        assert paid == first["prompt_tokens"] + 16
        for streamed in (False, True):
            before = rig.service()
            body = call(messages=messages, stream=streamed)
            if streamed:
                body["stream_options"] = {"include_usage": True}
            reply = await rig.post(body)
            usage = json.loads(reply.events[-2])["usage"] if streamed else reply.json["usage"]
            cached = usage["prompt_tokens_details"]["cached_tokens"]
            assert cached > 0
            charged = rig.service() - before
            assert charged == pytest.approx(usage["prompt_tokens"] - 0.75 * cached + 16)


async def test_a_prompts_estimate_learns_from_what_backends_report():
    async with gateway_and_engine(speed=0.1) as (rig, _):
        messages = [{"role": "user", "content": "abcdefgh " * 50}]
        errors = []
        for _ in range(8):
            before = rig.service()
            running = asyncio.create_task(rig.post(call(messages=messages, max_tokens=2)))
            await until(lambda: rig.tenant() and rig.tenant().in_flight_requests)
            estimated = rig.service() - before
            errors.append(abs(estimated / (await running).json["usage"]["prompt_tokens"] - 1))
        assert errors[0] > 0.15
        assert errors[-1] < 0.1


async def test_several_tokens_in_one_chunk_are_all_charged():
    async with gateway_and_engine(stream_interval=5) as (rig, _):
        body = call(stream=True, max_tokens=12, stream_options={"include_usage": True})
        usage = json.loads((await rig.post(body)).events[-2])["usage"]
        assert rig.service() == usage["prompt_tokens"] + 24


async def test_without_continuous_usage_the_last_usage_settles_the_charge():
    async with gateway_and_engine(continuous_usage=False) as (rig, _):
        reply = await rig.post(call(stream=True, stream_options={"include_usage": True}))
        usage = json.loads(reply.events[-2])["usage"]
        assert rig.service() == usage["prompt_tokens"] + 16


async def test_a_server_without_usage_is_charged_by_its_events_and_our_estimate_of_the_prompt():
    events = [b'data: {"choices":[{"index":0,"delta":{"content":"a"}}]}\n\n'] * 5
    async with scripted(stream(*events, b"data: [DONE]\n\n")) as backend, gateway(backend) as rig:
        await rig.post(call(stream=True))
        prompt_tokens = rig.service() - 2 * 5
        assert prompt_tokens > 0


async def test_a_whole_answer_without_usage_is_not_free():
    async with scripted(answer({"choices": []})) as backend, gateway(backend) as rig:
        assert (await rig.post()).status == 200
        assert rig.service() > 0
        assert rig.idle()


async def test_nothing_but_what_is_listed_crosses_to_the_backend():
    async with scripted() as backend:
        entry = {"name": "b0", "url": backend.url, "api_key": "backend-key"}
        async with gateway(entry) as rig:
            await rig.post(
                headers={
                    "Authorization": "Bearer client-key",
                    "X-Api-Key": "client-key",
                    "Api-Key": "client-key",
                    "Cookie": "session=client-key",
                    "X-Vllm-Priority": "-5",
                    "X-Data-Parallel-Rank": "1",
                    "X-Forwarded-For": "10.0.0.1",
                    "Proxy-Authorization": "Basic client-key",
                    "X-Request-Id": "mine",
                    "traceparent": TRACE,
                }
            )
        (asked,) = backend.calls
        assert "client-key" not in str(asked)
        assert asked.headers["authorization"] == "Bearer backend-key"
        assert asked.headers["x-request-id"] == "mine"
        assert asked.headers["x-vllm-priority"] == "0"
        assert asked.headers["traceparent"] == TRACE
        assert set(asked.headers) == {
            "host", "content-length", "user-agent", "traceparent", "content-type", "accept-encoding",
            "x-request-id", "x-vllm-priority", "authorization",
        }  # fmt: skip
        assert {poll.headers["authorization"] for poll in backend.polls} == {"Bearer backend-key"}


async def test_a_body_that_is_not_streamed_is_forwarded_byte_for_byte():
    body = b'{ "model":"tiny", "unknown": [1.0, 1e5], "messages":[{"role":"user","content":"\\u00e9"}]\n}'
    async with scripted() as backend, gateway(backend) as rig:
        assert (await rig.post(body)).status == 200
        assert backend.calls[0].body == body


async def test_a_clients_request_id_comes_back_and_one_is_made_where_it_gave_none():
    async with gateway_and_engine() as (rig, _):
        assert (await rig.post(headers={"X-Request-Id": "mine-1"})).headers["x-request-id"] == "mine-1"
        assert (await rig.post(headers={"X-Correlation-Id": "mine-2"})).headers["x-request-id"] == "mine-2"
        made = {(await rig.post()).headers["x-request-id"] for _ in range(2)}
        assert len(made) == 2
        assert (await rig.post(headers={"X-Request-Id": "two words"})).headers["x-request-id"] != "two words"


async def test_an_id_that_is_in_flight_already_is_replaced():
    async with gateway_and_engine(speed=0.1) as (rig, _server):
        headers = {"X-Request-Id": "twice"}
        replies = await asyncio.gather(*(rig.post(headers=headers) for _ in range(3)))
        ids = [reply.headers["x-request-id"] for reply in replies]
        assert [reply.status for reply in replies] == [200] * 3
        assert len(set(ids)) == 3
        assert ids.count("twice") == 1
        assert (await rig.post(headers=headers)).headers["x-request-id"] == "twice"


async def test_no_client_can_take_the_id_that_the_gateway_would_make_next():
    async with (
        engine(speed=0.1) as server,
        gateway({"name": "b0", "url": server.url, "requests_running_max": 8}) as rig,
    ):
        made = (await rig.post()).headers["x-request-id"]
        prefix, number = made.rsplit("-", 1)
        squatted = [f"{prefix}-{int(number, 16) + step:x}" for step in range(1, 9)]
        held = [asyncio.create_task(rig.post(headers={"X-Request-Id": taken})) for taken in squatted]
        await until(lambda: rig.snapshot().in_flight_requests == len(held))
        victims = await asyncio.gather(*(rig.post() for _ in range(4)))
        assert [reply.status for reply in victims] == [200] * 4
        assert [(await task).status for task in held] == [200] * len(held)


@pytest.mark.parametrize("streamed", [False, True])
async def test_answers_of_the_backend_bring_no_cookies_and_no_hop_by_hop_headers(streamed):
    async def act(reader, writer):
        head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\nset-cookie: a=b\r\nserver: uvicorn\r\n"
        head += b"connection: X-Secret\r\nx-secret: of this hop\r\nx-other: kept\r\nkeep-alive: 5\r\n"
        head += b"connection: cache-control, keep-alive\r\ncache-control: no-store\r\n"
        head += b"te: trailers\r\ntrailer: x-end\r\nupgrade: h2c\r\nproxy-authenticate: Basic\r\n"
        if streamed:
            event = b'data: {"choices":[{"index":0,"delta":{"content":"a"}}]}\n\n'
            head = head.replace(b"application/json", b"text/event-stream")
            writer.write(head + b"content-length: %d\r\n\r\n%b" % (len(event), event))
        else:
            writer.write(head + b"content-length: 2\r\n\r\n{}")
        return True

    async with scripted(act) as backend, gateway(backend) as rig:
        headers = (await rig.post(call(stream=streamed))).headers
        assert headers["x-other"] == "kept"
        assert headers["Server"] == "fairlead"
        for name in ("Set-Cookie", "Keep-Alive", "X-Secret", "TE", "Trailer", "Upgrade", "Proxy-Authenticate"):
            assert name not in headers
        assert headers.get("Cache-Control") != "no-store"


async def test_pools_models_are_merged_and_each_call_goes_where_its_model_is():
    async with engine() as one, engine() as two, engine(model="other") as three, gateway(one, two, three) as rig:
        models = (await rig.get("/v1/models")).json
        assert sorted(entry["id"] for entry in models["data"]) == ["other", "tiny"]
        for _ in range(2):
            assert (await rig.post(call(model="other"))).json["model"] == "other"
        assert three.snapshots()[0].emitted_tokens_total == 16
        assert one.snapshots()[0].emitted_tokens_total + two.snapshots()[0].emitted_tokens_total == 0
        assert rig.snapshot("other").tenants["anonymous"].service > 0
        assert (await rig.post({"messages": HELLO})).status == 404  # which of two models is meant is not known


async def test_a_call_that_names_no_model_means_the_only_one():
    async with gateway_and_engine() as (rig, _):
        assert (await rig.post({"messages": HELLO, "max_tokens": 2})).json["model"] == MODEL


async def test_a_slow_client_gets_all_of_a_large_answer():
    async with gateway_and_engine(speed=10.0) as (rig, _), wire(rig) as connection:
        connection.send(http(call(max_tokens=3000, stream=True)))
        await asyncio.sleep(0.3)
        assert (await connection.reply()).body.endswith(b"data: [DONE]\n\n")
