"""Backends that are down, busy, broken, many, or back: what of it a client sees, and what it is charged."""

import asyncio
import json
import socket

import openai
import pytest
from gateway_rig import (
    FAST,
    MODEL,
    answer,
    call,
    engine,
    fall_silent,
    gateway,
    gateway_and_engine,
    hang_up,
    running,
    scripted,
    stream,
    tokens_emitted,
    until,
)

from backends import health
from backends.engine.http.server import EngineOptions, EngineServer
from gateway.forwarding.retry_budget import RETRIES_RATIO_MAX

pytestmark = pytest.mark.jumping

BUSY = {"error": {"message": "The engine is currently busy and cannot accept new requests.", "code": 503}}
CHARGE = 9 + 2 * 3  # of the scripted answer
NOT_CONTINUED = {"continuation": {"enabled": False}}
TOKEN = b'data: {"choices":[{"index":0,"delta":{"content":"a"},"finish_reason":null}],"usage":{"prompt_tokens":5,"total_tokens":%d,"completion_tokens":%d}}\n\n'  # noqa: E501
ENGINE_DIED = (
    b'data: {"error":{"message":"EngineCore encountered an issue.","type":"InternalServerError","code":500}}\n\n'
)


def tokens(count):
    return [TOKEN % (5 + number, number) for number in range(1, count + 1)]


def free_port():
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return sock.getsockname()[1]


def sized(*servers):
    """Their entries, with as many slots as an engine of tests has: one of unknown size is not full when it is 4."""
    return [{"name": f"b{n}", "url": server.url, "requests_running_max": 256} for n, server in enumerate(servers)]


def states(rig):
    return rig.gateway.backends.states()


async def test_a_call_that_finds_its_backend_busy_is_served_by_another_and_charged_once():
    async with scripted(answer(BUSY, status=503)) as busy, scripted() as free, gateway(busy, free) as rig:
        replies = [await rig.post() for _ in range(6)]
        assert [reply.status for reply in replies] == [200] * 6
        assert busy.calls
        assert rig.service() == 6 * CHARGE
        assert set(states(rig).values()) == {"healthy"}


async def test_an_engine_that_is_full_is_tried_again_until_it_takes_the_call():
    async with gateway_and_engine(max_num_queued_reqs=2) as (rig, server):
        replies = await asyncio.gather(*(rig.post(call(max_tokens=20)) for _ in range(8)))
        assert [reply.status for reply in replies] == [200] * 8
        assert server._api.serving.rejections["max_num_queued_reqs"] > 0
        prompt = replies[0].json["usage"]["prompt_tokens"]
        assert rig.service() == 8 * (prompt + 40)
        assert set(states(rig).values()) == {"healthy"}


async def test_a_call_put_back_keeps_its_deadline():
    config = {"queue": {"wait_s_max": 0.4}}
    async with scripted(answer(BUSY, status=503)) as busy, gateway(busy, **config) as rig:
        reply = await asyncio.wait_for(rig.post(), 2.0)
        assert reply.status == 429
        assert rig.service() == 0
        assert rig.idle()


async def test_a_refused_connection_puts_the_call_to_another_backend_and_charges_once():
    async with scripted() as dying, scripted() as well, gateway(dying, well, health={"idle_s": 30}) as rig:
        rig.gateway._clients.by_id["b0"].upstream._port = free_port()  # it has gone, and no poll has seen it yet
        replies = await asyncio.gather(*(rig.post() for _ in range(4)))
        assert [reply.status for reply in replies] == [200] * 4
        assert rig.service() == 4 * CHARGE
        assert len(well.calls) == 4


async def test_a_backend_that_hangs_up_unanswered_is_asked_once_more_and_then_it_is_a_502():
    async with scripted(hang_up) as backend, gateway(backend) as rig:
        reply = await rig.post()
        assert reply.status == 502
        assert reply.error["reason"] == "backend_failed"
        assert reply.headers["x-request-id"]
        assert len(backend.calls) == 2
        assert rig.service() == 0
        assert rig.idle()


async def test_a_backend_that_never_answers_is_given_up_in_time_as_a_504():
    limits = {"answer_silence_s_max": 0.3}
    async with scripted(fall_silent) as backend, gateway(backend, limits=limits) as rig:
        reply = await rig.post()
        assert (reply.status, reply.error["reason"]) == (504, "backend_timeout")
        assert rig.service() == 0
        assert rig.idle()


