"""Store protocol: documents with an audit log, usage, and learned data, in a form that copies can merge.

Each of the three kinds of data has one rule that makes it safe to write it twice:

    documents   every change takes the next revision, which becomes the document's version. Of two copies of a document
                the higher version wins. A deletion is a version, too.
    usage       the totals that one writer (one gateway process) has counted in one row. They only grow, so of two
                copies the larger wins, and a repeated flush counts once.
    learnt      what a gateway has learned, opaque, by name. The newest wins.

So copies merge in any order, any number of times, with the same result; replication needs nothing else (a state-based
counter and last-writer-wins registers: Shapiro et al., "Conflict-free Replicated Data Types", 2011).
"""

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from typing import Any, NamedTuple, Protocol

import orjson

KIND_CHARS_MAX = 32
NAME_CHARS_MAX = 256
BODY_BYTES_MAX = 64 << 10
CHANGES_MAX = 1_000  # in one transaction
TOMBSTONES_MAX = 20_000  # the oldest deletions are forgotten
AUDIT_ENTRIES_MAX = 100_000  # the oldest of the author with the most are forgotten
AUDIT_DAYS_MAX = 400  # so are older ones, as usage is
AUDIT_PAGE_MAX = 1_000
USAGE_DAYS_MAX = 400  # older days are forgotten
USAGE_ROWS_MAX = 100_000  # in one answer
ROWS_AT_ONCE = 500  # some milliseconds of a thread's work
LEARNT_BYTES_MAX = 16 << 20

Body = Mapping[str, Any]


class StoreUnavailable(Exception):  # noqa: N818 - named as HTTP names it
    """An error: the store cannot be written or read now (disk full, an I/O error, no connection). The change was not
    made, or its outcome is unknown; a retry is safe.
    """


class StateFileError(Exception):
    """An error: the state file is damaged, in use, of a newer version, or not a state file. It is left unchanged; the
    text names it.
    """


class VersionConflict(Exception):  # noqa: N818 - an answer to a question, not a fault
    """An error: the document has another version than the change expects. The transaction changed nothing."""

    def __init__(self, kind: str, name: str, version: int) -> None:
        """`version` is the document's version; 0 where there is no document."""
        super().__init__(f"{kind}/{name} has version {version}")


class StoreFull(Exception):  # noqa: N818
    """An error: the change or the answer would exceed a limit of the store. Nothing was changed."""


@dataclass(frozen=True, slots=True)
class Document:
    """A document of the store at one version, found by its kind and name; `body` None: it was deleted."""

    kind: str
    name: str
    version: int
    body: Body | None


@dataclass(frozen=True, slots=True)
class Change:
    """One change of a document in a transaction: its new `body` (None: delete it). `is_audited`: the change is written
    to the audit log. `expected` is the version that the document must have (0: it must not exist); None: any.
    """

    kind: str
    name: str
    body: Body | None
    expected: int | None = None
    is_audited: bool = True


@dataclass(frozen=True, slots=True)
class AuditEntry:
    """One entry of the audit log: a change of a document, with its author (`actor`) and time (`at_s`, seconds since
    1970). It is written in the same transaction as the change. `replica` is the gateway that made it; "": not known.
    """

    revision: int
    at_s: float
    actor: str
    action: str
    kind: str
    name: str
    before: Body | None
    after: Body | None
    replica: str = ""


class Totals(NamedTuple):
    """The counts of one usage row: requests and tokens. They never decrease."""

    requests: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0


Holder = tuple[str, str]
"""A tenant and the id of one of its API keys, "" without one."""


class UsageKey(NamedTuple):
    """The key of a usage row: a day (UTC, like 2026-11-20), a tenant, the id of an API key ("": none), a model."""

    day: str
    tenant: str
    key: str
    model: str


class UsagePlace(NamedTuple):
    """The position of a usage row in the order of all rows, for reading them page by page."""

    day: str
    tenant: str
    key: str
    model: str
    writer: str


class UsageQuery(NamedTuple):
    """A query for usage rows of these days, both inclusive. It selects one tenant and one writer (None: any). The
    answer has the first `limit` rows after the position `after`.
    """

    first_day: str
    last_day: str
    tenant: str | None = None
    writer: str | None = None
    after: UsagePlace | None = None
    limit: int | None = None


@dataclass(frozen=True, slots=True)
class UsageRow:
    """One row of usage: the totals that one writer (a run of a process) has counted under one key."""

    writer: str
    of: UsageKey
    totals: Totals


