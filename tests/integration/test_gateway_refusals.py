"""Every refusal: its status, its shape, what it says of when to come back; and that nothing happened besides."""

import asyncio
import json
from contextlib import AsyncExitStack

import openai
import pytest
from gateway_rig import (
    CHAT,
    COMPLETIONS,
    HELLO,
    MODEL,
    call,
    engine,
    gateway,
    gateway_and_engine,
    http,
    scripted,
    until,
    wire,
)

from gateway.key_file import add_key

DROPPED = "x-llm-d-request-dropped-reason"
SECRET = "s" * 32
MARKER = "zebra-marker"
DEEP = 200


def nested(levels):
    return b'{"model":"tiny","messages":[{"role":"user","content":"x"}],"x":' + b"[" * levels + b"]" * levels + b"}"


MALFORMED = {
    "empty": b"",
    "no json": b"hello " + MARKER.encode(),
    "half": b'{"model": "tiny", "messages": [',
    "no utf-8": b'{"model": "tiny", "messages": "\xff\xfe"}',
    "a list": b"[1, 2]",
    "a number": b"1",
    "null": b"null",
    "trailing": json.dumps(call()).encode() + b"{}",
    "NaN": b'{"model":"tiny","messages":[{"role":"user","content":"x"}],"temperature":NaN}',
    "too deep": nested(DEEP),
    "far too deep": nested(100_000),
    "gzip": b"\x1f\x8b\x08\x00\x00\x00\x00\x00",
}
WRONG = {
    "no messages": {"messages": None},
    "messages no list": {"messages": MARKER},
    "messages empty": {"messages": []},
    "message no object": {"messages": [MARKER]},
    "message without role": {"messages": [{"content": MARKER}]},
    "role no string": {"messages": [{"role": 1, "content": MARKER}]},
    "content no text": {"messages": [{"role": "user", "content": 5}]},
    "part no object": {"messages": [{"role": "user", "content": [7]}]},
    "text part no text": {"messages": [{"role": "user", "content": [{"type": "text", "text": 7}]}]},
    "model no string": {"model": 7},
    "model too long": {"model": "m" * 600},
    "n zero": {"n": 0},
    "n negative": {"n": -1},
    "n text": {"n": "2"},
    "n bool": {"n": True},
    "n too large": {"n": 17},
    "n huge": {"n": 10**30},
    "n fraction": {"n": 1.5},
    "best_of too large": {"best_of": 100},
    "max_tokens zero": {"max_tokens": 0},
    "max_tokens negative": {"max_tokens": -5},
    "max_tokens text": {"max_tokens": "8"},
    "max_tokens over the limit": {"max_tokens": 10**9},
    "max_tokens over the model": {"max_tokens": 4097},
    "max_completion_tokens list": {"max_completion_tokens": [8]},
    "stream text": {"stream": MARKER},
    "stream number": {"stream": 1},
    "stream_options without stream": {"stream_options": {"include_usage": True}},
    "stream_options no object": {"stream": True, "stream_options": MARKER},
    "include_usage text": {"stream": True, "stream_options": {"include_usage": "yes"}},
    "tools no list": {"tools": MARKER},
}
WRONG_COMPLETIONS = {
    "no prompt": {"prompt": None},
    "prompt empty": {"prompt": ""},
    "prompt empty list": {"prompt": []},
    "prompt number": {"prompt": 7},
    "prompt object": {"prompt": {"text": MARKER}},
    "prompt mixed": {"prompt": ["a", 1]},
    "token ids negative": {"prompt": [1, -2]},
    "prompt list too long": {"prompt": ["a"] * 129},
    "best_of too large": {"prompt": "a", "best_of": 17},
}


def assert_error(reply, status, *, code=None):
    assert reply.status == status
    assert reply.headers["Content-Type"] == "application/json"
    assert set(reply.error) == {"message", "type", "param", "code"}
    assert MARKER not in reply.body.decode()
    if code is not None:
        assert reply.error["code"] == code


def assert_untouched(rig, backend):
    """Nothing was queued, charged or forwarded."""
    assert backend.calls == []
    for snapshot in rig.gateway.pools.snapshots().values():
        assert snapshot.queued_requests == snapshot.in_flight_requests == 0
        assert all(tenant.service == 0 and tenant.key == 0 for tenant in snapshot.tenants.values())


async def test_every_malformed_body_is_a_400_that_costs_nothing():
    async with scripted() as backend, gateway(backend) as rig:
        for path in (CHAT, COMPLETIONS):
            for name, body in MALFORMED.items():
                reply = await rig.post(body, path)
                assert reply.status == 400, name
                assert_error(reply, 400)
        assert_untouched(rig, backend)


