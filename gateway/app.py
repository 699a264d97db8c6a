"""The composition root: a Gateway has all parts, connected; it starts and stops them.

    client -> RequestHandlers: RequestParser, RequestAdmission -> Dispatcher (Scheduler) -> Upstream -> relay -> client
                  BackendPool -> Pools -> Dispatcher.told

`open_gateway` first opens the parts that have to be read or started, then makes the others; each part gets the parts
that it uses. The given Order makes the Dispatchers and backends: for a single process, or for one that shares an order
with others. handlers/handlers.py makes the request handlers; scheduling/assembly.py makes the policies.
"""

import asyncio
import logging
import os
import time
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import partial
from importlib import metadata
from random import Random
from typing import TYPE_CHECKING, Final

from backends.spec import BackendSpec
from gateway.admin.administration import Administration
from gateway.admin.management import Management
from gateway.config import Config
from gateway.config.jwt import TenantIssuer
from gateway.embedded_engine import EmbeddedEngine
from gateway.forwarding.backend_client import BackendClients
from gateway.handlers.handlers import RequestHandlers
from gateway.identity.auth import Identity, tenant_tokens
from gateway.live.history.history import HistoryReader
from gateway.live.history.recorder import HistoryRecorder
from gateway.live.live import Live
from gateway.observability.access_log import AccessLog
from gateway.observability.logs import lines_lost
from gateway.observability.metrics.instruments import (
    CLIENTS_CUT,
    LINES_LOST,
    RELOAD_FAILED,
    SPANS_LOST,
    Family,
    Values,
)
from gateway.observability.metrics.page import Metrics
from gateway.observability.telemetry import CallObserver, Telemetry
from gateway.observability.trace_log import make_trace_log
from gateway.operators import OperatorSources
from gateway.order import Order, OwnOrder
from gateway.parts import GatewayParts, OperatorParts
from gateway.ports.listener import Descriptors, Listener
from gateway.scheduling.assembly import make_scheduler
from gateway.scheduling.pools import Pools
from gateway.steering.steering import Steering
from gateway.store.base import Store
from policies.scheduler import Scheduler
from policies.types import DEFAULT_TIER, Group

if TYPE_CHECKING:  # loaded only where they are on
    from gateway.config.reloading import Reloading
    from gateway.identity.tokens import Tokens
    from gateway.observability.tracing.tracing import Tracing
    from gateway.ports.metrics_port import MetricsPort

DRAIN_POLL_S: Final = 0.05
STOP_S_MAX: Final = 1.0  # for responses that are being written when the listener stops

log = logging.getLogger(__name__)


class CallLogs:
    """The logs of the calls of one process: access log, trace log and tracing, each only where it is enabled. Call
    `close` at the end.
    """

    def __init__(self, config: Config, *, writes_lines: bool) -> None:
        """`writes_lines`: other processes write the same access log. Raises ValueError for an invalid variable of
        tracing or a protocol that is not installed.
        """
        on = config.access_log.enabled
        self._access = AccessLog(str(config.access_log.path), writes_lines=writes_lines) if on else None
        self._trace = make_trace_log(str(config.trace_log.path)) if config.trace_log.enabled else None
        self.tracing = _make_tracing(config)

    def telemetry(self, meters: Sequence[CallObserver], shadow_meters: Sequence[CallObserver]) -> Telemetry:
        """The observer that reports calls to these logs and meters."""
        return Telemetry(self._access, self._trace, tracer=self.tracing, meters=meters, shadow_meters=shadow_meters)

    def lost(self) -> dict[Family, Values]:
        """Counts of the lines and spans that could not be written."""
        logs = {"access": self._access, "trace": self._trace}
        lines: Values = {(name,): written.lost for name, written in logs.items() if written is not None}
        lines["gateway",] = lines_lost()
        return {LINES_LOST: lines, SPANS_LOST: {} if self.tracing is None else {(): self.tracing.shipper.lost}}

    async def close(self) -> None:
        """Write the rest of all logs, at the same time and off the event loop, on which other parts still end."""
        closing: list[Callable[[], object]] = [each.close for each in (self._access, self._trace) if each is not None]
        if self.tracing is not None:
            closing.append(self.tracing.shipper.shutdown)
        await asyncio.gather(*map(asyncio.to_thread, closing))


@dataclass(frozen=True, slots=True)
class Opened:
    """The parts that are opened before a Gateway can be made, such as its logs and its Order (the part that decides on
    requests).
    """

    config: Config
    order: Order
    management: Management
    logs: CallLogs
    engine: EmbeddedEngine
    specs: list[BackendSpec]
    tokens: "Tokens[TenantIssuer, Identity] | None"
    closing: AsyncExitStack
    """Closes all of them."""


async def open_gateway(config: Config, store: Store, *, order: Order | None = None) -> "Gateway":
    """A gateway that serves nothing yet. Call it on the loop that runs it; `start` the gateway, and `stop` it.

    It is alone without an `order`. The `store` keeps what the admin API changes. Raises ValueError where a secret
    cannot be read or a setting does not hold here, OSError, and what `Management.open` raises.
    """
    order = OwnOrder(config) if order is None else order
    closing = AsyncExitStack()
    try:
        closing.push_async_callback(order.close)
        logs = CallLogs(config, writes_lines=order.process.listening is not None)
        closing.push_async_callback(logs.close)
        management = Management(config, store, has_state=order.has_state, others=order.others, on_found=order.found)
        await order.process.open()
        engine = EmbeddedEngine(config.engine)
        closing.push_async_callback(engine.stop)
        closing.push_async_callback(management.close)
        await management.open()
        specs = config.backend_specs()
        if not specs and not management.has_backends:
            specs = [await order.process.embedded_engine(engine.start)]
        tokens = await tenant_tokens(config.jwt.data)
        if tokens is not None:
            closing.push_async_callback(tokens.stop)
        return Gateway(Opened(config, order, management, logs, engine, specs, tokens, closing))
    except BaseException:
        await closing.aclose()
        raise


