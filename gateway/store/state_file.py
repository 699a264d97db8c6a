"""State file: opens it only if it is a complete file of fairlead, of a known schema, and locked by no other gateway.

Any other file is named in the error and left unchanged: it may be the only copy of its data. A new file is written
under a temporary name and renamed when complete, so that there are no partial files. One gateway uses a file: the lock
ends with the process.

One thread runs all statements in call order, so that the event loop never waits for a disk.
"""

import asyncio
import contextlib
import fcntl
import os
import sqlite3
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from gateway.config.files import written_whole
from gateway.store.base import StateFileError, StoreUnavailable

T = TypeVar("T")

MAGIC = b"SQLite format 3\0"
APPLICATION_ID_AT = 68  # in the header, 4 bytes
HEADER_BYTES = 100
BUSY_S = 2.0
WAL_PAGES_MAX = 1_000  # before a checkpoint moves them into the file
CACHE_KIB = 8_192
APPLICATION_ID = 0x464C5244  # "FLRD", in the header of the file (https://sqlite.org/fileformat.html#application_id)

# Each brings the file from one version to the next, in one transaction. They are only ever appended: existing files
# were made by the earlier ones.
MIGRATIONS: tuple[tuple[str, ...], ...] = (
    (
        # `arrival` counts arrivals at this file, so that a document merged late still appears in `news`.
        """CREATE TABLE documents (
            kind TEXT NOT NULL, name TEXT NOT NULL, version INTEGER NOT NULL, arrival INTEGER NOT NULL, body TEXT,
            PRIMARY KEY (kind, name)) WITHOUT ROWID""",
        "CREATE UNIQUE INDEX documents_by_arrival ON documents (arrival)",
        "CREATE INDEX deleted_documents ON documents (version) WHERE body IS NULL",
        """CREATE TABLE audit (
            revision INTEGER PRIMARY KEY, at_s REAL NOT NULL, actor TEXT NOT NULL, action TEXT NOT NULL,
            kind TEXT NOT NULL, name TEXT NOT NULL, before TEXT, after TEXT)""",
        "CREATE INDEX audit_by_name ON audit (kind, name, revision)",
        """CREATE TABLE usage (
            day TEXT NOT NULL, tenant TEXT NOT NULL, key TEXT NOT NULL, model TEXT NOT NULL, writer TEXT NOT NULL,
            requests INTEGER NOT NULL, prompt_tokens INTEGER NOT NULL, cached_tokens INTEGER NOT NULL,
            output_tokens INTEGER NOT NULL,
            PRIMARY KEY (day, tenant, key, model, writer)) WITHOUT ROWID""",
        "CREATE TABLE learnt (name TEXT PRIMARY KEY, at_s REAL NOT NULL, body BLOB NOT NULL) WITHOUT ROWID",
        "CREATE TABLE counters (name TEXT PRIMARY KEY, value INTEGER NOT NULL) WITHOUT ROWID",
        "INSERT INTO counters (name, value) VALUES ('revision', 0), ('arrival', 0)",
    ),
    ("ALTER TABLE audit ADD COLUMN replica TEXT NOT NULL DEFAULT ''",),
    ("CREATE INDEX audit_by_actor ON audit (actor, revision)",),
)


