"""A client that leaves is gone at once: from the queue, from the backend, from the books; it pays for what came."""

import asyncio
import json
import random

import pytest
from gateway_rig import (
    CHAT,
    call,
    engine,
    fall_silent,
    gateway,
    gateway_and_engine,
    http,
    running,
    scripted,
    tokens_emitted,
    until,
    wire,
)

from backends.upstream import ConnectionLimits, Upstream

pytestmark = pytest.mark.jumping

PROMPT_HEAVY = [{"role": "user", "content": "word " * 3000}]
AT_ONCE_S = 0.5
SEED = 20


async def test_a_client_that_leaves_the_queue_frees_its_place_at_once():
    async with (
        engine(speed=0.01) as server,
        gateway({"name": "b0", "url": server.url, "requests_running_max": 1}) as rig,
        wire(rig) as first,
        wire(rig) as second,
    ):
        first.send(http(call(max_tokens=1000, stream=True), "X-Api-Key: one"))
        await until(lambda: rig.snapshot().in_flight_requests)
        second.send(http(call(), "X-Api-Key: two"))
        await until(lambda: rig.snapshot().queued_requests)
        second.reset()
        await until(lambda: not rig.snapshot().queued_requests, AT_ONCE_S)
        tenants = sorted(tenant.service for tenant in rig.snapshot().tenants.values())
        assert tenants[0] == 0
        assert rig.snapshot().in_flight_requests == 1


@pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])
async def test_a_client_that_leaves_before_the_first_token_ends_the_backends_work_at_once(stream):
    # A prefill of seconds, in small chunks: an abort is seen between two steps.
    async with gateway_and_engine(speed=0.002, chunk_tokens_max=16) as (rig, server), wire(rig) as connection:
        connection.send(http(call(messages=PROMPT_HEAVY, stream=stream)))
        await until(lambda: running(server))
        connection.reset()
        await until(lambda: not running(server), AT_ONCE_S)
        await until(rig.idle, AT_ONCE_S)
        assert tokens_emitted(server) == 0
        (tenant,) = rig.snapshot().tenants.values()
        assert tenant.service > 1000  # the prompt, by its estimate
        assert tenant.rank == tenant.counter


async def test_a_client_that_leaves_while_the_backend_is_silent_ends_the_exchange():
    async with scripted(fall_silent) as backend, gateway(backend) as rig, wire(rig) as connection:
        connection.send(http(call()))
        await until(lambda: backend.calls)
        connection.reset()
        await until(rig.idle, AT_ONCE_S)
        assert rig.gateway.backends.states()["b0"] == "healthy"


async def test_a_client_that_leaves_in_mid_stream_is_charged_what_came_and_no_more():
    async with gateway_and_engine(speed=0.1) as (rig, server), wire(rig) as connection:
        connection.send(http(call(stream=True, max_tokens=1000)))
        await connection.head()
        passed = 0
        while passed < 5:
            line = await connection.reader.readline()
            passed += line.startswith(b"data: ") and bool(json.loads(line[6:])["choices"][0]["delta"]["content"])
        connection.reset()
        await until(lambda: not running(server), AT_ONCE_S)
        await until(rig.idle, AT_ONCE_S)
        charged = rig.service()
        (tenant,) = rig.snapshot().tenants.values()
        assert tenant.rank == tenant.counter
        prompt = (await rig.post(call(max_tokens=1))).json["usage"]["prompt_tokens"]
        assert 2 * 5 <= charged - prompt <= 2 * tokens_emitted(server)


async def test_a_whole_answer_no_client_waits_for_is_aborted_and_charged_for_what_was_decoded():
    async with gateway_and_engine(speed=0.1) as (rig, server), wire(rig) as connection:
        usage = (await rig.post(call(max_tokens=50))).json["usage"]  # the pace is learnt from it
        before, emitted_before = rig.service(), tokens_emitted(server)
        connection.send(http(call(max_tokens=1000)))
        await until(lambda: tokens_emitted(server) - emitted_before > 60)
        assert len(rig.gateway.backends["b0"].step_counts._awaited) == 1
        connection.reset()
        await until(lambda: not running(server), AT_ONCE_S)
        await until(rig.idle, AT_ONCE_S)
        decoded = tokens_emitted(server) - emitted_before
        charged = (rig.service() - before - usage["prompt_tokens"]) / 2
        assert decoded / 2 < charged < decoded * 2
        (tenant,) = rig.snapshot().tenants.values()
        assert tenant.rank == tenant.counter


async def test_leaving_whole_answers_in_time_is_no_way_to_be_served_for_free():
    async with gateway_and_engine(speed=0.1) as (rig, _):
        for _ in range(4):
            async with wire(rig) as connection:
                connection.send(http(call(max_tokens=3)))
                await until(lambda: rig.snapshot().in_flight_requests)
                connection.reset()
                await until(rig.idle)
        assert rig.service() >= 4 * 2