async def test_a_call_whose_first_connection_broke_is_answered_by_the_second():
    async with scripted(None, hang_up) as backend, gateway(backend) as rig:
        assert (await rig.post()).status == 200
        assert len(backend.calls) == 2
        assert rig.service() == CHARGE


@pytest.mark.parametrize("n", [1, 2])
async def test_a_stream_cut_in_the_middle_ends_with_an_error_event_and_no_done(n):
    async with gateway_and_engine(NOT_CONTINUED, cut_stream_after_tokens=6) as (rig, server):
        reply = await rig.post(call(stream=True, max_tokens=50, n=n))
        assert reply.status == 200
        assert json.loads(reply.events[-1])["error"]["code"] == 502
        assert "[DONE]" not in reply.events
        await until(rig.idle)
        prompt = rig.service() - 2 * 6
        assert 0 < prompt < 40
        await until(lambda: not running(server))


async def test_the_official_client_is_told_of_a_cut_stream():
    async with gateway_and_engine(NOT_CONTINUED, cut_stream_after_tokens=6) as (rig, _), rig.openai() as client:
        with pytest.raises(openai.APIError, match="lost"):
            _ = [chunk async for chunk in await client.chat.completions.create(**call(stream=True, max_tokens=50))]


async def test_an_error_event_of_the_backend_passes_and_no_done_follows_it():
    async with gateway_and_engine(NOT_CONTINUED, fail_stream_after_tokens=6) as (rig, _):
        reply = await rig.post(call(stream=True, max_tokens=50))
        assert "EngineCore" in reply.events[-1]
        assert "[DONE]" not in reply.events
        await until(rig.idle)


async def test_tokens_that_passed_before_the_failure_stay_charged():
    async with scripted(stream(*tokens(4), ENGINE_DIED, end=True)) as backend, gateway(backend) as rig:
        await rig.post(call(stream=True))
        assert rig.service() == 5 + 2 * 4


async def test_a_failure_before_the_first_token_is_free():
    async with scripted(stream(end=False)) as backend, gateway(backend) as rig:
        reply = await rig.post(call(stream=True))
        assert (reply.status, reply.error["reason"]) == (502, "backend_failed")
        assert len(backend.calls) == 2, "it is sent once more, and may be what breaks the backend"
        assert rig.service() == 0
        assert rig.idle()


async def test_streams_that_had_no_token_when_their_backend_died_are_sent_to_the_next_one():
    died = asyncio.Event()

    async def die(reader, writer):
        """Say the head, as vLLM does long before the first token."""
        await stream(end=False)(reader, writer)
        await died.wait()
        return False

    async with (
        scripted(die) as dying,
        scripted(stream(*tokens(3), b"data: [DONE]\n\n")) as well,
        gateway(dying, well) as rig,
    ):
        calls = [asyncio.create_task(rig.post(call(stream=True))) for _ in range(10)]
        await until(lambda: len(dying.calls) + len(well.calls) == len(calls))
        lost = len(dying.calls)
        assert lost >= 4
        dying.default = hang_up
        died.set()
        replies = await asyncio.gather(*calls)
        assert [(reply.status, reply.events[-1]) for reply in replies] == [(200, "[DONE]")] * 10
        assert len(well.calls) == 10
        assert rig.service() == 10 * (5 + 2 * 3)
        assert states(rig) == {"b0": "healthy", "b1": "healthy"}, "one accident is one failure"


async def take_long(reader, writer):
    await asyncio.sleep(10.0)
    return await answer()(reader, writer)


@pytest.mark.parametrize("number", [5, 64])
async def test_whole_answers_that_are_lost_at_once_are_given_by_the_other_backend_however_long_they_take(number):
    """Ten seconds to their first byte: no retry may wait for the answer of another."""
    died = asyncio.Event()

    async def die(reader, writer):
        await died.wait()
        return False

    async with scripted(die) as dying, scripted(take_long) as well, gateway(*sized(dying, well)) as rig:
        rig.gateway.backends.drain("b1", draining=True)
        calls = [asyncio.create_task(rig.post()) for _ in range(number)]
        await until(lambda: len(dying.calls) == number)
        rig.gateway.backends.drain("b1", draining=False)
        dying.default, dying.healthy = hang_up, False
        died.set()
        assert [reply.status for reply in await asyncio.gather(*calls)] == [200] * number
        assert len(well.calls) == number, "each is sent again once"
        assert rig.service() == number * CHARGE
        budget = rig.gateway._handlers._generation._budget
        assert (budget.running, budget.retrying) == (0, 0)
        assert rig.idle()


