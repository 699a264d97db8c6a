"""Redis store: documents, usage and learned data in one Redis or Valkey server of several gateways. A write is one
atomic script.

No call waits longer than the timeout, and no call is retried here: the caller knows whether a retry is still useful. A
new connection may lead to a server that has restarted with old data, or with none: then `incarnation` changes, and the
caller has to compare its data with the server again.

docs/operations.md lists the rights that the store needs.
"""

import asyncio
import secrets
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import fields as fields_of
from importlib import resources
from itertools import groupby
from typing import Any, TypeVar

import orjson
from redis.asyncio import BlockingConnectionPool, Connection, Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError

from gateway.store.base import (
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
    StoreUnavailable,
    Totals,
    UsageKey,
    UsagePlace,
    UsageQuery,
    UsageRow,
    VersionConflict,
    check_size,
    from_json,
    oldest_day,
    to_json,
)

T = TypeVar("T")

TIMEOUT_S = 0.5
SETTLE_S = 1.5  # for which an empty server accepts no change: others poll every 0.25 s
SETTLING_TRIES = 2
DEADLINE_AT = 5  # in the arguments of commit.lua
DOCUMENTS_AT_ONCE = 500
ROWS_AT_ONCE = 500
EPOCH_BYTES = 8
SCRIPTS = ("news", "commit", "merge", "put_usage", "put_learnt")
NEWS_KEYS = ("documents", "arrivals", "counters", "settling")
NO_TOTALS = b"0,0,0,0"
FIELD_END = "\x1f"  # between the parts of a row's name, none of which contains it


class RedisStore:
    """The Store in a Redis or Valkey server. Mutable; used on one loop."""

    def __init__(
        self,
        url: str,
        *,
        prefix: str = "fairlead",
        timeout_s: float = TIMEOUT_S,
        settle_s: float = SETTLE_S,
        options: dict[str, Any] | None = None,
    ) -> None:
        """`options` go to redis-py: username, password, ssl_ca_certs ... Raises ValueError for an invalid URL."""
        self._server = RedisServer(url, prefix, timeout_s=timeout_s, options=options, scripts=SCRIPTS)
        self._settle_s = settle_s
        self._timeout_s = timeout_s
        self._ahead_s = 0.0  # the server's clock minus this machine's
        self.epoch = ""
        """The identity of the data: it changes when the server has lost all of it."""
        self.revision = 0
        """At the latest contact."""

    @property
    def incarnation(self) -> str:
        """The present incarnation of the data, which changes whenever the server may have lost data."""
        return f"{self.epoch}/{self._server.connections}"

    @property
    def is_available(self) -> bool:
        return self.epoch != ""

    async def open(self) -> None:
        """Do nothing: an unavailable server is no error, because it may come back."""

    async def close(self) -> None:
        await self._server.close()

    async def commit(
        self, changes: Sequence[Change], *, actor: str, at_s: float, replica: str = ""
    ) -> tuple[Document, ...]:
        check_size(changes)
        if not self.epoch:
            await self.news(self.revision)
        common = _fields(_made_by(at_s, actor, replica))
        args: list[Any] = [self.epoch, self.revision, AUDIT_ENTRIES_MAX, TOMBSTONES_MAX, common, ""]
        for change in changes:
            expected = "" if change.expected is None else change.expected
            named = _fields({"kind": change.kind, "name": change.name}) if change.is_audited else ""
            args += [_member(change), named, expected, _text(change.body)]
        keys = ("documents", "arrivals", "counters", "settling", "deleted", "audit")
        verdict, rest = b"settling", [b"0"]
        for _ in range(SETTLING_TRIES):
            if verdict == b"settling":
                await asyncio.sleep(int(rest[0]) / 1000)
                args[DEADLINE_AT] = f"{time.monotonic() + self._ahead_s + self._timeout_s:.6f}"
                verdict, *rest = await self._server.call("commit", keys, args)
        match verdict:
            case b"conflict":
                change = changes[int(rest[0])]
                raise VersionConflict(change.kind, change.name, int(rest[1]))
            case b"late":
                raise StoreUnavailable("Redis answered too late, and has not done it")
            case b"stale" | b"settling":
                raise StoreUnavailable("Redis has not got what it had: gateways are putting it back")
        self.revision = int(rest[0]) + len(changes) - 1
        return tuple(
            Document(change.kind, change.name, version, change.body)
            for version, change in enumerate(changes, start=int(rest[0]))
        )

    async def news(self, since: int) -> News:
        documents: list[Document] = []
        cursor = since
        while True:
            args = [cursor, DOCUMENTS_AT_ONCE, secrets.token_hex(EPOCH_BYTES), max(1, int(self._settle_s * 1000))]
            epoch, revision, clock_s, *found = await self._server.call("news", NEWS_KEYS, args)
            self._ahead_s = float(clock_s) - time.monotonic()
            if epoch.decode() != self.epoch:
                self.epoch, is_new = epoch.decode(), self.epoch != ""
                if is_new and cursor:
                    # The cursor counted arrivals at the server's former data.
                    documents, cursor = [], 0
                    continue
            self.revision = int(revision)
            documents += [_document(member, value) for member, value in zip(found[::3], found[1::3], strict=True)]
            if found:
                cursor = int(found[-1])
            if len(found) < 3 * DOCUMENTS_AT_ONCE:
                return News(cursor, tuple(documents))

    async def merge(self, documents: Sequence[Document], audit: Sequence[AuditEntry] = ()) -> None:
        for part in _parts(documents, DOCUMENTS_AT_ONCE):
            args: list[Any] = [len(part)]
            for document in part:
                args += [_member(document), document.version, _text(document.body)]
            await self._merge(args)
        for entries in _parts(audit, ROWS_AT_ONCE):
            args = [0]
            for entry in entries:
                args += [entry.revision, _entry_text(entry)]
            await self._merge(args)

    async def audit(
        self, *, before: int | None = None, limit: int = 100, kind: str | None = None
    ) -> tuple[AuditEntry, ...]:
        wanted, found = min(limit, AUDIT_PAGE_MAX), list[AuditEntry]()
        highest = "+inf" if before is None else f"({before}"
        while len(found) < wanted:
            page = await self._server.ask("ZREVRANGEBYSCORE", "audit", highest, "-inf", "LIMIT", 0, AUDIT_PAGE_MAX)
            entries = [_entry(text) for text in page]
            found += [e for e in entries if kind in (None, e.kind)]
            if len(page) < AUDIT_PAGE_MAX:
                break
            highest = f"({entries[-1].revision}"
        return tuple(found[:wanted])

    async def put_usage(self, rows: Sequence[UsageRow]) -> None:
        by_day = groupby(sorted(rows, key=lambda row: row.of.day), key=lambda row: row.of.day)
        for day, of_day in by_day:
            for part in _parts(list(of_day), ROWS_AT_ONCE):
                args: list[Any] = [_day_number(day), day, _day_number(oldest_day(day)), self._server.name("usage:")]
                for row in part:
                    args += [FIELD_END.join((row.writer, *row.of[1:])), ",".join(map(str, row.totals))]
                await self._server.call("put_usage", (f"usage:{day}", "days"), args)

    async def usage(self, query: UsageQuery) -> tuple[UsageRow, ...]:
        after, limit = query.after, query.limit
        first_day = query.first_day if after is None else max(query.first_day, after.day)
        days = await self._server.ask("ZRANGEBYSCORE", "days", _day_number(first_day), _day_number(query.last_day))
        rows: list[UsageRow] = []
        for day in map(bytes.decode, days):
            fields = await self._server.ask("HGETALL", f"usage:{day}")
            found = (_usage_row(day, field, totals) for field, totals in fields.items())
            wanted = [
                row for row in found if query.tenant in (None, row.of.tenant) and query.writer in (None, row.writer)
            ]
            rows += sorted((row for row in wanted if after is None or _place(row) > after), key=_place)
            if limit is not None and len(rows) >= limit:
                break
            if limit is None and len(rows) > USAGE_ROWS_MAX:
                raise StoreFull(f"more than {USAGE_ROWS_MAX} rows of usage: ask for fewer days")
        return tuple(rows[:limit])

    async def last_days(self, since: str) -> dict[Holder, str]:
        found: dict[Holder, str] = {}
        for day in map(
            bytes.decode, await self._server.ask("ZRANGEBYSCORE", "days", _day_number(since or "0"), "+inf")
        ):
            rows = (_usage_row(day, field, NO_TOTALS) for field in await self._server.ask("HKEYS", f"usage:{day}"))
            found |= {(row.of.tenant, row.of.key): day for row in rows}
        return found

    async def put_learnt(self, learnt: Learnt) -> None:
        if len(learnt.body) > LEARNT_BYTES_MAX:
            raise StoreFull(f"{learnt.name} has more than {LEARNT_BYTES_MAX} bytes")
        await self._server.call("put_learnt", ("learnt",), [learnt.name, repr(learnt.at_s), learnt.body])

    async def learnt(self, name: str) -> Learnt | None:
        value = await self._server.ask("HGET", "learnt", name)
        if value is None:
            return None
        at_s, _, body = value.partition(b"\n")
        return Learnt(name, float(at_s), body)

    async def _merge(self, args: list[Any]) -> None:
        await self._server.call("merge", ("documents", "arrivals", "counters", "deleted", "audit"), args)


