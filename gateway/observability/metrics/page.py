"""Metrics: the page /metrics in Prometheus' text format.

Writing a thousand tenants' series takes a tenth of a second. The page is written on the event loop in slices of a
millisecond, with a turn of the loop between them. A thread would be worse: it holds the interpreter lock until the
operating system wakes the loop, measured as 5 to 8 ms on a busy machine.
"""

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Final, TypeVar

from prometheus_client import ProcessCollector
from prometheus_client.core import Metric
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest
from prometheus_client.registry import Collector

from gateway.config.scheduling import Scheduling
from gateway.observability.loop_lag import LoopLag
from gateway.observability.metrics.call_counts import CallMeter
from gateway.observability.metrics.instruments import FAMILIES, Family, Histograms, Values
from gateway.observability.metrics.scheduler_metrics import LookWatch, SchedulerMetrics
from gateway.scheduling.dispatcher import Dispatcher
from gateway.tasks import Tasks

if TYPE_CHECKING:
    from aiohttp import web


AGE_S_MAX: Final = 0.5  # of a look at the schedulers that a second scrape reuses
SLICE_SAMPLES: Final = 200

Row = TypeVar("Row")


class Metrics:
    """The metrics of one gateway, and the maker of their page for Prometheus. Made on its loop; call `start`, and
    `stop` at the end. `calls` counts calls at their end.
    """

    def __init__(
        self,
        dispatchers: Mapping[str, Dispatcher],
        *,
        led: Callable[[], bool],
        scheduling_of: Callable[[str], Scheduling],
        lost: Callable[[], Mapping[Family, Values]],
        tenants_max: int,
        watches: Sequence[LookWatch] = (),
    ) -> None:
        """`led`: whether this process leads. `scheduling_of` returns the present scheduling of a pool; `lost` returns
        further counters, which other parts hold. `watches` get the samples of the schedulers.
        """
        self._process = ProcessCollector(registry=None)
        self._histograms = Histograms()
        self.calls = CallMeter(self._histograms, tenants_max)
        self.schedulers = SchedulerMetrics(
            dispatchers,
            led=led,
            series=self.calls.series,
            session_wait=self._histograms.session_wait,
            scheduling_of=scheduling_of,
            watches=watches,
        )
        self._lost = lost
        self._lag = LoopLag(self._histograms.loop_lag.of())
        self._writing = asyncio.Lock()
        self._looking = Tasks()

    def start(self) -> None:
        self._lag.start()
        self._looking.start(self.schedulers.run())

    async def stop(self) -> None:
        self._lag.stop()
        await self._looking.cancel()

    async def exposition(self) -> bytes:
        """All metrics in Prometheus' text format, as of now."""
        async with self._writing:
            await self.schedulers.look(AGE_S_MAX)
            pieces = []
            for piece in self._pieces():
                pieces.append(piece)
                await asyncio.sleep(0)
            return b"".join(pieces)

    async def page(self) -> "web.Response":
        """The answer to GET /metrics."""
        from aiohttp import hdrs, web  # noqa: PLC0415 - 11 MB, which a process without ports for operators saves

        return web.Response(body=await self.exposition(), headers={hdrs.CONTENT_TYPE: CONTENT_TYPE_PLAIN_0_0_4})

    def _pieces(self) -> Iterator[bytes]:
        for metric in self._process.collect():
            yield generate_latest(_Only(metric))
        for histograms in self._histograms.families():
            yield from _written(histograms.metric, histograms.series(), SLICE_SAMPLES // histograms.samples_per_series)
        seen = {**self.schedulers.seen, **self.calls.seen(), **self._lost()}
        yield b""
        for family in FAMILIES:
            yield from _written(family.metric, seen.get(family, {}).items(), SLICE_SAMPLES)


def _written(make: Callable[[Iterable[Row]], Metric], rows: Iterable[Row], rows_max: int) -> Iterator[bytes]:
    """Yield the text of one metric, in pieces of `rows_max` rows."""
    rest = iter(rows)
    yield generate_latest(_Only(make(islice(rest, rows_max))))
    while part := list(islice(rest, rows_max)):
        # The two lines of help and type are written once.
        yield generate_latest(_Only(make(part))).split(b"\n", 2)[2]


class _Only(Collector):
    """A collector of one metric, in the form that the library can write."""

    def __init__(self, metric: Metric) -> None:
        self._metric = metric

    def collect(self) -> Iterator[Metric]:
        yield self._metric