class StateFile:
    """A SQLite file with the gateway's state, and the thread that reads and writes it. Mutable; used on one loop."""

    def __init__(self, path: Path | None, *, is_tool: bool = False) -> None:
        """`path` None: in memory. A tool (`is_tool`) may briefly use the file of a running gateway. It neither locks,
        creates nor migrates the file.
        """
        self._path = path
        self._is_tool = is_tool
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="state-file")
        self._lock: int | None = None
        self._database: sqlite3.Connection | None = None

    @property
    def is_available(self) -> bool:
        return self._database is not None

    async def open(self) -> None:
        """Open the file. Raises StateFileError."""
        await asyncio.get_running_loop().run_in_executor(self._thread, self._open)

    async def close(self) -> None:
        await asyncio.get_running_loop().run_in_executor(self._thread, self._close)
        self._thread.shutdown()

    async def run(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Run `work` in the file's thread, and return its result. Raises StoreUnavailable."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, self._guarded, work)

    def _guarded(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Run the work, converting SQLite's errors to StoreUnavailable: a full disk, an I/O error, a damaged file."""
        if self._database is None:
            raise StoreUnavailable("the state file is closed")
        try:
            return work(self._database)
        except sqlite3.Error as error:
            raise StoreUnavailable(f"the state file {self._path}: {error}") from error

    def _open(self) -> None:
        if self._path is not None and not self._is_tool:
            self._lock = lock_state_file(self._path)
        try:
            self._database = connect(self._path, is_tool=self._is_tool)
        except BaseException:
            self._close()
            raise

    def _close(self) -> None:
        if self._database is not None:
            self._database.close()
            self._database = None
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None


def lock_state_file(path: Path) -> int:
    """Return the descriptor that holds the lock until it is closed. Raises StateFileError."""
    try:
        descriptor = os.open(path.with_name(path.name + ".lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise StateFileError(f"the state file {path} cannot be opened: {error.strerror}") from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(descriptor)
        raise StateFileError(
            f"the state file {path} is in use by another gateway: stop that one, or give this one its own state.file"
        ) from error
    return descriptor


def connect(path: Path | None, *, is_tool: bool = False) -> sqlite3.Connection:
    """Open the file; None: in memory. Raises StateFileError. A missing or older file is created or migrated, except by
    a tool, which gets an error.
    """
    try:
        if path is None:
            connection = _connected(":memory:")
            _migrate(connection)
            return connection
        if _is_new(path):
            if is_tool:
                raise StateFileError(f"there is no state file {path}")
            _make(path)
        connection = _connected(str(path))
        try:
            _check(connection, path, is_tool=is_tool)
            _migrate(connection)
        except BaseException:
            connection.close()
            raise
    except (sqlite3.Error, OSError) as error:
        raise StateFileError(f"the state file {path} cannot be opened and is left as it is: {error}") from error
    return connection


def _connected(name: str) -> sqlite3.Connection:
    connection = sqlite3.connect(name, timeout=BUSY_S, isolation_level=None)
    connection.execute(f"PRAGMA cache_size = -{CACHE_KIB}")
    return connection


def _is_new(path: Path) -> bool:
    """Whether there is no file yet. Raises StateFileError for a file of another program, which stays unchanged."""
    try:
        with path.open("rb") as file:
            header = file.read(HEADER_BYTES)
    except FileNotFoundError:
        return True
    if not header.startswith(MAGIC) or len(header) < HEADER_BYTES:
        raise StateFileError(f"{path} is not a state file of fairlead, and is left as it is")
    found = int.from_bytes(header[APPLICATION_ID_AT : APPLICATION_ID_AT + 4], "big")
    if found != APPLICATION_ID:
        raise StateFileError(f"{path} is a database of some other program, and is left as it is")
    return False


def _make(path: Path) -> None:
    with written_whole(path) as new, contextlib.closing(_connected(str(new))) as connection:
        connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        _migrate(connection)


def _check(connection: sqlite3.Connection, path: Path, *, is_tool: bool) -> None:
    """Check schema and integrity before the first write. Raises StateFileError."""
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    if version > len(MIGRATIONS):
        raise StateFileError(
            f"{path} was written by a newer fairlead (schema {version}, this one knows {len(MIGRATIONS)}), "
            "and is left as it is"
        )
    if is_tool and version < len(MIGRATIONS):
        raise StateFileError(f"{path} is of an older fairlead: start the gateway, which brings it up to date")
    (verdict,) = connection.execute("PRAGMA quick_check(1)").fetchone()
    if verdict != "ok":
        raise StateFileError(f"{path} is damaged and left as it is: {verdict}")
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute(f"PRAGMA wal_autocheckpoint = {WAL_PAGES_MAX}")


def _migrate(connection: sqlite3.Connection) -> None:
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    for number, statements in enumerate(MIGRATIONS[version:], start=version + 1):
        with transaction(connection):
            for statement in statements:
                connection.execute(statement)
            connection.execute(f"PRAGMA user_version = {number}")


@contextlib.contextmanager
def transaction(connection: sqlite3.Connection) -> Iterator[None]:
    """Commit all statements of the block, or none of them."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        # After some I/O errors SQLite has rolled back by itself.
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise
