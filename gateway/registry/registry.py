"""Registry: the desired state of the gateway, readable at once, and changed in transactions that reach every replica.

    reads     from memory, without waiting: get, page, entries
    writes    validated as a whole (a tenant's tier exists, tiers in use stay), then one transaction of the store with
              its audit entries, then visible here
    watching  the store is polled for changes of other gateways every WATCH_S; listeners are called with what differs

A write names the etag that it expects, or none: then it is retried when another write was committed first. While the
store is unavailable, reads still work and writes raise StoreUnavailable.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from gateway.config.problems import ConfigProblem
from gateway.registry.entries import Declared, Entry, View
from gateway.registry.merge_patch import merged
from gateway.registry.referential_checks import disagreements
from gateway.registry.resource_kinds import RESOURCE_KINDS, body_to_json, read_body
from gateway.store.base import NAME_CHARS_MAX, AuditEntry, Change, Document, Store, StoreUnavailable, VersionConflict
from gateway.store.periodic import Periodic

WATCH_S = 0.25
TRIES_MAX = 5  # of a write without an etag, against concurrent writes to the same entry

log = logging.getLogger(__name__)

Changed = frozenset[tuple[str, str]]
"""The kinds and names of entries that are new, changed or removed."""


class RegistryError(Exception):
    """An error: a change was rejected."""


class NotFound(RegistryError):  # noqa: N818 - named as HTTP names them
    """An error: there is no such entry."""


class AlreadyThere(RegistryError):  # noqa: N818
    """An error: an entry of this name exists."""


class EtagMismatch(RegistryError):  # noqa: N818
    """An error: the entry does not have the etag that the change expects."""

    def __init__(self, etag: str | None) -> None:
        """`etag` is the entry's present etag; None where there is no entry."""
        super().__init__("the entry has changed meanwhile")
        self.etag = etag


class DeclaredInFile(RegistryError):  # noqa: N818
    """An error: only the file declares the entry, so the API can override it, but not delete it."""


class Invalid(RegistryError):  # noqa: N818
    """An error: the change would make the configuration invalid. `problems` has every reason, by paths in the body."""

    def __init__(self, problems: Sequence[ConfigProblem]) -> None:
        super().__init__("; ".join(problem.describe(None) for problem in problems))
        self.problems = tuple(problems)


REQUESTS = "requests"
"""The kind by which the audit log names requests. They are no documents: there is nothing to read back."""
NOTES = "notes"
"""The kind by which the audit log names notes, which the history shows: a note's name is its text."""
TRIALS = "trials"
"""The kind by which the audit log names calls that were made as a tenant: the name is the tenant and the model."""
OWNERS = {"tenants": "tenant", "groups": "group"}
"""Kinds whose entries may have keys, and the field of a key that names its owner."""
GUARDS = "guards"
"""The kind of the documents that changes under one guard write, so that the second of two at once is checked again."""
NOT_THERE, ANY_THERE = "", "*"  # etags of an edit: the entry must not exist, or must exist


@dataclass(frozen=True, slots=True)
class Edit:
    """The desired state of one entry; `body` None: deleted. `etag` is the etag that the entry must have now; None: any,
    or no entry.
    """

    kind: str
    name: str
    body: Mapping[str, Any] | None
    etag: str | None = None


@dataclass(frozen=True, slots=True)
class Guard:
    """A condition on a change that depends on other entries: `check` raises where it does not hold. It sees all changes
    under this name that were made earlier, at any gateway.
    """

    name: str
    check: Callable[[], object]


