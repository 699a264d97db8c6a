"""The surface: which paths there are, what each costs, and what the head of an answer says."""

import asyncio
import gzip
import json
import re

import aiohttp
import pytest
from admin_rig import admin
from gateway_rig import (
    CHAT,
    COMPLETIONS,
    HELLO,
    MARKER,
    MODEL,
    answer,
    assert_error,
    assert_untouched,
    bearer,
    call,
    engine,
    fall_silent,
    gateway,
    hang_up,
    scripted,
    snapshots_of,
    stream,
    until,
)

from backends.upstream import ConnectFailed, UpstreamAway
from gateway.api.endpoints import ENDPOINTS, ChargeRule
from gateway.config.key_file import add_key
from gateway.handlers.utilities import IN_FLIGHT_MAX

TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
FILE = b"\0\1\2" * 1000
FORM = {"Content-Type": "multipart/form-data; boundary=b"}
# Paths that vLLM has and that are not for tenants.
HIDDEN = [
    "/inference/v1/generate", "/inference/v1/abort_requests", "/invocations", "/scale_elastic_ep", "/metrics", "/load",
    "/sleep", "/wake_up", "/is_sleeping", "/v1/load_lora_adapter", "/v1/unload_lora_adapter", "/openapi.json", "/docs",
    "/v1/chat/completions/render", "/v1/chat/completions/derender", "/v1/completions/render", "/server_info",
    "/reset_prefix_cache", "/collective_rpc", "/start_profile", "/abort_requests", "/v1/systemone", "/tokenizer_info",
    "/generative_scoring", "/kv_event_sources", "/pause", "/cohere/v2/chat/render",
]  # fmt: skip
BODIES = {
    "/v1/chat/completions": call(),
    "/v1/completions": {"model": MODEL, "prompt": "hello", "max_tokens": 4},
    "/v1/responses": {"model": MODEL, "input": "hello", "max_output_tokens": 4},
    "/v1/messages": {"model": MODEL, "messages": HELLO, "max_tokens": 4},
    "/v1/chat/completions/batch": {"model": MODEL, "messages": [HELLO, HELLO], "max_tokens": 4},
    "/cohere/v2/chat": {"model": MODEL, "messages": HELLO, "max_tokens": 4},
    "/v2/embed": {"model": MODEL, "texts": ["hello", "there"], "input_type": "search_query"},
    "/v1/embeddings": {"model": MODEL, "input": ["hello", "there"]},
    "/score": {"model": MODEL, "text_1": "hello", "text_2": ["a", "b"]},
    "/v1/score": {"model": MODEL, "queries": "hello", "documents": ["a", "b"]},
    "/rerank": {"model": MODEL, "query": "hello", "documents": ["a", "b"]},
    "/v1/rerank": {"model": MODEL, "query": "hello", "documents": ["a", "b"]},
    "/v2/rerank": {"model": MODEL, "query": "hello", "documents": ["a", "b"]},
    "/pooling": {"model": MODEL, "input": "hello"},
    "/classify": {"model": MODEL, "input": "hello"},
    "/tokenize": {"model": MODEL, "prompt": "hello"},
    "/detokenize": {"model": MODEL, "tokens": [1, 2]},
    "/v1/messages/count_tokens": {"model": MODEL, "messages": HELLO},
}
SOUND = [endpoint.path for endpoint in ENDPOINTS if endpoint.multipart]
ANTHROPIC = ["/v1/messages", "/v1/messages/count_tokens"]


def form(**fields):
    parts = [f'--b\r\nContent-Disposition: form-data; name="{n}"\r\n\r\n{v}\r\n' for n, v in fields.items()]
    head = '--b\r\nContent-Disposition: form-data; name="file"; filename="a.wav"\r\n\r\n'
    return "".join(parts).encode() + head.encode() + FILE + b"\r\n--b--\r\n"


def charged(rig):
    snapshots = snapshots_of(rig.gateway.pools).values()
    return sum(tenant.service for snapshot in snapshots for tenant in snapshot.tenants.values())


def used(prompt, completion=None):
    usage = {"prompt_tokens": prompt, "total_tokens": prompt + (completion or 0)}
    return {"id": "x", "data": [], "usage": usage | ({} if completion is None else {"completion_tokens": completion})}


