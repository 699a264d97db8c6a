"""Bad input: a clear 4xx in the API's shape, that repeats nothing; and nothing happened besides."""

import json

import openai
import pytest
from gateway_rig import (
    CHAT,
    COMPLETIONS,
    HELLO,
    MARKER,
    MODEL,
    assert_error,
    assert_untouched,
    call,
    gateway,
    gateway_and_engine,
    http,
    scripted,
    stream,
    wire,
)
from yarl import URL

from gateway.http import request_reader

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
    "far too deep": nested(90_000),  # long, and still of fewer values than are refused as too many
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
    "n too large": {"n": 17},
    "n huge": {"n": 10**30},
    "n fraction": {"n": 1.5},
    "best_of too large": {"best_of": 100},
    "max_tokens over the limit": {"max_tokens": 10**9},
    "max_completion_tokens list": {"max_completion_tokens": [8]},
    "stream text": {"stream": MARKER},
    "stream_options no object": {"stream": True, "stream_options": MARKER},
    "include_usage text": {"stream": True, "stream_options": {"include_usage": "please"}},
    "n text": {"n": MARKER},
    "max_tokens text": {"max_tokens": MARKER},
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


REFUSED = (
    b'data: {"error": {"message": "The decoder prompt cannot be empty", "type": "BadRequestError", "param": null, '
    b'"code": 400}}\n\ndata: [DONE]\n\n'
)


async def test_what_a_backend_refuses_within_its_stream_passes_costs_nothing_and_says_nothing_against_it():
    async with scripted(stream(REFUSED)) as backend, gateway(backend) as rig:
        for _ in range(20):  # enough failures would have it ejected
            reply = await rig.post({"model": MODEL, "prompt": ["a", ""], "stream": True}, COMPLETIONS)
            assert (reply.status, reply.body) == (200, REFUSED)
        assert len(backend.calls) == 20
        assert all(tenant.service == 0 for tenant in rig.snapshot().tenants.values())
        assert set(rig.gateway.backends.states().values()) == {"healthy"}


async def test_an_error_after_a_token_is_the_backends_whatever_its_code():
    token = b'data: {"choices": [{"index": 0, "text": "a", "finish_reason": null}]}\n\n'
    async with scripted(stream(token + REFUSED)) as backend, gateway(backend) as rig:
        reply = await rig.post({"model": MODEL, "prompt": "a", "stream": True}, COMPLETIONS)
        assert b"[DONE]" not in reply.body
        assert b'"error"' in reply.body


async def test_bad_input_through_the_official_client_is_a_bad_request_error():
    async with gateway_and_engine() as (rig, _), rig.openai() as client:
        with pytest.raises(openai.BadRequestError) as caught:
            await client.chat.completions.create(**call(n=100))
        assert caught.value.param == "n"
        with pytest.raises(openai.NotFoundError) as missing:
            await client.chat.completions.create(**call(model="none"))
        assert missing.value.body["reason"] == "model_not_found"
        assert "GET /v1/models" in missing.value.body["message"]


async def test_an_unknown_model_is_a_404_in_the_apis_shape():
    async with scripted() as backend, gateway(backend) as rig:
        reply = await rig.post(call(model=MARKER))
        assert_error(reply, 404, code="model_not_found")
        assert_untouched(rig, backend)


async def test_a_body_over_the_limit_is_a_413_declared_or_not():
    async with scripted() as backend, gateway(backend, limits={"body_bytes_max": 1000}) as rig:
        reply = await rig.post(b"x" * 1001)
        assert_error(reply, 413, code="body_too_large")
        assert b"more than the 1000 bytes" in reply.body

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


async def test_a_header_over_the_limit_is_a_431(monkeypatch):
    monkeypatch.setattr(request_reader, "LINE_BYTES_MAX", 4096)
    async with scripted() as backend, gateway(backend) as rig:
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
        for path in (
            "/",
            "/v1/nothing",
            "/debug/state",
            "/v1/nothing/",
            "//",
            "/debug/state/",
            "/metrics/../health%00",
        ):
            reply = await rig.get(path)
            assert (reply.status, reply.body) == (404, b'{"detail":"Not Found"}')
        reply = await rig.get(CHAT)
        assert (reply.status, reply.body, reply.headers["Allow"]) == (405, b'{"detail":"Method Not Allowed"}', "POST")
        assert (await rig.post(path="/v1/models")).status == 405


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        ("/v1/models/", "/v1/models"),
        ("/v1/chat/completions///?a=b%20c", "/v1/chat/completions?a=b%20c"),
        ("/v1/ch%61t/completions/", "/v1/chat/completions"),
        ("/v1/responses/resp_1/cancel/", "/v1/responses/resp_1/cancel"),
    ],
)
async def test_a_path_with_a_slash_behind_is_told_where_it_is_and_goes_nowhere(asked, told):
    async with scripted() as backend, gateway(backend) as rig:
        for method in ("GET", "POST"):
            async with rig.session.request(method, URL(rig.url + asked, encoded=True), allow_redirects=False) as reply:
                assert (reply.status, reply.headers["location"], await reply.read()) == (307, told, b"")
        assert_untouched(rig, backend)


async def test_a_client_that_follows_a_redirection_is_served():
    async with scripted() as backend, gateway(backend) as rig:
        assert (await rig.post(path=CHAT + "/")).status == 200
        assert backend.calls[0].target == CHAT


async def test_the_connection_serves_on_after_every_refusal():
    async with scripted() as backend, gateway(backend, limits={"body_bytes_max": 3000}) as rig, wire(rig) as connection:
        for body, status in ((b"no json", 400), (call(model="none"), 404), (b"x" * 3001, 413), (call(n=99), 400)):
            connection.send(http(body))
            assert_error(await connection.reply(), status)
        connection.send(http(HELLO, path="/nowhere"))
        assert (await connection.reply()).status == 404
        connection.send(http(call()))
        assert (await connection.reply()).status == 200
