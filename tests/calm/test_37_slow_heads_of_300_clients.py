"""300 clients that send their heads byte by byte are all disconnected, and a good client is served as before."""

import asyncio
import time

from gateway_rig import assert_untouched, call, gateway, http, scripted

from gateway.http import server
from tests.calm.slow_clients import CLIENTS, SlowClients

HEAD_S = 3.0  # in place of 30 s
GIVEN_S = 10.0  # beyond it, on a machine that others use too


async def test_every_slow_head_is_cut_in_time_and_a_good_client_is_fast(monkeypatch, figure):
    assert server.KEEPALIVE_S <= 30, "the target"
    monkeypatch.setattr(server, "KEEPALIVE_S", HEAD_S)
    head = http(call())[:-200] + b"X-Filler: " + b"a" * 10_000
    async with scripted() as backend, gateway(backend) as rig:
        began = time.monotonic()
        async with SlowClients(rig.port, head) as clients:
            await clients.until_all_send()
            waits = [await clients.time_of_a_good_call(rig) for _ in range(20)]
            replies = await asyncio.wait_for(clients.replies(), HEAD_S + GIVEN_S)
        took_s = time.monotonic() - began
        figure(37, "slow clients disconnected", len(replies), f"of {CLIENTS}", target=f"{CLIENTS}")
        figure(
            37, f"until the last is, where the limit is {HEAD_S:g} s", took_s, "s", target="<= 30 s where it is 30 s"
        )
        figure(37, "median of a good call beside them", sorted(waits)[10] * 1000, "ms", target="< 50")
        assert len(replies) == CLIENTS
        assert took_s < HEAD_S + GIVEN_S
        assert sorted(waits)[10] < 0.5
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
