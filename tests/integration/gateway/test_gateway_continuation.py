"""Streams and whole answers whose backend fails go on at another one, and are charged once."""

import asyncio
import json

import orjson
import pytest
from gateway_rig import SLOW, answer, call, engine, gateway, scripted, stream, tokens_emitted, until

from backends.live_backend import LiveBackend
from policies.types import Cause

pytestmark = pytest.mark.jumping

TOKENS = 40
CUT_AFTER = 6
ABORTED = {
    "choices": [{"index": 0, "message": {"content": "half"}, "finish_reason": "abort"}],
    "usage": {"prompt_tokens": 5, "completion_tokens": 1},
}
ENDING = {
    "error": {"message": "cannot schedule new futures after shutdown", "type": "InternalServerError", "code": 500}
}
DIED = {"error": {"message": "EngineCore encountered an issue. See stack trace (above).", "code": 500}}


def vllm_at(backend):
    return {"name": "b0", "url": backend.url, "kind": "vllm"}


@pytest.mark.parametrize("ending", ["cut_stream_after_tokens", "fail_stream_after_tokens"])
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
async def test_a_stream_goes_on_at_another_backend(ending, path):
    """One answer: one role, one finish, as many tokens as were asked for, each charged once, and one prompt."""
    async with engine(**{ending: CUT_AFTER}) as bad, engine() as good, gateway(bad, good) as rig:
        before = 0.0
        for number in range(4):  # some of them begin at the bad one
            words = (
                {"messages": [{"role": "user", "content": f"hello {number}"}]}
                if "chat" in path
                else {"prompt": "hello"}
            )
            body = {"model": "tiny", "stream": True, "max_tokens": TOKENS, **words}
            reply = await rig.post({**body, "stream_options": {"include_usage": True}}, path=path)
            assert reply.status == 200
            *events, done = reply.events
            assert done == "[DONE]"
            messages = [json.loads(each) for each in events]
            assert not [each for each in messages if "error" in each]
            assert len({each["id"] for each in messages}) == 1
            choices = [choice for each in messages for choice in each["choices"]]
            assert [choice["finish_reason"] for choice in choices if choice["finish_reason"]] == ["length"]
            assert sum("role" in choice.get("delta", {}) for choice in choices) == ("chat" in path)
            usage = messages[-1]["usage"]
            assert usage["completion_tokens"] == TOKENS
            assert rig.service() - before == pytest.approx(usage["prompt_tokens"] + 2 * TOKENS)
            before = rig.service()
        await until(rig.idle)
        assert rig.snapshot().interruptions[Cause.FAILED] >= 1


async def test_a_stream_that_no_backend_can_continue_ends_with_an_error_event():
    async with engine(cut_stream_after_tokens=CUT_AFTER) as bad, gateway(bad) as rig:
        reply = await rig.post(call(stream=True, max_tokens=TOKENS))
        assert reply.status == 200
        assert json.loads(reply.events[-1])["error"]["code"] == 502
        assert "[DONE]" not in reply.events
        await until(rig.idle)


async def test_a_stream_that_gives_up_its_memory_ends_where_it_is_cut_and_leaks_no_id():
    """The younger stream takes the memory of the older one, while both run. Two times 160 bytes of ids do not fit."""
    async with (
        engine(**{**SLOW, "cut_stream_after_tokens": TOKENS - 10}) as bad,
        engine() as good,
        gateway(bad, good) as rig,
    ):
        held = rig.gateway._handlers._continuation.held
        held._bytes_max = 800
        older = asyncio.create_task(rig.post(call(stream=True, max_tokens=TOKENS)))
        await until(lambda: held.bytes)
        assert 400 < held.bytes <= 800
        assert rig.snapshot().backends["b0"].in_flight_requests == 1
        younger = asyncio.create_task(rig.post(call(stream=True, max_tokens=TOKENS)))
        reply = await older
        assert json.loads(reply.events[-1])["error"]["code"] == 502
        assert b'token_ids":[' not in reply.body
        younger.cancel()
        await until(lambda: not held.bytes)


