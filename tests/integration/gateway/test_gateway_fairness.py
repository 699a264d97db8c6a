"""Tenants on one busy engine: in which order and in what parts they are served."""

import asyncio
import socket
import statistics
import time
from contextlib import AsyncExitStack

import pytest
from gateway_rig import call, engine, gateway, http, running, scripted, tokens_emitted, until

from gateway.config.key_file import add_key

SECRET = "s" * 32
FLOOD = 400  # connections


@pytest.fixture
def tenants(tmp_path):
    """Configuration of tenants with these settings, and the headers that make a call theirs."""

    def make(**settings):
        auth = {"mode": "keys", "secret": SECRET, "keys_file": tmp_path / "keys"}
        headers = {}
        for name in settings:
            key = add_key(
                auth["keys_file"], tenant=name, secret=SECRET.encode(), created_at="2026-01-01T00:00:00+00:00"
            )
            headers[name] = {"Authorization": f"Bearer {key}"}
        return {"auth": auth, "tenants": settings}, headers

    return make


def slots(server, count):
    return {"name": "b0", "url": server.url, "requests_running_max": count}


async def ended(tasks):
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def ttft_s(rig, headers) -> float:
    started = time.monotonic()
    body = call(stream=True, max_tokens=5)
    async with rig.session.post(rig.url + "/v1/chat/completions", json=body, headers=headers) as response:
        async for line in response.content:
            if b'"content":"' in line and b'"content":""' not in line:
                return time.monotonic() - started
    raise AssertionError("no token came")


async def chats_beside_a_flood(scheduling, tenants) -> float:
    """Median time to the first token of a tenant that chats while another keeps 120 calls in the queue."""
    config, headers = tenants(chat={}, flood={})
    async with engine() as server, gateway(slots(server, 8), **config, scheduling=scheduling) as rig:
        flood = [asyncio.create_task(rig.post(call(max_tokens=100), headers=headers["flood"])) for _ in range(120)]
        await until(lambda: rig.tenant("flood") and rig.tenant("flood").queued_requests > 80)
        times = []
        while len(times) < 6 and rig.tenant("flood").queued_requests > 8:
            times.append(await ttft_s(rig, headers["chat"]))
        await ended(flood)
        return statistics.median(times)


async def test_a_chat_is_served_soon_beside_a_flood_under_vtc_and_late_under_fifo(tenants):
    vtc = await chats_beside_a_flood({"fairness": "vtc", "share_ratio_max": 1.0}, tenants)
    fifo = await chats_beside_a_flood({"fairness": "fifo"}, tenants)
    assert vtc < 0.3 * fifo


@pytest.mark.parametrize("weight", [1, 3])
async def test_tenants_that_both_wait_are_served_by_their_weights(tenants, weight):
    config, headers = tenants(one={}, other={"weight": weight})
    async with engine() as server, gateway(slots(server, 8), **config) as rig:
        calls = [
            asyncio.create_task(rig.post(call(max_tokens=40), headers=headers[name]))
            for _ in range(150)
            for name in headers
        ]
        await until(lambda: rig.service("other") > 3000)
        before = {name: rig.service(name) for name in headers}
        await until(lambda: rig.service("other") > 9000)
        assert all(rig.tenant(name).queued_requests for name in headers)
        gained = {name: rig.service(name) - before[name] for name in headers}
        assert gained["other"] / gained["one"] == pytest.approx(weight, rel=0.15)
        await ended(calls)


async def test_a_tiers_share_does_not_depend_on_how_many_tenants_it_has(tenants):
    config, headers = tenants(lone={"tier": "gold"}, a={"tier": "silver"}, b={"tier": "silver"}, c={"tier": "silver"})
    tiers = {"gold": {"weight": 1}, "silver": {"weight": 1}}
    async with engine() as server, gateway(slots(server, 8), **config, tiers=tiers) as rig:
        calls = [
            asyncio.create_task(rig.post(call(max_tokens=40), headers=headers[name]))
            for _ in range(120)
            for name in headers
        ]
        await until(lambda: rig.service("lone") > 2000)
        before = {name: rig.service(name) for name in headers}
        await until(lambda: rig.service("lone") > 6000)
        gained = {name: rig.service(name) - before[name] for name in headers}
        assert sum(gained[name] for name in "abc") / gained["lone"] == pytest.approx(1, rel=0.2)
        await ended(calls)


async def test_a_reserve_keeps_seats_that_only_its_tier_may_take(tenants):
    config, headers = tenants(chat={"tier": "interactive"}, batch={"tier": "batch"})
    tiers = {"interactive": {"reserve_ratio": 0.25}, "batch": {}}
    async with engine(speed=0.1) as server, gateway(slots(server, 8), **config, tiers=tiers) as rig:
        # Answers of half a minute: no seat becomes free while this test runs.
        batch = [asyncio.create_task(rig.post(call(max_tokens=3000), headers=headers["batch"])) for _ in range(20)]
        await until(lambda: rig.snapshot().in_flight_requests == 6)
        await asyncio.sleep(0.1)
        assert (rig.tenant("batch").in_flight_requests, rig.tenant("batch").queued_requests) == (6, 14)
        for _ in range(2):
            replies = await asyncio.gather(*(rig.post(headers=headers["chat"]) for _ in range(2)))
            assert [reply.status for reply in replies] == [200, 200]
        assert rig.tenant("batch").in_flight_requests == 6
        await ended(batch)


async def test_a_tenants_in_flight_limit_holds_it_back_and_no_other(tenants):
    config, headers = tenants(limited={"in_flight_max": 2}, free={})
    async with engine(speed=0.3) as server, gateway(slots(server, 16), **config) as rig:
        calls = [
            asyncio.create_task(rig.post(call(max_tokens=20), headers=headers[name]))
            for name in headers
            for _ in range(6)
        ]
        peaks = dict.fromkeys(headers, 0)
        while not all(task.done() for task in calls):
            for name in headers:
                peaks[name] = max(peaks[name], rig.tenant(name).in_flight_requests if rig.tenant(name) else 0)
            await asyncio.sleep(0.003)
        assert peaks == {"limited": 2, "free": 6}
        assert {task.result().status for task in calls} == {200}


async def test_one_tenant_alone_may_use_the_whole_engine(tenants):
    async with engine(speed=0.2) as server, gateway(slots(server, 8)) as rig:
        calls = [asyncio.create_task(rig.post(call(max_tokens=20))) for _ in range(12)]
        await until(lambda: running(server) == 8)
        assert {(await task).status for task in calls} == {200}
        assert tokens_emitted(server) == 240


async def test_a_call_does_not_wait_behind_the_connections_of_a_flood():
    """The flood's connections wait to be accepted, each with a call; the modest tenant's connection is the last."""
    async with scripted() as backend, gateway(backend) as rig, AsyncExitStack() as stack:
        sockets = [stack.enter_context(socket.create_connection(("127.0.0.1", rig.port))) for _ in range(FLOOD + 1)]
        for number, connection in enumerate(sockets):  # nothing here lets the loop run
            name = "modest" if number == FLOOD else f"flood-{number}"
            key = "modest" if number == FLOOD else "greedy"
            connection.sendall(http(call(), f"Authorization: Bearer {key}", f"x-request-id: {name}"))
        await until(lambda: len(backend.calls) == FLOOD + 1)
        order = [asked.headers["x-request-id"] for asked in backend.calls]
        assert order.index("modest") < FLOOD / 2  # in the order of arrival it is the last
