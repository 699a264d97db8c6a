"""Gateways that share an order through a real Redis, in one process: limits per minute and in flight, budgets, one that
is alone, which of them asks the backends.
"""

import asyncio
import logging
import time
from contextlib import AsyncExitStack, asynccontextmanager
from math import inf

import pytest
from founding import found, halve_leases
from gateway_rig import PATIENCE_S, answer, bearer, call, engine, fall_silent, gateway, running, scripted, until
from redis_server import RedisServer

from gateway import replicas
from gateway.cluster import campaign
from gateway.cluster.wire import VERSION
from gateway.config.key_file import add_key, read_keys
from gateway.config.state import StateSection
from gateway.intake.stored_responses import StoredResponse
from gateway.registry.entries import HMAC_CHARS_IN_NAME
from gateway.shared_order.roles import MemberRole
from gateway.store.assembly import make_store

SECRET = "0123456789abcdef"
SEEN_S = 1.0  # what one gateway has spent is known to the others
FLOOD_S = 1.5  # in which a gateway hears of limits six times
ALL_S_MAX = 30.0  # less than a second, on a quiet machine; no call is older than a minute by then
REFUSED_PAUSE_S = 0.05  # of a client of a flood: all of one gateway still ask 160 times a second


@pytest.fixture
def server(tmp_path):
    with RedisServer(tmp_path) as made:
        yield made


@pytest.fixture
def key(tmp_path):
    return add_key(tmp_path / "keys", tenant="alice", secret=SECRET.encode(), created_at="2026-11-20T00:00:00+00:00")


@pytest.fixture
def key_id(tmp_path, key):
    return read_keys(tmp_path / "keys")[0].hmac[:HMAC_CHARS_IN_NAME]


@pytest.fixture
def join(server, tmp_path, key, monkeypatch):
    """Gateways that share the Redis, in front of the same backends; with a key of the tenant alice. The leader is the
    first.
    """

    @asynccontextmanager
    async def joined(count, *backends, needs=None, groups=None, **alice):
        found(monkeypatch.setattr, stands=needs is None)
        async with AsyncExitStack() as stack:

            def serving(number):
                state = {"file": tmp_path / f"{number}.db", "redis": {"url": server.url, "timeout_ms": 200}}
                config = {
                    "auth": {"mode": "keys", "secret": SECRET, "keys_file": tmp_path / "keys"},
                    "groups": groups or {},
                    "tenants": {"alice": alice},
                    "state": state,
                }
                store = make_store(StateSection(**state), None)
                return stack.enter_async_context(gateway(*backends, store=store, **config))

            rigs = await asyncio.gather(*(serving(number) for number in range(count)))
            await until(
                lambda: sum(view(rig).leader is not None for rig in rigs) >= (count if needs is None else needs)
            )
            await until(lambda: all(len(view(rig).members) == count for rig in rigs))
            for rig in rigs:
                async with asyncio.timeout(PATIENCE_S):
                    while (await rig.get("/readyz")).status != 200:  # noqa: ASYNC110 - until its backends are known
                        await asyncio.sleep(0.02)
            yield sorted(rigs, key=lambda rig: view(rig).role is not MemberRole.LEADER)

    return joined


@pytest.fixture
def lose(monkeypatch):
    """Kill Redis, and wait until each gateway is alone. The members of an order do not renew its leader's lease without
    Redis, for 90 s as they would.
    """

    async def lost(server, rigs):
        monkeypatch.setattr(campaign, "WITHOUT_STORE_S", 0.0)
        halve_leases(monkeypatch.setattr)
        server.kill()
        await until(lambda: all(view(rig).standalone for rig in rigs))

    return lost


def view(rig):
    return rig.gateway.order.cluster_view()


async def flood(rig, key, seconds, *, at_once=8, enough=inf):
    """How many calls a gateway takes in so long, and until it refuses one, from clients that ask again and again, or
    until it has taken enough.
    """
    ends_at, taken, refused = time.monotonic() + seconds, 0, 0

    async def client():
        nonlocal taken, refused
        while taken < enough and (time.monotonic() < ends_at or not refused):
            reply = await rig.post(headers=bearer(key))
            taken += reply.status == 200
            refused += reply.status == 429
            await asyncio.sleep(0.005 if reply.status == 200 else REFUSED_PAUSE_S)

    await asyncio.gather(*(client() for _ in range(at_once)))
    return taken


async def test_a_limit_per_minute_is_one_for_all_gateways_and_whole_for_one(join, key):
    """Takes two seconds: clients ask on, and none more of their calls may be taken."""
    limit = 60
    async with scripted() as backend, join(3, backend, requests_per_minute_max=limit) as rigs:
        taken = sum(await asyncio.gather(*(flood(rig, key, FLOOD_S) for rig in rigs)))
        assert taken == limit
        replies = [await rig.post(headers=bearer(key)) for rig in rigs]
        assert {(reply.status, reply.headers["x-ratelimit-remaining-requests"]) for reply in replies} == {(429, "0")}


