"""Changes: writes to the registry's entries, each validated as a whole, in one transaction of the store.

A write names the etag that it expects, or none; a write without an etag is retried when another write was committed
first. While the store is unavailable, writes raise StoreUnavailable.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from gateway.config.problems import ConfigProblem
from gateway.registry.audit_log import AuditLog
from gateway.registry.entries import Entry, View
from gateway.registry.merge_patch import merged
from gateway.registry.referential_checks import disagreements
from gateway.registry.resource_kinds import RESOURCE_KINDS, body_to_json, read_body
from gateway.store.base import Change, Document, StoreUnavailable, VersionConflict

TRIES_MAX = 100  # of 16 gateways that write to the same entry at once, each loses so often 1 time in 600


class RegistryError(Exception):
    """An error: the registry rejected a change."""


class NotFound(RegistryError):  # noqa: N818 - named as HTTP names them
    """An error: the registry has no such entry."""


class AlreadyThere(RegistryError):  # noqa: N818
    """An error: the registry has an entry of this name."""


class EtagMismatch(RegistryError):  # noqa: N818
    """An error: the registry's entry does not have the etag that the change expects."""

    def __init__(self) -> None:
        super().__init__("the entry has changed meanwhile")


class DeclaredInFile(RegistryError):  # noqa: N818
    """An error: only the configuration file declares the entry, so the API can override it, but not delete it."""


class Invalid(RegistryError):  # noqa: N818
    """An error: the change would make the configuration invalid. `problems` has every reason, by paths in the body."""

    def __init__(self, problems: Sequence[ConfigProblem]) -> None:
        super().__init__("; ".join(problem.describe(None) for problem in problems))
        self.problems = tuple(problems)


OWNERS = {"tenants": "tenant", "groups": "group"}
"""Kinds whose entries may have keys, and the field of a key that names its owner."""
GUARDS = "guards"
"""The kind of the documents that changes under one guard write, so that the second of two at once is checked again."""
NOT_THERE, ANY_THERE = "", "*"  # etags of an edit: the entry must not exist, or must exist


@dataclass(frozen=True, slots=True)
class Edit:
    """A change of one registry entry. `body` has the fields of its desired state; None: delete it. `etag` is the etag
    that the entry must have now; None: any, and the entry need not exist.
    """

    kind: str
    name: str
    body: Mapping[str, Any] | None
    etag: str | None = None


@dataclass(frozen=True, slots=True)
class Guard:
    """A condition for a change of the registry that depends on other entries. `check` raises if it does not hold.
    Changes with a guard of one `name` are made one after the other, at all gateways, so `check` sees the earlier ones.
    """

    name: str
    check: Callable[[], object]


class Changes:
    """The writer of entries into one registry. Used on its loop."""

    def __init__(
        self,
        view: View,
        audit_log: AuditLog,
        *,
        guards: Mapping[str, int],
        refresh: Callable[[], Awaitable[None]],
        take: Callable[[Sequence[Document]], None],
    ) -> None:
        """`guards` has the present version of each guard's document. `refresh` reads the documents that other gateways
        have written, `take` applies the documents written here; both are called while the lock `writing` is held.
        """
        self._view = view
        self._audit_log = audit_log
        self._guards = guards
        self._refresh = refresh
        self._take = take
        self.writing = asyncio.Lock()

    async def create(
        self, kind: str, name: str, body: Mapping[str, Any], *, actor: str, guard: Guard | None = None
    ) -> Entry:
        """Create an entry. Raises AlreadyThere, and the errors of `apply`."""
        if self._view.get(kind, name) is not None:
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
            entry = self._meant(kind, name, etag)
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
        entry = self._meant(kind, name, etag)
        if entry.origin == "declared":
            raise DeclaredInFile
        edits = [Edit(kind, name, None, etag)]
        if kind in OWNERS and not self._view.is_declared(kind, name):
            # A new tenant or group of the same name must not inherit the old keys.
            keys = [key for key in self._view.all("keys") if key.body.get(OWNERS[kind]) == name]
            edits += [Edit("keys", key.name, None) for key in keys if key.origin != "declared"]
        await self.apply(edits, actor=actor)

    def check(self, edits: Sequence[Edit]) -> None:
        """Check these edits without applying them. Raises Invalid (with kind and name in paths), EtagMismatch."""
        self._check([self._change(edit) for edit in edits], names_entries=True)

    async def apply(
        self, edits: Sequence[Edit], *, actor: str, guard: Guard | None = None, names_entries: bool = False
    ) -> list[Entry]:
        """Apply all edits in one transaction, or none; returns the entries that were created or changed. Raises Invalid
        (`names_entries`: with paths that begin with kind and name), EtagMismatch, StoreUnavailable, StoreFull, and the
        errors of the guard.
        """
        async with self.writing:
            for _ in range(TRIES_MAX):
                if guard is not None:
                    guard.check()
                changes = [self._change(edit) for edit in edits]
                self._check(changes, names_entries=names_entries)
                if guard is not None:
                    version = self._guards.get(guard.name, 0)
                    changes.append(Change(GUARDS, guard.name, {"after": version}, version, is_audited=False))
                try:
                    documents = await self._audit_log.commit(changes, actor=actor)
                except VersionConflict:
                    # Another write was committed first: check the edits again against the present entries.
                    await self._refresh()
                    continue
                self._take(documents)
                return [entry for edit in edits if (entry := self._view.get(edit.kind, edit.name)) is not None]
        raise StoreUnavailable("the same entries are being changed by too many at once")

    async def _one(self, edit: Edit, actor: str, guard: Guard | None = None) -> Entry:
        (entry,) = await self.apply([edit], actor=actor, guard=guard)
        return entry

    def _meant(self, kind: str, name: str, etag: str | None) -> Entry:
        """The present entry, to which an edit with this etag applies. Raises NotFound, EtagMismatch."""
        entry = self._view.get(kind, name)
        if entry is None:
            raise NotFound
        if not _is_meant(etag, entry):
            raise EtagMismatch
        return entry

    def _change(self, edit: Edit) -> Change:
        """The change of the present document that the edit makes. Raises EtagMismatch, Invalid."""
        entry = self._view.get(edit.kind, edit.name)
        if not _is_meant(edit.etag, entry):
            raise EtagMismatch
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


def _is_meant(etag: str | None, entry: Entry | None) -> bool:
    """Whether an edit with this etag applies to the present entry."""
    if etag == ANY_THERE:
        return entry is not None
    return etag is None or etag == (NOT_THERE if entry is None else entry.etag)
