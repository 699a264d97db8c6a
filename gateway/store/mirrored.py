"""Mirrored store: a shared store with a complete copy on this gateway's disk.

    changes   are decided by the shared store, and acknowledged when they are on this disk too
    reads     use the local copy: no read waits for the shared store
    syncing   every SYNC_S, documents of the shared store are copied here, and usage of this gateway is copied there

While the shared store is unavailable, changes are rejected and everything else still works. When it may have lost data
(its `incarnation` has changed), both copies are merged completely, in both directions: any gateway fills an empty store
again, and where copies differ the higher version wins.
"""

import asyncio
import contextlib
import logging
from collections.abc import Sequence

from gateway.store.base import (
    AUDIT_PAGE_MAX,
    AuditEntry,
    Change,
    Document,
    Learnt,
    Store,
    StoreUnavailable,
    UsageRow,
    VersionConflict,
)
from gateway.store.mirrored_usage import MirroredUsage
from gateway.store.periodic import Periodic
from gateway.store.redis_store import RedisStore

SYNC_S = 0.25

log = logging.getLogger(__name__)


class MirroredStore:
    """A Store that writes to a shared RedisStore, and keeps a complete copy of it on this gateway's disk, from which it
    reads. Mutable; used on one loop.
    """

    def __init__(self, shared: RedisStore, own: Store, *, sync_s: float = SYNC_S) -> None:
        self._shared = shared
        self._own = own
        self.news, self.audit, self.usage, self.last_days = own.news, own.audit, own.usage, own.last_days
        self._syncer = Periodic(self._sync_soon, sync_s, "sync the shared store")
        self._merged = ""  # the incarnation at the last complete merge
        self._cursor = 0  # of the shared store
        self._revision = 0  # of the newest local audit entry
        self._usage = MirroredUsage(shared, own)
        self._syncing = asyncio.Lock()
        self.is_available = False  # the shared one

    async def open(self) -> None:
        await self._own.open()
        try:
            await self._shared.open()
            newest = await self._own.audit(limit=1)
            self._revision = newest[0].revision if newest else 0
            await self._try_sync()
            await self._try_usage()
        except BaseException:
            await self._own.close()
            raise
        self._syncer.start()

    async def close(self) -> None:
        if self._syncer.is_running:
            await self._syncer.stop()
            await self._try_usage()
        await self._shared.close()
        await self._own.close()

    async def commit(
        self, changes: Sequence[Change], *, actor: str, at_s: float, replica: str = ""
    ) -> tuple[Document, ...]:
        async with self._syncing:
            if self._shared.incarnation != self._merged:
                await self._sync()
            try:
                documents = await self._shared.commit(changes, actor=actor, at_s=at_s, replica=replica)
            except VersionConflict:
                # The caller reads the present version from the local copy.
                await self._sync()
                raise
            await self._sync()
        return documents

    async def merge(self, documents: Sequence[Document], audit: Sequence[AuditEntry] = ()) -> None:
        await self._shared.merge(documents, audit)
        await self._own.merge(documents, audit)

    async def put_usage(self, rows: Sequence[UsageRow]) -> None:
        await self._own.put_usage(rows)
        self._usage.used(rows)

    async def put_learnt(self, learnt: Learnt) -> None:
        await self._own.put_learnt(learnt)
        if self.is_available:  # else skipped: the next checkpoint follows soon
            with contextlib.suppress(StoreUnavailable):
                await self._shared.put_learnt(learnt)

    async def learnt(self, name: str) -> Learnt | None:
        found = [await self._own.learnt(name)]
        with contextlib.suppress(StoreUnavailable):
            found.append(await self._shared.learnt(name))
        return max((each for each in found if each is not None), key=lambda each: each.at_s, default=None)

    # -- syncing -------------------------------------------------------------------------------------------

    async def _sync_soon(self) -> None:
        async with self._syncing:
            await self._try_sync()
        await self._try_usage()

    async def _try_usage(self) -> None:
        if self.is_available:
            with contextlib.suppress(StoreUnavailable):  # the next sync logs it
                await self._usage.sync()

    async def _try_sync(self) -> None:
        try:
            await self._sync()
        except StoreUnavailable as error:
            if self.is_available:
                log.warning("the shared store is away, changes are refused: %s", error)
            self.is_available = False
        else:
            if not self.is_available:
                log.info("the shared store is there")
            self.is_available = True

    async def _sync(self) -> None:
        """Bring the local copy up to the state of the shared store. Raises StoreUnavailable, without any loss."""
        news = await self._shared.news(self._cursor)
        incarnation = self._shared.incarnation
        if incarnation != self._merged:
            await self._merge_whole()
            self._merged = incarnation
        elif news.documents:
            await self._own.merge(news.documents, await self._audit_since(self._shared, self._revision))
            self._revision = max(self._revision, self._shared.revision)
        self._cursor = news.cursor

    async def _merge_whole(self) -> None:
        """Merge both copies completely: each takes the newer documents of the other."""
        theirs, ours = (await self._shared.news(0)).documents, (await self._own.news(0)).documents
        missing = _newer(ours, theirs)
        has_lost = bool(missing)
        audit = await self._audit_since(self._shared, 0 if has_lost else self._revision)
        if has_lost:
            there = {(entry.revision, entry.at_s, entry.actor) for entry in audit}
            ours_alone = [
                entry
                for entry in await self._audit_since(self._own, 0)
                if (entry.revision, entry.at_s, entry.actor) not in there
            ]
            await self._shared.merge(missing, ours_alone)
        await self._own.merge(_newer(theirs, ours), audit)
        self._revision = max(self._revision, self._shared.revision)
        self._usage.compare(has_lost=has_lost)

    async def _audit_since(self, store: Store, revision: int) -> list[AuditEntry]:
        found: list[AuditEntry] = []
        before: int | None = None
        while True:
            page = await store.audit(before=before, limit=AUDIT_PAGE_MAX)
            found += [entry for entry in page if entry.revision > revision]
            if len(page) < AUDIT_PAGE_MAX or page[-1].revision <= revision:
                return found
            before = page[-1].revision


def _newer(documents: Sequence[Document], than: Sequence[Document]) -> list[Document]:
    """The documents that the other copy lacks, or has in an older version."""
    versions = {(document.kind, document.name): document.version for document in than}
    return [document for document in documents if document.version > versions.get((document.kind, document.name), 0)]
