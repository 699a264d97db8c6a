"""Gateways that share limits through a real Redis: per minute, of budgets, in flight; and when they cannot meet."""

import asyncio
import logging
import time
from contextlib import AsyncExitStack, asynccontextmanager

import pytest
from gateway_rig import bearer, call, engine, gateway, running, scripted, until
from redis_server import RedisServer

from gateway.config.key_file import add_key
from gateway.config.state import StateSection
from gateway.state.assembly import make_peer_exchange, make_store
from gateway.store.base import StoreUnavailable

SECRET = "0123456789abcdef"
SEEN_S = 1.0  # what one gateway let in is known to the others
GONE_S = 5.0  # one that is dead is known to be
WORD = b'{"writer":"x","leaves":false,"minutes":{},"spent":{},"reserved":{},"backends":{}}'
PARTS = (b"minutes", b"spent", b"reserved", b"backends")


@pytest.fixture
def server(tmp_path):
    with RedisServer(tmp_path) as made:
        yield made


@pytest.fixture
def key(tmp_path):
    return add_key(tmp_path / "keys", tenant="alice", secret=SECRET.encode(), created_at="2026-11-20T00:00:00+00:00")


@pytest.fixture
def join(server, tmp_path, key):
    """Gateways that share the Redis, in front of the same backends; with a key of the tenant alice."""

    @asynccontextmanager
    async def joined(count, *backends, **alice):
        async with AsyncExitStack() as stack:
            rigs = []
            for number in range(count):
                state = {"file": tmp_path / f"{number}.db", "redis": {"url": server.url, "timeout_ms": 200}}
                config = {
                    "auth": {"mode": "keys", "secret": SECRET, "keys_file": tmp_path / "keys"},
                    "tenants": {"alice": alice},
                    "state": state,
                }
                store = make_store(StateSection(**state), None)
                rigs.append(await stack.enter_async_context(gateway(*backends, store=store, **config)))
            await until(lambda: all(replicas(rig).count == count for rig in rigs))
            yield rigs

    return joined


def replicas(rig):
    return rig.gateway._management.replicas


async def flood(rig, key, seconds, *, at_once=8):
    """How many calls a gateway takes in so long, from clients that ask again and again."""
    ends_at, taken = time.monotonic() + seconds, 0

    async def client():
        nonlocal taken
        while time.monotonic() < ends_at:
            reply = await rig.post(headers=bearer(key))
            taken += reply.status == 200
            await asyncio.sleep(0.005)

    await asyncio.gather(*(client() for _ in range(at_once)))
    return taken


async def test_a_word_is_said_in_the_knowledge_of_all_words_before(server):
    state = StateSection(redis={"url": server.url})
    one, two = make_peer_exchange(state), make_peer_exchange(state)
    try:
        first = await one.publish("one", b"1", 0)
        assert (first.taken, first.heard) == (True, {})
        missed = await two.publish("two", b"2", 0)
        assert (missed.taken, {name: heard.word for name, heard in missed.heard.items()}) == (False, {"one": b"1"})
        assert missed.heard["one"].age_s < 5.0
        assert (await two.publish("two", b"2", missed.said)).taken
        news = await one.publish("one", b"3", first.said)
        assert not news.taken
        assert news.heard.keys() == {"two"}
        server.restart_empty()
        with pytest.raises(StoreUnavailable):  # the connection is gone; the next is another
            await one.publish("one", b"3", news.said)
        assert not (await one.publish("one", b"3", news.said)).taken, "of all that was said nothing is known there"
    finally:
        await one.close()
        await two.close()


async def test_a_limit_per_minute_is_one_for_all_gateways_and_whole_for_one(join, key):
    limit = 60
    async with scripted() as backend, join(3, backend, requests_per_minute_max=limit) as rigs:
        taken = sum(await asyncio.gather(*(flood(rig, key, 3.0) for rig in rigs)))
        assert limit <= taken <= limit + len(rigs) - 1
        left = {rig.gateway.pools.find(None)[0].rate_limits(tenant).requests.remaining for rig in rigs for tenant in
                rig.gateway.pools.find(None)[0].tenants()}  # fmt: skip
        assert left == {0}


async def test_one_gateway_may_let_in_all_of_a_limit_of_tokens(join, key):
    async with scripted() as backend, join(3, backend, tokens_per_minute_max=40 * 12) as rigs:
        taken = await flood(rigs[0], key, 4.0)
        assert taken * 12 >= 0.9 * 40 * 12


