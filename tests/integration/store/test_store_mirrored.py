"""Gateways that share a real Redis, each with a copy of its own: frozen, killed, emptied, slow, and nothing is lost."""

import asyncio
import time
from datetime import UTC, datetime, timedelta
from random import Random

import pytest
from redis_server import RedisServer, slow_proxy

from gateway.budgets.usage import UsageBook
from gateway.registry.registry import Registry
from gateway.store import mirrored_usage, redis_store
from gateway.store.base import Change, Document, Learnt, StoreUnavailable, Totals, UsageKey, UsageQuery, UsageRow
from gateway.store.mirrored import MirroredStore
from gateway.store.redis_store import RedisStore
from gateway.store.sqlite import SqliteStore
from tests.calm.rig import Watch, own_s

TIMEOUT_S = 0.3
SETTLE_S = 0.5
APPLIED_S_MAX = 1.0
LATE_S = 0.2  # there and back
FROZEN_S = 1.5  # of the 30 a freeze may last: five timeouts in a row, after which nothing changes any more
# A test that runs over midnight (UTC) counts on two days.
ALL_DAYS = UsageQuery("2000-01-01", "9999-12-31")


@pytest.fixture
def server(tmp_path):
    with RedisServer(tmp_path) as running:
        yield running


class Replicas:
    """Gateways, as far as state goes."""

    def __init__(self, url, folder):
        self._url = url
        self._folder = folder
        self._all = []

    async def start(self, name, url=None, settle_s=SETTLE_S):
        shared = RedisStore(url or self._url, timeout_s=TIMEOUT_S, settle_s=settle_s)
        store = MirroredStore(shared, SqliteStore(self._folder / f"{name}.db"))
        registry = Registry(store, {})
        await registry.start()
        registry.store = store
        self._all.append(registry)
        return registry

    async def stop(self, *registries):
        for registry in registries or list(self._all):
            self._all.remove(registry)
            await registry.stop()


@pytest.fixture
async def replicas(server, tmp_path):
    """Before a server that is new to none of them, so that it takes changes at once, until it is emptied."""
    first = RedisStore(server.url, settle_s=0.0)
    await first.news(0)
    await first.close()
    made = Replicas(server.url, tmp_path)
    yield made
    await made.stop()


async def becomes_true(condition, within_s=APPLIED_S_MAX):
    give_up_at = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < give_up_at, "it did not become true in time"
        await asyncio.sleep(0.005)


def weight(registry, name):
    entry = registry.get("tenants", name)
    return None if entry is None else entry.body["weight"]


async def write(registry, name, value):
    return await registry.changes.put("tenants", name, {"weight": value}, actor="ann")


async def refused(registry):
    """Changes are refused, within a bound."""
    began = time.monotonic()
    with pytest.raises(StoreUnavailable):
        await write(registry, "nobody", 1)
    assert time.monotonic() - began < 4 * TIMEOUT_S


async def accepted(registry, name, value, within_s=5.0):
    """A change, tried again until it is accepted, as a client that is answered 503 does."""
    give_up_at = time.monotonic() + within_s
    while True:
        try:
            return await write(registry, name, value)
        except StoreUnavailable:
            assert time.monotonic() < give_up_at, "changes are still refused"
            await asyncio.sleep(0.05)


async def test_a_change_of_one_gateway_is_in_force_in_the_others_within_a_second(replicas):
    one, two, three = [await replicas.start(name) for name in ("one", "two", "three")]
    await accepted(one, "alice", 2)
    await becomes_true(lambda: weight(two, "alice") == weight(three, "alice") == 2)
    etag = two.get("tenants", "alice").etag
    assert etag == one.get("tenants", "alice").etag
    await two.changes.delete("tenants", "alice", actor="bob", etag=etag)
    await becomes_true(lambda: weight(one, "alice") is None and weight(three, "alice") is None)
    assert [entry.actor for entry in await three.audit_log.entries()] == ["bob", "ann"]