@dataclass(frozen=True, slots=True)
class Learnt:
    """A piece of the gateway's learnt state, such as its counters, which is stored to survive a restart. The store does
    not interpret its `body`. `at_s` is its time, in seconds since 1970.
    """

    name: str
    at_s: float
    body: bytes


@dataclass(frozen=True, slots=True)
class News:
    """The documents that arrived in a store after a cursor, deleted ones included. `cursor` is the position for the
    next read. It counts arrivals at this replica, whose order may differ from the order of the changes.
    """

    cursor: int
    documents: tuple[Document, ...]


def check_size(changes: Sequence[Change]) -> None:
    """Raise StoreFull where a transaction exceeds the limits of all stores."""
    if len(changes) > CHANGES_MAX:
        raise StoreFull(f"more than {CHANGES_MAX} changes at once")
    for change in changes:
        if len(change.kind) > KIND_CHARS_MAX or len(change.name) > NAME_CHARS_MAX:
            raise StoreFull(f"the name of {change.kind}/{change.name[:NAME_CHARS_MAX]} is too long")
        if change.body is not None and len(to_json(change.body)) > BODY_BYTES_MAX:
            raise StoreFull(f"{change.kind}/{change.name} has more than {BODY_BYTES_MAX} bytes")


def to_json(body: Body) -> bytes:
    """Serialize a body; equal bodies give equal bytes."""
    return orjson.dumps(dict(body), option=orjson.OPT_SORT_KEYS)


def from_json(text: bytes | str | None) -> Body | None:
    """Parse a body that `to_json` wrote; None gives None."""
    return None if text is None else orjson.loads(text)


def oldest_day(newest: str) -> str:
    """The first day whose usage is kept when `newest` is the newest day."""
    return (date.fromisoformat(newest) - timedelta(days=USAGE_DAYS_MAX - 1)).isoformat()


def action_of(before: Body | None, after: Body | None) -> str:
    """The audit log's name for a change from `before` to `after` (None: no document)."""
    if after is None:
        return "delete"
    return "create" if before is None else "update"


class Store(Protocol):
    """The interface of the store of a gateway's state: documents, audit log, usage and learnt state. Every method may
    raise StoreUnavailable. No method takes longer than the store's own timeout. No request waits for the store.
    """

    @property
    def is_available(self) -> bool:
        """Whether the store would accept a change, by its latest contact."""
        ...

    async def open(self) -> None:
        """Open the store. Raises StateFileError if the state file must not be changed."""
        ...

    async def close(self) -> None: ...

    async def commit(
        self, changes: Sequence[Change], *, actor: str, at_s: float, replica: str = ""
    ) -> tuple[Document, ...]:
        """Apply all changes, with the audit entries of the audited ones, or none. Raises VersionConflict, StoreFull.
        The changes are durable in this store when the method returns.
        """
        ...

    async def news(self, since: int) -> News:
        """The documents that arrived after the cursor `since`; 0: all documents."""
        ...

    async def merge(self, documents: Sequence[Document], audit: Sequence[AuditEntry] = ()) -> None:
        """Take over the documents and audit entries of another copy that are newer than this one's. They are not
        validated or audited again; the next revision is above all merged ones.
        """
        ...

    async def audit(
        self, *, before: int | None = None, limit: int = 100, kind: str | None = None
    ) -> tuple[AuditEntry, ...]:
        """The audit entries with a revision below `before`, newest first."""
        ...

    async def put_usage(self, rows: Sequence[UsageRow]) -> None:
        """Write totals: each becomes the larger of the stored and the given one. Idempotent."""
        ...

    async def usage(self, query: UsageQuery) -> tuple[UsageRow, ...]:
        """The rows that match the query, ordered by day, tenant, key, model, writer. Raises StoreFull for more than
        USAGE_ROWS_MAX rows if the query has no limit.
        """
        ...

    async def last_days(self, since: str) -> dict[Holder, str]:
        """The last day with usage of each tenant and key that has usage on the day `since` or later."""
        ...

    async def put_learnt(self, learnt: Learnt) -> None:
        """Write the learnt state, unless newer state of the same name is stored."""
        ...

    async def learnt(self, name: str) -> Learnt | None: ...


async def usage_rows(store: Store, query: UsageQuery) -> AsyncIterator[tuple[UsageRow, ...]]:
    """The rows that match the query, without a limit, in parts: memory holds one part, however many rows there are.
    Raises StoreUnavailable.
    """
    while rows := await store.usage(query := query._replace(limit=ROWS_AT_ONCE)):
        yield rows
        if len(rows) < ROWS_AT_ONCE:
            return
        query = query._replace(after=UsagePlace(*rows[-1].of, rows[-1].writer))
