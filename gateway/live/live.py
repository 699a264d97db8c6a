"""Live: the parts of one process that make the live document, and stream it.

The process that leads makes the document; it knows every tenant's service, queue and limits. It asks the others for
latencies and refusals, which are known only in the process where a call ends. A process that follows asks the leader
for the document, and streams it to its own viewers.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Final

import msgspec

from gateway.live.document import LiveDocument, Sources
from gateway.live.ended import EndedCalls, EndedChanges, EndedEverywhere
from gateway.live.record import LiveRecord
from gateway.live.schema import LivePageDocument
from gateway.live.stream.events import to_json
from gateway.live.stream.feed import LiveViewers
from gateway.others import Others
from gateway.scheduling.dispatcher import Dispatcher
from gateway.store.base import StoreUnavailable

MADE_AGE_S_MAX: Final = 0.5  # of a document that another process, or a second reader, gets again
GAPS_AGE_S_MAX: Final = 5.0  # of service gaps: the metrics of a busy process measure less often
DOCUMENT: Final = "live"  # services, by name
ENDED: Final = "ended"
TELL_S_MAX: Final = 0.3  # for another process to tell of its calls: later is for the next document

_pack: Final = msgspec.msgpack.Encoder().encode
_SINCE: Final = msgspec.msgpack.Decoder(int)
_DOCUMENT: Final = msgspec.json.Decoder(LivePageDocument)
_CHANGES: Final = msgspec.msgpack.Decoder(EndedChanges)


class Live:
    """The parts of one process that make the live document (the data of the live page) and stream it to viewers. Made
    on the loop before the parts of the gateway that it observes. Its `record` gets the samples of pools that the
    metrics take, its `ended` gets each ended call, and its `feed` sends the document to viewers. Call `connect` when
    all parts of the gateway exist, and `feed.stop` at the end.
    """

    def __init__(self, pool_of: Callable[[str], str | None], others: Others) -> None:
        """`pool_of` returns the pool of a model."""
        self.record = LiveRecord()
        self.ended = EndedCalls(pool_of)
        self.feed = LiveViewers(self.document)
        self._others = others
        others.services |= {DOCUMENT: self._encoded, ENDED: self._tell}
        self._everywhere = EndedEverywhere(self.ended)
        self._making = asyncio.Lock()
        self._made: LivePageDocument | None = None
        self._made_at = 0.0
        self._dispatchers: Callable[[], Mapping[str, Dispatcher]]
        self._measure_gaps: Callable[[float], Awaitable[None]]
        self._sources: Sources
        self._maker: LiveDocument

    def connect(
        self,
        dispatchers: Callable[[], Mapping[str, Dispatcher]],
        measure_gaps: Callable[[float], Awaitable[None]],
        make_sources: Callable[[EndedEverywhere], Sources],
    ) -> None:
        """`dispatchers` gives the Dispatchers whose Schedulers run in this process, by pool. `measure_gaps(s)` measures
        service gaps anew, unless the latest are younger than `s` seconds.
        """
        self._dispatchers = dispatchers
        self._measure_gaps = measure_gaps
        self._sources = make_sources(self._everywhere)
        self._maker = LiveDocument(self.record, self._sources)

    async def document(self) -> LivePageDocument:
        """The present document: the leader's, with `gateway` and `cluster` as this process knows them. Raises
        StoreUnavailable where no leader answers.
        """
        if self._others.is_leading:
            return await self._own()
        document = _DOCUMENT.decode(await self._others.ask_leader(DOCUMENT))
        document.gateway, document.cluster = self._sources.gateway(), self._sources.cluster()
        return document

    async def _encoded(self, _body: bytes) -> bytes:
        """The document of this process, which leads, as JSON for one that follows."""
        if not self._others.is_leading:
            raise StoreUnavailable("this process does not lead")
        return to_json(await self._own())

    async def _tell(self, body: bytes) -> bytes:
        """What the leader asks: how the calls of this process ended since its last question."""
        return _pack(self.ended.changes(_SINCE.decode(body)))

    async def _own(self) -> LivePageDocument:
        loop = asyncio.get_running_loop()
        async with self._making:
            if self._made is not None and loop.time() - self._made_at < MADE_AGE_S_MAX:
                return self._made
            await self.record.look_for_viewer(self._dispatchers())
            await self._measure_gaps(GAPS_AGE_S_MAX)
            await self._ask_others()
            self._made, self._made_at = await self._maker.make(), loop.time()
            return self._made

    async def _ask_others(self) -> None:
        names = self._others.followers()
        self._everywhere.look()
        self._everywhere.retain(names)
        await asyncio.gather(*(self._ask_other(name) for name in names))

    async def _ask_other(self, name: str) -> None:
        try:
            async with asyncio.timeout(TELL_S_MAX):
                body = await self._others.ask(name, ENDED, _pack(self._everywhere.since(name)))
            self._everywhere.told(name, _CHANGES.decode(body))
        except (StoreUnavailable, TimeoutError, msgspec.MsgspecError):
            return  # its calls are shown as it told of them last
