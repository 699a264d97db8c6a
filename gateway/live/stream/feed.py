"""LiveViewers: streams the live document to its viewers: the whole document once, then the changes once a second.

One document is made for all viewers together, and none while there is no viewer. Viewers of the same part of it are one
audience (audience.py), and get the same bytes.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from gateway.live.group_part import GroupPart
from gateway.live.schema import LivePageDocument
from gateway.live.stream.audience import Audience, Viewer
from gateway.live.stream.events import GZIP_HEAD
from gateway.store.base import StoreUnavailable
from gateway.tasks import cancel

if TYPE_CHECKING:
    from aiohttp import web

EVERY_S: Final = 1.0
VIEWERS_MAX: Final = 100  # of the whole, and as many of parts: a state is half a megabyte with a thousand tenants
PART_VIEWERS_MAX: Final = 10  # of one part, so that the administrators of one group leave room for those of others
# A document takes some 25 us for a tenant (docs/results/relay.md): with more tenants than this it comes less often, so
# that it takes at most three percent of a core.
TENANTS_PER_S: Final = 1200

log = logging.getLogger(__name__)


class TooManyViewers(Exception):  # noqa: N818 - a decision, not an error
    """An error: the highest number of viewers is already connected."""


class LiveViewers:
    """The sender of the live document (the data of the live page) to all viewers at one process: the whole document
    once, then its changes. Made on the loop; call `stop` at the end.
    """

    def __init__(self, document: Callable[[], Awaitable[LivePageDocument]], *, every_s: float = EVERY_S) -> None:
        """`document` makes the present document; it raises StoreUnavailable where the leader does not answer."""
        self._make = document
        self._every_s = every_s
        self._audiences: dict[GroupPart | None, Audience] = {}
        self._running: asyncio.Task[None] | None = None
        self._came = asyncio.Event()
        self._document: LivePageDocument | None = None  # the latest
        self._is_stopped = False

    @property
    def viewers(self) -> int:
        return sum(len(each.viewers) for each in self._audiences.values())

    async def stop(self) -> None:
        """End all streams, for good."""
        self._is_stopped = True
        self._drop_all()
        await cancel(self._running)

    async def stream(
        self,
        request: "web.BaseRequest",
        headers: dict[str, str],
        is_allowed: Callable[[], bool],
        part: GroupPart | None = None,
    ) -> "web.StreamResponse":
        """Send events of this part, or of the whole document, until the viewer leaves, is dropped, or `is_allowed`
        (asked at every event) is false. Raises TooManyViewers before any byte is sent.
        """
        from aiohttp import HttpVersion11, hdrs, web  # noqa: PLC0415 - only where there is an admin port

        if self._is_stopped or not self._has_room(part):
            raise TooManyViewers
        takes_gzip = "gzip" in request.headers.get(hdrs.ACCEPT_ENCODING, "")
        viewer = Viewer(request, takes_gzip=takes_gzip)
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
            self._add(viewer, part)
            try:
                while is_allowed() and (data := await viewer.next()) is not None:
                    if data:
                        await response.write(data)
            finally:
                self._remove(viewer, part)
            viewer.drop()  # what was compressed has no end
        return response

    def _has_room(self, part: GroupPart | None) -> bool:
        """Whether one more may see this part. Viewers of parts leave no viewer of the whole without room."""
        of_it = len(self._audiences[part].viewers) if part in self._audiences else 0
        if part is None:
            return of_it < VIEWERS_MAX
        of_whole = len(self._audiences[None].viewers) if None in self._audiences else 0
        return of_it < PART_VIEWERS_MAX and self.viewers - of_whole < VIEWERS_MAX

    def _add(self, viewer: Viewer, part: GroupPart | None) -> None:
        audience = self._audiences.get(part)
        if audience is None:
            audience = self._audiences[part] = Audience(part, asyncio.get_running_loop().time())
        audience.viewers.add(viewer)
        self._came.set()
        if self._running is None or self._running.done():
            self._running = asyncio.create_task(self._run())

    def _remove(self, viewer: Viewer, part: GroupPart | None) -> None:
        viewers = self._audiences[part].viewers
        viewers.discard(viewer)
        if not viewers:
            del self._audiences[part]

    async def _run(self) -> None:
        """Make documents and publish them, until the last viewer has left."""
        loop = asyncio.get_running_loop()
        due_at = loop.time()
        try:
            while self._audiences:
                if loop.time() >= due_at:
                    due_at = loop.time() + self._interval_s()
                    await self._turn()
                self._came.clear()
                await self._greet()
                with suppress(TimeoutError):
                    async with asyncio.timeout(max(0.0, due_at - loop.time())):
                        await self._came.wait()
        except Exception:
            log.exception("the live document could not be made: its viewers are dropped")
            self._drop_all()
        finally:
            self._document = None
            for audience in self._audiences.values():
                audience.forget()

    def _interval_s(self) -> float:
        pools = {} if self._document is None else self._document.pools
        return max(self._every_s, sum(len(pool.tenants) for pool in pools.values()) / TENANTS_PER_S)

    async def _turn(self) -> None:
        """Make a document, and send what has changed to each audience."""
        made: LivePageDocument | None = None
        with suppress(StoreUnavailable):  # no process leads at the moment: the viewers keep what they have
            made = self._document = await self._make()
        now = asyncio.get_running_loop().time()
        for audience in list(self._audiences.values()):
            await audience.turn(made, now)

    async def _greet(self) -> None:
        """Send the document to viewers that have none yet."""
        if self._document is None:
            return
        for audience in list(self._audiences.values()):
            await audience.greet(self._document)

    def _drop_all(self) -> None:
        for audience in list(self._audiences.values()):
            audience.drop()