def test_every_path_with_a_body_is_tried_here():
    bodies = {each.path for each in ENDPOINTS if each.charge is not ChargeRule.NOTHING and "{id}" not in each.path}
    assert bodies == {*BODIES, *SOUND}


@pytest.mark.parametrize("path", BODIES)
async def test_a_call_reaches_the_same_path_as_it_was_sent_once(path):
    async with scripted(answer(used(7))) as backend, gateway(backend) as rig:
        body = json.dumps(BODIES[path]).encode()
        reply = await rig.post(body, path)
        assert (reply.status, reply.json) == (200, used(7))
        (asked,) = backend.calls
        assert (asked.method, asked.target, asked.body) == ("POST", path, body)
        assert asked.headers["content-type"] == "application/json"
        assert reply.headers["x-request-id"] == asked.headers["x-request-id"]


@pytest.mark.parametrize("path", [each.path for each in ENDPOINTS if each.charge is ChargeRule.PROMPT])
async def test_what_generates_nothing_is_charged_by_its_prompt(path):
    async with scripted(answer(used(7))) as backend, gateway(backend) as rig:
        await rig.post(BODIES[path], path)
        assert charged(rig) == 7
        assert rig.idle()


COHERE_USAGE = {"tokens": {"input_tokens": 50.0, "output_tokens": 6.0}, "billed_units": {"input_tokens": 50.0}}


@pytest.mark.parametrize("stream_asked", [False, True])
async def test_coheres_chat_is_charged_by_its_usage_whole_and_streamed(stream_asked):
    events = [
        {"type": "message-start", "id": "c"},
        {"type": "content-delta", "index": 0, "delta": {"message": {"content": {"text": "Hello"}}}},
        {"type": "message-end", "id": "c", "delta": {"finish_reason": "COMPLETE", "usage": COHERE_USAGE}},
    ]
    sent = [f"data: {json.dumps(event)}\n\n".encode() for event in events] + [b"data: [DONE]\n\n"]
    said = answer({"id": "c", "finish_reason": "COMPLETE", "message": {"content": []}, "usage": COHERE_USAGE})
    async with scripted(stream(*sent) if stream_asked else said) as backend, gateway(backend) as rig:
        reply = await rig.post(BODIES["/cohere/v2/chat"] | {"stream": stream_asked, "max_tokens": 9}, "/cohere/v2/chat")
        assert (reply.status, backend.calls[0].target) == (200, "/cohere/v2/chat")
        assert charged(rig) == 50 + 2 * 6
        if stream_asked:
            assert reply.body == b"".join(sent)


async def test_coheres_chat_has_coheres_errors():
    async with scripted() as backend, gateway(backend) as rig:
        reply = await rig.post({"model": MODEL, "messages": "x"}, "/cohere/v2/chat")
        assert (reply.status, reply.json.keys()) == (400, {"message"})


async def test_coheres_embeddings_are_charged_by_their_billed_units():
    said = {"embeddings": {"float": [[0.1]]}, "meta": {"billed_units": {"input_tokens": 7, "image_tokens": 2}}}
    async with scripted(answer(said)) as backend, gateway(backend) as rig:
        assert (await rig.post(BODIES["/v2/embed"], "/v2/embed")).json == said
        assert charged(rig) == 9


async def test_a_realtime_session_is_not_offered_and_says_so():
    async with scripted() as backend, gateway(backend) as rig:
        with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
            await rig.session.ws_connect(f"{rig.url}/v1/realtime?model={MODEL}")
        assert refused.value.status == 501
        assert_error(await rig.get("/v1/realtime"), 501, code="realtime_not_offered")


@pytest.mark.parametrize("coding", ["gzip", "deflate", "br", "zstd", "gzip, gzip"])
async def test_a_compressed_body_is_a_415_that_says_why(coding):
    async with scripted() as backend, gateway(backend) as rig:
        reply = await rig.post(gzip.compress(json.dumps(call()).encode()), headers={"Content-Encoding": coding})
        assert_error(reply, 415, code="body_compressed")
        assert reply.headers["Accept-Encoding"] == "identity"
        assert_untouched(rig, backend)
        assert (await rig.post(headers={"Content-Encoding": "identity"})).status == 200


