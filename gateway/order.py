"""Order: the part of a gateway that decides on its requests. OwnOrder is for a single process, with its own Schedulers.

If several processes share one order, each has a MemberOrder (gateway/shared_order/member_order.py).
"""

import asyncio
import socket
import time
from collections.abc import Awaitable, Callable, Sequence
from random import Random
from typing import TYPE_CHECKING, Any, Protocol

from backends.poll import PollTimes
from backends.poll_loop import PollLoop
from backends.pool import BackendPool
from backends.spec import BackendSpec
from gateway.admin.management import Management
from gateway.config import Config
from gateway.live.schema import ClusterMember, ClusterView, MemberRole
from gateway.observability.metrics.instruments import Family, Values
from gateway.observability.metrics.page import Metrics
from gateway.others import Others
from gateway.parts import GatewayParts
from gateway.scheduling.dispatcher import Dispatcher
from gateway.scheduling.pools import Pools
from policies.scheduler_protocol import SharedSchedulerProtocol, ViewedSchedulerProtocol

if TYPE_CHECKING:
    from aiohttp import web

MakeScheduler = Callable[[str], SharedSchedulerProtocol]
"""Makes the Scheduler of a pool, as the settings are now."""
StartEngine = Callable[[], Awaitable[BackendSpec]]
Wrap = Callable[[str, ViewedSchedulerProtocol], ViewedSchedulerProtocol]


class Process:
    """The role of one process among those of a gateway: what it shares with them, such as a socket or metrics. This
    base class is for a process that shares nothing.
    """

    listening: socket.socket | None = None
    """A socket that already listens for clients, shared by several processes; None: the process opens its own."""

    async def open(self) -> None:
        """Join the order, before the gateway reads any state. Raises OSError, ValueError."""

    async def embedded_engine(self, start: StartEngine) -> BackendSpec:
        """The engine of a gateway without backends: this process's engine, which `start` starts, or another process's.
        Raises OSError.
        """
        return await start()

    async def metrics_page(self, metrics: Metrics) -> "web.Response":
        """The metrics of this process, and of the other processes that it reports for."""
        return await metrics.page()

    async def drained(self) -> None:
        """The gateway has drained: wait for the processes that this one serves."""


class Order(Protocol):
    """The part of a process that decides in which order the gateway's requests are dispatched, alone or together with
    other processes under one leader. It also makes the Dispatchers and the BackendPool. Call `begin` when the gateway
    is assembled, `end` before the gateway stops, `close` after it.
    """

    @property
    def process(self) -> Process:
        """The role of this process. Call its `open` before the gateway reads any state."""
        ...

    @property
    def processes(self) -> int:
        """The number of processes that serve clients on this machine, this one included."""
        ...

    @property
    def has_state(self) -> bool:
        """Whether this process has the gateway's state, its discovery, and the ports for operators and metrics."""
        ...

    @property
    def others(self) -> Others: ...

    @property
    def secret(self) -> bytes | None:
        """The HMAC secret of all processes, once this one is open; used if none is configured. None: there is none."""
        ...

    def make_dispatcher(self, pool: str, make_scheduler: MakeScheduler) -> Dispatcher: ...

    def make_backends(self, specs: Sequence[BackendSpec], pools: Pools) -> BackendPool:
        """The backends, which report their changes to the pools."""
        ...

    async def begin(self, parts: GatewayParts, management: Management) -> None:
        """All parts of the gateway exist, and none serves yet."""
        ...

    def is_ready(self) -> bool:
        """Whether some leader decides on requests, or did so a moment ago."""
        ...

    def cluster_view(self) -> ClusterView:
        """The processes that share the order, as far as this process knows."""
        ...

    def found(self, number: int, urls: frozenset[str]) -> None:
        """The discovery source with this number has found these servers."""
        ...

    def values(self) -> dict[Family, Values]:
        """The metrics of the order."""
        ...

    async def resign(self) -> None:
        """The gateway drains: let another process lead."""
        ...

    async def end(self) -> None:
        """Begin nothing more, because the parts are stopped next."""
        ...

    async def close(self) -> None: ...


def poll_options(config: Config) -> dict[str, Any]:
    """The arguments for a PollLoop, from the configuration."""
    health = config.health
    times = PollTimes(idle_s=health.idle_s, busy_s=health.busy_s, timeout_s=health.timeout_s)
    return {"clock": asyncio.get_running_loop().time, "rng": Random(), "times": times}  # noqa: S311 - jitter


class OwnOrder:
    """The Order of a single process, which decides by its own Schedulers."""

    processes = 1
    has_state = True
    secret = None

    def __init__(self, config: Config, *, wrap_scheduler: Wrap | None = None) -> None:
        """`wrap_scheduler` may wrap the Scheduler of the named pool, for example in a recorder."""
        self._config = config
        self._wrap_scheduler = wrap_scheduler
        self._started_s = time.time()
        self.process = Process()
        self.others = Others(config.cluster.name or socket.gethostname())

    def make_dispatcher(self, pool: str, make_scheduler: MakeScheduler) -> Dispatcher:
        scheduler: ViewedSchedulerProtocol = make_scheduler(pool)
        return Dispatcher(scheduler if self._wrap_scheduler is None else self._wrap_scheduler(pool, scheduler))

    def make_backends(self, specs: Sequence[BackendSpec], pools: Pools) -> BackendPool:
        polls = PollLoop(**poll_options(self._config))
        return BackendPool(specs, polls=polls, on_change=pools.changed, on_load=pools.load_changed)

    async def begin(self, parts: GatewayParts, management: Management) -> None: ...

    def is_ready(self) -> bool:
        return True

    def cluster_view(self) -> ClusterView:
        name = self.others.name
        member = ClusterMember(name, None, MemberRole.LEADER, self._started_s)
        return ClusterView(name, MemberRole.LEADER, name, 0, False, 0, None, (member,))

    def found(self, number: int, urls: frozenset[str]) -> None: ...

    def values(self) -> dict[Family, Values]:
        return {}

    async def resign(self) -> None: ...

    async def end(self) -> None: ...

    async def close(self) -> None: ...
