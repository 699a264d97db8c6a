"""The state file: ours, whole, of a version we know and ours alone; or it is refused by name and left as it is."""

import asyncio
import os
import resource
import sqlite3
import subprocess
import sys

import pytest

from gateway.store import state_file
from gateway.store.base import (
    Change,
    Document,
    Learnt,
    StateFileError,
    StoreUnavailable,
    Totals,
    UsageKey,
    UsageQuery,
    UsageRow,
)
from gateway.store.sqlite import SqliteStore
from gateway.store.state_file import MIGRATIONS

# A file as the first version of the schema wrote it: it stays as it is, whatever comes after.
VERSION_1 = f"""
PRAGMA application_id = {0x464C5244};
CREATE TABLE documents (
    kind TEXT NOT NULL, name TEXT NOT NULL, version INTEGER NOT NULL, arrival INTEGER NOT NULL, body TEXT,
    PRIMARY KEY (kind, name)) WITHOUT ROWID;
CREATE UNIQUE INDEX documents_by_arrival ON documents (arrival);
CREATE INDEX deleted_documents ON documents (version) WHERE body IS NULL;
CREATE TABLE audit (
    revision INTEGER PRIMARY KEY, at_s REAL NOT NULL, actor TEXT NOT NULL, action TEXT NOT NULL,
    kind TEXT NOT NULL, name TEXT NOT NULL, before TEXT, after TEXT);
CREATE INDEX audit_by_name ON audit (kind, name, revision);
CREATE TABLE usage (
    day TEXT NOT NULL, tenant TEXT NOT NULL, key TEXT NOT NULL, model TEXT NOT NULL, writer TEXT NOT NULL,
    requests INTEGER NOT NULL, prompt_tokens INTEGER NOT NULL, cached_tokens INTEGER NOT NULL,
    output_tokens INTEGER NOT NULL,
    PRIMARY KEY (day, tenant, key, model, writer)) WITHOUT ROWID;
CREATE TABLE learnt (name TEXT PRIMARY KEY, at_s REAL NOT NULL, body BLOB NOT NULL) WITHOUT ROWID;
CREATE TABLE counters (name TEXT PRIMARY KEY, value INTEGER NOT NULL) WITHOUT ROWID;
INSERT INTO counters (name, value) VALUES ('revision', 4), ('arrival', 6);
INSERT INTO documents VALUES ('tenants', 'alice', 4, 6, '{{"weight":2.0}}'), ('tenants', 'bob', 3, 5, NULL);
INSERT INTO audit VALUES (4, 12.5, 'ann', 'update', 'tenants', 'alice', '{{"weight":1.0}}', '{{"weight":2.0}}');
INSERT INTO usage VALUES ('2026-11-20', 'alice', 'k1', 'm', 'w1', 1, 2, 3, 4);
INSERT INTO learnt VALUES ('counters', 3.5, x'7b7d');
PRAGMA user_version = 1;
PRAGMA journal_mode = WAL;
"""


def run_sql(path, script):
    with sqlite3.connect(path) as connection:
        connection.executescript(script)
    connection.close()


async def opened(path):
    store = SqliteStore(path)
    await store.open()
    return store


async def write(store, name, body):
    (document,) = await store.commit([Change("tenants", name, body)], actor="ann", at_s=1.0)
    return document


async def test_what_was_written_is_there_when_the_file_is_opened_again(tmp_path):
    store = await opened(tmp_path / "state.db")
    document = await write(store, "alice", {"weight": 2})
    await store.close()
    store = await opened(tmp_path / "state.db")
    assert (await store.news(0)).documents == (document,)
    assert (await write(store, "bob", {})).version > document.version
    await store.close()


async def test_a_file_of_the_first_version_is_brought_to_this_one_with_all_that_is_in_it(tmp_path):
    path = tmp_path / "state.db"
    run_sql(path, VERSION_1)
    store = await opened(path)
    assert (await store.news(0)).documents == (
        Document("tenants", "bob", 3, None),
        Document("tenants", "alice", 4, {"weight": 2.0}),
    )
    audit = await store.audit()
    assert [(entry.revision, entry.replica, entry.before) for entry in audit] == [(4, "", {"weight": 1.0})]
    rows = await store.usage(UsageQuery("2026-11-20", "2026-11-20"))
    assert rows == (UsageRow("w1", UsageKey("2026-11-20", "alice", "k1", "m"), Totals(1, 2, 3, 4)),)
    assert await store.learnt("counters") == Learnt("counters", 3.5, b"{}")
    assert (await write(store, "carol", {})).version == 5
    await store.close()
    assert sqlite3.connect(path).execute("PRAGMA user_version").fetchone() == (len(MIGRATIONS),)


async def test_a_new_file_has_the_tables_of_one_that_was_brought_here(tmp_path):
    run_sql(tmp_path / "old.db", VERSION_1)
    for name in ("old.db", "new.db"):
        await (await opened(tmp_path / name)).close()
    old, new = (
        sqlite3.connect(tmp_path / name).execute("SELECT name, sql FROM sqlite_master ORDER BY name").fetchall()
        for name in ("old.db", "new.db")
    )
    assert [(name, " ".join((sql or "").split())) for name, sql in old] == [
        (name, " ".join((sql or "").split())) for name, sql in new
    ]