@pytest.mark.parametrize("bad", ["00-1", "00-" + "0" * 32 + "-" + "1" * 16 + "-01", "x" * 55, "ff" + TRACE[2:]])
async def test_a_trace_that_is_none_is_not_passed_on(bad):
    async with scripted() as backend, gateway(backend) as rig:
        await rig.post(headers={"traceparent": bad, "tracestate": "a=b"})
        await rig.post(headers={"traceparent": TRACE, "tracestate": "a=b"})
        passed = [(each.headers.get("traceparent"), each.headers.get("tracestate")) for each in backend.calls]
        assert passed == [(None, None), (TRACE, "a=b")]


async def test_every_answer_says_fairlead(tmp_path):
    """Of the gateway and of its admin port: errors of the parser, probes, pages, what has no path."""
    pages = ["/health", "/livez", "/v1/models", "/nowhere", "/v1/chat/completions", "/v1/models/", "/v1/realtime"]
    async with scripted() as backend, admin(tmp_path, backend) as asked:
        rig = asked.rig
        replies = [await rig.get(path, allow_redirects=False) for path in pages]
        preflight = {"Origin": "https://a", "Access-Control-Request-Method": "POST"}
        async with rig.session.options(rig.url + CHAT, headers=preflight) as response:
            assert response.headers["Server"] == "fairlead"
        replies += [await asked.get(path) for path in ("/metrics", "/state", "/nowhere")]
        for port in (rig.port, int(asked.url.rsplit(":", 1)[1])):
            for garbage in (
                b"\0\0\r\n\r\n",
                b"GET / HTTP/1.1\r\n\r\n",
                b"GET /" + b"a" * 70_000 + b" HTTP/1.1\r\n\r\n",
            ):
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
                writer.write(garbage)
                raw = (await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 15)).decode()
                writer.close()
                assert "\r\nServer: fairlead\r\n" in raw, (port, garbage[:20], raw)
        assert {reply.headers["Server"] for reply in replies} == {"fairlead"}


@pytest.mark.parametrize("path", SOUND)
async def test_a_sound_is_sent_on_as_it_came_and_charged_by_its_usage(path):
    async with scripted(answer(used(50, 6))) as backend, gateway(backend) as rig:
        sent = form(model=MODEL, language="en")
        reply = await rig.post(sent, path, headers=FORM)
        assert reply.status == 200
        assert backend.calls[0].body == sent
        assert backend.calls[0].headers["content-type"] == FORM["Content-Type"]
        assert charged(rig) == 50 + 2 * 6


@pytest.mark.parametrize("path", SOUND)
async def test_a_bad_form_is_a_400_and_reaches_no_backend(path):
    async with scripted() as backend, gateway(backend) as rig:
        for body in (b"", b"no form", form()[:-10], b"--b\r\nContent-Disposition: form-data\r\n\r\nx\r\n--b--"):
            assert_error(await rig.post(body, path, headers=FORM), 400, code="invalid_form")
        assert_error(await rig.post(call(), path), 400, code="invalid_form")
        assert_untouched(rig, backend)


@pytest.mark.parametrize("path", HIDDEN)
async def test_what_is_not_in_the_table_does_not_exist(path):
    async with scripted() as backend, gateway(backend) as rig:
        for ask in (rig.get, rig.post):
            reply = await ask(path=path)
            assert (reply.status, reply.body) == (404, b'{"detail":"Not Found"}')
        assert backend.calls == []


@pytest.mark.parametrize("method", ["HEAD", "OPTIONS", "PUT", "DELETE", "PATCH"])
async def test_a_method_that_a_path_does_not_have_is_a_405_as_in_vllm(method):
    async with scripted() as backend, gateway(backend) as rig:
        for path in (CHAT, "/v1/models", "/health", "/v1/responses/resp_1"):
            async with rig.session.request(method, rig.url + path) as response:
                assert response.status == 405
                assert await response.read() in (b'{"detail":"Method Not Allowed"}', b"")


async def test_probes_answer_as_vllms_do():
    async with scripted() as backend, gateway(backend) as rig:
        for reply in (await rig.get("/health"), await rig.get("/ping"), await rig.post(path="/ping")):
            assert (reply.status, reply.body) == (200, b"")