async def test_ids_of_an_excluded_stream_stay_here_too():
    """The gateway has asked for them before it saw that reasoning is parsed."""
    body = call(stream=True, max_tokens=4)
    async with engine() as good:
        begun = await begun_by(good, body, 1 + 4)
    parsed = begun.replace(b'"content":""', b'"content":"","reasoning":"hm"', 1) + b"data: [DONE]\n\n"
    async with scripted(stream(parsed)) as backend, gateway(vllm_at(backend)) as rig:
        reply = await rig.post(body)
        assert b'"reasoning":"hm"' in reply.body
        assert b"token_ids" in reply.body
        assert b'token_ids":[' not in reply.body


async def begun_by(good, body, events_kept):
    """The first events that this backend sends to a call, as bytes."""
    async with gateway(good) as rig:
        events = (await rig.post({**body, "return_token_ids": True})).body.split(b"\n\n")
    return b"".join(event + b"\n\n" for event in events[:events_kept])


def in_reads(data, size):
    return [data[start : start + size] for start in range(0, len(data), size)]


@pytest.mark.parametrize(
    "written",
    [
        lambda data: in_reads(data, 100),
        lambda data: in_reads(data, 300),
        lambda data: [b": waiting\n\n", data],
        lambda data: [b": waiting\n\n" + data],
        lambda data: [data.replace(b":[", b": [")],
    ],
    ids=["reads of 100", "of 300", "a comment before", "a comment in its read", "a space after a colon"],
)
async def test_ids_that_the_client_did_not_ask_for_stay_here_however_the_first_event_comes(written):
    """And the stream goes on at another backend."""
    body = call(stream=True, max_tokens=TOKENS)
    async with engine() as good:
        begun = await begun_by(good, body, CUT_AFTER)
        cut = stream(*written(begun), pause_s=0.002, end=False)
        async with scripted(cut) as backend, gateway(vllm_at(backend), good) as rig:
            while not backend.calls:  # some calls begin at the good one
                reply = await rig.post(body)
    events = [event for event in reply.body.split(b"\n\n") if event.startswith(b"data: {")]
    messages = [json.loads(event.removeprefix(b"data: ")) for event in events]
    choices = [choice for message in messages for choice in message["choices"]]
    assert [message for message in messages if message.get("prompt_token_ids")] == []
    assert [choice for choice in choices if choice.get("token_ids")] == []
    assert [choice["finish_reason"] for choice in choices if choice["finish_reason"]] == ["length"]
    assert reply.body.endswith(b"data: [DONE]\n\n")


@pytest.mark.parametrize("cut_at", range(0, 700, 50))
async def test_a_cut_before_the_first_event_is_whole_is_no_loss(cut_at):
    """The client has been sent nothing, so its call is sent again."""
    body = call(stream=True, max_tokens=4)
    async with engine() as good:
        first = await begun_by(good, body, 1)
        head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
        answer = head + b"%x\r\n" % len(first) + first

        async def cut(reader, writer):
            writer.write(answer[: min(cut_at, len(answer) - 3)])
            return False

        async with scripted(cut) as backend, gateway(vllm_at(backend), good) as rig:
            while not backend.calls:
                reply = await rig.post(body)
            assert (reply.status, reply.events[-1]) == (200, "[DONE]")
            await until(rig.idle)


STOPPED = b'data: {"object":"text_completion","choices":[{"index":0,"text":"","finish_reason":"abort"}]}\n\n'


@pytest.mark.parametrize("first", [b"data: " + orjson.dumps(DIED) + b"\n\n", STOPPED], ids=["engine died", "stopped"])
@pytest.mark.parametrize("fields", [{}, {"presence_penalty": 0.5}], ids=["resumable", "excluded"])
async def test_a_stream_that_its_backend_stops_before_the_first_token_is_sent_again(first, fields):
    body = {"model": "tiny", "prompt": "hello", "stream": True, "max_tokens": TOKENS, **fields}
    async with (
        scripted(stream(first, b"data: [DONE]\n\n")) as bad,
        engine() as good,
        gateway(vllm_at(bad), good) as rig,
    ):
        while not bad.calls:
            reply = await rig.post(body, path="/v1/completions")
        assert (reply.status, reply.events[-1]) == (200, "[DONE]")
        assert json.loads(reply.events[-2])["choices"][0]["finish_reason"] == "length"
        await until(rig.idle)