@pytest.mark.parametrize("loop_turns", range(6))
async def test_leaving_while_the_backend_is_being_connected_to_loses_no_connection(loop_turns):
    async with scripted() as backend:
        upstream = Upstream(
            backend.url, ConnectionLimits(connect_timeout_s=3, idle_s_max=1, idle_connections_max=8, silence_s_max=60)
        )
        opening = asyncio.create_task(upstream.open("POST", CHAT))
        for _ in range(loop_turns):
            await asyncio.sleep(0)
        opening.cancel()
        await asyncio.gather(opening, return_exceptions=True)
        await asyncio.wait_for(upstream.aclose(), 1.0)
        assert upstream.open_connections == 0


async def test_a_connection_given_back_at_its_last_byte_serves_the_next_call():
    async def first_part(reader, writer):
        writer.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")
        return True

    async with scripted(None, first_part) as backend:
        upstream = Upstream(
            backend.url, ConnectionLimits(connect_timeout_s=3, idle_s_max=1, idle_connections_max=8, silence_s_max=60)
        )
        exchange = await upstream.open("POST", CHAT)
        connection = exchange._connection
        leaving = asyncio.create_task(exchange.stream(lambda _: exchange.release()))  # its client has left
        await asyncio.sleep(0)
        next_one = asyncio.create_task(upstream.open("POST", CHAT))
        connection.data_received(b"1\r\nx\r\n0\r\n\r\n")
        assert (await asyncio.wait_for(next_one, 1.0)).status == 200
        assert len(backend.calls) == 2
        assert upstream.open_connections == 1
        await leaving
        await upstream.aclose()


async def test_the_official_client_that_closes_its_stream_aborts_the_answer():
    async with gateway_and_engine(speed=0.1) as (rig, server), rig.openai() as client:
        stream = await client.chat.completions.create(**call(stream=True, max_tokens=1000, n=2))
        async for _ in stream:
            break
        await stream.close()
        await until(lambda: not running(server), AT_ONCE_S)
        await until(rig.idle, AT_ONCE_S)


async def test_waiting_requests_get_the_slot_of_one_whose_client_left():
    async with (
        engine(speed=0.1) as server,
        gateway({"name": "b0", "url": server.url, "requests_running_max": 1}) as rig,
        wire(rig) as connection,
    ):
        connection.send(http(call(max_tokens=4000, stream=True)))
        await until(lambda: rig.snapshot().in_flight_requests)
        waiting = asyncio.create_task(rig.post(call(max_tokens=2)))
        await until(lambda: rig.snapshot().queued_requests)
        connection.reset()
        assert (await asyncio.wait_for(waiting, 1.0)).status == 200


async def test_hundreds_of_streams_that_come_and_leave_at_random_leave_nothing(caplog):
    rng = random.Random(SEED)
    tasks_before = asyncio.all_tasks()

    async def live(rig, number):
        await asyncio.sleep(rng.uniform(0, 0.5))
        leaves_after = rng.choice([None, 0, 0, 1, 2000, 6000])  # bytes of the answer; None: stays
        body = call(stream=rng.random() < 0.8, max_tokens=rng.randrange(1, 60), n=rng.choice([1, 1, 2]))
        async with wire(rig) as connection:
            connection.send(http(body, f"X-Api-Key: key-{number % 7}", "Connection: close"))
            if leaves_after is None:
                assert (await connection.reply()).status == 200
                return 1
            await asyncio.sleep(rng.uniform(0, 0.2))
            received = 0
            while received < leaves_after and (data := await connection.reader.read(4096)):
                received += len(data)
            connection.reset()
            return 0

    # Few seats, one backend that turns many away: queueing, putting back and leaving at once.
    async with (
        engine(requests_running_max=16, speed=0.5) as one,
        engine(requests_running_max=16, speed=0.5, max_num_queued_reqs=8) as two,
        gateway(one, two) as rig,
    ):
        finished = await asyncio.gather(*(live(rig, number) for number in range(300)))
        assert sum(finished) > 20
        await until(rig.idle)
        await until(lambda: not running(one) and not running(two))
        for tenant in rig.snapshot().tenants.values():
            assert tenant.rank == pytest.approx(tenant.counter)
            assert tenant.in_flight_tokens == tenant.queued_bytes == 0
        assert all(not view.reserved_tokens for view in rig.snapshot().backends.values())
        assert set(rig.gateway.backends.states().values()) == {"healthy"}
        assert not any(rig.gateway.backends[each].step_counts._awaited for each in rig.gateway.backends.states())
        upstreams = [backend_client.upstream for backend_client in rig.gateway._clients.by_id.values()]
        await until(lambda: all(upstream.open_connections == upstream.idle_connections for upstream in upstreams))
        assert (await rig.post()).status == 200
    await until(lambda: asyncio.all_tasks() <= tasks_before)
    assert [record for record in caplog.records if record.levelname in {"ERROR", "CRITICAL"}] == []