# -- errors ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ANTHROPIC)
async def test_every_refusal_of_the_messages_api_has_its_shape(path):
    async with scripted() as backend, gateway(backend, limits={"body_bytes_max": 1000}) as rig:
        refusals = {
            400: await rig.post(b"{" + MARKER.encode(), path),
            404: await rig.post({**BODIES[path], "model": MARKER}, path),
            413: await rig.post(b"x" * 1001, path),
            401: await rig.post(BODIES[path], path, headers={"Authorization": f"Basic {MARKER}"}),
        }
        for status, reply in refusals.items():
            assert reply.status == status
            assert reply.json.keys() == {"type", "error"}
            assert reply.json["error"].keys() == {"type", "message"}
            assert MARKER not in reply.body.decode()
        assert_untouched(rig, backend)


@pytest.mark.parametrize("path", [*BODIES])
@pytest.mark.parametrize("content_type", ["text/plain", "application/jsonx", "", "multipart/form-data; boundary=b"])
async def test_a_body_of_another_type_is_a_400_as_in_vllm(path, content_type):
    async with scripted() as backend, gateway(backend) as rig:
        reply = await rig.post(BODIES[path], path, headers={"Content-Type": content_type})
        assert reply.status == 400
        assert_untouched(rig, backend)


@pytest.mark.parametrize("content_type", ["application/json", "Application/JSON", "application/json; charset=utf-8"])
async def test_json_is_json_however_its_type_is_written(content_type):
    async with scripted() as backend, gateway(backend) as rig:
        assert (await rig.post(headers={"Content-Type": content_type})).status == 200
        assert backend.calls[0].headers["content-type"] == "application/json"


@pytest.mark.parametrize("status", [400, 404, 422, 500])
@pytest.mark.parametrize("path", ["/v1/embeddings", "/tokenize", "/v1/messages"])
async def test_what_a_backend_refuses_is_told_in_its_words_and_costs_nothing_of_what_is_queued(path, status):
    said = {"error": {"message": "no", "type": "BadRequestError", "param": None, "code": status}}
    async with scripted(answer(said, status=status)) as backend, gateway(backend) as rig:
        reply = await rig.post(BODIES[path], path)
        assert (reply.status, reply.json) == (status, said)
        assert charged(rig) == (1 if path == "/tokenize" else 0)


# -- utilities ---------------------------------------------------------------------------------------------------


async def test_a_utility_costs_a_unit_and_does_not_wait():
    async with engine(speed=0.02) as server, gateway({"url": server.url, "requests_running_max": 1}) as rig:
        busy = asyncio.create_task(rig.post(call(max_tokens=2000, stream=True)))
        queued = asyncio.create_task(rig.post(call(max_tokens=2000)))
        await until(lambda: rig.snapshot().queued_requests)
        before = charged(rig)
        async with asyncio.timeout(2):
            tokens = (await rig.post(BODIES["/tokenize"], "/tokenize")).json["tokens"]
            text = (await rig.post({"model": MODEL, "tokens": tokens}, "/detokenize")).json["prompt"]
        assert text
        assert charged(rig) - before < 100
        assert rig.snapshot().queued_requests == 1
        for task in (busy, queued):
            task.cancel()


async def test_a_tenant_has_a_few_utilities_at_once():
    async with scripted(fall_silent) as backend, gateway(backend) as rig:
        asking = [asyncio.create_task(rig.post(BODIES["/tokenize"], "/tokenize")) for _ in range(IN_FLIGHT_MAX)]
        await until(lambda: len(backend.calls) == IN_FLIGHT_MAX)
        assert_error(await rig.post(BODIES["/tokenize"], "/tokenize"), 429)
        other = asyncio.create_task(rig.post(BODIES["/tokenize"], "/tokenize", headers=bearer("bob")))
        await until(lambda: len(backend.calls) == IN_FLIGHT_MAX + 1)
        for task in (*asking, other):
            task.cancel()
        await asyncio.gather(*asking, other, return_exceptions=True)
        backend.default = answer(used(1))
        await until(lambda: not rig.gateway._handlers._utilities._in_flight)
        assert (await rig.post(BODIES["/tokenize"], "/tokenize")).status == 200


async def test_a_utility_counts_as_a_request_of_the_minute():
    tenants = {"anonymous": {"requests_per_minute_max": 3}}
    async with scripted(answer(used(1))) as backend, gateway(backend, tenants=tenants) as rig:
        replies = [await rig.post(BODIES[path], path) for path in ("/tokenize", CHAT, "/detokenize", "/tokenize", CHAT)]
        assert [reply.status for reply in replies] == [200, 200, 200, 429, 429]
        assert int(replies[3].headers["retry-after"]) > 50
        assert len(backend.calls) == 3


