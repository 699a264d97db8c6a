"""What every store does: one suite, over all of them."""

import asyncio
import itertools

import pytest
from redis_server import RedisServer

from gateway.scheduling.checkpoint.documents import ACCOUNTS_MAX, Counters, PoolCounters, read_document, write_document
from gateway.store.base import (
    AUDIT_PAGE_MAX,
    BODY_BYTES_MAX,
    CHANGES_MAX,
    LEARNT_BYTES_MAX,
    AuditEntry,
    Change,
    Document,
    Learnt,
    StoreFull,
    Totals,
    UsageKey,
    UsagePlace,
    UsageQuery,
    UsageRow,
    VersionConflict,
)
from gateway.store.mirrored import MirroredStore
from gateway.store.redis_store import RedisStore, _entry_text
from gateway.store.sqlite import SqliteStore
from policies.accounts.checkpoint import QueueCheckpoint, TierCheckpoint


@pytest.fixture(scope="module")
def redis_server(tmp_path_factory):
    with RedisServer(tmp_path_factory.mktemp("redis")) as server:
        yield server


_numbers = itertools.count()


def make_sqlite(tmp_path, _server):
    return SqliteStore(tmp_path / "fairlead.db")


def make_memory(_tmp_path, _server):
    return SqliteStore(None)


def make_redis(_tmp_path, server):
    return RedisStore(server.url, prefix=f"test-{next(_numbers)}", settle_s=0.001)


def make_mirrored(tmp_path, server):
    return MirroredStore(make_redis(tmp_path, server), make_sqlite(tmp_path, server), sync_s=0.01)


STORES = {"sqlite": make_sqlite, "memory": make_memory, "redis": make_redis, "mirrored": make_mirrored}


@pytest.fixture(params=STORES)
async def store(request, tmp_path, redis_server):
    made = STORES[request.param](tmp_path, redis_server)
    await made.open()
    yield made
    await made.close()


async def write(store, name, body, *, expected=None, kind="tenants", actor="ann"):
    (document,) = await store.commit([Change(kind, name, body, expected)], actor=actor, at_s=1_000.0)
    return document


async def test_a_document_is_as_it_was_written_with_a_version_that_grows(store):
    first = await write(store, "a", {"weight": 2})
    second = await write(store, "b", {"weight": 3, "label": "Grüße"})
    assert second.version > first.version > 0
    assert (await store.news(0)).documents == (first, second)


async def test_a_change_that_expects_another_version_is_refused_with_the_one_there_is(store):
    first = await write(store, "a", {"weight": 1}, expected=0)
    second = await write(store, "a", {"weight": 2}, expected=first.version)
    for expected in (0, first.version, second.version + 1):
        with pytest.raises(VersionConflict) as caught:
            await write(store, "a", {"weight": 9}, expected=expected)
        assert str(caught.value).endswith(f"has version {second.version}")
    assert (await store.news(0)).documents == (second,)


async def test_a_transaction_is_made_whole_or_not_at_all(store):
    await write(store, "b", {"weight": 1})
    with pytest.raises(VersionConflict):
        await store.commit([Change("tenants", "a", {}), Change("tenants", "b", {}, expected=0)], actor="x", at_s=1.0)
    assert [document.name for document in (await store.news(0)).documents] == ["b"]
    assert len(await store.audit()) == 1


async def test_of_many_changes_of_one_version_at_once_one_succeeds(store):
    first = await write(store, "a", {"n": 0})
    tries = [write(store, "a", {"n": n}, expected=first.version) for n in range(1, 11)]
    results = await asyncio.gather(*tries, return_exceptions=True)
    assert sum(isinstance(result, Document) for result in results) == 1
    assert sum(isinstance(result, VersionConflict) for result in results) == 9


async def test_what_was_deleted_is_news_and_may_be_made_again_as_if_it_had_never_been(store):
    first = await write(store, "a", {"weight": 1})
    cursor = (await store.news(0)).cursor
    gone = await write(store, "a", None, expected=first.version)
    assert (await store.news(cursor)).documents == (Document("tenants", "a", gone.version, None),)
    again = await write(store, "a", {"weight": 2}, expected=0)
    assert again.version > gone.version


async def test_news_is_what_came_since_and_nothing_twice(store):
    await write(store, "a", {"n": 1})
    news = await store.news(0)
    assert (await store.news(news.cursor)).documents == ()
    late = await write(store, "b", {"n": 2})
    assert (await store.news(news.cursor)).documents == (late,)


