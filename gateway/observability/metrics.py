"""/metrics: what Prometheus reads of a gateway, in its text format.

Writing a thousand tenants' series takes tens of milliseconds, so a thread does it, on a look that was taken in
slices (standings.py). The interpreter runs one thread at a time and changes after 5 ms by itself; while metrics are
written it changes after SWITCH_S, so that a call that comes meanwhile waits for no more than that.
"""

import asyncio
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Final

from aiohttp import hdrs, web
from prometheus_client import ProcessCollector
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest

from gateway.config.scheduling import Scheduling
from gateway.observability.calls import CallMeter
from gateway.observability.instruments import CallInstruments, Family
from gateway.observability.loop_lag import LoopLag
from gateway.observability.standings import Standings, Values
from gateway.scheduling.dispatcher import Dispatcher

AGE_S_MAX: Final = 0.5  # of a look that is told again
SWITCH_S: Final = 0.0005


class Metrics:
    """All metrics of one gateway. Made on its loop; `start` it, `stop` it. `calls` is told of calls."""

    def __init__(
        self,
        dispatchers: Callable[[], Mapping[str, Dispatcher]],
        *,
        scheduling_of: Callable[[str], Scheduling],
        lost: Callable[[], Mapping[Family, Values]],
        tenants_max: int,
    ) -> None:
        instruments = CallInstruments()
        self._registry = instruments.registry
        ProcessCollector(registry=self._registry)
        self.calls = CallMeter(instruments, tenants_max)
        self._standings = Standings(dispatchers, series=self.calls.series, scheduling_of=scheduling_of, lost=lost)
        self._registry.register(self._standings)
        self._lag = LoopLag(instruments.loop_lag)
        self._writing = asyncio.Lock()
        self._looking: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._lag.start()
        self._looking = asyncio.create_task(self._standings.run())

    async def stop(self) -> None:
        self._lag.stop()
        if self._looking is not None:
            self._looking.cancel()
            with suppress(asyncio.CancelledError):
                await self._looking

    async def exposition(self) -> bytes:
        """All metrics in Prometheus' text format, as of now."""
        async with self._writing:
            await self._standings.look(AGE_S_MAX)
            return await asyncio.to_thread(self._write)

    async def page(self) -> web.Response:
        """The answer to GET /metrics."""
        return web.Response(body=await self.exposition(), headers={hdrs.CONTENT_TYPE: CONTENT_TYPE_PLAIN_0_0_4})

    def _write(self) -> bytes:
        with _changing_often():
            return generate_latest(self._registry)


@contextmanager
def _changing_often() -> Iterator[None]:
    """Let other threads have their turn after SWITCH_S."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(min(before, SWITCH_S))
    try:
        yield
    finally:
        sys.setswitchinterval(before)