async def test_without_redis_each_keeps_to_its_fair_share_and_says_so(join, key, server, caplog):
    caplog.set_level(logging.WARNING)
    async with scripted() as backend, join(3, backend, requests_per_minute_max=30) as rigs:
        server.kill()
        await until(lambda: all(replicas(rig).is_cut_off for rig in rigs))
        assert "kept to a share of 1/3" in caplog.text
        assert b"fairlead_replicas_cut_off 1.0" in await rigs[0].gateway.metrics.exposition()
        taken = await asyncio.gather(*(flood(rig, key, 1.0) for rig in rigs))
        assert taken == [10, 10, 10]
        server.start()
        await until(lambda: not any(replicas(rig).is_cut_off for rig in rigs))
        await until(lambda: all(replicas(rig).count == 3 for rig in rigs))


async def test_a_budget_that_is_spent_at_one_gateway_is_spent_at_all_within_a_second(join, key):
    async with scripted() as backend, join(2, backend, tokens_per_day_max=100) as (one, two):
        assert (await one.post(headers=bearer(key))).status == 200
        for _ in range(10):
            await one.post(headers=bearer(key))
        standing = one.gateway._management.budgets.overview()[0]
        assert standing.used >= 84
        began = time.monotonic()
        await until(lambda: two.gateway._management.budgets.overview()[0].used == standing.used)
        assert time.monotonic() - began < SEEN_S
        reply = await two.post(headers=bearer(key))
        assert (reply.status, reply.error["reason"]) == (429, "insufficient_quota")


async def test_a_tenants_limit_in_flight_is_one_for_all_gateways(join, key):
    async with engine(speed=0.01) as server, join(3, server, in_flight_max=6) as rigs:
        tasks = [
            asyncio.create_task(rig.post(call(max_tokens=4_000), headers=bearer(key))) for rig in rigs for _ in range(6)
        ]
        try:
            await until(lambda: running(server) == 6)
            await asyncio.sleep(0.5)  # for a seventh, which must not come
            assert running(server) == 6
            assert [rig.snapshot().in_flight_requests for rig in rigs] == [2, 2, 2]
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


async def test_a_backend_is_given_no_more_by_all_together_than_it_has_seats_and_no_less(join, key):
    async with (
        engine(speed=0.01, requests_running_max=7) as server,
        join(2, {"name": "gpu", "url": server.url, "requests_running_max": 7}) as rigs,
    ):
        tasks = [
            asyncio.create_task(rig.post(call(max_tokens=4_000), headers=bearer(key))) for rig in rigs for _ in range(9)
        ]
        try:
            await until(lambda: running(server) == 7)
            for _ in range(20):  # polls of what runs there, of which each gateway knows a part to be the other's
                await asyncio.sleep(0.05)
                assert running(server) <= 7
            assert sorted(rig.snapshot().in_flight_requests for rig in rigs) == [3, 4]
            assert [view.foreign_requests for rig in rigs for view in rig.snapshot().backends.values()] == [0, 0]
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


async def test_a_gateway_that_dies_is_missed_within_seconds_and_one_that_leaves_at_once(join, key, server, tmp_path):
    async with scripted() as backend, join(1, backend, in_flight_max=6) as (rig,):
        other = make_peer_exchange(StateSection(redis={"url": server.url}))
        try:
            said = 0
            while not (met := await other.publish("dies", WORD, said)).taken:
                said = met.said
            await until(lambda: replicas(rig).count == 2)
            assert rig.gateway._handlers.tenants.find("alice").in_flight_max == 3
            began = time.monotonic()
            await until(lambda: replicas(rig).count == 1)
            assert time.monotonic() - began < GONE_S
            await until(lambda: rig.gateway._handlers.tenants.find("alice").in_flight_max == 6)
            said = 0
            while not (met := await other.publish("leaves", WORD.replace(b"false", b"true"), said)).taken:
                said = met.said
            await until(lambda: "leaves" in replicas(rig)._others)
            assert replicas(rig).count == 1
        finally:
            await other.close()


@pytest.mark.parametrize(
    "wrong",
    [
        b"no json",
        b"[]",
        b'{"writer":1}',
        *(WORD.replace(b'"%b":{}' % name, b'"%b":{"a":{"b":[]}}' % name) for name in PARTS),
    ],
)
async def test_what_another_version_says_is_passed_over(join, server, wrong):
    async with scripted() as backend, join(1, backend) as (rig,):
        other = make_peer_exchange(StateSection(redis={"url": server.url}))
        try:
            said = 0
            while not (met := await other.publish("newer", wrong, said)).taken:
                said = met.said
            met_at = replicas(rig)._met_at
            await until(lambda: replicas(rig)._met_at > met_at)
            assert replicas(rig).count == 1
        finally:
            await other.close()
