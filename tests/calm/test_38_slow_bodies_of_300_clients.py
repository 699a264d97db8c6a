"""300 clients that send their bodies byte by byte all get 408, and no slot is taken before a body is complete."""

import asyncio

from gateway_rig import CHAT, gateway, http, scripted

from gateway.config.sections import LimitsSection
from tests.calm.rig import Watch, own_s, percentile
from tests.calm.slow_clients import CLIENTS, SlowClients

BODY_S = 3.0  # in place of 30 s
LATE_S_MAX = 0.5  # beyond it, of own time: 300 connections are made, and answered, one after the other
GIVEN_S = 30.0  # of wall time, on a machine that others use too
GOOD_S_MAX = 0.05


async def test_every_slow_body_is_a_408_in_time_and_takes_no_slot(figure):
    assert LimitsSection().body_timeout_s <= 30, "the target"
    body = b'{"model":"tiny","messages":[' + b" " * 10_000
    head = f"POST {CHAT} HTTP/1.1\r\nHost: g\r\nContent-Type: application/json\r\n"
    length = head.encode() + b"Content-Length: 20000\r\n\r\n"
    async with scripted() as backend, gateway(backend, limits={"body_timeout_s": BODY_S}) as rig:
        watch, slots = Watch(own_s), 0
        async with SlowClients(rig.port, length + body, at_once=len(length)) as clients:
            await clients.until_all_send()
            waits = []
            for _ in range(20):
                waits.append(await clients.time_of_a_good_call(rig))
                slots = max(slots, rig.snapshot().in_flight_requests + rig.snapshot().queued_requests)
            replies = await asyncio.wait_for(clients.replies(), BODY_S + GIVEN_S)
        took_s = watch.s
        timeouts = sum(reply.startswith(b"HTTP/1.1 408 ") for reply in replies)
        figure(38, "slow bodies answered 408", timeouts, f"of {CLIENTS}", target=f"{CLIENTS}")
        figure(
            38,
            "time until the last slow client is disconnected, own time",
            took_s,
            "s",
            target=f"< {BODY_S + LATE_S_MAX:g}",
        )
        figure(38, "slots that slow clients took", slots, target="0")
        good_s = percentile(waits, 0.5)
        figure(38, "median of another client's call, own time", 1e3 * good_s, "ms", target="< 50")
        assert timeouts == CLIENTS
        assert took_s < BODY_S + LATE_S_MAX
        assert slots == 0
        assert good_s < GOOD_S_MAX
        assert len(backend.calls) == len(waits)


async def test_a_chunked_body_that_is_slow_is_a_408_too():
    chunked = http(b"", "Transfer-Encoding: chunked").replace(b"Content-Length: 0\r\n", b"")
    async with scripted() as backend, gateway(backend, limits={"body_timeout_s": 0.5}) as rig:
        reader, writer = await asyncio.open_connection("127.0.0.1", rig.port)
        writer.write(chunked + b"1\r\n{\r\n")
        assert (await asyncio.wait_for(reader.read(), GIVEN_S)).startswith(b"HTTP/1.1 408 ")
        writer.close()
        assert backend.calls == []
