"""Registry: the desired state of the gateway, readable at once, and changed in transactions that reach every replica.

    reads     from memory, without waiting: get, page, entries
    writes    changes.py: validated as a whole (a tenant's tier exists, tiers in use stay), then one transaction of the
              store with its audit entries, then visible here
    watching  the store is polled for changes of other gateways every WATCH_S; listeners get the changed entries

While the store is unavailable, reads still work and writes raise StoreUnavailable.
"""

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import islice
from typing import Any

from gateway.registry.audit_log import AuditLog
from gateway.registry.changes import GUARDS, Changes
from gateway.registry.entries import Declared, Entry, View
from gateway.registry.resource_kinds import RESOURCE_KINDS, read_body
from gateway.store.base import Document, Store, StoreUnavailable
from gateway.store.periodic import Periodic

WATCH_S = 0.25
PAGE_ENTRIES = 1000  # of the audit log

log = logging.getLogger(__name__)

Changed = frozenset[tuple[str, str]]
"""The kinds and names of entries that are new, changed or removed."""


class Registry:
    """The registry of one gateway: the desired state of everything that the admin API manages. Create it on the loop
    that runs it; call `start` and `stop`.
    """

    def __init__(
        self, store: Store, declared: Declared, *, replica: str = "", clock: Callable[[], float] = time.time
    ) -> None:
        """`replica` names this gateway in the audit log; `clock` gives seconds since 1970, also for the log."""
        self._store = store
        self.view = View(declared)
        """What is read from memory, to read only."""
        self._cursor = 0
        self._guards: dict[str, int] = {}  # the version of each guard's document
        self._listeners: dict[Callable[[Changed], None], None] = {}
        self._watcher = Periodic(self._watch, WATCH_S, "watch the store")
        self._is_readable = True
        self.audit_log = AuditLog(store, replica, clock)
        self.changes = Changes(self.view, self.audit_log, guards=self._guards, refresh=self._refresh, take=self._take)

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

    def get(self, kind: str, name: str) -> Entry | None:
        """The entry of this kind and name; None where there is none."""
        return self.view.get(kind, name)

    def page(
        self, kind: str, *, after: str = "", limit: int = 100, sees: Callable[[Entry], bool] | None = None
    ) -> list[Entry]:
        """At most `limit` entries of a kind, by name, with names after `after`. `sees` selects entries; None: all."""
        return list(islice(filter(sees, self.view.behind(kind, after)), limit))

    def entries(self, kind: str) -> list[Entry]:
        """All entries of a kind, by name."""
        return list(self.view.all(kind))

    async def deleted_since(self, kind: str, since_s: float) -> dict[str, Mapping[str, Any]]:
        """The last body of each entry of a kind that was deleted since `since_s` (seconds since 1970) and does not
        exist now, by name. Raises StoreUnavailable.
        """
        found: dict[str, Mapping[str, Any]] = {}
        before: int | None = None
        while entries := await self.audit_log.entries(before=before, limit=PAGE_ENTRIES, kind=kind):
            for entry in entries:
                if entry.at_s < since_s:
                    return found
                if entry.after is None and self.get(kind, entry.name) is None:
                    found.setdefault(entry.name, entry.before or {})  # the newest comes first
            before = entries[-1].revision
        return found

    def subscribe(self, listener: Callable[[Changed], None]) -> Callable[[], None]:
        """Call `listener` on the loop after every change; it must not raise or block. Returns a function that
        unsubscribes it, which may be called again.
        """
        self._listeners[listener] = None
        return partial(self._listeners.pop, listener, None)

    async def refresh(self) -> None:
        """Read the changes that other gateways have written. Raises StoreUnavailable."""
        async with self.changes.writing:
            await self._refresh()

    def redeclare(self, declared: Declared) -> None:
        """Replace the declared entries of these kinds."""
        self._tell(self.view.redeclare(declared))

    async def _refresh(self) -> None:
        news = await self._store.news(self._cursor)
        self._take(news.documents)
        self._cursor = news.cursor

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
            elif self.view.wrote(document, section):
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
