"""AuditLog: the changes to a gateway, each with its author, time and replica. Each entry is written with its change."""

from collections.abc import Callable, Sequence

from gateway.store.base import NAME_CHARS_MAX, AuditEntry, Change, Document, Store

REQUESTS = "requests"
"""The kind by which the audit log names requests. They are no documents: there is nothing to read back."""
NOTES = "notes"
"""The kind by which the audit log names notes, which the history shows: a note's name is its text."""
TRIALS = "trials"
"""The kind by which the audit log names calls that were made as a tenant: the name is the tenant and the model."""


class AuditLog:
    """The writer and reader of the audit log, a list of all changes by operators in the gateway's store."""

    def __init__(self, store: Store, replica: str, clock: Callable[[], float]) -> None:
        """`replica` names this gateway in the log; `clock` gives seconds since 1970."""
        self._store = store
        self._replica = replica
        self._clock = clock

    async def commit(self, changes: Sequence[Change], *, actor: str) -> tuple[Document, ...]:
        """Write these changes, with their entries in the log. Raises VersionConflict, StoreUnavailable, StoreFull."""
        return await self._store.commit(changes, actor=actor, at_s=self._clock(), replica=self._replica)

    async def note(self, kind: str, name: str, *, actor: str) -> None:
        """Record an action that changes no entry. Raises StoreUnavailable, StoreFull."""
        await self.commit([Change(kind, name[:NAME_CHARS_MAX], None)], actor=actor)

    async def entries(
        self, *, before: int | None = None, limit: int = 100, kind: str | None = None
    ) -> tuple[AuditEntry, ...]:
        """Audit entries, newest first, with a revision below `before`."""
        return await self._store.audit(before=before, limit=limit, kind=kind)