async def test_one_gateway_may_let_in_all_of_a_limit_of_tokens(join, key):
    async with scripted() as backend, join(3, backend, tokens_per_minute_max=40 * 12) as rigs:
        assert await flood(rigs[1], key, ALL_S_MAX, enough=36) >= 36


async def test_without_redis_each_keeps_to_its_part_and_says_so_and_joins_when_it_is_back(
    join, key, server, lose, caplog
):
    """Takes seconds: leases end, clients ask on, and a leader is elected."""
    caplog.set_level(logging.WARNING)
    async with scripted() as backend, join(3, backend, requests_per_minute_max=30) as rigs:
        await lose(server, rigs)
        assert "alone, with 1/3 of every limit" in caplog.text
        assert b"fairlead_replicas_cut_off 1.0" in await rigs[0].gateway.metrics.exposition()
        assert [(await rig.get("/readyz")).status for rig in rigs] == [200] * 3
        taken = await asyncio.gather(*(flood(rig, key, FLOOD_S) for rig in rigs))
        assert taken == [10, 10, 10]
        server.start()
        await until(lambda: len({view(rig).leader for rig in rigs} - {None}) == 1)
        await until(lambda: sorted(view(rig).role for rig in rigs) == ["follower", "follower", "leader"])
        assert len({view(rig).epoch for rig in rigs}) == 1


async def test_without_redis_each_keeps_to_its_part_of_a_groups_limits_too(join, key, server, lose):
    """Takes seconds: leases end, clients ask on, and a leader is elected."""
    limits = {"requests_per_minute_max": 30, "in_flight_max": 3}
    async with (
        scripted() as backend,
        join(3, backend, groups={"research": limits}, group="research") as rigs,
    ):
        await lose(server, rigs)
        backend.default = fall_silent
        waiting = [asyncio.create_task(rig.post(headers=bearer(key))) for rig in rigs for _ in range(2)]
        await until(
            lambda: all(
                (each.queued_requests, each.in_flight_requests) == (1, 1) for each in (rig.snapshot() for rig in rigs)
            )
        )
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
        await until(lambda: all(rig.idle() for rig in rigs))
        backend.default = answer()
        assert await asyncio.gather(*(flood(rig, key, FLOOD_S) for rig in rigs)) == [8, 8, 8]
        server.start()
        await until(lambda: sorted(view(rig).role for rig in rigs) == ["follower", "follower", "leader"])


async def test_gateways_of_unequal_versions_are_each_alone_within_the_limit_of_all_until_one_version_is_left(
    join, key, monkeypatch, caplog
):
    """Takes seconds: clients ask on, and a leader is elected once one version is left."""
    made, versions = replicas.place_of, iter((VERSION, VERSION, VERSION + 1))

    def place_of(config, redis):
        place = made(config, redis)
        place.version = next(versions)
        return place

    monkeypatch.setattr(replicas, "place_of", place_of)
    async with scripted() as backend, join(3, backend, needs=0, requests_per_minute_max=30) as rigs:
        await until(lambda: all(view(rig).standalone for rig in rigs))
        assert "another version of the cluster protocol is spoken by" in caplog.text
        assert await asyncio.gather(*(flood(rig, key, FLOOD_S) for rig in rigs)) == [10, 10, 10]
        (newer,) = (rig for rig in rigs if rig.gateway.order.place.version != VERSION)
        older = [rig for rig in rigs if rig is not newer]
        halve_leases(monkeypatch.setattr)
        await newer.gateway.order.shared.stop()
        await until(lambda: sorted(view(rig).role for rig in older) == [MemberRole.FOLLOWER, MemberRole.LEADER])


async def test_gateways_in_open_mode_that_start_in_one_folder_share_the_secret_that_the_first_has_made(
    server, tmp_path, monkeypatch
):
    def config(number):
        state = {"file": tmp_path / f"{number}.db", "redis": {"url": server.url, "timeout_ms": 200}}
        admin = {"enabled": True, "port": 0, "key_file": tmp_path / f"key{number}"}
        return {"state": state, "admin": admin, "store": make_store(StateSection(**state), None), "folder": tmp_path}

    found(monkeypatch.setattr)
    async with scripted() as backend, gateway(backend, **config(0)) as one:
        assert (tmp_path / "fairlead.secret").exists()
        async with gateway(backend, **config(1)) as other:
            await until(lambda: {view(one).role, view(other).role} == {MemberRole.LEADER, MemberRole.FOLLOWER})