async def test_a_utility_goes_to_the_next_backend_where_one_hangs_up():
    async with scripted(hang_up) as broken, scripted(answer(used(2))) as well, gateway(broken, well) as rig:
        for _ in range(4):
            assert (await rig.post(BODIES["/tokenize"], "/tokenize")).json == used(2)
        assert broken.calls
        assert charged(rig) == 4


async def test_a_utility_that_a_backend_holds_when_it_is_found_to_hang_goes_to_the_next_one():
    async with scripted(fall_silent) as hung, scripted(answer(used(2))) as well, gateway(hung, well) as rig:
        calls = [asyncio.create_task(rig.post(BODIES["/tokenize"], "/tokenize")) for _ in range(4)]
        await until(lambda: len(hung.calls) == 2)
        hung.healthy = False
        assert [(await each).json for each in calls] == [used(2)] * 4


@pytest.mark.parametrize("failure", [ConnectFailed, UpstreamAway])
async def test_the_version_is_asked_of_the_next_backend_where_one_dies_or_hangs(failure, monkeypatch):
    async def fails(*_args):
        raise failure("gone")

    async with engine() as gone, engine() as well, gateway(gone, well) as rig:
        upstreams = [each.upstream for each in rig.gateway._clients.by_id.values()]
        with monkeypatch.context() as both:
            for upstream in upstreams:
                both.setattr(upstream, "open", fails)
            assert_error(await rig.get("/version"), 502)
        monkeypatch.setattr(upstreams[0], "open", fails)
        assert (await rig.get("/version")).status == 200


async def test_a_utility_that_no_backend_answers_is_a_502():
    async with scripted(hang_up) as broken, gateway(broken) as rig:
        assert_error(await rig.post(BODIES["/tokenize"], "/tokenize"), 502)
        reply = await rig.post(BODIES["/v1/messages/count_tokens"], "/v1/messages/count_tokens")
        assert reply.json["error"]["type"] == "api_error"


async def test_an_operator_lists_further_paths_and_how_each_is_charged():
    listed = {"/v1/systemone": "generation", "/server_info": "unit", "/metrics": "unit"}
    async with engine() as server, scripted(answer(used(7, 3))) as backend:
        async with gateway(backend, endpoints=listed) as rig:
            reply = await rig.post({"model": MODEL, "question": "?", "max_tokens": 9, "priority": -1}, "/v1/systemone")
            assert reply.status == 200
            assert json.loads(backend.calls[0].body) == {"model": MODEL, "question": "?", "max_tokens": 9}
            assert charged(rig) == 7 + 2 * 3
            await rig.post({"model": MODEL}, "/server_info?a=b")
            assert backend.calls[1].target == "/server_info?a=b"
            assert charged(rig) == 7 + 2 * 3 + 1
        async with gateway(server, endpoints=listed) as rig:
            metrics = await rig.get("/metrics")
            assert b"vllm:num_requests_running" in metrics.body
            assert charged(rig) == 1
            assert (await rig.get("/v1/systemone")).status == 405


# -- heads -------------------------------------------------------------------------------------------------------


async def test_every_answer_has_the_name_of_its_request():
    async with scripted() as backend, gateway(backend) as rig:
        for path in ("/v1/models", "/health", "/nowhere", "/version", CHAT, "/v1/responses/resp_1"):
            assert re.fullmatch(r"fl-[0-9a-f]{16}", (await rig.get(path)).headers["x-request-id"]), path
            named = await rig.get(path, headers={"X-Request-Id": "mine"})
            assert named.headers["x-request-id"] == "mine", path


async def test_models_are_in_the_access_log_by_the_name_of_their_request(tmp_path):
    log = tmp_path / "access.jsonl"
    async with scripted() as backend, gateway(backend, access_log={"enabled": True, "path": str(log)}) as rig:
        await rig.get("/v1/models", headers={"X-Request-Id": "list-1", **bearer("alice")})
        await rig.post(BODIES["/tokenize"], "/tokenize", headers={"X-Request-Id": "tok-1"})
    lines = {line["request_id"]: line for line in map(json.loads, log.read_text().splitlines())}
    assert lines["list-1"]["endpoint"] == "/v1/models"
    assert lines["list-1"]["tenant"].startswith("key-")
    assert (lines["tok-1"]["status"], lines["tok-1"]["backend"], lines["tok-1"]["model"]) == (200, "b0", MODEL)