async def test_a_new_gateway_starts_with_all_there_is(replicas):
    one = await replicas.start("one")
    await accepted(one, "alice", 2)
    two = await replicas.start("two")
    assert weight(two, "alice") == 2


async def test_two_that_change_the_same_at_once_both_succeed_and_agree(replicas):
    one, two = [await replicas.start(name) for name in ("one", "two")]
    await accepted(one, "alice", 1)
    await becomes_true(lambda: weight(two, "alice") == 1)
    await asyncio.gather(
        one.changes.patch("tenants", "alice", {"in_flight_max": 5}, actor="ann"),
        two.changes.patch("tenants", "alice", {"weight": 7}, actor="bob"),
    )
    both = {"weight": 7.0, "in_flight_max": 5}
    await becomes_true(lambda: all(dict(each.get("tenants", "alice").body) == both for each in (one, two)))


async def test_while_redis_is_frozen_changes_are_refused_in_time_and_all_else_goes_on(replicas, server):
    one, two = [await replicas.start(name) for name in ("one", "two")]
    await accepted(one, "alice", 2)
    await becomes_true(lambda: weight(two, "alice") == 2)
    book = UsageBook(one.store)
    server.freeze()
    thaw_at = time.monotonic() + FROZEN_S
    while time.monotonic() < thaw_at:
        await refused(one)
        watch = Watch(own_s)
        book.used("alice", key="", model="m", prompt_tokens=1, cached_tokens=0, output_tokens=1)
        await book.flush()
        assert weight(one, "alice") == 2
        assert len(await one.audit_log.entries()) == 1
        assert watch.s < TIMEOUT_S, "it waited for Redis"
    server.thaw()
    await accepted(one, "alice", 3)
    await becomes_true(lambda: weight(two, "alice") == 3)


async def test_what_a_frozen_redis_was_asked_and_a_client_was_told_has_failed_is_not_done_when_it_thaws(
    replicas, server
):
    one = await replicas.start("one")
    await accepted(one, "alice", 1)
    server.freeze()
    with pytest.raises(StoreUnavailable):
        await write(one, "alice", 2)
    await becomes_true(lambda: not one.is_store_available, within_s=4 * TIMEOUT_S)
    server.thaw()
    await accepted(one, "bob", 1)
    await becomes_true(lambda: one.is_store_available)
    assert weight(one, "alice") == 1
    assert [entry.name for entry in await one.audit_log.entries()] == ["bob", "alice"]


async def test_a_gateway_starts_from_its_own_copy_while_redis_is_away(replicas, server):
    one = await replicas.start("one")
    await accepted(one, "alice", 2)
    await replicas.stop(one)
    server.kill()
    one = await replicas.start("one")
    assert weight(one, "alice") == 2
    await refused(one)
    server.start()
    await accepted(one, "alice", 3)
    assert weight(one, "alice") == 3


async def test_what_was_learnt_is_the_newest_of_all_or_the_own_while_redis_is_away(replicas, server):
    one, two = [await replicas.start(name) for name in ("one", "two")]
    await one.store.put_learnt(Learnt("counters", 1.0, b"of one"))
    await two.store.put_learnt(Learnt("counters", 2.0, b"of two"))
    for name in ("one", "two", "new, with an empty disk"):
        assert (await (await replicas.start(f"{name} again")).store.learnt("counters")).body == b"of two"
    server.kill()
    assert (await one.store.learnt("counters")).body == b"of one"
    await one.store.put_learnt(Learnt("counters", 3.0, b"while it is away"))
    assert (await one.store.learnt("counters")).body == b"while it is away"
    server.start()


