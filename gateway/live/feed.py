"""LiveViewers: streams the live document to its viewers: all of it once, then once a second what has changed.

A document is made for all viewers together, and nothing is made while there are none. Every viewer gets the same bytes.
A viewer that reads more slowly than events come is dropped: it may connect again, and gets the whole document.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from typing import Final

from aiohttp import HttpVersion11, hdrs, web

from gateway.live.events import GZIP_HEAD, PATCH, STATE, Encoded, encode, encoded
from gateway.live.merge_patch import Document, sliced_merge_patch
from gateway.store.base import StoreUnavailable

EVERY_S: Final = 1.0
COMMENT_S: Final = 15.0  # without an event: below the minute after which load balancers cut a silent connection
ALLOWED_S: Final = 2.0  # after so long without an event a viewer is asked again for whether it may see it
COMMENT: Final = b": nothing has changed\n\n"
VIEWERS_MAX: Final = 100  # a state is half a megabyte for each with a thousand tenants
# Events that wait for a viewer: with as many behind it does not read. They are shared by all viewers, so that they
# cost memory once; a viewer's own connection holds at most one event more.
BEHIND_MAX: Final = 5
TENANTS_DEPTH: Final = 3  # of "tenants" in the document: pools, a pool, its tenants
# A document takes some 25 us for a tenant (docs/results/live.md): with more tenants than this it comes less often, so
# that it takes at most three percent of a core.
TENANTS_PER_S: Final = 1200
ALONE_AT: Final = "at"  # a change of this member alone is not worth an event

log = logging.getLogger(__name__)


class TooManyViewers(Exception):  # noqa: N818 - a decision, not an error
    """VIEWERS_MAX are connected."""


class _Viewer:
    """One connection. Mutable."""

    def __init__(self, request: web.BaseRequest, *, takes_gzip: bool) -> None:
        self.takes_gzip = takes_gzip
        self.has_state = False
        self.is_dropped = False
        self._request = request
        self._waiting: deque[bytes] = deque()
        self._arrived = asyncio.Event()

    def put(self, event: Encoded) -> None:
        """Send this next, or drop the viewer where too much waits."""
        if len(self._waiting) >= BEHIND_MAX:
            self.drop()
            return
        self._waiting.append(event.deflated if self.takes_gzip else event.plain)
        self._arrived.set()

    async def next(self) -> bytes | None:
        """What is to be sent next, empty after ALLOWED_S without anything; None: nothing more."""
        if not self._waiting and not self.is_dropped:
            self._arrived.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(ALLOWED_S):
                    await self._arrived.wait()
        if self.is_dropped:
            return None
        return self._waiting.popleft() if self._waiting else b""

    def drop(self) -> None:
        """End its connection at once, with what is on its way."""
        self.is_dropped = True
        self._waiting.clear()
        self._arrived.set()
        if self._request.transport is not None:
            self._request.transport.abort()


class LiveViewers:
    """The viewers of one process. Made on the loop; `stop` it."""

    def __init__(self, document: Callable[[], Awaitable[Document]], *, every_s: float = EVERY_S) -> None:
        """`document` makes the present one; it raises StoreUnavailable where the leader does not answer."""
        self._make = document
        self._every_s = every_s
        self._viewers: set[_Viewer] = set()
        self._running: asyncio.Task[None] | None = None
        self._came = asyncio.Event()
        self._document: Document | None = None  # as the viewers have it
        self._number = 0
        self._is_stopped = False

    @property
    def viewers(self) -> int:
        return len(self._viewers)

    async def stop(self) -> None:
        """End all streams, for good."""
        self._is_stopped = True
        for viewer in list(self._viewers):
            viewer.drop()
        if self._running is not None:
            self._running.cancel()
            await asyncio.gather(self._running, return_exceptions=True)

    async def stream(
        self, request: web.BaseRequest, headers: dict[str, str], is_allowed: Callable[[], bool]
    ) -> web.StreamResponse:
        """Send events until the viewer leaves, is dropped, or `is_allowed` no more, which is asked at every event.
        Raises TooManyViewers before anything is sent.
        """
        if len(self._viewers) >= VIEWERS_MAX or self._is_stopped:
            raise TooManyViewers
        takes_gzip = "gzip" in request.headers.get(hdrs.ACCEPT_ENCODING, "")
        viewer = _Viewer(request, takes_gzip=takes_gzip)
        response = web.StreamResponse(headers=headers | {hdrs.CONTENT_TYPE: "text/event-stream; charset=utf-8"})
        if takes_gzip:
            response.headers[hdrs.CONTENT_ENCODING] = "gzip"
        response.headers[hdrs.VARY] = hdrs.ACCEPT_ENCODING
        if request.version >= HttpVersion11:
            response.enable_chunked_encoding()
        else:
            response.force_close()
        with suppress(ConnectionError):
            await response.prepare(request)
            if takes_gzip:
                await response.write(GZIP_HEAD)
            self._add(viewer)
            try:
                while is_allowed() and (data := await viewer.next()) is not None:
                    if data:
                        await response.write(data)
            finally:
                self._viewers.discard(viewer)
            viewer.drop()  # what was compressed has no end
        return response

    def _add(self, viewer: _Viewer) -> None:
        self._viewers.add(viewer)
        self._came.set()
        if self._running is None or self._running.done():
            self._running = asyncio.create_task(self._run())

    async def _run(self) -> None:
        """Make documents and publish them, until the last viewer has left."""
        loop = asyncio.get_running_loop()
        due_at, sent_at = loop.time(), loop.time()
        try:
            while self._viewers:
                if loop.time() >= due_at:
                    due_at = loop.time() + self._interval_s()
                    if await self._turn():
                        sent_at = loop.time()
                    elif loop.time() - sent_at >= COMMENT_S:
                        sent_at = loop.time()
                        await self._put(COMMENT)
                self._came.clear()
                await self._greet()
                with suppress(TimeoutError):
                    async with asyncio.timeout(max(0.0, due_at - loop.time())):
                        await self._came.wait()
        except Exception:
            log.exception("the live document could not be made: its viewers are dropped")
            for viewer in list(self._viewers):
                viewer.drop()
        finally:
            self._document = None

    def _interval_s(self) -> float:
        pools = {} if self._document is None else self._document["pools"]
        return max(self._every_s, sum(len(pool["tenants"]) for pool in pools.values()) / TENANTS_PER_S)

    async def _turn(self) -> bool:
        """Make a document, and send what has changed. Returns whether anything has."""
        try:
            document = await self._make()
        except StoreUnavailable:
            return False  # no process leads at the moment: the viewers keep what they have
        before, self._document = self._document, document
        if before is None:
            return False
        patch = await sliced_merge_patch(before, document, TENANTS_DEPTH)
        if patch.keys() <= {ALONE_AT}:
            return False
        self._number += 1
        known = [viewer for viewer in self._viewers if viewer.has_state]
        event = await self._encoded(PATCH, patch, known)
        for viewer in known:
            viewer.put(event)
        return True

    async def _greet(self) -> None:
        """Send the whole document to viewers that have none yet."""
        new = [viewer for viewer in self._viewers if not viewer.has_state]
        if self._document is None or not new:
            return
        self._number += 1
        event = await self._encoded(STATE, self._document, new)
        for viewer in new:
            viewer.has_state = True
            viewer.put(event)

    async def _encoded(self, kind: str, document: Document, viewers: Iterable[_Viewer]) -> Encoded:
        takes_gzip = any(each.takes_gzip for each in viewers)
        return await encode(kind, self._number, document, depth=TENANTS_DEPTH, deflates=takes_gzip)

    async def _put(self, comment: bytes) -> None:
        event = await encoded(comment, deflates=any(each.takes_gzip for each in self._viewers))
        for viewer in list(self._viewers):
            if viewer.has_state:
                viewer.put(event)
