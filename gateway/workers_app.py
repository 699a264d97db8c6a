"""The composition root of a gateway of several workers: a parent, worker 0 which leads, and its followers.

Each is a MemberGateway (gateway/member_app.py) whose role the parent has said. Worker 0 alone has the state, the admin
port and the port of metrics.
"""

import asyncio
import logging
import os
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Final

import msgspec
import orjson
import uvloop
from aiohttp import hdrs, web
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4

from backends.spec import BackendSpec
from gateway.admin.management import Management
from gateway.app import STOP_S_MAX, Gateway
from gateway.budgets.budgets import Budgets
from gateway.cluster.view import MemberRole
from gateway.config import Config, ConfigError, load_config
from gateway.handlers.handlers import RequestHandlers
from gateway.member_app import MemberGateway, pack
from gateway.observability.access_log import AccessLog
from gateway.observability.telemetry import Telemetry
from gateway.ports.listener import BACKLOG, Listener
from gateway.process import serve_one
from gateway.shared_order.backends import EMBEDDED, url_of
from gateway.shared_order.budgets import EXCHANGE_S
from gateway.shared_order.leader_store import store_services
from gateway.store.assembly import make_store
from gateway.store.base import StateFileError, Store, StoreFull, StoreUnavailable
from gateway.workers.exposition import Families, counted, parse, summed, written
from gateway.workers.parent import EXIT_INVALID, ParentProcess, count_of, listening_socket
from gateway.workers.place import WorkerPlace

FOUND: Final = "found"  # topic of what discovery has found
JOIN_S_MAX: Final = 30.0  # a follower's start waits so long for worker 0's
GATHER_S_MAX: Final = 0.5  # for the metrics of a worker
OWN: Final = ""  # name of what worker 0 has counted, and those that have ended, in the file of counters
KEEP_S: Final = 2.0  # between looks at the counters of workers, which stay when one ends
LAST_S: Final = 2.0  # beyond their own drain, for followers to end before worker 0 does

log = logging.getLogger(__name__)

_FOUND: Final = msgspec.msgpack.Decoder(dict[int, frozenset[str]])


