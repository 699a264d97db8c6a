"""SQLite store: one file in WAL mode, every transaction synced to disk before it is acknowledged.

The merge rules are the SQL statements at the end; state_file.py has the file, and the thread that runs them.
"""

import logging
import sqlite3
from collections.abc import Sequence
from functools import partial
from typing import Any

from gateway.store.base import (
    AUDIT_DAYS_MAX,
    AUDIT_ENTRIES_MAX,
    AUDIT_PAGE_MAX,
    LEARNT_BYTES_MAX,
    TOMBSTONES_MAX,
    USAGE_ROWS_MAX,
    AuditEntry,
    Change,
    Document,
    Holder,
    Learnt,
    News,
    StoreFull,
    Totals,
    UsageKey,
    UsageQuery,
    UsageRow,
    VersionConflict,
    action_of,
    check_size,
    from_json,
    oldest_day,
    to_json,
)
from gateway.store.state_file import StateFile, transaction

AUDIT_LOOK = 256  # revisions between two looks at the size of the audit log, which cost some 20 ms where it is full
DAY_S = 86_400

log = logging.getLogger(__name__)


class SqliteStore(StateFile):
    """The Store in a SQLite file. Mutable; used on one loop."""

    _pruned_day = ""

    async def commit(
        self, changes: Sequence[Change], *, actor: str, at_s: float, replica: str = ""
    ) -> tuple[Document, ...]:
        check_size(changes)
        return await self.run(partial(_commit, changes, (at_s, actor, replica)))

    async def news(self, since: int) -> News:
        return await self.run(partial(_news, since))

    async def merge(self, documents: Sequence[Document], audit: Sequence[AuditEntry] = ()) -> None:
        if documents or audit:
            await self.run(partial(_merge, documents, audit))

    async def audit(
        self, *, before: int | None = None, limit: int = 100, kind: str | None = None
    ) -> tuple[AuditEntry, ...]:
        where, values = _where({"revision < ?": before, "kind = ?": kind})
        rows = await self.run(
            lambda database: database.execute(
                f"{READ_AUDIT} {where} ORDER BY revision DESC LIMIT ?", (*values, min(limit, AUDIT_PAGE_MAX))
            ).fetchall()
        )
        return tuple(_audit_entry(row) for row in rows)

    async def put_usage(self, rows: Sequence[UsageRow]) -> None:
        if rows:
            await self.run(partial(self._put_usage, rows))

    async def usage(self, query: UsageQuery) -> tuple[UsageRow, ...]:
        first_day, after, limit = query.first_day, query.after, query.limit
        asked = {"day <= ?": query.last_day, "tenant = ?": query.tenant, "writer = ?": query.writer}
        if after is None or after.day < first_day:
            where, values = _where({"day >= ?": first_day, **asked})
        else:
            where, values = _where(asked)
            where, values = f"{where} AND {BEHIND_PLACE}", [*values, *after]
        rows = await self.run(
            lambda database: database.execute(
                f"{READ_USAGE} {where} ORDER BY day, tenant, key, model, writer LIMIT ?",
                (*values, USAGE_ROWS_MAX + 1 if limit is None else limit),
            ).fetchall()
        )
        if limit is None and len(rows) > USAGE_ROWS_MAX:
            raise StoreFull(f"more than {USAGE_ROWS_MAX} rows of usage: ask for fewer days")
        return tuple(UsageRow(row[4], UsageKey(*row[:4]), Totals(*row[5:])) for row in rows)

    async def last_days(self, since: str) -> dict[Holder, str]:
        rows = await self.run(lambda database: database.execute(READ_LAST_DAYS, (since,)).fetchall())
        return {(tenant, key): day for tenant, key, day in rows}

    async def put_learnt(self, learnt: Learnt) -> None:
        if len(learnt.body) > LEARNT_BYTES_MAX:
            raise StoreFull(f"{learnt.name} has more than {LEARNT_BYTES_MAX} bytes")
        await self.run(
            lambda database: database.execute(MERGE_LEARNT, (learnt.name, learnt.at_s, learnt.body)) and None
        )

    async def learnt(self, name: str) -> Learnt | None:
        row = await self.run(
            lambda database: database.execute("SELECT name, at_s, body FROM learnt WHERE name = ?", (name,)).fetchone()
        )
        return None if row is None else Learnt(*row)

    def _put_usage(self, rows: Sequence[UsageRow], database: sqlite3.Connection) -> None:
        """Write the rows in one transaction. A row that SQLite cannot represent is left out, and the others are
        written.
        """
        try:
            self._put_usage_at_once(rows, database)
        except (OverflowError, UnicodeEncodeError) as error:
            if len(rows) == 1:
                log.error("usage that cannot be written is left out, %s: %s", error, rows[0])  # noqa: TRY400
                return
            half = len(rows) // 2
            self._put_usage(rows[:half], database)
            self._put_usage(rows[half:], database)

    def _put_usage_at_once(self, rows: Sequence[UsageRow], database: sqlite3.Connection) -> None:
        newest = max(row.of.day for row in rows)
        with transaction(database):
            database.executemany(MERGE_USAGE, [(*row.of, row.writer, *row.totals) for row in rows])
            if newest > self._pruned_day:
                database.execute("DELETE FROM usage WHERE day < ?", (oldest_day(newest),))
        self._pruned_day = max(newest, self._pruned_day)


