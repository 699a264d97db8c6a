"""The composition root: makes all parts of a gateway, connects them, starts and stops them.

    client -> RequestHandlers: RequestParser, RequestAdmission -> Dispatcher (Scheduler) -> Upstream -> relay -> client
                  BackendPool -> Pools -> Dispatcher.load_changed

handlers/handlers.py makes what answers requests; scheduling/assembly.py makes the policies.
"""

import asyncio
import os
import socket
import time
from collections.abc import Callable, Mapping
from functools import partial
from importlib import metadata
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from aiohttp import web

from backends.poll import PollTimes
from backends.pool import BackendPool
from backends.spec import BackendSpec
from backends.upstream import Upstream
from gateway.admin.management import Management, Running
from gateway.budgets.budgets import Budgets
from gateway.budgets.call_pricing import CallPricing
from gateway.config import Config
from gateway.config.jwt import TenantIssuer
from gateway.config.reloading import LOOK_S, Reloading
from gateway.config.scheduling import Scheduling
from gateway.demo import Demo, DemoTarget
from gateway.forwarding.answers.decode_pace import DecodePace
from gateway.forwarding.backend_client import BackendClient
from gateway.handlers.handlers import RequestHandlers
from gateway.identity.auth import Identity, tenant_tokens
from gateway.live.changes import Document
from gateway.live.document import Sources
from gateway.live.ended import EndedView
from gateway.live.live import Live
from gateway.observability.access_log import AccessLog
from gateway.observability.descriptors import Descriptors
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
from gateway.ports.listener import Listener
from gateway.scheduling.assembly import make_scheduler
from gateway.scheduling.dispatcher import Dispatcher
from gateway.scheduling.pools import Pools
from gateway.steering.steering import Steering
from gateway.store.base import Store
from policies.scheduler import Scheduler
from policies.scheduler_protocol import SchedulerProtocol

if TYPE_CHECKING:  # loaded only where they are on
    from backends.engine.http.server import EngineServer
    from gateway.identity.tokens import Tokens
    from gateway.observability.tracing.tracing import Tracing

CONNECT_TIMEOUT_S = 3.0
# Below uvicorn's 5 s, so that the gateway and not the backend closes an idle connection.
IDLE_CONNECTION_S = 4.0
IDLE_CONNECTIONS_MAX = 1024
DRAIN_POLL_S = 0.05
STOP_S_MAX = 1.0  # for responses that are being written when the listener stops

LOOPBACK_OF: Final = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}
"""The address of this machine's own clients, by the address of a port that all may reach."""


Wrap = Callable[[str, SchedulerProtocol], SchedulerProtocol]


