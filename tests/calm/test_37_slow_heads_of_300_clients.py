"""300 clients that send their heads byte by byte are all disconnected, and a good client is served as before."""

import asyncio

from gateway_rig import assert_untouched, call, gateway, http, scripted

from gateway.http import server
from tests.calm.rig import Watch, own_s, percentile
from tests.calm.slow_clients import CLIENTS, SlowClients

HEAD_S = 3.0  # in place of 30 s
LATE_S_MAX = 0.5  # beyond it, of own time: 300 connections are made, and cut, one after the other
GIVEN_S = 30.0  # of wall time, on a machine that others use too
GOOD_S_MAX = 0.05


async def test_every_slow_head_is_cut_in_time_and_a_good_client_is_fast(monkeypatch, figure):
    assert server.KEEPALIVE_S <= 30, "the target"
    monkeypatch.setattr(server, "KEEPALIVE_S", HEAD_S)
    head = http(call())[:-200] + b"X-Filler: " + b"a" * 10_000
    async with scripted() as backend, gateway(backend) as rig:
        watch = Watch(own_s)
        async with SlowClients(rig.port, head) as clients:
            await clients.until_all_send()
            waits = [await clients.time_of_a_good_call(rig) for _ in range(20)]
            replies = await asyncio.wait_for(clients.replies(), HEAD_S + GIVEN_S)
        took_s = watch.s
        figure(37, "slow clients disconnected", len(replies), f"of {CLIENTS}", target=f"{CLIENTS}")
        figure(
            37,
            "time until the last slow client is disconnected, own time",
            took_s,
            "s",
            target=f"< {HEAD_S + LATE_S_MAX:g}",
        )
        good_s = percentile(waits, 0.5)
        figure(37, "median of another client's call, own time", 1e3 * good_s, "ms", target="< 50")
        assert len(replies) == CLIENTS
        assert took_s < HEAD_S + LATE_S_MAX
        assert good_s < GOOD_S_MAX
        assert len(backend.calls) == len(waits)
        backend.calls.clear()
        assert rig.idle()


async def test_a_head_that_never_begins_is_cut_too(monkeypatch):
    monkeypatch.setattr(server, "KEEPALIVE_S", 0.5)
    async with scripted() as backend, gateway(backend) as rig:
        reader, writer = await asyncio.open_connection("127.0.0.1", rig.port)
        assert await asyncio.wait_for(reader.read(), GIVEN_S) == b""
        writer.close()
        assert_untouched(rig, backend)