class Registry:
    """All managed entries of one gateway. Create it on the loop that runs it; call `start` and `stop`."""

    def __init__(
        self, store: Store, declared: Declared, *, replica: str = "", clock: Callable[[], float] = time.time
    ) -> None:
        """`replica` names this gateway in the audit log; `clock` gives seconds since 1970, also for the log."""
        self._store = store
        self._view = View(declared)
        self._replica = replica
        self._clock = clock
        self._cursor = 0
        self._guards: dict[str, int] = {}  # the version of each guard's document
        self._listeners: list[Callable[[Changed], None]] = []
        self._watcher = Periodic(self._watch, WATCH_S, "watch the store")
        self._writing = asyncio.Lock()
        self._is_readable = True

    async def start(self) -> None:
        """Open and read the store, and start to watch it. Raises StateFileError; StoreUnavailable where there is no
        local copy either.
        """
        await self._store.open()
        await self.refresh()
        self._watcher.start()

    async def stop(self) -> None:
        await self._watcher.stop()
        await self._store.close()

    @property
    def is_store_available(self) -> bool:
        """Whether a change would be accepted, by the latest contact with the store."""
        return self._is_readable and self._store.is_available

    # -- reads, from memory --------------------------------------------------------------------------------

    def get(self, kind: str, name: str) -> Entry | None:
        """The entry of this kind and name; None where there is none."""
        return self._view.get(kind, name)

    def page(self, kind: str, *, after: str = "", limit: int = 100) -> list[Entry]:
        """At most `limit` entries of a kind by name, after the name `after`."""
        return self._view.page(kind, after=after, limit=limit)

    def entries(self, kind: str) -> list[Entry]:
        """All entries of a kind, by name."""
        return list(self._view.all(kind))

    def subscribe(self, listener: Callable[[Changed], None]) -> Callable[[], None]:
        """Call `listener` on the loop after every change; it must not raise or block. Returns a function that
        unsubscribes it.
        """
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener)

    # -- writes --------------------------------------------------------------------------------------------

    async def create(
        self, kind: str, name: str, body: Mapping[str, Any], *, actor: str, guard: Guard | None = None
    ) -> Entry:
        """Create an entry. Raises AlreadyThere, and the errors of `apply`."""
        if self.get(kind, name) is not None:
            raise AlreadyThere
        try:
            return await self._one(Edit(kind, name, body, NOT_THERE), actor, guard)
        except EtagMismatch as error:
            raise AlreadyThere from error

    async def put(
        self,
        kind: str,
        name: str,
        body: Mapping[str, Any],
        *,
        actor: str,
        etag: str | None = None,
        guard: Guard | None = None,
    ) -> Entry:
        """Replace the whole body of an entry, which must have this etag (as in Edit). Raises the errors of `apply`."""
        return await self._one(Edit(kind, name, body, etag), actor, guard)

    async def patch(
        self,
        kind: str,
        name: str,
        patch: Mapping[str, Any],
        *,
        actor: str,
        etag: str | None = None,
        guard: Guard | None = None,
    ) -> Entry:
        """Merge `patch` into the body (RFC 7396: null removes a field). Raises NotFound, and the errors of `apply`."""
        for _ in range(TRIES_MAX):
            entry = self.get(kind, name)
            if entry is None:
                raise NotFound
            if not _is_meant(etag, entry):
                raise EtagMismatch(entry.etag)
            try:
                return await self._one(Edit(kind, name, merged(entry.body, patch), entry.etag), actor, guard)
            except EtagMismatch:
                if etag not in (None, ANY_THERE):
                    raise
        raise StoreUnavailable(f"{kind}/{name} is being changed by too many at once")

    async def delete(self, kind: str, name: str, *, actor: str, etag: str | None = None) -> None:
        """Delete the API's document of an entry and, with a tenant or a group, its keys. Raises NotFound,
        DeclaredInFile where only the file declares the entry, and the errors of `apply`.
        """
        entry = self.get(kind, name)
        if entry is None:
            raise NotFound
        if not _is_meant(etag, entry):
            raise EtagMismatch(entry.etag)
        if entry.origin == "declared":
            raise DeclaredInFile
        edits = [Edit(kind, name, None, etag)]
        if kind in OWNERS and not self._view.is_declared(kind, name):
            # A new tenant or group of the same name must not inherit the old keys.
            keys = [key for key in self._view.all("keys") if key.body.get(OWNERS[kind]) == name]
            edits += [Edit("keys", key.name, None) for key in keys if key.origin != "declared"]
        await self.apply(edits, actor=actor)

    def check(self, edits: Sequence[Edit]) -> None:
        """Check what `apply` would. Raises Invalid with paths that begin with kind and name, EtagMismatch."""
        self._check([self._change(edit) for edit in edits], names_entries=True)

    async def apply(
        self, edits: Sequence[Edit], *, actor: str, guard: Guard | None = None, names_entries: bool = False
    ) -> list[Entry]:
        """Apply all edits in one transaction, or none; returns the entries that were made or changed. Raises Invalid
        (`names_entries`: with paths that begin with kind and name), EtagMismatch, StoreUnavailable, StoreFull, and
        what the guard raises.
        """
        async with self._writing:
            for _ in range(TRIES_MAX):
                if guard is not None:
                    guard.check()
                changes = [self._change(edit) for edit in edits]
                self._check(changes, names_entries=names_entries)
                if guard is not None:
                    version = self._guards.get(guard.name, 0)
                    changes.append(Change(GUARDS, guard.name, {"after": version}, version, is_audited=False))
                try:
                    documents = await self._store.commit(
                        changes, actor=actor, at_s=self._clock(), replica=self._replica
                    )
                except VersionConflict:
                    # Another write was committed first: check the edits again against the present entries.
                    await self._refresh()
                    continue
                self._take(documents)
                return [entry for edit in edits if (entry := self.get(edit.kind, edit.name)) is not None]
        raise StoreUnavailable("the same entries are being changed by too many at once")

    async def note_cancelled(self, request_id: str, *, actor: str) -> None:
        """Record in the audit log that this request is cancelled. Raises StoreUnavailable, StoreFull."""
        await self._note(REQUESTS, request_id, actor)

    async def note(self, text: str, *, actor: str) -> None:
        """Write a note into the audit log. Raises StoreUnavailable, StoreFull."""
        await self._note(NOTES, text, actor)

    async def note_trial(self, tenant: str, model: str, *, actor: str) -> None:
        """Record in the audit log that a call is made as this tenant. Raises StoreUnavailable, StoreFull."""
        await self._note(TRIALS, f"{tenant} at {model}"[:NAME_CHARS_MAX], actor)

    async def _note(self, kind: str, name: str, actor: str) -> None:
        change = Change(kind, name, None)
        await self._store.commit([change], actor=actor, at_s=self._clock(), replica=self._replica)

    # -- audit log, refresh --------------------------------------------------------------------------------

    async def audit(
        self, *, before: int | None = None, limit: int = 100, kind: str | None = None, name: str | None = None
    ) -> tuple[AuditEntry, ...]:
        """Audit entries, newest first, with a revision below `before`."""
        return await self._store.audit(before=before, limit=limit, kind=kind, name=name)

    async def refresh(self) -> None:
        """Read the changes that other gateways have written. Raises StoreUnavailable."""
        async with self._writing:
            await self._refresh()

    def redeclare(self, declared: Declared) -> None:
        """Replace the declared entries, after the file was read again."""
        self._tell(self._view.redeclare(declared))

    # -- internals -----------------------------------------------------------------------------------------

    async def _refresh(self) -> None:
        news = await self._store.news(self._cursor)
        self._take(news.documents)
        self._cursor = news.cursor

    async def _one(self, edit: Edit, actor: str, guard: Guard | None = None) -> Entry:
        (entry,) = await self.apply([edit], actor=actor, guard=guard)
        return entry

    def _change(self, edit: Edit) -> Change:
        """The change of the present document that the edit makes. Raises EtagMismatch, Invalid."""
        entry = self.get(edit.kind, edit.name)
        etag = None if entry is None else entry.etag
        if not _is_meant(edit.etag, entry):
            raise EtagMismatch(etag)
        version = 0 if entry is None else entry.version
        if edit.body is None:
            return Change(edit.kind, edit.name, None, expected=version)
        if not RESOURCE_KINDS[edit.kind].name.fullmatch(edit.name):
            raise Invalid([ConfigProblem(("name",), f"'{edit.kind}' cannot have such a name")])
        section, problems = read_body(edit.kind, edit.body)
        if section is None:
            raise Invalid(problems)
        return Change(edit.kind, edit.name, body_to_json(section), expected=version)

    def _check(self, changes: Sequence[Change], *, names_entries: bool) -> None:
        problems = [
            replace(problem, path=(change.kind, change.name, *problem.path)) if names_entries and change else problem
            for change, problem in disagreements(self._view, changes)
        ]
        if problems:
            raise Invalid(problems)

    def _take(self, documents: Sequence[Document]) -> None:
        """Apply documents from the store. An unreadable one (from a newer gateway) leaves its entry unchanged."""
        changed = set()
        for document in documents:
            if document.kind == GUARDS:
                self._guards[document.name] = max(document.version, self._guards.get(document.name, 0))
            if document.kind not in RESOURCE_KINDS:
                continue
            section, problems = (None, []) if document.body is None else read_body(document.kind, document.body)
            if problems:
                log.error("%s/%s is not understood and left as it was", document.kind, document.name)
            elif self._view.wrote(document, section):
                changed.add((document.kind, document.name))
        self._tell(frozenset(changed))

    def _tell(self, changed: Changed) -> None:
        if changed:
            for listener in list(self._listeners):
                listener(changed)

    async def _watch(self) -> None:
        try:
            await self.refresh()
        except StoreUnavailable as error:
            self._said_available(False, str(error))
        else:
            self._said_available(True, "")

    def _said_available(self, is_available: bool, why: str) -> None:  # noqa: FBT001
        if is_available != self._is_readable:
            log.log(
                logging.INFO if is_available else logging.WARNING,
                "the store is there again" if is_available else f"the store is not there: {why}",
            )
        self._is_readable = is_available


def _is_meant(etag: str | None, entry: Entry | None) -> bool:
    """Whether an edit with this etag applies to the present entry."""
    if etag == ANY_THERE:
        return entry is not None
    return etag is None or etag == (NOT_THERE if entry is None else entry.etag)
