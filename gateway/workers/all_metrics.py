"""AllMetrics: the metrics of all workers, which worker 0 gathers for one page.

A page of 2,000 tenants costs a worker 290 ms of CPU, and the sum of two pages 110 ms. prometheus_client's own mode for
several processes (`PROMETHEUS_MULTIPROC_DIR`) takes 740 ms, and 1.0 us for each change of a value.

The shown counts are stored for the next worker 0, and the counts of ended workers stay, because Prometheus takes a
counter that falls for a restart, and counts it twice.
"""

import asyncio
from contextlib import suppress
from typing import Final

import orjson
from aiohttp import hdrs, web
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4

from gateway.observability.metrics.page import Metrics
from gateway.others import Others
from gateway.store.base import StoreFull, StoreUnavailable
from gateway.workers.exposition import Families, counted, parse, summed, written
from gateway.workers.place import WorkerPlace

GATHER_S_MAX: Final = 0.5  # for the metrics of a worker
KEEP_S: Final = 2.0  # between looks at the counters of workers, which stay when one ends
OWN: Final = ""  # name of what worker 0 has counted, and those that have ended, in the file of counters
SERVICE: Final = "metrics"


class AllMetrics:
    """The collector of the metrics of all workers, which it sums for one page. Only worker 0 uses it. Mutable."""

    def __init__(self, others: Others, worker: WorkerPlace) -> None:
        self._others, self._worker = others, worker
        self._counts: dict[str, Families] = {}  # by follower, as last gathered
        self._ended: Families = {}  # counters of workers that have ended
        self._dead: set[str] = set()  # their names

    def read(self) -> None:
        """Read the counts that the previous worker 0 stored, which may be shown until the other workers answer."""
        with suppress(FileNotFoundError):
            for name, text in orjson.loads(self._worker.counters_file.read_bytes()).items():
                if name in self._worker.others and name not in self._dead:
                    self._counts[name] = parse(text)
                else:
                    self._ended = summed([self._ended, parse(text)])

    async def keep(self, own: Metrics) -> None:
        """Store the counts from time to time, until cancelled."""
        while True:
            await asyncio.sleep(KEEP_S)
            await self._kept_own(own)

    def ended(self, name: str) -> None:
        """Keep the counts of this worker, which has ended."""
        self._dead.add(name)
        self._ended = summed([self._ended, counted(self._counts.pop(name, {}))])

    async def page(self, own: Metrics) -> web.Response:
        page = written(summed([await self._kept_own(own), *self._counts.values(), self._ended]))
        return web.Response(body=page.encode(), headers={hdrs.CONTENT_TYPE: CONTENT_TYPE_PLAIN_0_0_4})

    async def _kept_own(self, own: Metrics) -> Families:
        """Worker 0's own metrics, after all metrics were gathered and stored."""
        await asyncio.gather(*(self._gather(name) for name in self._others.followers()))
        present = parse((await own.exposition()).decode())
        kept = self._counts | {OWN: summed([counted(present), self._ended])}
        file = self._worker.counters_file
        beside = file.with_suffix(".new")
        beside.write_bytes(orjson.dumps({name: written(counted(families)) for name, families in kept.items()}))
        beside.replace(file)
        return present

    async def _gather(self, name: str) -> None:
        """Ask a follower for its metrics; if it does not answer in time, its last ones stay."""
        with suppress(StoreUnavailable, StoreFull, TimeoutError):
            async with asyncio.timeout(GATHER_S_MAX):
                text = (await self._others.ask(name, SERVICE)).decode()
                if name not in self._dead:  # since it answered: its counters are among those of the ended
                    self._counts[name] = parse(text)