async def test_of_calls_that_are_sent_again_a_fifth_connects_at_once(monkeypatch):
    number, connecting, accepts, health = 20, [], asyncio.Event(), {"idle_s": 30, "busy_s": 30}  # polls connect, too
    async with scripted() as gone, scripted() as slow, gateway(*sized(gone, slow), health=health) as rig:
        upstreams = [rig.gateway._clients.by_id[each].upstream for each in ("b0", "b1")]
        connection = upstreams[1]._connection

        async def connection_later(loop):
            connecting.append(loop.time())
            await accepts.wait()
            return await connection(loop)

        monkeypatch.setattr(upstreams[0], "_port", free_port())
        monkeypatch.setattr(upstreams[1], "_connection", connection_later)
        rig.gateway.backends.drain("b1", draining=True)
        calls = [asyncio.create_task(rig.post()) for _ in range(number)]
        await until(lambda: rig.snapshot().queued_requests == number)
        rig.gateway.backends.drain("b1", draining=False)
        await until(lambda: rig.snapshot().backends["b1"].in_flight_requests == number)
        await asyncio.sleep(0.1)
        assert len(connecting) == RETRIES_RATIO_MAX * number
        aboard = rig.gateway._handlers._generation._evidence._aboard["b1"]
        assert len(aboard) == len(connecting), "no other could have ended its engine"
        accepts.set()
        assert [reply.status for reply in await asyncio.gather(*calls)] == [200] * number


async def test_a_call_that_waits_for_a_slot_again_keeps_no_other_from_being_sent_again():
    """The slots that it waits for are held by others, which are to be sent again, too."""
    number, died = 20, asyncio.Event()

    async def die(reader, writer):
        await died.wait()
        return False

    async with scripted(die) as dying, scripted() as gone, scripted(take_long) as well:
        entries = sized(dying, gone, well)
        entries[2]["requests_running_max"] = number // 2
        async with gateway(*entries, health={"idle_s": 30, "busy_s": 30}) as rig:
            rig.gateway._clients.by_id["b1"].upstream._port = free_port()
            for backend_id in ("b1", "b2"):
                rig.gateway.backends.drain(backend_id, draining=True)
            calls = [asyncio.create_task(rig.post()) for _ in range(number)]
            await until(lambda: len(dying.calls) == number)
            for backend_id, drains in (("b0", True), ("b1", False), ("b2", False)):
                rig.gateway.backends.drain(backend_id, draining=drains)
            died.set()
            assert [reply.status for reply in await asyncio.gather(*calls)] == [200] * number
            assert len(well.calls) == number


async def test_a_stream_that_broke_after_its_first_token_is_not_sent_again():
    async with scripted(stream(*tokens(1), end=False)) as backend, gateway(backend) as rig:
        reply = await rig.post(call(stream=True))
        assert json.loads(reply.events[-1])["error"]["code"] == 502
        assert len(backend.calls) == 1


async def test_a_client_that_leaves_before_the_first_token_is_gone_at_the_backend_too():
    left = asyncio.Event()

    async def wait(reader, writer):
        await stream(end=False)(reader, writer)
        await reader.read()
        left.set()
        return False

    async with scripted(wait) as backend, gateway(backend) as rig:
        leaving = asyncio.create_task(rig.post(call(stream=True)))
        await until(lambda: backend.calls)
        leaving.cancel()
        await asyncio.wait_for(left.wait(), 5.0)
        await until(rig.idle)