async def test_a_redis_that_comes_back_empty_is_filled_again_by_the_replicas_that_are_there(replicas, server):
    """It settles for as long as in production, since what one of them alone has is to be back before a change."""
    one, two = [await replicas.start(name, settle_s=redis_store.SETTLE_S) for name in ("one", "two")]
    await accepted(one, "alice", 2)
    await write(one, "gone", 1)
    await one.changes.delete("tenants", "gone", actor="ann")
    audit = await one.audit_log.entries()
    server.restart_empty()
    await accepted(two, "bob", 3)
    await becomes_true(lambda: weight(one, "bob") == 3)
    assert weight(one, "alice") == weight(two, "alice") == 2
    await replicas.stop()
    fresh = await replicas.start("fresh")
    assert (weight(fresh, "alice"), weight(fresh, "bob"), weight(fresh, "gone")) == (2, 3, None)
    assert (await fresh.audit_log.entries())[1:] == audit


async def test_where_copies_differ_after_a_loss_the_higher_version_wins(replicas, server):
    one, two = [await replicas.start(name) for name in ("one", "two")]
    await accepted(one, "alice", 1)
    await becomes_true(lambda: weight(two, "alice") == 1)
    await replicas.stop(two)
    await write(one, "alice", 2)
    await replicas.stop(one)
    server.restart_empty()
    two = await replicas.start("two")  # the replica with the older one comes first
    one = await replicas.start("one")
    await becomes_true(lambda: weight(one, "alice") == weight(two, "alice") == 2)
    later = await accepted(two, "alice", 3)
    assert later.version > 2
    await becomes_true(lambda: weight(one, "alice") == 3)


async def test_a_change_acknowledged_just_before_redis_loses_all_is_not_lost(replicas, server):
    one, two = [await replicas.start(name) for name in ("one", "two")]
    await accepted(one, "alice", 1)
    await write(one, "alice", 2)  # two has not heard of it
    server.restart_empty()
    await accepted(two, "bob", 1)
    await becomes_true(lambda: weight(two, "alice") == 2)
    await becomes_true(lambda: weight(one, "bob") == 1)


async def test_usage_of_all_gateways_comes_together_and_survives_an_empty_redis(replicas, server, monkeypatch):
    monkeypatch.setattr("gateway.store.mirrored_usage.USAGE_PULL_S", 0.05)
    one, two = [await replicas.start(name) for name in ("one", "two")]
    accounts = [UsageBook(each.store) for each in (one, two)]
    used = {"key": "k", "model": "m", "prompt_tokens": 10, "cached_tokens": 1, "output_tokens": 5}
    for count, book in enumerate(accounts, start=1):
        for _ in range(count):
            book.used("alice", **used)
        await book.flush()
    await asyncio.sleep(0.6)
    server.restart_empty()
    accounts[0].used("alice", **used)
    await accounts[0].flush()

    async def sums():
        found = []
        for each in (one, two):
            rows = await each.store.usage(ALL_DAYS)
            found.append(Totals(*map(sum, zip(*(row.totals for row in rows), strict=True))))
        return found

    give_up_at = time.monotonic() + 5
    while await sums() != [Totals(4, 40, 4, 20)] * 2:
        assert time.monotonic() < give_up_at, await sums()
        await asyncio.sleep(0.05)
    fresh = await replicas.start("fresh")
    rows = await fresh.store.usage(ALL_DAYS)
    assert sum(row.totals.requests for row in rows) == 4


async def test_a_redis_that_answers_late_slows_changes_and_nothing_else(replicas, server):
    async with slow_proxy(server.port, LATE_S / 2) as port:
        one = await replicas.start("one", f"redis://127.0.0.1:{port}/0")
        two = await replicas.start("two")
        await accepted(one, "alice", 2)
        await becomes_true(lambda: weight(two, "alice") == 2)
        await accepted(two, "alice", 3)
        await becomes_true(lambda: weight(one, "alice") == 3, within_s=2 * APPLIED_S_MAX)
        took_s = dict.fromkeys((one, two), 0.0)
        for each in (one, two) * 20:
            watch = Watch(own_s)
            assert weight(each, "alice") == 3
            assert len(await each.audit_log.entries()) == 2
            took_s[each] += watch.s
        assert took_s[one] < took_s[two] + LATE_S, "one of its reads waited"
        await replicas.stop(one)