async def test_every_change_is_in_the_audit_log_with_who_what_before_and_after(store):
    await write(store, "a", {"weight": 1}, actor="ann")
    await write(store, "a", {"weight": 2}, actor="bob")
    await write(store, "a", None, actor="eve")
    entries = await store.audit()
    assert [(e.actor, e.action, e.before, e.after) for e in entries] == [
        ("eve", "delete", {"weight": 2}, None),
        ("bob", "update", {"weight": 1}, {"weight": 2}),
        ("ann", "create", None, {"weight": 1}),
    ]
    assert {(e.kind, e.name, e.at_s) for e in entries} == {("tenants", "a", 1_000.0)}


async def test_the_audit_log_is_read_in_pages_and_by_kind(store):
    for n in range(7):
        await write(store, f"t{n % 2}", {"n": n})
    await write(store, "t0", {"n": 99}, kind="tiers")
    first = await store.audit(limit=3)
    second = await store.audit(limit=3, before=first[-1].revision)
    assert [e.after["n"] for e in (*first, *second)] == [99, 6, 5, 4, 3, 2]
    assert [e.after["n"] for e in await store.audit(kind="tenants")] == [6, 5, 4, 3, 2, 1, 0]
    assert [e.after["n"] for e in await store.audit(kind="tenants", limit=2, before=7)] == [5, 4]


async def test_a_merge_takes_what_is_newer_and_leaves_what_is_not(store):
    mine = await write(store, "a", {"n": 1})
    await store.merge([Document("tenants", "a", mine.version, {"n": 5}), Document("tenants", "b", 40, {"n": 2})])
    await store.merge([Document("tenants", "b", 30, {"n": 3}), Document("tenants", "c", 20, None)])
    found = {document.name: document for document in (await store.news(0)).documents}
    assert found["a"] == mine
    assert found["b"] == Document("tenants", "b", 40, {"n": 2})
    assert found["c"].body is None
    assert (await write(store, "d", {})).version > 40


async def test_what_is_merged_late_is_news_although_its_version_is_old(store):
    await store.merge([Document("tenants", "a", 100, {"n": 1})])
    cursor = (await store.news(0)).cursor
    await store.merge([Document("tenants", "b", 99, {"n": 2})])
    assert (await store.news(cursor)).documents == (Document("tenants", "b", 99, {"n": 2}),)


async def test_the_audit_log_says_at_which_replica_where_it_was_told(store):
    for replica in ("gate-0", ""):
        await store.commit([Change("tenants", "a", {"n": 1})], actor="ann", at_s=1.5, replica=replica)
    entries = await store.audit()
    assert [entry.replica for entry in entries] == ["", "gate-0"]
    await store.merge([], entries)
    assert await store.audit() == entries


@pytest.mark.parametrize("replica", ["", "gate-0"])
async def test_audit_entries_are_merged_once(store, replica):
    entry = AuditEntry(7, 1.5, "ann", "create", "tenants", "a", None, {"n": 1}, replica)
    await store.merge([], [entry])
    await store.merge([], [entry])
    assert await store.audit() == (entry,)


async def test_an_audit_entry_with_a_field_of_a_later_version_is_read_without_it(tmp_path, redis_server):
    store = make_redis(tmp_path, redis_server)
    await store.open()
    await write(store, "a", {"n": 1})
    (entry,) = await store.audit()
    text = _entry_text(entry).replace(b'"actor"', b'"reason":"later","actor"')
    await store._server.ask("ZADD", "audit", entry.revision, text)
    assert await store.audit() == (entry, entry)
    await store.close()


def usage_row(totals, *, writer="w1", day="2026-11-20", tenant="alice", key="k1", model="m"):
    return UsageRow(writer, UsageKey(day, tenant, key, model), Totals(*totals))


async def all_usage(store, **asked):
    return await store.usage(UsageQuery("2026-01-01", "2026-12-31", **asked))


async def test_usage_that_is_put_twice_or_out_of_order_counts_once(store):
    late, early = usage_row((2, 30, 1, 9)), usage_row((1, 10, 0, 4))
    for rows in ([early], [late], [late], [early, late], [early]):
        await store.put_usage(rows)
    assert await all_usage(store) == (late,)


async def test_usage_is_kept_by_writer_day_tenant_key_and_model(store):
    base = usage_row((1, 2, 3, 4))
    others = [
        usage_row((1, 1, 1, 1), **other)
        for other in ({"writer": "w2"}, {"day": "2026-11-21"}, {"tenant": "bob"}, {"key": ""}, {"model": "x/y: z"})
    ]
    await store.put_usage([base, *others])
    found = await all_usage(store)
    assert set(found) == {base, *others}
    assert list(found) == sorted(found, key=lambda row: (*row.of, row.writer))
    assert await all_usage(store, tenant="bob") == (others[2],)
    assert await all_usage(store, writer="w2") == (others[0],)
    assert await store.usage(UsageQuery("2026-11-21", "2026-11-21")) == (others[1],)