@pytest.mark.parametrize("usage", [True, False])
async def test_an_excluded_stream_that_lacks_only_its_end_gets_it(usage):
    body = call(stream=True, max_tokens=4, stream_options={"include_usage": usage}, presence_penalty=0.5)
    asked = {"include_usage": True, "continuous_usage_stats": True}  # by the gateway
    async with engine() as good:
        begun = await begun_by(good, {**body, "stream_options": asked}, 1 + 4)
    async with scripted(stream(begun, end=False)) as backend, gateway(vllm_at(backend)) as rig:
        reply = await rig.post(body)
        assert len(backend.calls) == 1
        assert reply.events[-1] == "[DONE]"
        assert json.loads(reply.events[-2 - usage])["choices"][0]["finish_reason"] == "length"
        assert not usage or json.loads(reply.events[-2])["usage"]["completion_tokens"] == 4
        await until(rig.idle)


async def test_a_stream_that_lacks_only_its_end_is_ended_without_another_backend():
    body = call(stream=True, max_tokens=4, stream_options={"include_usage": True})
    async with engine() as good:
        begun = await begun_by(good, body, 1 + 4)  # the role, and all tokens
    async with scripted(stream(begun, end=False)) as backend, gateway(vllm_at(backend)) as rig:
        reply = await rig.post(body)
        assert len(backend.calls) == 1
        *_, usage, done = reply.events
        assert (json.loads(usage)["usage"]["completion_tokens"], done) == (4, "[DONE]")
        await until(rig.idle)


async def test_a_part_of_an_answer_is_not_passed_on_to_another_model():
    """Of the alias that was asked."""
    body, alone = call(stream=True, max_tokens=TOKENS, model="chat"), {"queue": {"backend_wait_s_max": 0.2}}
    async with engine() as good:
        begun = await begun_by(good, {**body, "model": "tiny"}, CUT_AFTER)
    async with scripted() as cut, scripted(model="other") as other:

        async def end_after_tokens(reader, writer):
            cut.healthy = False
            return await stream(begun, end=False)(reader, writer)

        cut.default = end_after_tokens
        aliases = {"chat": {"models": ["tiny", "other"]}}
        async with gateway(vllm_at(cut), {"name": "b1", "url": other.url}, aliases=aliases, **alone) as rig:
            reply = await rig.post(body)
            assert json.loads(reply.events[-1])["error"]
            assert (len(cut.calls), other.calls) == (1, [])
            await until(rig.idle)


async def test_a_backend_that_refuses_to_continue_a_stream_is_not_broken():
    refused = answer({"error": {"message": "no", "code": 400}}, status=400)
    async with (
        engine(cut_stream_after_tokens=CUT_AFTER) as bad,
        scripted(refused) as refusing,
        gateway(bad, {"name": "b1", "url": refusing.url, "kind": "vllm"}) as rig,
    ):
        while not any(asked.target == "/v1/completions" for asked in refusing.calls):
            reply = await rig.post(call(stream=True, max_tokens=TOKENS))
        assert json.loads(reply.events[-1])["error"]["code"] == 502
        assert rig.gateway.backends["b1"].health._broken == 0
        await until(rig.idle)


@pytest.mark.parametrize("status", [404, 429, 500])
async def test_a_backend_that_does_not_answer_a_question_is_left_for_another(status):
    """A stream with stop strings is continued after a question about its text."""
    failed = answer({"error": {"message": "no", "code": status}}, status=status)
    async with (
        engine(cut_stream_after_tokens=CUT_AFTER) as bad,
        scripted(failed) as failing,
        engine() as good,
        gateway(bad, {"name": "b1", "url": failing.url, "kind": "vllm"}, good) as rig,
    ):
        while not any(asked.target == "/detokenize" for asked in failing.calls):
            reply = await rig.post(
                call(stream=True, max_tokens=TOKENS, stop=["never"], include_stop_str_in_output=True)
            )
        assert reply.events[-1] == "[DONE]"
        await until(rig.idle)