async def test_a_budget_that_is_spent_at_one_gateway_is_spent_at_all_within_a_second(join, key):
    async with scripted() as backend, join(2, backend, tokens_per_day_max=100) as (one, two):
        assert (await one.post(headers=bearer(key))).status == 200
        for _ in range(10):
            await one.post(headers=bearer(key))
        standing = one.gateway._management.budgets.ledger.overview()[0]
        assert standing.used >= 84
        began = time.monotonic()
        await until(lambda: two.gateway._management.budgets.ledger.overview()[0].used == standing.used)
        assert time.monotonic() - began < SEEN_S
        reply = await two.post(headers=bearer(key))
        assert (reply.status, reply.error["reason"]) == (429, "insufficient_quota")


def at_leader(rigs):
    """What the one that leads now has of all: on a busy machine it may be another than the first."""
    return next(rig.snapshot() for rig in rigs if view(rig).role is MemberRole.LEADER)


async def test_a_tenants_limit_in_flight_is_one_for_all_gateways(join, key):
    async with engine(speed=0.01) as server, join(3, server, in_flight_max=6) as rigs:
        tasks = [
            asyncio.create_task(rig.post(call(max_tokens=4_000), headers=bearer(key))) for rig in rigs for _ in range(6)
        ]
        try:
            await until(lambda: running(server) == 6)
            await asyncio.sleep(0.5)  # for a seventh, which must not come
            assert running(server) == 6
            assert at_leader(rigs).in_flight_requests == 6
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
            assert at_leader(rigs).in_flight_requests == 7
            assert [each.external_requests for each in at_leader(rigs).backends.values()] == [0]
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


def responses_of(rig):
    return rig.gateway._handlers._responses


async def test_a_response_is_found_where_it_was_not_told_of(join, key):
    async with scripted() as backend, join(3, backend) as (leader, one, two):
        kept = StoredResponse("alice", "b0", "tiny")
        responses_of(one).keep("resp_1", kept)  # and its others are not told
        for rig in (two, leader):
            assert responses_of(rig).find("resp_1", "alice") is None
            await responses_of(rig).fetch("resp_1")
            assert responses_of(rig).find("resp_1", "alice") == kept
            assert responses_of(rig).find("resp_1", "bob") is None


async def test_only_the_leader_asks_backends_and_the_next_one_does_when_it_leaves(join, key):
    async with scripted() as backend, join(3, backend) as rigs:
        polling = [rig.gateway.backends.polls._is_running for rig in rigs]
        assert polling == [True, False, False]
        assert [(await rig.post(headers=bearer(key))).status for rig in rigs] == [200] * 3
        leader, *followers = rigs
        leader.gateway.order.shared.resign()
        asked = await asyncio.gather(*(rig.post(headers=bearer(key)) for rig in rigs * 3))
        assert [reply.status for reply in asked] == [200] * 9, "the one that left the lead follows the next one"
        assert sum(view(rig).role is MemberRole.LEADER for rig in followers) == 1
        await until(lambda: sum(rig.gateway.backends.polls._is_running for rig in rigs) == 1)
        assert not leader.gateway.backends.polls._is_running


async def limit_key(rigs, key_id, **limits):
    """Set limits of a key at one gateway, until all have them."""
    await rigs[-1].gateway._management.registry.changes.patch("keys", key_id, limits, actor="test")

    def has(rig):
        tenant = rig.gateway._handlers.tenants.find("alice")
        return key_id in tenant.keys

    await until(lambda: all(has(rig) for rig in rigs))


async def test_a_keys_limit_per_minute_is_one_for_all_gateways_and_a_part_of_it_for_one_that_is_alone(
    join, key, key_id, server, lose
):
    """Takes seconds: clients ask on, and leases end."""
    async with scripted() as backend, join(3, backend) as rigs:
        await limit_key(rigs, key_id, requests_per_minute_max=60)
        assert sum(await asyncio.gather(*(flood(rig, key, FLOOD_S) for rig in rigs))) == 60
        replies = [await rig.post(headers=bearer(key)) for rig in rigs]
        assert {(reply.status, reply.headers["x-ratelimit-remaining-requests"]) for reply in replies} == {(429, "0")}
        await lose(server, rigs)
        assert [max_of(rig, key_id) for rig in rigs] == [20] * 3


def max_of(rig, key_id):
    return rig.gateway.order.shared.member.lead.share.of_tenant("alice").keys[key_id].requests_per_minute_max


async def test_a_keys_limit_in_flight_is_one_for_all_gateways(join, key, key_id):
    async with engine(speed=0.01) as server, join(3, server) as rigs:
        await limit_key(rigs, key_id, in_flight_max=6)
        tasks = [
            asyncio.create_task(rig.post(call(max_tokens=4_000), headers=bearer(key))) for rig in rigs for _ in range(6)
        ]
        try:
            await until(lambda: running(server) == 6)
            await asyncio.sleep(0.5)  # for a seventh, which must not come
            assert (running(server), at_leader(rigs).in_flight_requests) == (6, 6)
            await limit_key(rigs, key_id, in_flight_max=8)
            await until(lambda: running(server) == 8)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
