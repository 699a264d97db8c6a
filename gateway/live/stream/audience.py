"""Audience: viewers that get the same bytes, of the whole live document or of one part of it.

An event is written once for all viewers of an audience. A viewer that reads more slowly than events come is dropped: it
may connect again, and then gets its whole part.
"""

import asyncio
from collections import deque
from collections.abc import Iterable
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from gateway.live.group_part import GroupPart
from gateway.live.schema import LivePageDocument
from gateway.live.stream.changes import Object, sliced_merge_patch
from gateway.live.stream.events import PATCH, STATE, Encoded, encode, encoded

if TYPE_CHECKING:
    from aiohttp import web

COMMENT_S: Final = 15.0  # without an event: below the minute after which load balancers cut a silent connection
ALLOWED_S: Final = 2.0  # after so long without an event a viewer is asked again for whether it may see it
COMMENT: Final = b": nothing has changed\n\n"
# Events that wait for a viewer: with as many behind it does not read. They are shared by all viewers, so that they
# cost memory once; a viewer's own connection holds at most one event more.
BEHIND_MAX: Final = 5
TENANTS_DEPTH: Final = 3  # of "tenants" in the document: pools, a pool, its tenants
ALONE_AT: Final = "at"  # a change of this member alone is not worth an event


class Viewer:
    """One viewer of the live page's data: its HTTP request, and the events that wait to be sent to it. Mutable."""

    def __init__(self, request: "web.BaseRequest", *, takes_gzip: bool) -> None:
        self.takes_gzip = takes_gzip
        self.has_state = False
        self.is_dropped = False
        self._request = request
        self._waiting: deque[bytes] = deque()
        self._arrived = asyncio.Event()

    def put(self, event: Encoded) -> None:
        """Send this event next, or drop the viewer if too many bytes wait."""
        if len(self._waiting) >= BEHIND_MAX:
            self.drop()
            return
        self._waiting.append(event.deflated if self.takes_gzip else event.plain)
        self._arrived.set()

    async def next(self) -> bytes | None:
        """The bytes to send next, empty after ALLOWED_S without an event; None: the stream has ended."""
        if not self._waiting and not self.is_dropped:
            self._arrived.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(ALLOWED_S):
                    await self._arrived.wait()
        if self.is_dropped:
            return None
        return self._waiting.popleft() if self._waiting else b""

    def drop(self) -> None:
        """End the viewer's connection at once, without sending the waiting events."""
        self.is_dropped = True
        self._waiting.clear()
        self._arrived.set()
        if self._request.transport is not None:
            self._request.transport.abort()


class Audience:
    """The viewers that see the same part of the live page's data. Each event is encoded once for all. Mutable."""

    def __init__(self, part: GroupPart | None, now: float) -> None:
        """`part` None: the whole document. `now`: seconds of the loop's clock."""
        self.viewers: set[Viewer] = set()
        self._part = part
        self._document: Object | None = None  # as the viewers have it
        self._number = 0
        self._sent_at = now

    async def turn(self, whole: LivePageDocument | None, now: float) -> None:
        """Send the changes; after a long time without changes, or without a document, send a comment."""
        if whole is not None and await self._has_changed(whole):
            self._sent_at = now
        elif now - self._sent_at >= COMMENT_S:
            self._sent_at = now
            await self._put(COMMENT)

    async def greet(self, whole: LivePageDocument) -> None:
        """Send the whole part to viewers that have nothing of it yet."""
        new = [viewer for viewer in self.viewers if not viewer.has_state]
        if not new:
            return
        if self._document is None:
            self._document = self._seen(whole)
        self._number += 1
        event = await self._encoded(STATE, self._document, new)
        for viewer in new:
            viewer.has_state = True
            viewer.put(event)

    def forget(self) -> None:
        """Treat the next document as the first."""
        self._document = None

    def drop(self) -> None:
        """End all connections."""
        for viewer in list(self.viewers):
            viewer.drop()

    async def _has_changed(self, whole: LivePageDocument) -> bool:
        """Take the document, and send what differs from the one before."""
        before, self._document = self._document, self._seen(whole)
        if before is None:
            return False
        patch = await sliced_merge_patch(before, self._document, TENANTS_DEPTH)
        if patch.keys() <= {ALONE_AT}:
            return False
        self._number += 1
        known = [viewer for viewer in self.viewers if viewer.has_state]
        event = await self._encoded(PATCH, patch, known)
        for viewer in known:
            viewer.put(event)
        return True

    def _seen(self, whole: LivePageDocument) -> Object:
        return whole if self._part is None else self._part.of(whole)

    async def _encoded(self, kind: str, document: Object, viewers: Iterable[Viewer]) -> Encoded:
        takes_gzip = any(each.takes_gzip for each in viewers)
        return await encode(kind, self._number, document, depth=TENANTS_DEPTH, deflates=takes_gzip)

    async def _put(self, comment: bytes) -> None:
        event = await encoded(comment, deflates=any(each.takes_gzip for each in self.viewers))
        for viewer in list(self.viewers):
            if viewer.has_state:
                viewer.put(event)