async def test_a_copy_that_cannot_be_written_acknowledges_nothing(replicas, monkeypatch):
    one = await replicas.start("one")
    await accepted(one, "alice", 1)

    async def full(*_):
        raise StoreUnavailable("disk full")

    own = one.store._own
    with monkeypatch.context() as patch:
        patch.setattr(own, "merge", full)
        with pytest.raises(StoreUnavailable):
            await write(one, "alice", 2)
    await becomes_true(lambda: weight(one, "alice") == 2)  # it was decided, though


async def test_a_server_that_forgot_some_of_it_is_told_again(replicas, server):
    """As after a restart from an older snapshot: the data goes back, its epoch does not change."""
    one = await replicas.start("one")
    await accepted(one, "alice", 1)
    await write(one, "alice", 2)
    shared = RedisStore(server.url)
    await shared._server._redis.hset("{fairlead}:documents", "tenants/alice", '1\n{"weight":1.0}')
    await shared._server._redis.hset("{fairlead}:counters", "revision", 1)
    await shared._server._redis.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
    await accepted(one, "bob", 1)
    assert next(d for d in (await shared.news(0)).documents if d.name == "alice").body == {"weight": 2.0}
    await shared.close()


async def test_a_change_by_a_replica_that_knows_more_than_the_server_is_refused(server):
    store = RedisStore(server.url, settle_s=0.0)
    await store.merge([Document("tenants", "alice", 9, {})])
    await store.news(0)
    await store._server._redis.hset("{fairlead}:counters", "revision", 3)
    with pytest.raises(StoreUnavailable):
        await store.commit([Change("tenants", "bob", {})], actor="x", at_s=1.0)
    await store.close()


async def test_a_server_that_is_not_there_is_unavailable_within_the_timeout():
    for url in ("redis://127.0.0.1:1/0", "redis://no-such-host.invalid:6379/0"):
        store = RedisStore(url, timeout_s=TIMEOUT_S)
        watch = Watch(own_s)
        with pytest.raises(StoreUnavailable):
            await store.news(0)
        assert watch.s < 2 * TIMEOUT_S
        await store.close()


async def test_what_is_learnt_is_kept_here_without_asking_a_redis_that_is_known_to_be_away(server, tmp_path):
    server.freeze()
    own = SqliteStore(tmp_path / "own.db")
    store = MirroredStore(RedisStore(server.url, timeout_s=TIMEOUT_S), own, sync_s=3600.0)
    await store.open()
    assert not store.is_available
    server.thaw()  # it would answer, but that is for the next sync to find out
    learnt = Learnt("counters", 1.0, b"kept")
    await store.put_learnt(learnt)
    assert await own.learnt("counters") == learnt
    shared = RedisStore(server.url)
    assert await shared.learnt("counters") is None
    await shared.close()
    await store.close()


@pytest.mark.parametrize("at_once", [1, 2, 3, 100])
async def test_two_copies_of_usage_become_one_whatever_part_of_it_is_compared_at_once(server, monkeypatch, at_once):
    monkeypatch.setattr(mirrored_usage, "ROWS_COMPARED", at_once)
    rng, today = Random(at_once), datetime.now(UTC).date()
    own, shared = SqliteStore(None), RedisStore(server.url, settle_s=0.0)
    keys = [
        UsageKey((today - timedelta(days=ago)).isoformat(), tenant, "", "m") for ago in (0, 1, 2) for tenant in "abc"
    ]
    known = {}
    for store in (own, shared):
        await store.open()
        rows = [UsageRow(writer, of, Totals(rng.randrange(9), 1, 0, 0)) for of in keys for writer in ("v", "w")]
        rows = rng.sample(rows, 12)
        await store.put_usage(rows)
        for row in rows:
            known[row.writer, row.of] = max(row.totals, known.get((row.writer, row.of), Totals()))
    mirrored = mirrored_usage.MirroredUsage(shared, own)
    mirrored.compare(has_lost=True)
    await mirrored.sync()
    for store in (own, shared):
        assert {(row.writer, row.of): row.totals for row in await store.usage(ALL_DAYS)} == known
        await store.close()
