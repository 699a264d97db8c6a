"""Operators: connects the views and tools of operators with the parts of an assembled gateway."""

import time
from functools import partial
from importlib import metadata

from gateway.admin.management import Management
from gateway.config import Config
from gateway.embedded_engine import EmbeddedEngine
from gateway.live.document import Sources
from gateway.live.ended import EndedEverywhere
from gateway.live.schema import LivePageGateway
from gateway.order import Order
from gateway.parts import GatewayParts, OperatorParts
from gateway.steering.demo import Demo, DemoTarget
from gateway.steering.trials import Trials


class OperatorSources:
    """The parts of an assembled gateway that the operators' tools need; `connect` hands them over. The tools are the
    live document (the data of the live page), the demo, and trial calls (an operator sends a prompt as a chosen
    tenant).
    """

    def __init__(
        self, config: Config, order: Order, engine: EmbeddedEngine, management: Management, parts: GatewayParts
    ) -> None:
        self._config, self._order, self._engine = config, order, engine
        self._management, self._parts = management, parts

    def connect(self, operators: OperatorParts) -> None:
        parts, management = self._parts, self._management
        trials = Trials(
            parts.handlers.server,
            parts.handlers.auth.beside,
            operators.steering.ended.by_id.get,
            tenant_is_model=self._config.auth.tenant_from == "model",
        )
        demo = Demo(management.registry, trials, self._demo_target)
        operators.live.connect(
            lambda: parts.pools.dispatchers if self._order.others.is_leading else {},  # that run in this process
            parts.metrics.schedulers.look,
            partial(self._live_sources, demo),
        )
        operators.steering.connect(
            parts.pools,
            parts.handlers.active,
            registry=management.registry,
            sections_of=lambda pool: {"scheduling": management.scheduling_of(pool), "queue": self._config.queue},
            demo=demo,
            trials=trials,
        )

    def _demo_target(self) -> DemoTarget | None:
        """The embedded engine, where it answers and is the engine of this process alone."""
        config = self._config
        if not self._engine.is_running or config.is_clustered or config.workers != 1:
            return None
        return DemoTarget(model=config.engine.model, requests_max=config.engine.requests_running_max)

    def _live_sources(self, demo: Demo, ended: EndedEverywhere) -> Sources:
        parts = self._parts
        return Sources(
            gateway=partial(self._live_gateway, demo),
            cluster=self._order.cluster_view,
            policy_of=lambda pool: self._management.scheduling_of(pool).fairness.policy,
            tiers=parts.tiers,
            groups=parts.groups,
            find_tenant=parts.handlers.tenants.find,
            backends=parts.backends,
            gaps=parts.metrics.schedulers.gaps,
            pace_of=parts.clients.measured_pace,
            ended=ended,
            wall_clock=time.time,
        )

    def _live_gateway(self, demo: Demo) -> LivePageGateway:
        """What the live document says of this process."""
        view = self._order.cluster_view()
        return LivePageGateway(
            name=view.name,
            version=metadata.version("fairlead"),
            role=view.role,
            embedded_engine=self._engine.is_running,
            demo=demo.is_running if demo.target() is not None else None,
        )
