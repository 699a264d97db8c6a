"""The audit log is bounded in entries and in days, and no author pushes out the entries of others that have fewer."""

from collections import Counter

import pytest

from gateway.store import sqlite
from gateway.store.base import AUDIT_DAYS_MAX, Change
from gateway.store.sqlite import DAY_S, SqliteStore

ENTRIES_MAX, LOOK = 40, 8


@pytest.fixture
async def store(monkeypatch):
    monkeypatch.setattr(sqlite, "AUDIT_ENTRIES_MAX", ENTRIES_MAX)
    monkeypatch.setattr(sqlite, "AUDIT_LOOK", LOOK)
    made = SqliteStore(None)
    await made.open()
    yield made
    await made.close()


async def changed(store, actor, count, at_s=0.0):
    for number in range(count):
        await store.commit([Change("tenants", f"{actor}-{number}", {"weight": 1})], actor=actor, at_s=at_s)


async def authors(store):
    return Counter(entry.actor for entry in await store.audit(limit=1_000))


async def test_a_flood_of_one_author_leaves_the_entries_of_others(store):
    await changed(store, "operator", 10)
    await changed(store, "flood", 500)
    await changed(store, "auditor", 5)
    left = await authors(store)
    assert (left["operator"], left["auditor"]) == (10, 5)
    assert ENTRIES_MAX - LOOK <= sum(left.values()) < ENTRIES_MAX + LOOK
    newest = [entry.name for entry in await store.audit(limit=100) if entry.actor == "flood"]
    assert newest == [f"flood-{number}" for number in range(499, 499 - len(newest), -1)], "the oldest go first"


async def test_authors_with_as_many_entries_give_way_in_turns(store):
    for _ in range(10):
        await changed(store, "a", 10)
        await changed(store, "b", 10)
    left = await authors(store)
    assert abs(left["a"] - left["b"]) <= 2 * LOOK
    assert sum(left.values()) < ENTRIES_MAX + LOOK


async def test_entries_that_are_too_old_are_forgotten(store):
    await changed(store, "old", 5)
    await changed(store, "new", 10, at_s=(AUDIT_DAYS_MAX + 1) * DAY_S)
    assert await authors(store) == {"new": 10}


async def test_entries_of_another_copy_are_bounded_too(store):
    other = SqliteStore(None)
    await other.open()
    await changed(other, "flood", 300)
    await changed(store, "operator", 10)
    entries = await other.audit(limit=1_000)
    await store.merge([], [entry for entry in entries if entry.revision > 10])
    left = await authors(store)
    assert left["operator"] == 10
    assert sum(left.values()) <= ENTRIES_MAX
    await other.close()
