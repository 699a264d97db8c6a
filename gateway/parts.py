"""GatewayParts: the parts of an assembled gateway, for the code that changes them while it runs. OperatorParts: the
parts that the admin port shows.
"""

from collections.abc import Callable, MutableMapping, Sequence
from dataclasses import dataclass

from backends.pool import BackendPool
from gateway.forwarding.backend_client import BackendClients
from gateway.handlers.handlers import RequestHandlers
from gateway.live.history.history import HistoryReader
from gateway.live.live import Live
from gateway.observability.metrics.page import Metrics
from gateway.observability.telemetry import CallObserver
from gateway.scheduling.pools import Pools
from gateway.steering.steering import Steering
from policies.scheduler_protocol import SharedSchedulerProtocol
from policies.types import Group, Tier


@dataclass(frozen=True, slots=True)
class OperatorParts:
    """The parts by which operators see and steer a gateway: the live page, the history, and single requests."""

    live: Live
    history: HistoryReader
    steering: Steering

    @property
    def meters(self) -> Sequence[CallObserver]:
        """The observers that get every ended call."""
        return (self.live.ended, self.history.recorder, *self.steering.meters)

    async def stop(self) -> None:
        await self.live.feed.stop()
        await self.steering.stop()


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayParts:
    """The parts of an assembled gateway. `tiers` and `groups` are live: each look-up sees the present ones.
    `make_scheduler` makes the Scheduler of a pool by the present settings.
    """

    handlers: RequestHandlers
    pools: Pools
    backends: BackendPool
    clients: BackendClients
    metrics: Metrics
    tiers: MutableMapping[str, Tier]
    groups: MutableMapping[str, Group]
    make_scheduler: Callable[[str], SharedSchedulerProtocol]
    operators: OperatorParts | None  # None without an admin port