async def test_an_excluded_stream_ends_with_an_error_event():
    shown = {"listen": {"port": 0, "show_backend": True}}
    async with engine(cut_stream_after_tokens=CUT_AFTER) as bad, gateway(bad, **shown) as rig:
        reply = await rig.post(call(stream=True, max_tokens=TOKENS, presence_penalty=0.5))
        assert reply.headers["x-fairlead-resumable"] == "no"
        assert "error" in json.loads(reply.events[-1])
        reply = await rig.post(call(stream=True, max_tokens=2))
        assert reply.headers["x-fairlead-resumable"] == "yes"


async def test_resends_that_are_off_leave_a_stream_where_it_broke():
    once = {"limits": {"resends_max": 0}}
    async with engine(cut_stream_after_tokens=CUT_AFTER) as bad, engine() as good, gateway(bad, good, **once) as rig:
        replies = [await rig.post(call(stream=True, max_tokens=TOKENS)) for _ in range(4)]
        assert any("lost" in reply.events[-1] for reply in replies)


@pytest.mark.parametrize(
    ("body", "status"), [(ABORTED, 200), (DIED, 500), (ENDING, 500)], ids=["stopped", "engine died", "vLLM ends"]
)
@pytest.mark.parametrize("streams", [False, True])
async def test_a_whole_answer_that_was_not_finished_is_asked_for_again(body, status, streams):
    async with (
        scripted(answer(), answer(orjson.dumps(body), status=status)) as backend,
        gateway(vllm_at(backend)) as rig,
    ):
        reply = await rig.post(call(stream=streams))
        assert reply.status == 200
        assert b"half" not in reply.body
        assert len(backend.calls) == 2


async def test_a_backend_without_token_ids_is_asked_for_them_and_nothing_more():
    """Of an older vLLM: its stream passes as it is, and a cut is an error."""
    token = b'data: {"choices":[{"index":0,"delta":{"content":"a"},"finish_reason":null}]}\n\n'
    async with scripted(stream(token, end=False)) as backend, gateway(vllm_at(backend)) as rig:
        reply = await rig.post(call(stream=True))
        assert json.loads(backend.calls[-1].body)["return_token_ids"] is True
        assert "lost" in json.loads(reply.events[-1])["error"]["message"]


async def test_a_stream_whose_backend_falls_silent_after_tokens_goes_on_at_another():
    body = call(stream=True, max_tokens=TOKENS)
    async with engine() as good:
        begun = await begun_by(good, body, CUT_AFTER)

        async def fall_silent_after_tokens(reader, writer):
            await stream(begun, end=False)(reader, writer)
            await reader.read()  # until the gateway has left
            return False

        impatient, due = {"continuation": {"silence_s": 0.5}}, 0
        async with scripted(fall_silent_after_tokens) as silent, gateway(vllm_at(silent), good, **impatient) as rig:
            while not silent.calls:  # some calls begin at the good one
                reply = await rig.post({**body, "stream_options": {"include_usage": True}})
                assert reply.events[-1] == "[DONE]"
                usage = json.loads(reply.events[-2])["usage"]
                assert usage["completion_tokens"] == TOKENS
                due += usage["prompt_tokens"] + 2 * TOKENS
            assert rig.service() == pytest.approx(due)


async def test_what_a_backend_runs_that_is_down_goes_on_at_another():
    """A stream that has begun, and a call that has not; silence alone would be waited for 60 s."""
    body = call(stream=True, max_tokens=TOKENS)
    async with engine() as good:
        begun = await begun_by(good, body, CUT_AFTER)

        async def hang(reader, writer):
            if len(hung.calls) == 1:
                await stream(begun, end=False)(reader, writer)
            await reader.read()  # until the gateway has left
            return False

        async with scripted(hang) as hung, gateway(vllm_at(hung), good) as rig:
            rig.gateway.backends.drain("b1", draining=True)
            asked = [asyncio.create_task(rig.post(each)) for each in (body, call(max_tokens=TOKENS))]
            await until(lambda: len(hung.calls) == 2)
            rig.gateway.backends.drain("b1", draining=False)
            hung.healthy = False
            await until(lambda: rig.gateway.backends.states()["b0"] == "down")
            async with asyncio.timeout(10):
                streamed, whole = await asyncio.gather(*asked)
            assert streamed.events[-1] == "[DONE]"
            assert whole.json["usage"]["completion_tokens"] == TOKENS