def _commit(
    changes: Sequence[Change], by: tuple[float, str, str], database: sqlite3.Connection
) -> tuple[Document, ...]:
    documents = []
    with transaction(database):
        (at_first,) = database.execute(READ_REVISION).fetchone()
        for change in changes:
            version, before = _found(database, change)
            if change.expected is not None and change.expected != version:
                raise VersionConflict(change.kind, change.name, version)
            revision = _next(database, "revision")
            document = Document(change.kind, change.name, revision, change.body)
            after, action = _text(change.body), action_of(from_json(before), change.body)
            database.execute(WRITE_DOCUMENT, (*_row(document), _next(database, "arrival")))
            if change.is_audited:
                database.execute(WRITE_AUDIT, (revision, *by, action, change.kind, change.name, before, after))
            documents.append(document)
        _prune(database, at_first)
    return tuple(documents)


def _news(since: int, database: sqlite3.Connection) -> News:
    rows = database.execute(READ_NEWS, (since,)).fetchall()
    cursor = rows[-1][4] if rows else since
    return News(cursor, tuple(Document(kind, name, version, from_json(body)) for kind, name, version, body, _ in rows))


def _merge(documents: Sequence[Document], audit: Sequence[AuditEntry], database: sqlite3.Connection) -> None:
    with transaction(database):
        for document in documents:
            database.execute(MERGE_DOCUMENT, (*_row(document), _next(database, "arrival")))
        revision = max([0, *(document.version for document in documents), *(entry.revision for entry in audit)])
        database.execute("UPDATE counters SET value = max(value, ?) WHERE name = 'revision'", (revision,))
        database.executemany(
            MERGE_AUDIT,
            [
                (e.revision, e.at_s, e.actor, e.replica, e.action, e.kind, e.name, _text(e.before), _text(e.after))
                for e in audit
            ],
        )
        _prune(database, -1)


def _found(database: sqlite3.Connection, change: Change) -> tuple[int, str | None]:
    """The version of a document and its body as text; (0, None) where it does not exist or was deleted."""
    row = database.execute(
        "SELECT version, body FROM documents WHERE kind = ? AND name = ?", (change.kind, change.name)
    ).fetchone()
    return (0, None) if row is None or row[1] is None else row


def _next(database: sqlite3.Connection, counter: str) -> int:
    (value,) = database.execute(
        "UPDATE counters SET value = value + 1 WHERE name = ? RETURNING value", (counter,)
    ).fetchone()
    assert isinstance(value, int)
    return value


def _prune(database: sqlite3.Connection, before: int) -> None:
    """Delete surplus entries and rows. `before` is the revision before this transaction."""
    (revision,) = database.execute(READ_REVISION).fetchone()
    if revision // AUDIT_LOOK != before // AUDIT_LOOK:
        _prune_audit(database)
    database.execute(PRUNE_DELETED, (TOMBSTONES_MAX,))