async def test_every_field_that_is_wrong_is_a_400_that_names_it_and_costs_nothing():
    cases = [(CHAT, call(**fields), fields) for fields in WRONG.values()]
    cases += [(COMPLETIONS, {"model": MODEL, **fields}, fields) for fields in WRONG_COMPLETIONS.values()]
    async with scripted() as backend, gateway(backend) as rig:
        for path, body, fields in cases:
            reply = await rig.post(body, path)
            assert reply.status == 400, fields
            assert_error(reply, 400)
            assert reply.error["param"] in {*fields, *(fields.get("stream_options") or ())}, fields
            assert reply.headers["x-request-id"]
        assert_untouched(rig, backend)


async def test_bad_input_through_the_official_client_is_a_bad_request_error():
    async with gateway_and_engine() as (rig, _), rig.openai() as client:
        with pytest.raises(openai.BadRequestError) as caught:
            await client.chat.completions.create(**call(n=100))
        assert caught.value.param == "n"
        with pytest.raises(openai.NotFoundError) as missing:
            await client.chat.completions.create(**call(model="none"))
        assert missing.value.code == "model_not_found"


async def test_an_unknown_model_is_a_404_in_the_apis_shape():
    async with scripted() as backend, gateway(backend) as rig:
        reply = await rig.post(call(model=MARKER))
        assert_error(reply, 404, code="model_not_found")
        assert_untouched(rig, backend)


async def test_a_body_over_the_limit_is_a_413_declared_or_not():
    async with scripted() as backend, gateway(backend, limits={"body_bytes_max": 1000}) as rig:
        assert_error(await rig.post(b"x" * 1001), 413, code="body_too_large")

        async def pieces():
            for _ in range(5):
                yield b"x" * 500

        async with rig.session.post(rig.url + CHAT, data=pieces()) as response:
            assert response.status == 413
        assert (await rig.post()).status == 200
        assert len(backend.calls) == 1