async def test_a_whole_answer_that_is_cut_is_asked_for_once_more_and_then_is_a_502_and_free():
    async def act(reader, writer):
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 500\r\n\r\n{")
        return False

    async with scripted(act) as backend, gateway(backend) as rig:
        assert (await rig.post()).status == 502
        assert len(backend.calls) == 2
        assert rig.service() == 0


@pytest.mark.parametrize("garbage", [b"SSH-2.0-OpenSSH_9.6\r\n", b"HTTP/1.1 200 OK\r\nX: " + b"a" * 100_000])
async def test_an_answer_that_is_not_http_is_a_502(garbage):
    async def act(reader, writer):
        writer.write(garbage)
        await writer.drain()
        return False

    async with scripted(act) as backend, gateway(backend) as rig:
        assert (await rig.post()).status == 502
        assert rig.idle()


async def test_a_5xx_of_the_backend_is_passed_and_costs_nothing():
    body = {"error": {"message": "out of luck", "type": "InternalServerError", "code": 500}}
    async with scripted(answer(body, status=500)) as backend, gateway(backend) as rig:
        reply = await rig.post()
        assert (reply.status, reply.json) == (500, body)
        assert rig.service() == 0


async def test_three_failures_in_a_row_eject_a_backend_and_it_comes_back_on_trial(monkeypatch):
    monkeypatch.setattr(health, "EJECTED_S_MIN", 1.0)
    error = answer({"error": {"message": "no"}}, status=500)
    async with scripted(None, *[error] * 3) as flaky, scripted() as well, gateway(flaky, well) as rig:
        while len(flaky.calls) < 3:
            await asyncio.gather(*(rig.post() for _ in range(2)))
            await asyncio.sleep(0.005)  # what is sent in the millisecond of a failure counts as the same incident
        assert states(rig)["b0"] == "ejected"
        before = len(flaky.calls)
        assert [(await rig.post()).status for _ in range(4)] == [200] * 4
        assert len(flaky.calls) == before
        await until(lambda: states(rig)["b0"] == "trial")
        await asyncio.gather(*(rig.post() for _ in range(2)))
        assert len(flaky.calls) == before + 1
        assert states(rig)["b0"] == "healthy"


async def test_the_last_backend_that_answers_is_never_ejected():
    error = answer({"error": {"message": "no"}}, status=500)
    async with scripted(error) as flaky, gateway(flaky) as rig:
        assert [(await rig.post()).status for _ in range(12)] == [500] * 12
        assert len(flaky.calls) == 12
        assert (await rig.get("/readyz")).status == 200


async def test_calls_of_bad_clients_do_not_count_against_a_backend():
    error = answer({"error": {"message": "too long"}}, status=400)
    async with scripted(error) as one, scripted(error) as two, gateway(one, two) as rig:
        assert [(await rig.post()).status for _ in range(10)] == [400] * 10
        assert set(states(rig).values()) == {"healthy"}


async def test_a_backend_that_is_down_at_the_start_serves_when_it_comes():
    port = free_port()
    late = {"name": "late", "url": f"http://127.0.0.1:{port}"}
    async with gateway(late) as rig:
        reply = await rig.post()
        assert reply.status == 503
        assert reply.headers["Retry-After"]
        assert (await rig.get("/readyz")).status == 503
        server = EngineServer(EngineOptions(**FAST))
        await server.start(port=port)
        try:
            await until(rig.gateway.pools.routes.any_available)
            assert (await rig.post()).status == 200
            assert (await rig.get("/readyz")).status == 200
        finally:
            await server.stop()


async def test_calls_go_where_least_is_reserved():
    async with engine(speed=0.1) as one, engine(speed=0.1) as two, gateway(*sized(one, two)) as rig:
        messages = [{"role": "user", "content": "word " * 2500}]
        large = asyncio.create_task(rig.post(call(messages=messages, max_tokens=400)))
        await until(lambda: running(one) + running(two) == 1)
        (idle,) = (server for server in (one, two) if not running(server))
        small = [asyncio.create_task(rig.post(call(max_tokens=20))) for _ in range(3)]
        await until(lambda: running(idle) == 3)
        await asyncio.gather(*small)
        large.cancel()


async def test_load_is_spread_over_all_backends():
    async with engine() as one, engine() as two, engine() as three, gateway(*sized(one, two, three)) as rig:
        replies = await asyncio.gather(*(rig.post(call(max_tokens=30)) for _ in range(60)))
        assert [reply.status for reply in replies] == [200] * 60
        shares = [tokens_emitted(server) / 1800 for server in (one, two, three)]
        assert shares == pytest.approx([1 / 3] * 3, abs=0.05)


async def test_several_engines_behind_one_url_have_the_capacity_of_all():
    async with gateway_and_engine(engines=2, kv_tokens_max=16384, requests_running_max=8) as (rig, server):
        await rig.post()
        (view,) = rig.snapshot().backends.values()
        assert view.tokens_limit == pytest.approx(0.95 * 16384, rel=0.05)
        replies = await asyncio.gather(*(rig.post(call(max_tokens=30)) for _ in range(16)))
        assert [reply.status for reply in replies] == [200] * 16
        assert all(snapshot.emitted_tokens_total for snapshot in server.snapshots())


async def test_a_backend_is_given_no_more_than_its_memory_holds():
    # 4096 tokens of memory: 95 % of it are 15 requests of 256 (prompt and output in blocks of 128).
    async with gateway_and_engine(speed=0.5, kv_tokens_max=4096) as (rig, server):
        calls = [asyncio.create_task(rig.post(call(max_tokens=200), headers={"X-Api-Key": f"k{n}"})) for n in range(24)]
        await until(lambda: running(server) > 5)
        seen = []
        while not all(task.done() for task in calls):
            seen.append(rig.snapshot().in_flight_requests)
            await asyncio.sleep(0.02)
        assert max(seen) == 15
        assert server.snapshots()[0].preemptions_total == 0
        assert {task.result().status for task in calls} == {200}


async def test_no_more_runs_than_the_configured_seats():
    async with (
        engine(speed=0.2) as server,
        gateway({"name": "b0", "url": server.url, "requests_running_max": 3}) as rig,
    ):
        calls = [asyncio.create_task(rig.post(call(max_tokens=20))) for _ in range(9)]
        peak = 0
        while not all(task.done() for task in calls):
            peak = max(peak, running(server))
            await asyncio.sleep(0.005)
        assert peak == 3
        assert {task.result().status for task in calls} == {200}


async def test_what_waits_and_what_arrives_while_no_backend_lives_is_served_when_one_is_back():
    pause = stream(*tokens(3), b"data: [DONE]\n\n", pause_s=0.15)
    async with scripted(None, pause) as backend:
        entry = {"name": "b0", "url": backend.url, "requests_running_max": 1}
        async with gateway(entry) as rig:
            running_one = asyncio.create_task(rig.post(call(stream=True)))
            await until(lambda: rig.snapshot().in_flight_requests)
            waiting = asyncio.create_task(rig.post())
            await until(lambda: rig.snapshot().queued_requests)
            backend.healthy = False
            assert (await running_one).events[-1] == "[DONE]"
            await until(lambda: states(rig)["b0"] == "down")
            arriving = [asyncio.create_task(rig.post(call(stream=True))) for _ in range(4)]
            await until(lambda: rig.snapshot().queued_requests == 5)
            assert (await rig.get("/readyz")).status == 503
            backend.healthy = True
            assert [reply.status for reply in await asyncio.gather(waiting, *arriving)] == [200] * 5


async def test_no_request_waits_longer_for_a_backend_than_the_operator_says():
    pause = stream(*tokens(3), b"data: [DONE]\n\n", pause_s=0.15)
    async with scripted(None, pause) as backend:
        entry = {"name": "b0", "url": backend.url, "requests_running_max": 1}
        async with gateway(entry, queue={"backend_wait_s_max": 0.2}) as rig:
            running_one = asyncio.create_task(rig.post(call(stream=True)))
            await until(lambda: rig.snapshot().in_flight_requests)
            waiting = asyncio.create_task(rig.post())
            await until(lambda: rig.snapshot().queued_requests)
            backend.healthy = False
            await running_one
            await until(lambda: states(rig)["b0"] == "down")
            for reply in await asyncio.gather(waiting, rig.post()):
                assert (reply.status, reply.headers["Retry-After"]) == (503, "5")
            assert rig.idle()


async def test_the_model_that_a_backend_has_come_to_serve_is_found():
    async with scripted(model="first") as backend, gateway(backend) as rig:
        assert (await rig.post(call(model="first"))).status == 200
        backend.healthy = False
        await until(lambda: states(rig)["b0"] == "down")
        backend.model, backend.healthy = MODEL, True
        await until(lambda: rig.gateway.backends.catalog.model(MODEL) is not None)
        await until(rig.gateway.pools.routes.any_available)
        assert (await rig.post(call())).status == 200
        assert (await rig.post(call(model="first"))).status == 404
