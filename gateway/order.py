"""Order: what decides on a gateway's requests. OwnOrder: Schedulers of its own do, in the one process that it is.

Where several processes share one order, each is handed its part in it (gateway/shared_order/member_order.py).
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


class Process(Protocol):
    """The role of one process among the processes of a gateway: what the process has and does because of this role."""

    @property
    def listening(self) -> socket.socket | None:
        """A socket that listens for clients already, for several processes."""
        ...

    async def open(self) -> None:
        """Come into the order: the gateway has read no state yet. Raises OSError, ValueError."""
        ...

    async def embedded_engine(self, start: StartEngine) -> BackendSpec:
        """The engine of a gateway without backends: this process's own, which `start` starts, or another's. Raises
        OSError.
        """
        ...

    async def metrics_page(self, metrics: Metrics) -> "web.Response":
        """The metrics of this process, with those of all that it answers for."""
        ...

    async def drained(self) -> None:
        """Wait for the processes that this one serves: the gateway has drained."""
        ...


class LoneProcess:
    """The role of a process that needs no other one, and is needed by none."""

    listening = None

    async def open(self) -> None: ...

    async def embedded_engine(self, start: StartEngine) -> BackendSpec:
        return await start()

    async def metrics_page(self, metrics: Metrics) -> "web.Response":
        return await metrics.page()

    async def drained(self) -> None: ...


class Order(Protocol):
    """The order of a gateway's requests, and this process's part in it. `begin` it when the gateway is put together,
    `end` it before the gateway stops, `close` it when it has.
    """

    @property
    def process(self) -> Process:
        """Open it before the gateway reads any state."""
        ...

    @property
    def processes(self) -> int:
        """That serve on this machine, this one included."""
        ...

    @property
    def has_state(self) -> bool:
        """Whether this process has the gateway's state, its discovery, and the ports for operators and metrics."""
        ...

    @property
    def others(self) -> Others: ...

    @property
    def secret(self) -> bytes | None:
        """Of all its processes, from when this one is open: it counts where none is configured."""
        ...

    def make_dispatcher(self, pool: str, make_scheduler: MakeScheduler) -> Dispatcher: ...

    def make_backends(self, specs: Sequence[BackendSpec], pools: Pools) -> BackendPool:
        """The backends, which tell the pools of their changes."""
        ...

    async def begin(self, parts: GatewayParts, management: Management) -> None:
        """All parts are there, and nothing serves yet."""
        ...

    def is_ready(self) -> bool:
        """Whether it is decided on requests, or was a moment ago."""
        ...

    def cluster_view(self) -> ClusterView:
        """The processes that share the order, as this one knows."""
        ...

    def found(self, number: int, urls: frozenset[str]) -> None:
        """Discovery has found these servers, by the source of this number."""
        ...

    def values(self) -> dict[Family, Values]:
        """What the metrics tell of it."""
        ...

    async def resign(self) -> None:
        """Have another process lead: the gateway drains."""
        ...

    async def end(self) -> None:
        """Begin nothing more: the parts are stopped next."""
        ...

    async def close(self) -> None: ...


def poll_options(config: Config) -> dict[str, Any]:
    """What a PollLoop is made with."""
    health = config.health
    times = PollTimes(idle_s=health.idle_s, busy_s=health.busy_s, timeout_s=health.timeout_s)
    return {"clock": asyncio.get_running_loop().time, "rng": Random(), "times": times}  # noqa: S311 - jitter


class OwnOrder:
    """The order of one process alone, whose own Schedulers decide: there is nothing to open, to close or to ask."""

    processes = 1
    has_state = True
    secret = None

    def __init__(self, config: Config, *, wrap_scheduler: Wrap | None = None) -> None:
        """`wrap_scheduler` may wrap the Scheduler of the named pool, for example in a recorder."""
        self._config = config
        self._wrap_scheduler = wrap_scheduler
        self._started_s = time.time()
        self.process = LoneProcess()
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