async def test_a_declared_body_over_the_limit_is_refused_before_it_is_sent():
    async with scripted() as backend, gateway(backend, limits={"body_bytes_max": 1000}) as rig, wire(rig) as connection:
        connection.send(b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 5000\r\n\r\n")
        assert_error(await connection.reply(), 413)


async def test_a_header_over_the_limit_is_a_431():
    async with scripted() as backend, gateway(backend, limits={"header_bytes_max": 4096}) as rig:
        for headers in ([f"X-Long: {MARKER * 500}"], [f"X-{number}: 1" for number in range(200)]):
            async with wire(rig) as connection:
                connection.send(http(call(), *headers))
                assert_error(await connection.reply(), 431, code="header_too_large")
                assert await connection.at_end()
        async with wire(rig) as connection:
            connection.send(b"GET /" + b"a" * 5000 + b" HTTP/1.1\r\nHost: x\r\n\r\n")
            assert_error(await connection.reply(), 431)
        assert_untouched(rig, backend)


async def test_a_body_that_does_not_arrive_is_a_408_and_the_connection_ends():
    async with scripted() as backend, gateway(backend, limits={"body_timeout_s": 0.1}) as rig, wire(rig) as connection:
        connection.send(http(call())[:-5])
        reply = await connection.reply()
        assert_error(reply, 408, code="body_timeout")
        assert reply.headers["Connection"] == "close"
        assert_untouched(rig, backend)


@pytest.mark.parametrize(
    "garbage",
    [
        f"{MARKER}\r\n\r\n".encode(),
        b"GET / HTTP/1.1\r\nbad header zebra-marker\r\n\r\n",
        b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: zebra-marker\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03zebra-marker",
        b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nzebra-marker\r\n",
    ],
    ids=["no request", "bad header", "bad length", "two lengths", "tls", "bad chunk"],
)
async def test_what_is_not_http_is_a_400_that_repeats_nothing(garbage, caplog):
    async with scripted() as backend, gateway(backend) as rig, wire(rig) as connection:
        connection.send(garbage)
        assert_error(await connection.reply(), 400)
        assert await connection.at_end()
        assert_untouched(rig, backend)
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


async def test_unknown_paths_and_methods_are_answered_as_vllm_does():
    async with scripted() as backend, gateway(backend) as rig:
        for path in ("/", "/v1/nothing", "/debug/state", "/v1/chat/completions/", "/metrics/../health%00"):
            reply = await rig.get(path)
            assert (reply.status, reply.body) == (404, b'{"detail":"Not Found"}')
        reply = await rig.get(CHAT)
        assert (reply.status, reply.body, reply.headers["Allow"]) == (405, b'{"detail":"Method Not Allowed"}', "POST")
        assert (await rig.post(path="/v1/models")).status == 405


@pytest.fixture
def keyring(tmp_path):
    """A configuration in mode keys, and a key for each of its tenants and for one that it does not know."""
    keys_file = tmp_path / "keys"
    auth = {"mode": "keys", "secret": SECRET, "keys_file": keys_file}
    tenants = ("alice", "bob", "stranger")
    made = {name: add_key(keys_file, tenant=name, secret=SECRET.encode(), created_at="now") for name in tenants}
    return {"auth": auth, "tenants": {"alice": {}, "bob": {}}}, made


def bearer(key):
    return {"Authorization": f"Bearer {key}"}


async def test_a_wrong_key_is_a_401_before_the_body_is_looked_at(keyring):
    config, keys = keyring
    async with scripted() as backend, gateway(backend, **config) as rig:
        wrong = [{}, bearer(MARKER), bearer(""), bearer("x" * 5000), {"Authorization": f"Basic {keys['alice']}"}]
        for headers in wrong:
            for body in (call(), b"no json"):
                reply = await rig.post(body, headers=headers)
                assert_error(reply, 401, code="invalid_api_key")
                assert reply.headers["WWW-Authenticate"] == "Bearer"
            assert (await rig.get("/v1/models", headers=headers)).status == 401
        assert_untouched(rig, backend)
        for headers in (bearer(keys["alice"]), {"X-Api-Key": keys["alice"]}):
            assert (await rig.post(headers=headers)).status == 200
        assert rig.service("alice") > 0
        assert rig.service("bob") == 0


async def test_a_key_of_a_tenant_that_is_gone_is_a_403(keyring):
    config, keys = keyring
    async with scripted() as backend, gateway(backend, **config) as rig:
        reply = await rig.post(headers=bearer(keys["stranger"]))
        assert_error(reply, 403, code="tenant_unknown")
        assert reply.headers[DROPPED] == "rejected-tenant-unknown"
        assert_untouched(rig, backend)


async def test_without_configuration_every_key_is_a_tenant_and_no_key_is_anonymous():
    async with scripted() as backend, gateway(backend) as rig:
        for headers in ({}, bearer("one"), bearer("two"), bearer("one"), {"X-Api-Key": "two"}):
            assert (await rig.post(headers=headers)).status == 200
        tenants = rig.snapshot().tenants
        assert len(tenants) == 3
        assert "anonymous" in tenants
        assert not any("one" in name or "two" in name for name in tenants)
        assert sorted(round(tenant.service / 15) for tenant in tenants.values()) == [1, 2, 2]


async def test_in_open_mode_an_idle_tenant_makes_room_for_a_new_one():
    async with scripted() as backend, gateway(backend, auth={"open_tenants_max": 2}) as rig:
        for key in ("one", "two", "three", "one"):
            assert (await rig.post(headers=bearer(key))).status == 200
        assert len(rig.snapshot().tenants) == 2


@pytest.fixture
async def crowded():
    """A gateway whose one seat is taken, by a call that runs until it is cancelled."""

    async def make(stack, **config):
        server = await stack.enter_async_context(engine(speed=0.01))
        entry = {"name": "b0", "url": server.url, "requests_running_max": 1}
        rig = await stack.enter_async_context(gateway(entry, **config))
        tasks = [asyncio.create_task(rig.post(call(max_tokens=4000), headers=bearer("holder")))]
        await until(lambda: rig.snapshot().in_flight_requests == 1)

        def queue(body=None, key="one"):
            tasks.append(asyncio.create_task(rig.post(body, headers=bearer(key))))

        async def release():
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await until(rig.idle)

        stack.push_async_callback(release)
        return rig, queue

    return make


def assert_turned_away(reply, status, *, dropped, kind):
    assert_error(reply, status)
    assert reply.headers[DROPPED] == dropped
    assert reply.error["type"] == kind
    assert 1 <= int(reply.headers["Retry-After"]) <= 3600


@pytest.fixture
async def stack():
    async with AsyncExitStack() as opened:
        yield opened


async def test_a_full_tenant_queue_is_a_429_of_that_tenant_only(stack, crowded):
    rig, queue = await crowded(stack, queue={"tenant_requests_max": 2})
    queue(), queue()
    await until(lambda: rig.snapshot().queued_requests == 2)
    reply = await rig.post(headers=bearer("one"))
    assert_turned_away(reply, 429, dropped="rejected-saturated", kind="rate_limit_error")
    queue(key="two")
    await until(lambda: rig.snapshot().queued_requests == 3)


async def test_a_full_gateway_is_a_429_for_everybody(stack, crowded):
    rig, queue = await crowded(stack, queue={"requests_max": 2, "tenant_requests_max": 2})
    queue(key="one"), queue(key="two")
    await until(lambda: rig.snapshot().queued_requests == 2)
    reply = await rig.post(headers=bearer("three"))
    assert_turned_away(reply, 429, dropped="rejected-saturated", kind="overloaded_error")


async def test_a_tenants_queued_bytes_are_bounded(stack, crowded):
    limits, sizes = {"body_bytes_max": 2000}, {"tenant_bytes_max": 2000, "bytes_max": 3000}
    rig, queue = await crowded(stack, queue=sizes, limits=limits)
    large = call(messages=[{"role": "user", "content": "x" * 1200}])
    queue(large)
    await until(lambda: rig.snapshot().queued_requests == 1)
    reply = await rig.post(large, headers=bearer("one"))
    assert_turned_away(reply, 429, dropped="rejected-saturated", kind="rate_limit_error")
    queue(large, key="two")
    await until(lambda: rig.snapshot().queued_requests == 2)
    reply = await rig.post(large, headers=bearer("three"))
    assert_turned_away(reply, 429, dropped="rejected-saturated", kind="overloaded_error")


async def test_who_waits_too_long_gets_a_429(stack, crowded):
    rig, _ = await crowded(stack, queue={"wait_s_max": 0.15})
    started = asyncio.get_running_loop().time()
    reply = await rig.post(headers=bearer("one"))
    assert_turned_away(reply, 429, dropped="rejected-ttl-expired", kind="overloaded_error")
    assert asyncio.get_running_loop().time() - started == pytest.approx(0.15, abs=0.1)
    assert rig.snapshot().queued_requests == 0


async def test_the_rate_limit_says_to_the_second_when_to_come_back(keyring):
    config, keys = keyring
    tenants = {"alice": {"requests_per_minute_max": 2}, "bob": {}}
    async with scripted() as backend, gateway(backend, **{**config, "tenants": tenants}) as rig:
        for _ in range(2):
            assert (await rig.post(headers=bearer(keys["alice"]))).status == 200
        reply = await rig.post(headers=bearer(keys["alice"]))
        assert_turned_away(reply, 429, dropped="rejected-saturated", kind="rate_limit_error")
        assert reply.headers["Retry-After"] == "60"
        assert (await rig.post(headers=bearer(keys["bob"]))).status == 200
        assert len(backend.calls) == 3


async def test_no_backend_that_lives_is_a_503():
    async with scripted() as backend, gateway(backend) as rig:
        backend.healthy = False
        await until(lambda: not rig.gateway.pools.any_available())
        reply = await rig.post()
        assert_turned_away(reply, 503, dropped="rejected-no-endpoints", kind="overloaded_error")
        assert (await rig.get("/readyz")).status == (await rig.get("/health")).status == 503
        assert (await rig.get("/livez")).status == 200
        backend.healthy = True
        await until(rig.gateway.pools.any_available)
        assert (await rig.post()).status == 200


async def test_a_model_that_a_silent_backend_may_have_is_a_503_not_a_404():
    async with scripted() as backend:
        silent = {"name": "silent", "url": "http://127.0.0.1:9"}
        async with gateway(backend, silent) as rig:
            assert (await rig.post(call(model="other"))).status == 503
            assert (await rig.post()).status == 200


async def test_the_debug_view_is_there_only_when_it_is_configured():
    async with scripted() as backend, gateway(backend, listen={"port": 0, "debug_state": True}) as rig:
        await rig.post()
        state = (await rig.get("/debug/state")).json["pools"]
        assert state[MODEL]["tenants"]["anonymous"]["service"] == 9 + 2 * 3


async def test_version_is_the_gateways_own():
    async with scripted() as backend, gateway(backend) as rig:
        assert (await rig.get("/version")).json["version"]


async def test_the_connection_serves_on_after_every_refusal():
    async with scripted() as backend, gateway(backend, limits={"body_bytes_max": 3000}) as rig, wire(rig) as connection:
        for body, status in ((b"no json", 400), (call(model="none"), 404), (b"x" * 3001, 413), (call(n=0), 400)):
            connection.send(http(body))
            assert_error(await connection.reply(), status)
        connection.send(http(HELLO, path="/nowhere"))
        assert (await connection.reply()).status == 404
        connection.send(http(call()))
        assert (await connection.reply()).status == 200