async def test_a_body_names_its_request_where_no_header_does():
    async with scripted() as backend, gateway(backend) as rig:
        reply = await rig.post(call(request_id="by-body"))
        assert reply.headers["x-request-id"] == backend.calls[0].headers["x-request-id"] == "by-body"
        assert "request_id" not in json.loads(backend.calls[0].body)


async def test_a_tenant_with_limits_is_told_how_they_stand_on_answers_and_refusals():
    tenants = {"anonymous": {"requests_per_minute_max": 2, "tokens_per_minute_max": 100_000}}
    async with engine() as server, gateway(server, tenants=tenants) as rig:
        replies = [await rig.post(call(stream=number == 1)) for number in range(3)]
        assert [reply.status for reply in replies] == [200, 200, 429]
        for left, reply in zip((1, 0, 0), replies, strict=True):
            assert reply.headers["x-ratelimit-limit-requests"] == "2"
            assert reply.headers["x-ratelimit-remaining-requests"] == str(left)
            assert re.fullmatch(r"\d+(\.\d+)?s|1m0s", reply.headers["x-ratelimit-reset-requests"])
            assert reply.headers["x-ratelimit-limit-tokens"] == "100000"
            assert int(reply.headers["x-ratelimit-remaining-tokens"]) < 100_000
        others = await rig.post(headers=bearer("alice"))
        assert not any(name.lower().startswith("x-ratelimit") for name in others.headers)


async def test_where_a_call_waited_and_ran_is_told_where_the_operator_says_so():
    async with engine() as server:
        async with gateway(server) as rig:
            reply = await rig.post()
            assert not {"x-fairlead-queue-ms", "x-fairlead-backend"} & {name.lower() for name in reply.headers}
        async with gateway(server, listen={"port": 0, "show_queue_ms": True, "show_backend": True}) as rig:
            for stream in (False, True):
                reply = await rig.post(call(stream=stream))
                assert reply.headers["x-fairlead-backend"] == "b0"
                assert 0 <= int(reply.headers["x-fairlead-queue-ms"]) < 5000
            assert "x-fairlead-backend" not in (await rig.post(b"no json")).headers


# -- pages -------------------------------------------------------------------------------------------------------

