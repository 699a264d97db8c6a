"""The question every store answers: what was decided, by whom, and what has been used?

Three kinds of data, and each has the one rule that makes it safe to write it twice:

    documents   every change takes the next revision, which is the document's version from then on. Two copies of a
                document differ by version, and the higher version wins. A deletion is a version, too.
    usage       what one writer (one gateway's state) has counted of one row: totals that only grow. Two copies
                differ by totals, and the larger wins, so that a flush repeated counts once.
    learnt      what a gateway has learnt, opaque, by name. The newest wins.

So copies merge in any order, any number of times, with the same result; that is all that replication needs
(a state-based counter and last-writer-wins registers: Shapiro et al., "Conflict-free Replicated Data Types", 2011).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from typing import Any, NamedTuple, Protocol

import orjson

KIND_CHARS_MAX = 32
NAME_CHARS_MAX = 256
BODY_BYTES_MAX = 64 << 10
CHANGES_MAX = 1_000  # in one transaction
TOMBSTONES_MAX = 20_000  # the oldest deletions are forgotten
AUDIT_ENTRIES_MAX = 100_000  # the oldest are forgotten
AUDIT_PAGE_MAX = 1_000
USAGE_DAYS_MAX = 400  # older days are forgotten
USAGE_ROWS_MAX = 100_000  # in one answer
LEARNT_BYTES_MAX = 16 << 20

Body = Mapping[str, Any]


class StoreUnavailable(Exception):  # noqa: N818 - named as HTTP names it
    """The store cannot be written or read now: disk full, an I/O error, no connection. Nothing was changed, or it is
    not known whether it was; asking again is safe.
    """


class StateFileError(Exception):
    """The state file is not one, is damaged, of a newer version or in use. It is left as it is; the text names it."""


class VersionConflict(Exception):  # noqa: N818 - an answer to a question, not a fault
    """Somebody changed the document meanwhile; nothing of the transaction was done."""

    def __init__(self, kind: str, name: str, version: int) -> None:
        """`version` is what the document has, 0 where there is none."""
        super().__init__(f"{kind}/{name} has version {version}")
        self.kind, self.name, self.version = kind, name, version


class StoreFull(Exception):  # noqa: N818
    """A named limit of the store would be passed; nothing was done."""


@dataclass(frozen=True, slots=True)
class Document:
    """A named thing as of one version; `body` None: it was deleted."""

    kind: str
    name: str
    version: int
    body: Body | None


@dataclass(frozen=True, slots=True)
class Change:
    """One step of a transaction. `expected`: the version it must have (0: it must not be there); None: any."""

    kind: str
    name: str
    body: Body | None
    expected: int | None = None


@dataclass(frozen=True, slots=True)
class AuditEntry:
    """Who did what to which document, and when (`at_s`, seconds since 1970). Written with the change itself."""

    revision: int
    at_s: float
    actor: str
    action: str
    kind: str
    name: str
    before: Body | None
    after: Body | None


class Totals(NamedTuple):
    """What was used: each only grows."""

    requests: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0


class UsageKey(NamedTuple):
    """Whose row it is. `key` is the id of an API key, "" where there was none; `day` like 2026-11-20, in UTC."""

    day: str
    tenant: str
    key: str
    model: str


@dataclass(frozen=True, slots=True)
class UsageRow:
    """What one writer has counted of one row, all in all."""

    writer: str
    of: UsageKey
    totals: Totals


@dataclass(frozen=True, slots=True)
class Learnt:
    """Something opaque that is worth keeping over a restart, as of `at_s` (seconds since 1970)."""

    name: str
    at_s: float
    body: bytes


@dataclass(frozen=True, slots=True)
class News:
    """The documents that came since some moment, deleted ones included. `cursor` is where to go on: it counts what
    has come to this copy, in whatever order, while a version counts what was decided.
    """

    cursor: int
    documents: tuple[Document, ...]


def check_size(changes: Sequence[Change]) -> None:
    """Raises StoreFull where a transaction is larger than any store takes."""
    if len(changes) > CHANGES_MAX:
        raise StoreFull(f"more than {CHANGES_MAX} changes at once")
    for change in changes:
        if len(change.kind) > KIND_CHARS_MAX or len(change.name) > NAME_CHARS_MAX:
            raise StoreFull(f"the name of {change.kind}/{change.name[:NAME_CHARS_MAX]} is too long")
        if change.body is not None and len(to_json(change.body)) > BODY_BYTES_MAX:
            raise StoreFull(f"{change.kind}/{change.name} has more than {BODY_BYTES_MAX} bytes")


def to_json(body: Body) -> bytes:
    """Equal bodies are equal bytes."""
    return orjson.dumps(dict(body), option=orjson.OPT_SORT_KEYS)


def from_json(text: bytes | str | None) -> Body | None:
    """What `to_json` wrote; None where nothing was."""
    return None if text is None else orjson.loads(text)


def oldest_day(newest: str) -> str:
    """The first day that is kept while this one is the newest."""
    return (date.fromisoformat(newest) - timedelta(days=USAGE_DAYS_MAX - 1)).isoformat()


def action_of(before: Body | None, after: Body | None) -> str:
    """What the audit log calls a change."""
    if before is None:
        return "create"
    return "delete" if after is None else "update"


class Store(Protocol):
    """Every method may raise StoreUnavailable, and none waits longer than the store's own bound. None is to be
    awaited on the path of a request.
    """

    @property
    def is_available(self) -> bool:
        """Whether it would take a change, as far as is known."""
        ...

    async def open(self) -> None:
        """Raises StateFileError where there is a file that must not be touched."""
        ...

    async def close(self) -> None: ...

    async def commit(self, changes: Sequence[Change], *, actor: str, at_s: float) -> tuple[Document, ...]:
        """All changes and their audit entries, or none. They are where this store keeps them for good when this
        returns. Raises VersionConflict, StoreFull.
        """
        ...

    async def news(self, since: int) -> News:
        """What has come since the cursor `since`; 0: all that is there."""
        ...

    async def merge(self, documents: Sequence[Document], audit: Sequence[AuditEntry] = ()) -> None:
        """Take over what another copy has and this one has not, or not so new. Nothing is checked or audited anew; the
        next revision is above all that were merged.
        """
        ...

    async def audit(
        self, *, before: int | None = None, limit: int = 100, kind: str | None = None, name: str | None = None
    ) -> tuple[AuditEntry, ...]:
        """The newest entries first, those with a revision below `before`."""
        ...

    async def put_usage(self, rows: Sequence[UsageRow]) -> None:
        """Idempotent: each total becomes the larger of what is there and what is given."""
        ...

    async def usage(
        self, *, first_day: str, last_day: str, tenant: str | None = None, writer: str | None = None
    ) -> tuple[UsageRow, ...]:
        """The rows of these days, both included, ordered by day, tenant, key, model, writer. At most USAGE_ROWS_MAX:
        raises StoreFull where there are more.
        """
        ...

    async def put_learnt(self, learnt: Learnt) -> None:
        """Unless something newer of that name is there."""
        ...

    async def learnt(self, name: str) -> Learnt | None: ...


class SharedStore(Store, Protocol):
    """A store that others write, too, and that may come back with less than it had."""

    @property
    def epoch(self) -> str:
        """Whose data it has: another, once it has lost everything."""
        ...

    @property
    def incarnation(self) -> str:
        """Changes whenever the store may not have what it had."""
        ...

    @property
    def revision(self) -> int:
        """How far the store had counted when it was last heard of."""
        ...