async def test_a_migration_is_made_once_and_one_that_fails_changes_nothing(tmp_path, monkeypatch):
    path = tmp_path / "state.db"
    run_sql(path, VERSION_1)
    failing = (*MIGRATIONS, ("ALTER TABLE learnt ADD COLUMN origin TEXT", "INSERT INTO nowhere VALUES (1)"))
    monkeypatch.setattr(state_file, "MIGRATIONS", failing)
    with pytest.raises(StateFileError):
        await opened(path)
    assert sqlite3.connect(path).execute("PRAGMA user_version").fetchone() == (len(MIGRATIONS),)
    monkeypatch.setattr(state_file, "MIGRATIONS", (*MIGRATIONS, ("ALTER TABLE learnt ADD COLUMN origin TEXT",)))
    for _ in range(2):
        await (await opened(path)).close()
    columns = [row[1] for row in sqlite3.connect(path).execute("PRAGMA table_info(learnt)")]
    assert columns.count("origin") == 1
    monkeypatch.undo()
    with pytest.raises(StateFileError, match="newer"):
        await opened(path)


def a_text(path):
    path.write_text("dear diary\n" * 50)


def a_short_text(path):
    path.write_text("x")


def another_database(path):
    run_sql(path, "CREATE TABLE people (name TEXT); INSERT INTO people VALUES ('ann'); PRAGMA user_version = 1;")


def a_newer_file(path):
    run_sql(path, VERSION_1 + "PRAGMA user_version = 99;")


def a_damaged_file(path):
    run_sql(path, VERSION_1 + "PRAGMA journal_mode = DELETE;")
    data = bytearray(path.read_bytes())
    for page in range(2, len(data) // 4096):
        data[page * 4096 : page * 4096 + 512] = os.urandom(512)
    path.write_bytes(data)


def a_cut_file(path):
    run_sql(path, VERSION_1 + "PRAGMA journal_mode = DELETE;")
    path.write_bytes(path.read_bytes()[: 3 * 4096 + 100])


@pytest.mark.parametrize(
    "make", [a_text, a_short_text, another_database, a_newer_file, a_damaged_file, a_cut_file], ids=lambda m: m.__name__
)
async def test_a_file_that_is_not_ours_or_not_whole_is_refused_by_name_and_kept(tmp_path, make):
    path = tmp_path / "state.db"
    make(path)
    before = path.read_bytes()
    store = SqliteStore(path)
    with pytest.raises(StateFileError, match=str(path)):
        await store.open()
    await store.close()
    assert path.read_bytes() == before


async def test_a_folder_that_is_not_there_is_named(tmp_path):
    store = SqliteStore(tmp_path / "nowhere" / "state.db")
    with pytest.raises(StateFileError, match="nowhere"):
        await store.open()
    await store.close()


async def test_a_file_belongs_to_one_gateway_at_a_time(tmp_path):
    path = tmp_path / "state.db"
    first = await opened(path)
    second = SqliteStore(path)
    with pytest.raises(StateFileError, match="in use"):
        await second.open()
    await second.close()
    await write(first, "alice", {})
    await first.close()
    await (await opened(path)).close()


async def test_only_its_owner_may_read_it(tmp_path):
    store = await opened(tmp_path / "state.db")
    await write(store, "alice", {})
    modes = {path.name: path.stat().st_mode & 0o077 for path in tmp_path.iterdir()}
    await store.close()
    assert set(modes.values()) == {0}, modes


async def test_a_full_disk_refuses_what_is_written_and_nothing_else_and_ends(tmp_path):
    store = await opened(tmp_path / "state.db")
    first = await write(store, "alice", {"weight": 1})
    row = UsageRow("w1", UsageKey("2026-11-20", "alice", "k1", "m"), Totals(1, 2, 3, 4))
    big = {"label": "x" * 60_000}
    await store.run(lambda database: database.execute("PRAGMA max_page_count = 20").fetchone())
    changes = [Change("tenants", f"t{number}", big) for number in range(10)]
    tries = [store.commit([change], actor="ann", at_s=1.0) for change in changes]
    results = await asyncio.gather(*tries, return_exceptions=True)
    assert "full" in str(next(result for result in results if isinstance(result, StoreUnavailable)))
    documents = (await store.news(0)).documents
    assert documents[0] == first
    assert len(await store.audit()) == len(documents), "a change and its audit entry are there together"
    await store.run(lambda database: database.execute("PRAGMA max_page_count = 100000").fetchone())
    await write(store, "later", big)
    await store.put_usage([row])
    await store.close()


WRITES_BEYOND_A_LIMIT = """
import asyncio, resource, signal, sys
from pathlib import Path
from gateway.store.base import Change, StoreUnavailable
from gateway.store.sqlite import SqliteStore

async def main():
    store = SqliteStore(Path(sys.argv[1]))
    await store.open()
    body = {"label": "x" * 60_000}
    for number in range(100):
        try:
            await store.commit([Change("tenants", str(number), body)], actor="ann", at_s=1.0)
        except StoreUnavailable:
            break
        print(number, flush=True)
    else:
        raise SystemExit("nothing has failed")
    assert len((await store.news(0)).documents) == number, "reads go on"
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    await store.commit([Change("tenants", "later", body)], actor="ann", at_s=1.0)
    await store.close()

asyncio.run(main())
"""


async def test_an_error_of_the_disk_refuses_what_is_written_and_keeps_what_was_acknowledged(tmp_path):
    """The operating system refuses to let the file grow (EFBIG), wherever in a transaction that happens."""
    path = tmp_path / "state.db"
    await (await opened(path)).close()
    done = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, "-c", WRITES_BEYOND_A_LIMIT, str(path)],
        capture_output=True,
        text=True,
        check=False,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (600_000, resource.RLIM_INFINITY)),
    )
    assert done.returncode == 0, done.stderr
    acknowledged = done.stdout.split()
    assert acknowledged
    store = await opened(path)
    assert {document.name for document in (await store.news(0)).documents} == {*acknowledged, "later"}
    await store.close()


async def test_a_closed_store_is_unavailable(tmp_path):
    store = SqliteStore(tmp_path / "state.db")
    with pytest.raises(StoreUnavailable):
        await store.news(0)
    await store.close()