class Gateway:
    """All parts of one running gateway. Make it on the loop that runs it, `start` it, `stop` it."""

    _has_ports = True
    """Whether it opens the port for metrics, where it is configured."""

    def __init__(self, config: Config, *, wrap_scheduler: Wrap | None = None, store: Store | None = None) -> None:
        """`wrap_scheduler` may wrap the Scheduler of the named pool, for example in a recorder. The `store` keeps what
        the admin API changes; without a store nothing can be changed while the gateway runs.
        """
        self._config = config
        self._management = None if store is None else self._make_management(config, store)
        self._wrap_scheduler = wrap_scheduler or (lambda _pool, scheduler: scheduler)
        self._engine: EngineServer | None = None
        self._backend_clients: dict[str, BackendClient] = {}
        self._tiers = {tier.id: tier for tier in config.policy_tiers()}
        self._groups = {group.id: group for group in config.policy_groups()}
        self.admin_url: str | None = None
        self.metrics_url: str | None = None
        self._listener: Listener | None = None
        self._descriptors = Descriptors()
        self.live: Live | None = None
        """None without an admin port; so is `steering`."""
        self.steering: Steering | None = None
        self._url: str | None = None  # of the data port, once it is open
        self._tracing: Tracing | None = None
        self._reloading: Reloading | None = None
        self._tokens: Tokens[TenantIssuer, Identity] | None = None
        self.pools = Pools(self._make_dispatcher)
        self.pools.groups_changed(list(self._groups.values()))
        self._access_log = self._make_access_log() if config.access_log.enabled else None
        self._trace_log = make_trace_log(str(config.trace_log.path)) if config.trace_log.enabled else None

    async def start(self) -> str:
        """Serve; return the URL. Raises OSError where the port is taken, ValueError where a secret cannot be read."""
        config = self._config
        if self._management is not None:
            await self._management.open()
        specs = config.backend_specs()
        if not specs and not (self._management and self._management.has_backends):
            specs = [await self._embedded_engine()]
        self.backends = self._make_backends(specs)
        self.pools.watch(self.backends)
        self._backend_clients = {spec.id: self._make_backend_client(spec) for spec in specs}
        self._tracing = _make_tracing(config)
        if config.admin.enabled:
            self.live = Live(self.backends.catalog.pool_of_model)
            self.steering = Steering(self._process_name(), self.backends.catalog)
        self.metrics = self._make_metrics()
        meters: list[CallObserver] = [*_pricing(self._management), self.metrics.calls]
        if self.live is not None and self.steering is not None:
            meters += [self.live.ended, *self.steering.meters]
            self.live.connect(self._led_dispatchers, self.metrics.look, self._live_sources)
        budgets = None
        if self._management is not None and config.keeps_state:
            budgets = self._management.budgets
            meters += [self._management.usage, budgets]  # usage is counted before its reservation ends
        telemetry = Telemetry(
            self._access_log, self._trace_log, tracer=self._tracing, meters=meters, shadow_meters=[self.metrics.calls]
        )
        self._tokens = await tenant_tokens(config.jwt.data)
        self._handlers = self._make_handlers(telemetry, budgets)
        if self.steering is not None:
            self._connect(self.steering)
        self._listener = self._make_listener()
        if self._management is not None:
            self._management.begin(
                Running(
                    self._handlers,
                    self.pools,
                    self.backends,
                    self._backend_clients,
                    make_backend_client=self._make_backend_client,
                    tiers=self._tiers,
                    groups=self._groups,
                    live=self.live,
                    steering=self.steering,
                )
            )
        await self._assembled()
        await self.backends.start()
        if self._management is not None:
            self.admin_url = await self._management.serve(self._metrics_page)
        if config.metrics.port is not None and self._has_ports:
            self.metrics_url = await self.metrics.serve(config.metrics.host, config.metrics.port, self._metrics_page)
        self.metrics.start()
        self._descriptors.start()
        self._handlers.memory.start(on_pause=self._listener.pause, on_resume=self._listener.resume)
        # Last, so that a gateway that answers /readyz answers at every port.
        self._url = await self._listener.start()
        return self._url

    def page_link(self) -> str | None:
        """The address of the page with a new one-time link; None without an admin port."""
        token = None if self._management is None else self._management.make_link()
        return None if token is None else f"{self.admin_url}/#once={token}"

    async def _metrics_page(self) -> web.Response:
        return await self.metrics.page()

    async def _assembled(self) -> None:
        """All parts are there, and nothing serves yet."""

    def reloading(self, file: Path, config: Config, *, look_s: float = LOOK_S) -> Reloading:
        """The watch on the file of this configuration, of which the metrics tell. For a gateway with a store."""
        self._reloading = Reloading(file, config, self.reload, look_s=look_s)
        return self._reloading

    def reload(self, config: Config) -> None:
        """Apply another configuration; the listener keeps its settings. Raises ValueError."""
        assert self._management is not None, "with a store"
        self._management.reload(config.model_copy(update={"listen": self._config.listen}))

    async def drain(self) -> None:
        """Answer "not ready" but serve for `lame_duck_s`; then reject new calls and wait for the running ones, for
        `drain_s` at most.
        """
        shutdown, loop = self._config.shutdown, asyncio.get_running_loop()
        self._handlers.lame_duck()
        await asyncio.sleep(shutdown.lame_duck_s)
        self._handlers.refuse_new()
        give_up_at = loop.time() + shutdown.drain_s
        while self.pools.busy() and loop.time() < give_up_at:  # noqa: ASYNC110 - any of many calls may end last
            await asyncio.sleep(DRAIN_POLL_S)

    async def stop(self) -> None:
        """Stop at once: queued calls are rejected, running streams end with an error event. Release all resources."""
        self._descriptors.stop()
        if self.live is not None:
            await self.live.stop()
        if self.steering is not None:
            await self.steering.stop()
        if self._management is not None:
            await self._management.stop()
        if self._listener is not None:
            await self.metrics.stop()
            self._handlers.memory.stop()
            await self._handlers.stop()
            await self.backends.stop()
            self.pools.close()
            for backend_client in self._backend_clients.values():
                await backend_client.upstream.aclose()
            await self._listener.stop()
        if self._tokens is not None:
            await self._tokens.stop()
        if self._management is not None:
            await self._management.close()
        if self._engine is not None:
            await self._engine.stop()
        await self._close_logs()

    async def _close_logs(self) -> None:
        for written in (self._access_log, self._trace_log):
            if written is not None:
                written.close()
        if self._tracing is not None:
            await asyncio.to_thread(self._tracing.close)

    def _connect(self, steering: Steering) -> None:
        assert self._management is not None, "with an admin port"
        assert self.live is not None, "with an admin port"
        demo = Demo(self._management.registry, self._handlers.keys_beside, self._demo_target)
        self.live.is_demo_running = lambda: demo.is_running
        steering.connect(
            self.pools,
            self._handlers.active,
            registry=self._management.registry,
            scheduling_of=self._scheduling_of,
            queue=self._config.queue,
            demo=demo,
        )

    def _demo_target(self) -> DemoTarget | None:
        """The gateway itself, where the embedded engine answers. Other processes would not know the demo's keys."""
        config = self._config
        if self._engine is None or self._url is None or config.is_clustered or config.workers != 1:
            return None
        host, port = urlsplit(self._url).hostname or "", urlsplit(self._url).port
        named = LOOPBACK_OF.get(host, f"[{host}]" if ":" in host else host)
        return DemoTarget(
            url=f"{urlsplit(self._url).scheme}://{named}:{port}",
            model=config.engine.model,
            requests_max=config.engine.requests_running_max,
        )

    def _process_name(self) -> str:
        """The name of this process among those of its gateway."""
        return self._config.cluster.name or socket.gethostname()

    def _make_access_log(self) -> AccessLog:
        return AccessLog(str(self._config.access_log.path))

    def _make_management(self, config: Config, store: Store) -> Management:
        return Management(config, store)

    def _make_backends(self, specs: list[BackendSpec]) -> BackendPool:
        return BackendPool(
            specs, on_change=self.pools.changed, on_load=self.pools.load_changed, **self._backend_options()
        )

    def _backend_options(self) -> dict[str, Any]:
        """What a BackendPool needs besides its backends and its callbacks."""
        health = self._config.health
        times = PollTimes(idle_s=health.idle_s, busy_s=health.busy_s, timeout_s=health.timeout_s)
        clock = asyncio.get_running_loop().time
        return {"clock": clock, "rng": Random(), "times": times}  # noqa: S311 - jitter

    def _make_handlers(self, telemetry: Telemetry, budgets: Budgets | None, **shared: Any) -> RequestHandlers:
        """`shared`: what several processes of one gateway share."""
        return RequestHandlers(
            self._config,
            pools=self.pools,
            backends=self.backends,
            backend_clients=self._backend_clients,
            tiers=self._tiers,
            telemetry=telemetry,
            tokens=self._tokens,
            budgets=budgets,
            **shared,
        )

    def _make_listener(self) -> Listener:
        listen = self._config.listen
        return Listener(self._handlers.server, listen.host, listen.port, listen.tls, stop_s_max=STOP_S_MAX)

    def _make_upstream(self, spec: BackendSpec) -> Upstream:
        return Upstream(
            spec.url,
            connect_timeout_s=CONNECT_TIMEOUT_S,
            idle_s_max=IDLE_CONNECTION_S,
            idle_connections_max=IDLE_CONNECTIONS_MAX,
            silence_s_max=self._config.limits.answer_silence_s_max,
            silence_s_least=self._config.continuation.silence_s if self._config.continuation.enabled else None,
            ssl_context=spec.tls,
            address_allowlist=spec.address_allowlist,
            resends=self._config.limits.resends_max > 0,
            is_away=partial(self.backends.is_away, spec.id),
        )

    def _make_backend_client(self, spec: BackendSpec) -> BackendClient:
        pace = DecodePace(partial(self.backends.decoded, spec.id))
        return BackendClient(self._make_upstream(spec), spec.headers, pace=pace)

    def _make_metrics(self) -> Metrics:
        return Metrics(
            self._led_dispatchers,
            scheduling_of=self._scheduling_of,
            lost=self._lost,
            tenants_max=self._config.metrics.tenants_max,
            watch=None if self.live is None else self.live.record,
        )

    def _led_dispatchers(self) -> Mapping[str, Dispatcher]:
        """The dispatchers whose Schedulers run in this process."""
        return self.pools.dispatchers()

    def _scheduling_of(self, pool: str) -> Scheduling:
        return (self._config if self._management is None else self._management).scheduling_of(pool)

    def _live_sources(self, ended: EndedView) -> Sources:
        return Sources(
            gateway=self._live_gateway,
            cluster=self._live_cluster,
            policy_of=lambda pool: self._scheduling_of(pool).fairness.policy,
            tiers=self._tiers,
            groups=self._groups,
            backends=self.backends,
            gaps=self.metrics.gaps,
            pace_of=self._measured_pace,
            ended=ended,
            wall_clock=time.time,
        )

    def _live_gateway(self) -> Document:
        """What the live document says of this process."""
        assert self._management is not None, "with an admin port"
        view = self._management.cluster_view()
        return {
            "name": view.name,
            "version": metadata.version("fairlead"),
            "role": view.role,
            "embedded_engine": self._engine is not None,
            "demo": None if self._demo_target() is None else self.live is not None and self.live.is_demo_running(),
        }

    def _live_cluster(self) -> Document:
        assert self._management is not None, "with an admin port"
        return self._management.cluster_view().document()

    def _measured_pace(self, backend_id: str) -> float | None:
        """Seconds for a token of one sequence at a backend, as it counts its steps, or as answers came."""
        client = self._backend_clients.get(backend_id)
        if backend_id not in self.backends.states() or client is None:
            return None
        counts = self.backends[backend_id].step_counts
        return counts.token_s if counts.is_counting else client.pace.token_s

    def _lost(self) -> dict[Family, Values]:
        """Counters that other parts hold: lost log lines and spans, clients that were cut, replicas."""
        logs = {"access": self._access_log, "trace": self._trace_log}
        lines: Values = {(name,): written.dropped for name, written in logs.items() if written is not None}
        spans: Values = {} if self._tracing is None else {(): self._tracing.spans_lost}
        cut: Values = {(reason,): number for reason, number in self._handlers.server.cuts.items()}
        reload_failed: Values = {} if self._reloading is None else {(): self._reloading.has_failed}
        lost = {LINES_LOST: lines, SPANS_LOST: spans, CLIENTS_CUT: cut, RELOAD_FAILED: reload_failed}
        notices = None if self._management is None else self._management.notices
        budgets = {} if notices is None else notices.values(self.metrics.calls.series.names)
        return {**lost, **budgets, **self._replicas()}

    def _replicas(self) -> dict[Family, Values]:
        """What is known of the other processes with the same order; nothing where there are none."""
        return {}

    def _make_dispatcher(self, pool: str) -> Dispatcher:
        return Dispatcher(self._wrap_scheduler(pool, self._make_scheduler(pool)))

    def _make_scheduler(self, pool: str) -> Scheduler:
        config = self._config
        return make_scheduler(
            self._scheduling_of(pool),
            tiers=config.policy_tiers(),
            queue=config.queue,
            continuation=config.continuation,
        )

    async def _embedded_engine(self) -> BackendSpec:
        from backends.engine.http.server import EngineOptions, EngineServer  # noqa: PLC0415 - a tenth of the time of a start

        engine = self._config.engine
        options = EngineOptions(
            model=engine.model,
            coefficients=engine.coefficients,
            batching=engine.batching,
            speed=engine.speed,
            kv_tokens_max=engine.kv_tokens_max,
            requests_running_max=engine.requests_running_max,
        )
        self._engine = EngineServer(options)
        return BackendSpec(
            id="embedded",
            url=await self._engine.start(),
            requests_running_max=options.requests_running_max,
            step_tokens_max=options.chunk_tokens_max,
        )


def _pricing(management: Management | None) -> list[CallObserver]:
    """What sets the cost of calls, which stands before what counts them."""
    return [] if management is None else [CallPricing(management.prices, management.usage.today)]


def _make_tracing(config: Config) -> "Tracing | None":
    """None where tracing is off. Raises ValueError for an invalid variable or a protocol that is not installed."""
    settings = config.tracing.settings(os.environ)
    if settings is None:
        return None
    from gateway.observability.tracing.tracing import make_tracing  # noqa: PLC0415 - it takes a third of a second

    return make_tracing(settings, version=metadata.version("fairlead"), rng=Random())  # noqa: S311 - ids, no secrets
