"""Appointed: how a worker joins the order; its parent process has decided which worker leads.

Worker 0 leads. It alone has the state, the admin port and the port of metrics.
"""

import asyncio
import logging
import os
import signal
from typing import Final

from aiohttp import web

from backends.spec import BackendSpec
from gateway.config import Config
from gateway.observability.metrics.page import Metrics
from gateway.order import StartEngine
from gateway.parts import GatewayParts
from gateway.shared_order.backends import EMBEDDED, TOPIC, url_of
from gateway.shared_order.leader_store import store_services
from gateway.shared_order.member_order import Entrance, MemberOrder
from gateway.store.base import Store
from gateway.workers.all_metrics import SERVICE, AllMetrics
from gateway.workers.place import WorkerPlace

JOIN_S_MAX: Final = 30.0  # a follower's start waits so long for worker 0's
LOOK_S: Final = 0.025  # between looks at what worker 0 has told, or at which followers are left
LAST_S: Final = 2.0  # beyond their own drain, for followers to end before worker 0 does

log = logging.getLogger(__name__)


class Appointed(Entrance):
    """The role of one worker in a shared order (a leader decides for several processes), whether it leads or follows.
    The parent process appoints the leader, and notices the end of this process.
    """

    def __init__(self, order: MemberOrder, *, worker: WorkerPlace, config: Config, store: Store | None) -> None:
        """`store` is the store of worker 0; the other workers have none."""
        self._order, self._worker, self._config, self._store = order, worker, config, store
        self.listening = worker.listening
        self._metrics = AllMetrics(order.others, worker)
        self._control = asyncio.StreamReader()

    async def open(self) -> None:
        pipe = os.fdopen(self._worker.control, "rb", buffering=0)
        protocol = asyncio.StreamReaderProtocol(self._control)
        await asyncio.get_running_loop().connect_read_pipe(lambda: protocol, pipe)
        self._order.tasks.start(self._listen_to_parent())
        if not self._worker.is_leading:
            await self._order.port.start()
        self._order.shared.start()
        try:
            async with asyncio.timeout(JOIN_S_MAX):
                await self._order.shared.joined.wait()
        except TimeoutError as error:
            raise OSError("worker 0 does not answer") from error

    async def embedded_engine(self, start: StartEngine) -> BackendSpec:
        """The engine that worker 0 runs. Raises OSError where worker 0 does not report it."""
        if self._worker.is_leading:
            return await start()
        loop, topic = asyncio.get_running_loop(), TOPIC + EMBEDDED
        give_up_at = loop.time() + JOIN_S_MAX
        while topic not in self._order.told:  # told within a turn of worker 0's loop
            if loop.time() > give_up_at:
                raise OSError("worker 0 tells of no engine")
            await asyncio.sleep(LOOK_S)
        url, running_max = url_of(self._order.told[topic]), self._config.engine.requests_running_max
        return BackendSpec(id=EMBEDDED, url=url, requests_running_max=running_max)

    async def begin(self, parts: GatewayParts) -> None:
        async def own_metrics(_body: bytes) -> bytes:
            return await parts.metrics.exposition()

        self._order.others.services[SERVICE] = own_metrics
        if self._store is not None:
            self._order.others.services |= store_services(self._store)
            await self._order.port.start()
            self._metrics.read()
            self._order.tasks.start(self._metrics.keep(parts.metrics))

    async def metrics_page(self, metrics: Metrics) -> web.Response:
        return await self._metrics.page(metrics)

    async def drained(self) -> None:
        """Worker 0 waits until the others have drained and left, because it serves them until then."""
        shutdown, loop = self._config.shutdown, asyncio.get_running_loop()
        give_up_at = loop.time() + shutdown.lame_duck_s + shutdown.drain_s + LAST_S
        while self._order.shared.accepted.names() and loop.time() < give_up_at:  # noqa: ASYNC110 - any may leave last
            await asyncio.sleep(2 * LOOK_S)

    async def _listen_to_parent(self) -> None:
        while line := await self._control.readline():
            name = line.decode().strip()
            self._order.died(name)
            self._metrics.ended(name)
        log.warning("the parent has ended, and so does this worker")
        os.kill(os.getpid(), signal.SIGTERM)
