"""Clients that do not read: they hold no seat, no memory for long, and nothing of other tenants."""

import asyncio
import contextlib
import gc
import json

import pytest
from gateway_rig import CHAT, answer, call, gateway, http, scripted, stream, until, wire

from gateway.forwarding.answers import relay
from gateway.forwarding.answers import unread_bytes as unread
from gateway.http import connection as stall
from gateway.http.response import Response

# Beyond what the operating system takes for a client that does not read: at most 10 MB on loopback.
LONG_BYTES = 16 << 20
USAGE = {"prompt_tokens": 9, "total_tokens": 12, "completion_tokens": 3}
LONG_ANSWER = {"choices": [{"index": 0, "message": {"content": "x" * LONG_BYTES}}], "usage": USAGE}
SHORT_ANSWER = LONG_ANSWER | {"choices": [{"index": 0, "message": {"content": "x" * 50_000}}]}
SEATS = 3


def long_stream():
    chunk = {"choices": [{"index": 0, "delta": {"content": "x" * 60_000}}], "usage": USAGE}
    event = b"data: " + json.dumps(chunk).encode() + b"\n\n"
    return stream(*[event] * (LONG_BYTES // len(event)), b"data: [DONE]\n\n")


def cuts(rig):
    return dict(rig.gateway._handlers.server.cuts)


def waiting(rig):
    return sum(tenant.bytes for tenant in rig.gateway._handlers._utilities._unread._tenants.values())


def backend_of(server):
    return {"name": "b0", "url": server.url, "requests_running_max": SEATS}


@contextlib.asynccontextmanager
async def silent_clients(rig, number, *headers, **fields):
    """Clients that send a call and read nothing."""
    async with contextlib.AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(wire(rig)) for _ in range(number)]
        for client in clients:
            client.reader._limit = 1  # asyncio stops reading from the socket
            client.send(http(call(**fields), *headers))
        yield clients


async def test_a_stream_gives_its_seat_back_when_its_backend_has_ended_whatever_its_client_takes(monkeypatch):
    # As if what the backend sent last were all that is more than the client takes.
    monkeypatch.setattr(relay, "CLIENT_BUFFER_BYTES_MAX", 1 << 30)
    async with (
        scripted(long_stream()) as backend,
        gateway(backend_of(backend)) as rig,
        silent_clients(rig, SEATS, stream=True),
    ):
        await until(lambda: rig.snapshot().in_flight_requests == SEATS)
        await until(rig.idle)
        assert not cuts(rig)
        tenant = rig.tenant()
        assert tenant.rank == tenant.counter  # settled: nothing is expected of it any longer
        assert rig.service() == SEATS * (9 + 2 * 3)


@pytest.mark.parametrize("streamed", [True, False], ids=["streamed", "whole"])
async def test_a_client_that_takes_nothing_of_an_answer_is_cut(monkeypatch, streamed):
    monkeypatch.setattr(stall, "CLIENT_STALL_S_MAX", 0.3)
    monkeypatch.setattr(relay, "CLIENT_BUFFER_BYTES_MAX", 1 << 30)
    async with (
        scripted(long_stream() if streamed else answer(LONG_ANSWER)) as backend,
        gateway(backend_of(backend)) as rig,
        silent_clients(rig, SEATS, stream=streamed),
    ):
        await until(lambda: cuts(rig) == {stall.STALLED: SEATS})
        await until(rig.idle)
        await until(lambda: not waiting(rig))
        assert rig.service() == SEATS * (9 + 2 * 3)
        metrics = (await rig.gateway.metrics.exposition()).decode()
        assert f'fairlead_clients_cut_total{{reason="client_stalled"}} {SEATS}.0' in metrics


async def test_a_client_that_asks_and_asks_and_reads_nothing_fills_no_memory():
    asked = 400  # 20 MB of answers
    async with scripted(answer(SHORT_ANSWER)) as backend, gateway(backend_of(backend)) as rig, wire(rig) as client:
        connection = next(iter(rig.gateway._handlers.server.connections))
        client.reader._limit = 1
        client.send(http(call()) * asked)
        await until(lambda: connection._is_write_paused and connection._is_reading_paused)
        await asyncio.sleep(1)
        assert connection.transport.get_write_buffer_size() < 2 * stall.WAITING_BYTES_MAX
        client.reader._limit = 1 << 20
        for _ in range(asked):
            assert (await client.reply()).status == 200
        await until(rig.idle)


@contextlib.asynccontextmanager
async def limited(backend, bytes_max):
    async with gateway(backend_of(backend)) as rig:
        rig.gateway._handlers._utilities._unread._bytes_max = bytes_max
        yield rig


async def test_a_tenant_that_reads_nothing_has_its_limit_and_one_answer_of_memory_and_no_seat(monkeypatch):
    monkeypatch.setattr(unread, "PRESSED_STALL_S", 0.4)
    most, limit = 0, LONG_BYTES * 3 // 2
    calls = 2 * SEATS
    async with (
        scripted(answer(LONG_ANSWER)) as backend,
        limited(backend, limit) as rig,
        silent_clients(rig, calls, "X-Api-Key: silent"),
    ):

        def all_are_answered():
            nonlocal most
            most = max(most, waiting(rig))
            return len(backend.calls) == calls and rig.idle()

        await until(all_are_answered)
        assert limit < most <= limit + LONG_BYTES + (1 << 20)
        # Those that had to go so that the others could come; what is within the limit is left in peace.
        assert cuts(rig)[unread.PRESSED] >= calls - 3
        assert waiting(rig) > 0
        reply = await rig.post(call(), headers={"X-Api-Key": "reader"})
        assert reply.json == LONG_ANSWER


async def test_a_tenant_over_its_limit_that_reads_loses_nothing(monkeypatch):
    monkeypatch.setattr(unread, "PRESSED_STALL_S", 0.4)
    async with (
        scripted(answer(LONG_ANSWER)) as backend,
        limited(backend, 1) as rig,
    ):
        replies = await asyncio.gather(*(rig.post(call()) for _ in range(2 * SEATS)))
        assert all(reply.json == LONG_ANSWER for reply in replies)
        assert not cuts(rig)
        await until(lambda: not waiting(rig))


async def test_an_answer_that_is_left_while_it_arrives_or_waits_counts_no_longer():
    async with (
        scripted(answer(LONG_ANSWER)) as backend,
        limited(backend, 1) as rig,
        silent_clients(rig, SEATS) as clients,
    ):
        await until(lambda: waiting(rig) > LONG_BYTES)
        for client in clients:
            client.reset()
        await until(rig.idle)
        await until(lambda: not waiting(rig))
        assert (await rig.post(call(), CHAT)).json == LONG_ANSWER


async def test_what_was_cut_or_taken_is_out_of_memory_before_others_arrive_in_its_place():
    async with (
        scripted(answer(LONG_ANSWER)) as backend,
        gateway(backend_of(backend)) as rig,
        wire(rig) as taker,
        silent_clients(rig, SEATS) as clients,
    ):
        await until(lambda: waiting(rig) >= SEATS * LONG_BYTES and rig.idle())
        gc.collect()  # of tests before this one
        gc.disable()  # nothing waits for the collector
        try:
            for client in clients:
                client.reset()
            await until(lambda: not waiting(rig))
            taker.send(http(call()))
            assert (await taker.reply()).json == LONG_ANSWER
            await until(lambda: not waiting(rig))  # and its connection waits for the next call
            assert not [each for each in gc.get_objects() if type(each) is Response and len(each.body)]
        finally:
            gc.enable()