PAGE = {"Origin": "https://page.example"}
PREFLIGHT = {**PAGE, "Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "authorization"}


async def test_no_page_may_ask_by_default_as_in_vllm():
    async with scripted() as backend, gateway(backend) as rig:
        async with rig.session.options(rig.url + CHAT, headers=PREFLIGHT) as response:
            assert response.status == 400
        assert "access-control-allow-origin" not in (await rig.post(call(), headers=PAGE)).headers


async def test_any_page_may_ask_where_all_are_allowed():
    async with scripted() as backend, gateway(backend, listen={"port": 0, "allowed_origins": ["*"]}) as rig:
        async with rig.session.options(rig.url + CHAT, headers=PREFLIGHT) as response:
            assert (response.status, await response.text()) == (200, "OK")
            assert response.headers["access-control-allow-origin"] == "*"
            assert response.headers["access-control-allow-headers"] == "authorization"
            assert "POST" in response.headers["access-control-allow-methods"]
        for stream in (False, True):
            assert (await rig.post(call(stream=stream), headers=PAGE)).headers["access-control-allow-origin"] == "*"
        for path in ("/v1/models", "/nowhere"):
            assert (await rig.get(path, headers=PAGE)).headers["access-control-allow-origin"] == "*"
            assert "access-control-allow-origin" not in (await rig.get(path)).headers


async def test_only_listed_pages_may_ask_where_there_is_a_list():
    listen = {"port": 0, "allowed_origins": [PAGE["Origin"]]}
    async with scripted() as backend, gateway(backend, listen=listen) as rig:
        assert (await rig.post(headers=PAGE)).headers["access-control-allow-origin"] == PAGE["Origin"]
        other = {"Origin": "https://other.example"}
        assert "access-control-allow-origin" not in (await rig.post(headers=other)).headers
        async with rig.session.options(rig.url + CHAT, headers=PREFLIGHT | other) as response:
            assert response.status == 400


# -- whose call it is --------------------------------------------------------------------------------------------


async def test_a_tenant_is_named_by_a_trusted_proxy_and_by_no_other_peer():
    headers = {"X-Tenant-ID": "team-a"}
    async with scripted() as backend:
        async with gateway(backend) as rig:
            await rig.post(headers=headers)
            assert set(rig.snapshot().tenants) == {"anonymous"}
        async with gateway(backend, auth={"trusted_proxies": ["10.0.0.0/8", "127.0.0.1/32"]}) as rig:
            await rig.post(headers=headers)
            await rig.post(headers={"x-llm-d-inference-fairness-id": "team-b"})
            await rig.post(headers={"X-Gateway-Inference-Fairness-Id": "team-c"})
            assert (await rig.post(headers={"X-Tenant-ID": "no tenant!"})).status == 401
            await rig.post()
            assert set(rig.snapshot().tenants) == {"team-a", "team-b", "team-c", "anonymous"}
        assert all("x-tenant-id" not in asked.headers for asked in backend.calls)


async def test_a_trusted_proxy_needs_no_key_where_others_do(tmp_path):
    secret = b"s" * 32
    key = add_key(tmp_path / "keys", secret=secret, tenant="alice", created_at="2026-01-01T00:00:00+00:00")
    auth = {"mode": "keys", "secret": secret.decode(), "keys_file": str(tmp_path / "keys")}
    async with scripted() as backend:
        config = {"tenants": {"alice": {}, "bob": {}}}
        async with gateway(backend, auth={**auth, "trusted_proxies": ["127.0.0.0/8"]}, **config) as rig:
            assert (await rig.post(headers={"X-Tenant-ID": "bob"})).status == 200
            assert (await rig.post(headers={"X-Tenant-ID": "carol"})).status == 403
            assert (await rig.post(headers=bearer(key))).status == 200
            assert (await rig.post()).status == 401
            assert set(rig.snapshot().tenants) == {"alice", "bob"}
        async with gateway(backend, auth=auth, **config) as rig:
            assert (await rig.post(headers={"X-Tenant-ID": "bob"})).status == 401


async def test_the_tenant_may_be_the_model_or_adapter():
    async with engine(adapters=("poet",)) as server:
        config = {"auth": {"tenant_from": "model"}, "tenants": {"poet": {"weight": 3}}}
        async with gateway(server, **config) as rig:
            for model in (MODEL, "poet"):
                await rig.post(call(model=model), headers=bearer("alice"))
            assert set(rig.snapshot().tenants) == {MODEL, "poet"}


async def test_prefixes_are_kept_apart_as_the_operator_says():
    async def salts(rig, backend):
        backend.calls.clear()
        for key in ("alice", "bob"):
            for body in (call(), call(cache_salt="mine", stream=True)):
                await rig.post(body, headers=bearer(key))
        return [json.loads(asked.body).get("cache_salt") for asked in backend.calls]

    async with scripted() as backend:
        async with gateway(backend) as rig:
            assert await salts(rig, backend) == [None, "mine"] * 2
        async with gateway(backend, auth={"cache_isolation": "tenant"}) as rig:
            found = await salts(rig, backend)
            assert len(set(found)) == 4
            assert "mine" not in found
        async with gateway(backend, auth={"cache_isolation": "tier"}) as rig:
            alices, alices_own, bobs, bobs_own = await salts(rig, backend)
            assert alices == bobs != alices_own == bobs_own


async def test_an_envelope_reaches_the_scheduler_and_a_header_may_tighten_it():
    seen = []

    class Spy:
        def __init__(self, scheduler):
            self._scheduler = scheduler

        def __getattr__(self, name):
            return getattr(self._scheduler, name)

        def arrived(self, request, now):
            seen.append(request.envelope)
            return self._scheduler.arrived(request, now)

    tiers = {"default": {"envelope": {"ttft_ms": 1000, "tpot_ms": 50}}}
    async with scripted() as backend, gateway(backend, tiers=tiers, wrap_scheduler=lambda _, s: Spy(s)) as rig:
        await rig.post()
        await rig.post(path=COMPLETIONS, body=BODIES[COMPLETIONS], headers={"x-llm-d-slo-ttft-ms": "200"})
        await rig.post(headers={"x-slo-tpot-ms": "5000"})
        assert [(each.ttft_s, each.tpot_s) for each in seen] == [(1.0, 0.05), (0.2, 0.05), (1.0, 0.05)]
