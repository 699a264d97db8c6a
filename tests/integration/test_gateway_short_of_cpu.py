"""A gateway that is short of CPU: it reads its tenants' calls in turns, and refuses those that ask for more.

How long a turn may be is set to nothing here, so that every loop is too slow for what comes; what is asserted is the
order of calls and who was refused, not how long anything took.
"""

import asyncio
import logging
from contextlib import AsyncExitStack

import pytest
from gateway_rig import CHAT, assert_error, call, gateway, http, scripted, until, wire

from gateway.intake import start_queue

FLOOD = 300  # calls at once, each on a connection of its own


@pytest.fixture
def one_at_a_time(monkeypatch):
    """One call begins in a turn of the loop, but for the first."""
    monkeypatch.setattr(start_queue, "TURN_S_MAX", 0.0)
    monkeypatch.setattr(start_queue, "STARTED_RATIO_MIN", 0.0)


@pytest.fixture
def impatient(one_at_a_time, monkeypatch):
    """Whoever has a call that waits already is refused more."""
    monkeypatch.setattr(start_queue, "WAIT_S_MAX", 0.0)


def ask(name, key, *headers, body=None):
    """A call that goes by this name."""
    return http(body or call(), f"Authorization: Bearer {key}", f"x-request-id: {name}", *headers)


async def connected(stack, rig, count):
    """Connections that the gateway has."""
    connections = await asyncio.gather(*(stack.enter_async_context(wire(rig)) for _ in range(count)))
    for connection in connections:
        connection.send(http(b"", path="/livez", method="GET"))
    assert {(await connection.reply()).status for connection in connections} == {200}
    return connections


async def flood(stack, rig):
    """Calls of one tenant, each on a connection of its own."""
    connections = await connected(stack, rig, FLOOD)
    for number, connection in enumerate(connections):
        connection.send(ask(f"flood-{number}", "greedy"))
    return connections


async def test_a_call_of_a_tenant_that_asks_for_little_does_not_wait_behind_a_flood(one_at_a_time):
    async with scripted() as backend, gateway(backend) as rig, AsyncExitStack() as stack:
        modest = await stack.enter_async_context(wire(rig))
        connections = await flood(stack, rig)
        await until(lambda: rig.gateway._front.starts.waiting > FLOOD / 2)
        modest.send(ask("modest", "modest"))
        replies = await asyncio.gather(modest.reply(), *(connection.reply() for connection in connections))
        assert {reply.status for reply in replies} == {200}
        order = [asked.headers["x-request-id"] for asked in backend.calls]
        assert len(order) == FLOOD + 1
        assert order.index("modest") < FLOOD * 2 / 3  # in the order in which they came it would be the last
        assert rig.gateway._front.starts.waiting == 0


async def test_the_greedy_are_refused_and_told_when_to_come_again_and_others_are_not(impatient, caplog):
    async with scripted() as backend, gateway(backend) as rig, AsyncExitStack() as stack:
        connections = await flood(stack, rig)
        async with wire(rig) as modest:
            for number in range(10):
                modest.send(ask(f"modest-{number}", "modest"))
                assert (await modest.reply()).status == 200
        replies = [await connection.reply() for connection in connections]
        refused = [reply for reply in replies if reply.status != 200]
        assert len(refused) > FLOOD / 2
        for reply in refused:
            assert_error(reply, 429, code="rate_limit_exceeded")
            assert int(reply.headers["retry-after"]) >= 1
            assert reply.headers["x-request-id"].startswith("flood-")
            assert reply.headers["server"] == "fairlead"
        page = (await rig.gateway.metrics.exposition()).decode()
        lines = [line for line in page.splitlines() if 'reason="gateway_busy"' in line]
        assert [line.rsplit(" ", 1)[1] for line in lines] == [f"{len(refused)}.0"]  # of one tenant
        assert len(backend.calls) == FLOOD - len(refused) + 10
        told = [record for record in caplog.records if record.name == "gateway.intake.starts"]
        assert [record.levelno for record in told] == [logging.WARNING]
        # A connection goes on behind a refusal.
        for connection in connections:
            connection.send(ask("again", "greedy"))
            reply = await connection.reply()
            assert reply.status == 200


async def test_calls_behind_others_of_their_connection_take_turns_too(impatient):
    async with scripted() as backend, gateway(backend) as rig, AsyncExitStack() as stack:
        connections = [await stack.enter_async_context(wire(rig)) for _ in range(FLOOD // 3)]
        for number, connection in enumerate(connections):
            connection.send(b"".join(ask(f"{number}-{part}", "greedy") for part in range(3)))
        statuses = []
        for number, connection in enumerate(connections):
            for part in range(3):
                reply = await connection.reply()
                statuses.append(reply.status)
                assert reply.headers["x-request-id"] == f"{number}-{part}"
        assert set(statuses) == {200, 429}
        assert len(backend.calls) == statuses.count(200)


async def test_a_body_that_is_still_coming_and_a_page_are_refused_as_well(impatient):
    """What is not refused as it is read is refused by its handler: with the headers for the page, and the end of a
    connection of which more is to come.
    """
    origin = "Origin: https://chat.example"
    listen = {"port": 0, "allowed_origins": ["https://chat.example"]}
    async with scripted() as backend, gateway(backend, listen=listen) as rig, AsyncExitStack() as stack:
        pages, parts = await connected(stack, rig, 10), await connected(stack, rig, 10)
        await flood(stack, rig)  # of which nothing is read yet
        for page, part in zip(pages, parts, strict=True):
            page.send(ask("page", "greedy", origin))
            part.send(ask("part", "greedy")[:-5])
        replies = [await page.reply() for page in pages]
        refused = [reply for reply in replies if reply.status == 429]
        assert refused
        assert {reply.headers["access-control-allow-origin"] for reply in refused} == {"https://chat.example"}
        statuses = []
        for part in parts:
            part.send(ask("part", "greedy")[-5:])
            reply = await part.reply()
            statuses.append(reply.status)
            if reply.status == 429:
                assert reply.headers["connection"] == "close"
        assert set(statuses) <= {200, 429}


async def test_who_leaves_while_it_waits_is_not_begun(one_at_a_time):
    async with scripted() as backend, gateway(backend) as rig, AsyncExitStack() as stack:
        connections = await flood(stack, rig)
        await until(lambda: rig.gateway._front.starts.waiting > FLOOD / 2)
        for connection in connections:
            connection.reset()
        await until(lambda: rig.gateway._front.starts.waiting == 0)
        await until(rig.idle)
        assert len(backend.calls) < FLOOD
        assert (await rig.post(path=CHAT)).status == 200


async def test_probes_do_not_wait(one_at_a_time):
    async with scripted() as backend, gateway(backend) as rig, AsyncExitStack() as stack:
        (probe,) = await connected(stack, rig, 1)
        await flood(stack, rig)
        await until(lambda: rig.gateway._front.starts.waiting > FLOOD / 2)
        probe.send(http(b"", path="/readyz", method="GET"))
        assert (await probe.reply()).status == 200
        assert rig.gateway._front.starts.waiting