class RedisServer:
    """A client of one Redis server: the names of its keys, its Lua scripts and one connection. Mutable."""

    def __init__(
        self,
        url: str,
        prefix: str,
        *,
        timeout_s: float,
        options: dict[str, Any] | None,
        scripts: Sequence[str] = (),
    ) -> None:
        """`options` go to redis-py. Raises ValueError for an invalid URL."""
        self.name = f"{{{prefix}}}:".__add__  # the braces keep all keys in one slot of a cluster
        self.connections = 0
        """How often the server was connected to."""
        self.on_connected: Callable[[], None] = lambda: None
        """Called with every new connection."""
        pool = BlockingConnectionPool.from_url(
            url,
            max_connections=1,
            timeout=2 * timeout_s,
            socket_timeout=timeout_s,
            socket_connect_timeout=timeout_s,
            retry=Retry(NoBackoff(), 0),
            health_check_interval=0,
            **{"redis_connect_func": self._connected, **(options or {})},
        )
        self._redis = Redis(connection_pool=pool)
        data = resources.files("gateway.store").joinpath("data")
        self._scripts = {
            name: self._redis.register_script(data.joinpath(f"{name}.lua").read_text(encoding="utf-8"))
            for name in scripts
        }

    async def close(self) -> None:
        """Close its connection. One that takes longer than the timeout is left to close by itself."""
        with suppress(RedisError):
            await self._redis.aclose()
            await self._redis.connection_pool.aclose()

    async def call(self, script: str, keys: Sequence[str], args: Sequence[Any]) -> Any:
        """The result of the script. Raises StoreUnavailable."""
        async with self._mapped():
            return await self._scripts[script](keys=[self.name(key) for key in keys], args=args)

    async def ask(self, command: str, key: str, *args: Any) -> Any:
        """The result of the command. Raises StoreUnavailable."""
        async with self._mapped():
            # redis-py has no types for this one.
            return await self._redis.execute_command(command, self.name(key), *args)  # type: ignore[no-untyped-call]

    async def put(self, values: Mapping[str, bytes | str]) -> None:
        """Set these keys in one exchange. Raises StoreUnavailable."""
        async with self._mapped(), self._redis.pipeline(transaction=False) as pipeline:
            for key, value in values.items():
                pipeline.set(self.name(key), value)
            await pipeline.execute()

    async def _connected(self, connection: Connection) -> None:
        await connection.on_connect()
        self.connections += 1
        self.on_connected()

    @asynccontextmanager
    async def _mapped(self) -> AsyncIterator[None]:
        """Convert redis-py's errors to StoreUnavailable."""
        try:
            yield
        except (RedisError, OSError) as error:
            raise StoreUnavailable(f"Redis: {error or type(error).__name__}") from error


def _parts(items: Sequence[T], size: int) -> list[Sequence[T]]:
    return [items[at : at + size] for at in range(0, len(items), size)]


def _member(named: Change | Document) -> str:
    return f"{named.kind}/{named.name}"


def _text(body: Any) -> bytes:
    return b"" if body is None else to_json(body)


def _document(member: bytes, value: bytes) -> Document:
    kind, _, name = member.decode().partition("/")
    version, _, body = value.partition(b"\n")
    return Document(kind, name, int(version), from_json(body) if body else None)


def _fields(fields: dict[str, Any]) -> bytes:
    """The fields of a JSON object, without its braces."""
    return orjson.dumps(fields)[1:-1]


def _entry_text(entry: AuditEntry) -> bytes:
    """The text of an entry, in the same bytes as commit.lua writes, so that a merged entry is stored once."""
    before, after = (b"null" if body is None else to_json(body) for body in (entry.before, entry.after))
    head = _fields({"revision": entry.revision, "action": entry.action})
    tail = _fields({**_made_by(entry.at_s, entry.actor, entry.replica), "kind": entry.kind, "name": entry.name})
    return b"{%s,%s,%s}" % (head, tail, b'"before":%s,"after":%s' % (before, after))


def _made_by(at_s: float, actor: str, replica: str) -> dict[str, Any]:
    """The fields of an audit entry about its author. Entries without a replica keep the bytes that they were stored
    with.
    """
    return {"at_s": at_s, "actor": actor, **({"replica": replica} if replica else {})}


def _entry(text: bytes) -> AuditEntry:
    """Read an audit entry; fields of a later version are left out."""
    return AuditEntry(**{name: value for name, value in orjson.loads(text).items() if name in ENTRY_FIELDS})


ENTRY_FIELDS = frozenset(field.name for field in fields_of(AuditEntry))


def _usage_row(day: str, field: bytes, totals: bytes) -> UsageRow:
    writer, tenant, key, model = field.decode().split(FIELD_END)
    return UsageRow(writer, UsageKey(day, tenant, key, model), Totals(*map(int, totals.split(b","))))


def _place(row: UsageRow) -> UsagePlace:
    return UsagePlace(*row.of, row.writer)


def _day_number(day: str) -> int:
    return int(day.replace("-", ""))
