"""NoticeClaims: the sent notices, and the processes that are sending one, over all processes that share the state.

A budget has one document in the store, with its period, the thresholds whose notices were sent, and the claims on
notices that are being sent. A claim is a change that expects the document's version, so only one of several processes
gets it. It holds for LEASE_S: if a process dies without giving up its claims, another one sends the notice after that
time, or the same replica at once when it starts again. If the dead process had sent the notice without recording that,
the notice is sent twice, with the same id.
"""

import secrets
from collections.abc import Callable, Mapping
from enum import Enum
from typing import Any

from gateway.budgets.notices.thresholds import Notice
from gateway.store.base import Change, Document, Store, StoreUnavailable, VersionConflict

KIND = "notices"
ACTOR = "fairlead"
LEASE_S = 600.0
TRIES_MAX = 5  # against others that change the same document
PROCESS_BYTES = 8


class Claimed(Enum):
    """The result of trying to claim (take on sending) a notice: it is this process's, another's, or was sent before."""

    MINE = "mine"
    THEIRS = "theirs"
    TOLD = "told"


class NoticeClaims:
    """The claims of processes on notices about budgets, as documents of the store. Each notice is sent by the process
    that has claimed it. Mutable; used on one loop.
    """

    def __init__(self, store: Store, *, replica: str, clock: Callable[[], float], place: str = "") -> None:
        """`place` is the location of this replica's own state: two replicas of one machine may have one name. `clock`
        gives seconds since 1970.
        """
        self._store = store
        self._replica = replica
        self._claimant = f"{replica} {place}"
        self._process = secrets.token_urlsafe(PROCESS_BYTES)
        self._clock = clock
        self._cursor = 0
        self._documents: dict[str, Document] = {}

    async def refresh(self) -> None:
        """Read the documents that others have written. Raises StoreUnavailable."""
        news = await self._store.news(self._cursor)
        self._cursor = news.cursor
        for document in news.documents:
            if document.kind == KIND:
                self._take(document)

    async def claim(self, notice: Notice) -> Claimed:
        """Claim a notice for LEASE_S from now; otherwise, return why it cannot be claimed. Raises StoreUnavailable."""
        for _ in range(TRIES_MAX):
            body = self._body(notice)
            if notice.threshold in body["told"]:
                return Claimed.TOLD
            if not self._may_claim(body["claims"].get(str(notice.threshold))):
                return Claimed.THEIRS
            claim = {"by": self._claimant, "process": self._process, "until": self._clock() + LEASE_S}
            claims = {**body["claims"], str(notice.threshold): claim}
            if await self._write(notice, {**body, "claims": claims}):
                return Claimed.MINE
        raise StoreUnavailable("the notice is being changed by too many at once")

    def holds_for_s(self, notice: Notice) -> float:
        """The seconds for which any process still claims the notice."""
        claim = self._body(notice)["claims"].get(str(notice.threshold))
        return 0.0 if claim is None else float(claim["until"]) - self._clock()

    async def told(self, notice: Notice) -> None:
        """Record that the notice was sent. Raises StoreUnavailable."""
        await self._settle(notice, is_told=True)

    async def give_up(self, notice: Notice) -> None:
        """Let another process send the notice. Raises StoreUnavailable."""
        await self._settle(notice, is_told=False)

    async def _settle(self, notice: Notice, *, is_told: bool) -> None:
        for _ in range(TRIES_MAX):
            body = self._body(notice)
            claims = {name: each for name, each in body["claims"].items() if name != str(notice.threshold)}
            told = sorted({*body["told"], notice.threshold}) if is_told else body["told"]
            if await self._write(notice, {**body, "told": told, "claims": claims}):
                return
        raise StoreUnavailable("the notice is being changed by too many at once")

    async def _write(self, notice: Notice, body: Mapping[str, Any]) -> bool:
        """Write the document; False where another process has changed it."""
        known = self._documents.get(notice.name)
        change = Change(KIND, notice.name, body, expected=0 if known is None else known.version)
        try:
            (written,) = await self._store.commit([change], actor=ACTOR, at_s=self._clock(), replica=self._replica)
        except VersionConflict:
            await self.refresh()
            return False
        self._take(written)
        return True

    def _take(self, document: Document) -> None:
        known = self._documents.get(document.name)
        if known is None or known.version < document.version:
            self._documents[document.name] = document

    def _body(self, notice: Notice) -> dict[str, Any]:
        """The document of the notice's budget; empty where it is of another period."""
        known = self._documents.get(notice.name)
        if known is None or known.body is None or known.body.get("start") != notice.start:
            return {"start": notice.start, "told": [], "claims": {}}
        return dict(known.body)

    def _may_claim(self, claim: Mapping[str, Any] | None) -> bool:
        """Whether a claim leaves the notice free: there is none, it has ended, or this replica made it."""
        return claim is None or claim["by"] == self._claimant or claim["until"] <= self._clock()