async def test_the_last_day_of_each_tenants_keys_is_told_over_writers_and_models(store):
    rows = [
        usage_row((1, 1, 1, 1), **other)
        for other in (
            {"day": "2026-11-19"}, {"day": "2026-11-20", "writer": "w2"}, {"day": "2026-11-18", "key": "k2"},
            {"day": "2026-11-20", "key": ""}, {"day": "2026-11-19", "key": "k3", "tenant": "bob", "model": "n"},
        )
    ]  # fmt: skip
    await store.put_usage(rows)
    recent = {("alice", "k1"): "2026-11-20", ("alice", ""): "2026-11-20", ("bob", "k3"): "2026-11-19"}
    assert await store.last_days("") == {**recent, ("alice", "k2"): "2026-11-18"}
    assert await store.last_days("2026-11-19") == recent
    assert await store.last_days("2026-11-21") == {}


async def test_days_of_usage_that_are_too_old_are_forgotten(store):
    await store.put_usage([usage_row((1, 1, 1, 1), day="2025-01-01")])
    await store.put_usage([usage_row((1, 1, 1, 1), day="2026-11-20")])
    found = await store.usage(UsageQuery("2000-01-01", "2100-01-01"))
    assert [row.of.day for row in found] == ["2026-11-20"]


async def test_the_newest_of_what_was_learnt_is_kept(store):
    assert await store.learnt("counters") is None
    newest = Learnt("counters", 2.5, b'{"a": 1}')
    await store.put_learnt(newest)
    await store.put_learnt(Learnt("counters", 1.0, b"old"))
    await store.put_learnt(Learnt("other", 9.0, b"\x00\xff"))
    assert await store.learnt("counters") == newest


async def test_all_accounts_that_are_kept_are_read_as_they_were_and_no_more_bytes_are_taken(store):
    half = ACCOUNTS_MAX // 2
    fair_queues = {
        backend: QueueCheckpoint(
            0.5, {"default": TierCheckpoint(1 / 3, 0.5, {f"tenant-{n}": n / 7 for n in range(half)})}
        )
        for backend in ("x", "y")
    }
    kept = Counters({"m": PoolCounters(1.25, fair_queues)})
    await store.put_learnt(Learnt("counters", 1.0, write_document(kept)))
    assert read_document(Counters, (await store.learnt("counters")).body) == kept
    with pytest.raises(StoreFull):
        await store.put_learnt(Learnt("counters", 2.0, bytes(LEARNT_BYTES_MAX + 1)))
    assert (await store.learnt("counters")).at_s == 1.0


async def test_what_is_too_large_is_refused_before_anything_is_done(store):
    with pytest.raises(StoreFull):
        await write(store, "a", {"label": "x" * BODY_BYTES_MAX})
    with pytest.raises(StoreFull):
        await store.commit([Change("tenants", str(n), {}) for n in range(CHANGES_MAX + 1)], actor="x", at_s=1.0)
    assert (await store.news(0)).documents == ()


async def test_as_much_as_may_be_is_taken_at_once(store):
    documents = await store.commit(
        [Change("tenants", f"t{n:04}", {"n": n}) for n in range(CHANGES_MAX)], actor="x", at_s=1.0
    )
    assert (await store.news(0)).documents == documents
    assert len(await store.audit(limit=AUDIT_PAGE_MAX)) == CHANGES_MAX


@pytest.mark.parametrize("limit", [1, 2, 4, 100])
async def test_pages_of_usage_are_all_of_it_in_order(store, limit):
    rows = [
        usage_row(
            (number, 1, 1, 1), day=f"2026-11-{19 + number % 2}", tenant="ab"[number % 3 > 0], key="", writer=writer
        )
        for number, writer in enumerate(["w1", "w2", "ä", "w1 ", "\U0001f600"])
    ]
    await store.put_usage(rows)
    pages, after = [], None
    while page := await all_usage(store, after=after, limit=limit):
        pages.append(page)
        after = UsagePlace(*page[-1].of, page[-1].writer)
    assert tuple(row for page in pages for row in page) == await all_usage(store)
    assert all(len(page) <= limit for page in pages)


async def test_a_change_that_is_not_audited_has_a_version_and_is_news(store):
    first = await write(store, "a", {"n": 1})
    audited, unaudited = Change("tenants", "a", {"n": 2}, first.version), Change("guards", "g", {}, 0, is_audited=False)
    documents = await store.commit([audited, unaudited], actor="ann", at_s=1.0)
    assert (await store.news(0)).documents == documents
    assert [entry.kind for entry in await store.audit()] == ["tenants", "tenants"]
    with pytest.raises(VersionConflict):
        await store.commit([unaudited], actor="ann", at_s=1.0)