class WorkerGateway(MemberGateway):
    """One worker."""

    def __init__(self, worker: WorkerPlace, config: Config, store: Store | None) -> None:
        """`store` is worker 0's; the others have none of their own."""
        super().__init__(worker.place(), config, store)
        self._worker = worker
        self._has_ports = worker.is_leading
        self._store = store
        self._counts: dict[str, Families] = {}  # by follower, as last gathered
        self._ended: Families = {}  # counters of workers that have ended
        self._dead: set[str] = set()  # their names
        self._found: dict[int, frozenset[str]] = {}
        self._control = asyncio.StreamReader()
        self._port.services["metrics"] = self._own_metrics

    async def start(self) -> str:
        pipe = os.fdopen(self._worker.control, "rb", buffering=0)
        protocol = asyncio.StreamReaderProtocol(self._control)
        await asyncio.get_running_loop().connect_read_pipe(lambda: protocol, pipe)
        self._in_background(self._listen_to_parent())
        if not self._worker.is_leading:
            await self._port.start()
        self.order.start()
        try:
            async with asyncio.timeout(JOIN_S_MAX):
                await self.order.joined.wait()
        except TimeoutError as error:
            raise OSError("worker 0 does not answer") from error
        return await super().start()

    async def drain(self) -> None:
        """As any gateway. Then worker 0 waits until the others have drained and left: they are served till then."""
        await super().drain()
        shutdown, loop = self._config.shutdown, asyncio.get_running_loop()
        give_up_at = loop.time() + shutdown.lame_duck_s + shutdown.drain_s + LAST_S
        while self.order.followers() and loop.time() < give_up_at:  # noqa: ASYNC110 - any may leave last
            await asyncio.sleep(EXCHANGE_S / 5)

    async def _assembled(self) -> None:
        await super()._assembled()
        if self._store is not None:
            self._port.services |= store_services(self._store)
            await self._port.start()
            self._read_kept()
            self._in_background(self._keep_counters())

    def _make_management(self, config: Config, store: Store) -> Management:
        management = Management(config, store, has_state=self._place.is_appointed)
        management.on_found = self._tell_found
        return management

    def _make_access_log(self) -> AccessLog:
        return AccessLog(str(self._config.access_log.path), writes_lines=True)

    def _make_handlers(self, telemetry: Telemetry, budgets: Budgets | None, **shared: Any) -> RequestHandlers:
        return super()._make_handlers(telemetry, budgets, **shared, processes=self._worker.workers)

    def _make_listener(self) -> Listener:
        listen = self._config.listen
        return Listener(
            self._handlers.server,
            listen.host,
            listen.port,
            listen.tls,
            stop_s_max=STOP_S_MAX,
            inherited=self._worker.listening,
        )

    async def _embedded_engine(self) -> BackendSpec:
        """The engine that worker 0 runs. Raises OSError where worker 0 does not tell of it."""
        if self._worker.is_leading:
            return await super()._embedded_engine()
        loop = asyncio.get_running_loop()
        give_up_at = loop.time() + JOIN_S_MAX
        while EMBEDDED not in self._news:  # told within a turn of worker 0's loop
            if loop.time() > give_up_at:
                raise OSError("worker 0 tells of no engine")
            await asyncio.sleep(EXCHANGE_S / 10)
        return BackendSpec(
            id=EMBEDDED,
            url=url_of(self._news[EMBEDDED]),
            requests_running_max=self._config.engine.requests_running_max,
        )

    # -- the parent ------------------------------------------------------------------------------------------

    async def _listen_to_parent(self) -> None:
        while line := await self._control.readline():
            self._died(line.decode().strip())
        log.warning("the parent has ended, and so does this worker")
        os.kill(os.getpid(), signal.SIGTERM)

    def _died(self, name: str) -> None:
        """The parent saw this worker end."""
        self.order.died(name)
        if self._budget_shares is not None:
            self._budget_shares.gone(name)
        self._dead.add(name)
        self._ended = summed([self._ended, counted(self._counts.pop(name, {}))])
        self.peers.forget(name)

    # -- what discovery has found ----------------------------------------------------------------------------

    def _role_changed(self, role: MemberRole) -> None:
        super()._role_changed(role)
        self._share_found()

    def _tell_found(self, number: int, urls: frozenset[str]) -> None:
        self._found[number] = urls
        self._share_found()

    def _share_found(self) -> None:
        if self.order.leader is not None and self._found:
            self.order.leader.share(FOUND, pack(self._found))
            self.order.soon()

    def _hear_shared(self, topic: str, body: bytes) -> None:
        super()._hear_shared(topic, body)
        if topic == FOUND and self._management is not None:
            for number, urls in _FOUND.decode(body).items():
                self._management.found(number, urls)

    # -- metrics ---------------------------------------------------------------------------------------------

    async def _own_metrics(self, _body: bytes) -> bytes:
        return await self.metrics.exposition()

    async def _metrics_page(self) -> web.Response:
        page = written(summed([await self._kept_own(), *self._counts.values(), self._ended]))
        return web.Response(body=page.encode(), headers={hdrs.CONTENT_TYPE: CONTENT_TYPE_PLAIN_0_0_4})

    async def _kept_own(self) -> Families:
        """Worker 0's own metrics, after all were gathered. What it shows is kept for the next worker 0: counters that
        fall are counted twice by a rate.
        """
        await self._gather()
        own = parse((await self.metrics.exposition()).decode())
        kept = self._counts | {OWN: summed([counted(own), self._ended])}
        file = self._worker.counters_file
        beside = file.with_suffix(".new")
        beside.write_bytes(orjson.dumps({name: written(counted(families)) for name, families in kept.items()}))
        beside.replace(file)
        return own

    def _read_kept(self) -> None:
        """What the worker 0 before this one has kept. It may show it for long before the others answer."""
        with suppress(FileNotFoundError):
            for name, text in orjson.loads(self._worker.counters_file.read_bytes()).items():
                if name in self._worker.others and name not in self._dead:
                    self._counts[name] = parse(text)
                else:
                    self._ended = summed([self._ended, parse(text)])

    async def _gather(self) -> None:
        """Ask all followers for their metrics; of one that does not answer in time, its last ones stay."""
        await asyncio.gather(*(self._gather_one(name) for name in self.order.followers()))

    async def _gather_one(self, name: str) -> None:
        with suppress(StoreUnavailable, StoreFull, TimeoutError):
            async with asyncio.timeout(GATHER_S_MAX):
                text = (await self.peers.ask(name, "metrics")).decode()
                if name not in self._dead:  # since it answered: its counters are among those of the ended
                    self._counts[name] = parse(text)

    async def _keep_counters(self) -> None:
        while True:
            await asyncio.sleep(KEEP_S)
            await self._kept_own()


# -- processes -----------------------------------------------------------------------------------------------


def serve_workers(config: Config, config_file: Path | None) -> None:
    """Serve with `config.workers` processes until SIGTERM or SIGINT. Raises OSError where the port is taken, SystemExit
    where workers cannot serve.
    """
    listen = config.listen
    with listening_socket(listen.host, listen.port, BACKLOG) as listening:
        run = partial(run_worker, config=config, config_file=config_file)
        status = ParentProcess(count_of(config.workers), run, listening).run()
    if status:
        sys.exit(status)


def run_worker(place: WorkerPlace, *, config: Config, config_file: Path | None) -> int:
    """Be this worker until it ends; returns its exit status."""
    make: Callable[[Config, Path | None], Gateway] = partial(_make_gateway, place)
    if place.epoch > 1 or place.name != f"w{place.index}-{place.index + 1}":  # started anew: the file may have changed
        config = _present(config, config_file)
    try:
        uvloop.run(serve_one(config, config_file, make, greets=place.name == "w0-1"))
    except (OSError, ValueError, StateFileError, StoreUnavailable) as error:
        sys.stderr.write(f"{error}\n")
        return EXIT_INVALID if place.is_leading else 1
    return 0


def _make_gateway(place: WorkerPlace, config: Config, config_file: Path | None) -> Gateway:
    if not place.is_leading:
        return WorkerGateway(place, config, None)
    return WorkerGateway(place, config, make_store(config.state, config_file if config.keeps_state else None))


def _present(config: Config, config_file: Path | None) -> Config:
    """The file as it is now, if it is valid. What needs a new start of all stays."""
    if config_file is None:
        return config
    try:
        present = load_config(config_file)
    except ConfigError:
        return config
    return present.model_copy(update={"listen": config.listen, "workers": config.workers})