def named(number, backend, **fields):
    return {"name": f"b{number}", "url": backend.url, **fields}


@pytest.mark.parametrize(("options", "entry", "difference"), [
    ({"max_model_len": 2048}, {}, "max_model_len"), ({}, {"revision": "v2"}, "revision"),
])  # fmt: skip
async def test_a_stream_does_not_go_on_with_another_model(options, entry, difference):
    async with (
        engine(**SLOW) as one,
        engine(**options) as other,
        gateway(named(0, one), named(1, other, **entry)) as rig,
    ):
        rig.gateway.backends.drain("b1", draining=True)
        asked = asyncio.create_task(rig.post(call(stream=True, max_tokens=TOKENS)))
        await until(lambda: tokens_emitted(one))
        rig.gateway.backends.drain("b1", draining=False)
        await one.stop()
        reply = await asked
        assert "error" in json.loads(reply.events[-1])
        assert tokens_emitted(other) == 0
        await until(rig.idle)
        text = (await rig.gateway.metrics.exposition()).decode()
        assert f'fairlead_streams_not_continued_total{{difference="{difference}"}} 1' in text


@pytest.mark.parametrize("unknown", ["b0", "b1"])
async def test_a_stream_does_not_go_on_where_it_is_not_known_whether_the_model_is_the_same(unknown, monkeypatch):
    """A backend has not told yet how it tokenizes."""
    known = LiveBackend.identified

    def identified(backend, model):
        return (lambda: None) if backend.spec.id == unknown else known(backend, model)

    monkeypatch.setattr(LiveBackend, "identified", identified)
    async with engine(**SLOW) as one, engine() as other, gateway(named(0, one), named(1, other)) as rig:
        rig.gateway.backends.drain("b1", draining=True)
        asked = asyncio.create_task(rig.post(call(stream=True, max_tokens=TOKENS)))
        await until(lambda: tokens_emitted(one))
        rig.gateway.backends.drain("b1", draining=False)
        await one.stop()
        reply = await asked
        assert "error" in json.loads(reply.events[-1])
        assert tokens_emitted(other) == 0


async def test_a_stream_goes_on_at_the_one_backend_of_several_that_serves_its_model():
    async with (
        engine(cut_stream_after_tokens=CUT_AFTER) as bad,
        engine(max_model_len=2048) as other,
        engine() as good,
        gateway(named(0, bad), named(1, other), named(2, good)) as rig,
    ):
        for _ in range(6):  # some of them begin at the bad one, and are offered to the other
            reply = await rig.post(call(stream=True, max_tokens=TOKENS))
            assert reply.events[-1] == "[DONE]"
        assert rig.snapshot().interruptions[Cause.FAILED] >= 1
        await until(rig.idle)


async def test_a_stream_stays_at_a_backend_that_drains_where_all_others_serve_another_model():
    quick = {"continuation": {"drain_s": 0.05}}
    async with (
        engine(**SLOW) as old,
        engine(max_model_len=2048) as new,
        gateway(named(0, old), named(1, new), **quick) as rig,
    ):
        rig.gateway.backends.drain("b1", draining=True)
        asked = asyncio.create_task(rig.post(call(stream=True, max_tokens=TOKENS)))
        await until(lambda: tokens_emitted(old))
        rig.gateway.backends.drain("b1", draining=False)
        rig.gateway.backends.drain("b0", draining=True)
        reply = await asked
        assert reply.events[-1] == "[DONE]"
        assert (tokens_emitted(old), tokens_emitted(new)) == (TOKENS, 0)


async def test_a_stream_leaves_a_backend_that_discovery_does_not_list_any_more():
    quick = {"continuation": {"drain_s": 0.05}}
    async with engine(**SLOW) as old, engine() as good, gateway(old, good, **quick) as rig:
        rig.gateway.backends.drain("b1", draining=True)
        asked = asyncio.create_task(rig.post(call(stream=True, max_tokens=TOKENS)))
        await until(lambda: tokens_emitted(old))
        rig.gateway.backends.drain("b1", draining=False)
        rig.gateway.backends.retire("b0")
        reply = await asked
        assert reply.events[-1] == "[DONE]"
        assert tokens_emitted(good)