class Gateway:
    """A running gateway with all its parts. `open_gateway` makes it; call `start`, and `stop` at the end."""

    def __init__(self, opened: Opened) -> None:
        """Raises ValueError where a secret or a certificate cannot be read."""
        config, management = opened.config, opened.management
        self.order, self._config, self._management = opened.order, config, management
        self._engine, self._closing = opened.engine, opened.closing
        self.admin_url: str | None = None
        self.metrics_url: str | None = None
        self._metrics_port: MetricsPort | None = None
        self._reloading: Reloading | None = None
        self._tiers = {DEFAULT_TIER.id: DEFAULT_TIER}  # the reconciler puts the others in, and groups
        self._groups: dict[str, Group] = {}
        self.pools = Pools(lambda pool: self.order.make_dispatcher(pool, self._make_scheduler))
        self.backends = self.order.make_backends(opened.specs, self.pools)
        self.pools.watch(self.backends)
        self._clients = BackendClients(config, self.backends, opened.specs)
        self._logs = opened.logs
        self.operators = self._make_operator_parts() if config.admin.enabled else None
        """None without an admin port."""
        self.metrics = self._make_metrics()
        self._handlers = self._make_handlers(opened.tokens)
        self._listener = self._make_listener()
        self._descriptors = Descriptors()
        self._parts = GatewayParts(
            handlers=self._handlers,
            pools=self.pools,
            backends=self.backends,
            clients=self._clients,
            metrics=self.metrics,
            tiers=self._tiers,
            groups=self._groups,
            make_scheduler=self._make_scheduler,
            operators=self.operators,
        )
        if self.operators is not None:
            OperatorSources(config, self.order, self._engine, management, self._parts).connect(self.operators)
        self._administration = Administration(config, management, self._parts, self.order.cluster_view)

    async def start(self) -> str:
        """Begin to serve; return the URL. Raises OSError if the port is taken, ValueError for an unreadable secret."""
        metrics = self._config.metrics
        metrics_page = partial(self.order.process.metrics_page, self.metrics)
        self._administration.start()
        await self.order.begin(self._parts, self._management)
        await self.backends.polls.start()
        self.admin_url = await self._administration.serve(metrics_page)
        if metrics.port is not None and self.order.has_state:
            from gateway.ports.metrics_port import MetricsPort  # noqa: PLC0415 - only where it is on

            self._metrics_port = MetricsPort(metrics.host, metrics.port, metrics_page)
            self.metrics_url = await self._metrics_port.start()
        self.metrics.start()
        self._descriptors.looks.start()
        self._handlers.memory.start(self._listener)
        # Last, so that a gateway that answers /readyz answers at every port.
        return await self._listener.start()

    def page_link(self) -> str | None:
        """The address of the page with a new one-time link; None without an admin port."""
        token = self._administration.make_link()
        return None if token is None else f"{self.admin_url}/#once={token}"

    async def watch(self, reloading: "Reloading") -> None:
        """Reload this configuration file whenever it changes, until cancelled."""
        self._reloading = reloading
        await reloading.watch(self.reload)

    def reload(self, config: Config) -> None:
        """Apply another configuration. Raises ValueError."""
        self._administration.reload(config.listening_at(self._config.given_address))

    async def drain(self) -> None:
        """Answer health checks with "not ready" but serve for `lame_duck_s`; then reject new calls and wait for the
        running ones, for at most `drain_s`.
        """
        shutdown, loop = self._config.shutdown, asyncio.get_running_loop()
        log.info("it stops: not ready any more, it serves for another %g s", shutdown.lame_duck_s)
        await self.order.resign()
        self._handlers.lame_duck()
        await asyncio.sleep(shutdown.lame_duck_s)
        self._handlers.refuse_new()
        log.info("it stops: new calls are refused, and those that are here have %g s to end", shutdown.drain_s)
        give_up_at = loop.time() + shutdown.drain_s
        while is_busy := self.pools.busy() or self._handlers.server.is_answering():
            if loop.time() >= give_up_at:
                break
            await asyncio.sleep(DRAIN_POLL_S)  # any of many calls may end last
        log.info("it stops: %s", "what still runs is ended" if is_busy else "all calls have ended")
        await self.order.process.drained()

    async def stop(self) -> None:
        """Stop at once: queued calls are rejected, running streams end with an error event. Release all resources."""
        await self.order.end()
        await self._descriptors.looks.stop()
        if self.operators is not None:
            await self.operators.stop()
        await self._administration.stop()
        if self._metrics_port is not None:
            await self._metrics_port.stop()
        await self.metrics.stop()
        self._handlers.memory.stop()
        await self._handlers.stop()
        await self.backends.polls.stop()
        self.pools.close()
        await self._clients.close()
        await self._listener.stop()
        await self._closing.aclose()

    def _make_telemetry(self) -> Telemetry:
        """What is told of every call. Its cost is set before it is counted, and usage is counted before its reservation
        ends.
        """
        management = self._management
        meters: list[CallObserver] = [management.pricing, self.metrics.calls]
        if self.operators is not None:
            meters += self.operators.meters
        if self._config.keeps_state:
            meters += [management.usage, management.budgets]
        return self._logs.telemetry(meters, [self.metrics.calls])

    def _make_metrics(self) -> Metrics:
        operators = self.operators
        return Metrics(
            self.pools.dispatchers,
            led=lambda: self.order.others.is_leading,
            scheduling_of=self._management.scheduling_of,
            lost=self._lost,
            tenants_max=self._config.metrics.tenants_max,
            watches=() if operators is None else (operators.live.record, operators.history.recorder),
        )

    def _make_handlers(self, tokens: "Tokens[TenantIssuer, Identity] | None") -> RequestHandlers:
        return RequestHandlers(
            self._config,
            processes=self.order.processes,
            others=self.order.others,
            process_secret=self.order.secret,
            is_ready=self.order.is_ready,
            pools=self.pools,
            clients=self._clients,
            tiers=self._tiers,
            telemetry=self._make_telemetry(),
            tokens=tokens,
            claims=self._management.claims if self._config.keeps_state else None,
        )

    def _make_listener(self) -> Listener:
        server, listen, inherited = self._handlers.server, self._config.listen, self.order.process.listening
        address = listen.host, listen.port
        return Listener(
            server, address, listen.tls, stop_s_max=STOP_S_MAX, inherited=inherited, close_idle=server.close_idle
        )

    def _make_operator_parts(self) -> OperatorParts:
        catalog, others = self.backends.catalog, self.order.others
        recorder = HistoryRecorder(
            catalog.pool_of_model,
            find_tenant=lambda tenant_id: self._handlers.tenants.find(tenant_id),  # noqa: PLW0108 - made later
            pace_of=self._clients.measured_pace,
            leader=lambda: self.order.cluster_view().leader,
            clock=time.time,
        )
        return OperatorParts(
            Live(catalog.pool_of_model, others), HistoryReader(recorder, others), Steering(others, catalog)
        )

    def _lost(self) -> dict[Family, Values]:
        """Counters that other parts hold: lost log lines and spans, clients that were cut, replicas."""
        cut: Values = {(reason,): number for reason, number in self._handlers.server.cuts.items()}
        reload_failed: Values = {} if self._reloading is None else {(): self._reloading.has_failed}
        notices = self._management.notices
        budgets = {} if notices is None else notices.values(self.metrics.calls.series.names)
        counted = {CLIENTS_CUT: cut, RELOAD_FAILED: reload_failed}
        return {**self._logs.lost(), **counted, **budgets, **self.order.values()}

    def _make_scheduler(self, pool: str) -> Scheduler:
        config = self._config
        return make_scheduler(
            self._management.scheduling_of(pool),
            tiers=config.policy_tiers(),
            queue=config.queue,
            continuation=config.continuation,
        )


def _make_tracing(config: Config) -> "Tracing | None":
    """None where tracing is off."""
    settings = config.tracing.settings(os.environ)
    if settings is None:
        return None
    from gateway.observability.tracing.tracing import make_tracing  # noqa: PLC0415 - it takes a third of a second

    return make_tracing(settings, version=metadata.version("fairlead"), rng=Random())  # noqa: S311 - ids, no secrets
