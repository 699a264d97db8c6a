"""NoticeClaims: which notices are told already, and which process tells one now, over all that share the state.

A budget has one document in the store, with its period, the thresholds that were told, and the claims of those that are
being told. A claim is a change that expects the document's version, so of several processes one gets it. It is for
LEASE_S: after a process that died without giving its claims up, another one tells the notice after that time, or the
same replica at once when it starts again. If the dead one had told it already, and could not write that down, it is
told twice, with the same id.
"""

import secrets
from collections.abc import Callable, Mapping
from enum import Enum
from typing import Any

from gateway.notices.thresholds import Notice
from gateway.store.base import Change, Document, Store, StoreUnavailable, VersionConflict

KIND = "notices"
ACTOR = "fairlead"
LEASE_S = 600.0
TRIES_MAX = 5  # against others that change the same document
PROCESS_BYTES = 8


class Claimed(Enum):
    """What came of a claim."""

    MINE = "mine"
    THEIRS = "theirs"
    TOLD = "told"


class NoticeClaims:
    """The documents of notices. Mutable; used on one loop."""

    def __init__(self, store: Store, *, replica: str, clock: Callable[[], float], place: str = "") -> None:
        """`place` is where this replica has its own state: two of one machine may have one name. `clock`: seconds since
        1970.
        """
        self._store = store
        self._replica = replica
        self._claimant = f"{replica} {place}"
        self._process = secrets.token_urlsafe(PROCESS_BYTES)
        self._clock = clock
        self._cursor = 0
        self._documents: dict[str, Document] = {}

    async def refresh(self) -> None:
        """Read what others have written. Raises StoreUnavailable."""
        news = await self._store.news(self._cursor)
        self._cursor = news.cursor
        for document in news.documents:
            if document.kind == KIND:
                self._take(document)

    async def claim(self, notice: Notice) -> Claimed:
        """Claim a notice for LEASE_S from now, or say why it cannot be. Raises StoreUnavailable."""
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
        """For how many seconds the notice is claimed, by whomever."""
        claim = self._body(notice)["claims"].get(str(notice.threshold))
        return 0.0 if claim is None else float(claim["until"]) - self._clock()

    async def told(self, notice: Notice) -> None:
        """Write down that the notice was told. Raises StoreUnavailable."""
        await self._settle(notice, is_told=True)

    async def give_up(self, notice: Notice) -> None:
        """Let another process tell the notice. Raises StoreUnavailable."""
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
        """The document of the notice's budget, empty where it is of another period."""
        known = self._documents.get(notice.name)
        if known is None or known.body is None or known.body.get("start") != notice.start:
            return {"start": notice.start, "told": [], "claims": {}}
        return dict(known.body)

    def _may_claim(self, claim: Mapping[str, Any] | None) -> bool:
        """Whether a claim is none, one's own, one of an earlier process of this replica, or over."""
        return claim is None or claim["by"] == self._claimant or claim["until"] <= self._clock()