def _prune_audit(database: sqlite3.Connection) -> None:
    """Delete audit entries that are too old and, while there are too many, the oldest of the author with the most. So
    no author pushes out the entries of others that have fewer.
    """
    (newest_s,) = database.execute("SELECT max(at_s) FROM audit").fetchone()
    database.execute("DELETE FROM audit WHERE at_s < ?", ((newest_s or 0.0) - AUDIT_DAYS_MAX * DAY_S,))
    while (surplus := database.execute("SELECT count(*) FROM audit").fetchone()[0] - AUDIT_ENTRIES_MAX) > 0:
        most, next_most = [*database.execute(READ_MOST_AUDITED).fetchall(), ("", 0)][:2]
        # As many as bring the first down to the second, at least one, in turns where both have as many.
        count = min(surplus, max(1, most[1] - next_most[1], AUDIT_LOOK))
        database.execute(PRUNE_AUDIT, (most[0], count))


def _text(body: Any) -> str | None:
    return None if body is None else to_json(body).decode()


def _row(document: Document) -> tuple[str, str, int, str | None]:
    return document.kind, document.name, document.version, _text(document.body)


def _audit_entry(row: tuple[Any, ...]) -> AuditEntry:
    return AuditEntry(*row[:6], *map(from_json, row[6:8]), *row[8:])


def _where(given: dict[str, Any]) -> tuple[str, list[Any]]:
    """The WHERE clause of the conditions that have a value, and these values."""
    asked = {condition: value for condition, value in given.items() if value is not None}
    return ("WHERE " + " AND ".join(asked) if asked else ""), list(asked.values())


READ_REVISION = "SELECT value FROM counters WHERE name = 'revision'"
READ_MOST_AUDITED = "SELECT actor, count(*) FROM audit GROUP BY actor ORDER BY 2 DESC, 1 LIMIT 2"
PRUNE_AUDIT = """DELETE FROM audit WHERE revision IN
    (SELECT revision FROM audit WHERE actor = ? ORDER BY revision LIMIT ?)"""
READ_AUDIT = "SELECT revision, at_s, actor, action, kind, name, before, after, replica FROM audit"
READ_USAGE = (
    """SELECT day, tenant, key, model, writer, requests, prompt_tokens, cached_tokens, output_tokens FROM usage"""
)
# As a row value the place is looked up in the primary key, where no other condition is a lower bound: a page costs as
# much wherever it begins.
BEHIND_PLACE = "(day, tenant, key, model, writer) > (?, ?, ?, ?, ?)"
READ_LAST_DAYS = "SELECT tenant, key, max(day) FROM usage WHERE day >= ? GROUP BY tenant, key"
READ_NEWS = "SELECT kind, name, version, body, arrival FROM documents WHERE arrival > ? ORDER BY arrival"

WRITE_DOCUMENT = "INSERT OR REPLACE INTO documents (kind, name, version, body, arrival) VALUES (?, ?, ?, ?, ?)"
MERGE_DOCUMENT = """INSERT INTO documents (kind, name, version, body, arrival) VALUES (?, ?, ?, ?, ?)
    ON CONFLICT DO UPDATE SET version = excluded.version, body = excluded.body, arrival = excluded.arrival
    WHERE excluded.version > version"""
PRUNE_DELETED = """DELETE FROM documents WHERE body IS NULL AND version <=
    (SELECT version FROM documents WHERE body IS NULL ORDER BY version DESC LIMIT 1 OFFSET ?)"""

WRITE_AUDIT = """INSERT OR REPLACE INTO audit (revision, at_s, actor, replica, action, kind, name, before, after)
    VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)"""
MERGE_AUDIT = WRITE_AUDIT.replace("OR REPLACE", "OR IGNORE")

MERGE_USAGE = """INSERT INTO usage
    (day, tenant, key, model, writer, requests, prompt_tokens, cached_tokens, output_tokens)
    VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)
    ON CONFLICT DO UPDATE SET
        requests = max(requests, excluded.requests),
        prompt_tokens = max(prompt_tokens, excluded.prompt_tokens),
        cached_tokens = max(cached_tokens, excluded.cached_tokens),
        output_tokens = max(output_tokens, excluded.output_tokens)"""

MERGE_LEARNT = """INSERT INTO learnt (name, at_s, body) VALUES (?, ?, ?)
    ON CONFLICT DO UPDATE SET at_s = excluded.at_s, body = excluded.body WHERE excluded.at_s > at_s"""
