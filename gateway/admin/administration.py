"""Administration: the parts that change a running gateway to match its stored state (management.py)."""

import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

from backends.address_allowlist import AddressAllowlist
from gateway.admin.management import Management
from gateway.admin.reconciler import Reconciler
from gateway.config import Config
from gateway.config.jwt import AdminIssuer
from gateway.config.trial import admin_ports
from gateway.live.schema import ClusterView
from gateway.parts import GatewayParts
from gateway.scheduling.checkpoint.checkpoint import Learning
from gateway.store.base import StoreUnavailable
from gateway.tasks import Tasks

if TYPE_CHECKING:  # loaded only where the admin port is on
    from aiohttp import web

    from gateway.admin.port import AdminPort, Parts
    from gateway.admin.routes import Caller
    from gateway.identity.tokens import Tokens

log = logging.getLogger(__name__)


class Administration:
    """The parts of a gateway that change it while it runs: the reconciler (which applies the registry), discovery and
    the admin port.
    """

    def __init__(
        self, config: Config, management: Management, parts: GatewayParts, cluster_view: Callable[[], ClusterView]
    ) -> None:
        self._config, self._parts, self._cluster_view = config, parts, cluster_view
        self.management = management
        self._address_allowlist = AddressAllowlist(config.admin.backend_networks)
        self._reconciler = Reconciler(
            management.registry,
            parts,
            address_allowlist=self._address_allowlist,
            folder=config.folder,
            scheduling_of=management.scheduling_of,
        )
        self._searches = Tasks()
        self._port: AdminPort | None = None  # while it is open
        self._tokens: Tokens[AdminIssuer, Caller] | None = None
        management.others.services["view"] = self._view

    def start(self) -> None:
        """Start the checkpoint, the reconciler and the discovery sources."""
        parts, handlers = self._parts, self._parts.handlers
        self.management.learn(
            Learning(parts.pools, parts.backends, handlers.prompt_tokens, lambda: handlers.is_serving)
        )
        self._reconciler.start()
        for number, source in enumerate(self.management.sources):
            self._searches.start(source.watch(partial(self.management.found, number)))

    def reload(self, config: Config) -> None:
        """Apply a reloaded configuration file, and log the settings that wait for the next start. Raises ValueError."""
        before = self.management.scheduling
        late = self.management.declare(config)
        if config.scheduling != before:
            self._reconciler.scheduling_changed()
        if late:
            log.warning("the configuration is in force, but for what waits for the next start: %s", ", ".join(late))
        else:
            log.info("the configuration is in force")

    async def serve(self, render_metrics: "Callable[[], Awaitable[web.Response]]") -> str | None:
        """Start the admin port, if enabled; return its URL. Raises OSError, ValueError."""
        operators, secret = self._parts.operators, self._config.auth.secret_bytes()
        if operators is None or secret is None or not self.management.has_state:
            return None
        from gateway.admin.port import Parts  # noqa: PLC0415 - it takes a tenth of the time of a start

        parts = Parts(
            management=self.management,
            gateway=self._parts,
            operators=operators,
            in_force=self._reconciler,
            address_allowlist=self._address_allowlist,
            cluster_view=self._cluster_view,
            ask_leader=self._ask_leader,
        )
        await self._start_tokens()
        *others, last = admin_ports(self._config)
        for port in others:
            with suppress(OSError):
                return await self._open_port(port, parts, secret, render_metrics)
        return await self._open_port(last, parts, secret, render_metrics)

    async def _start_tokens(self) -> None:
        """Start verifying tokens for the admin port, if it has issuers."""
        if self._config.jwt.admin:
            from gateway.admin.access.sign_in import caller_of  # noqa: PLC0415 - a tenth of the time of a start
            from gateway.identity.tokens import Tokens  # noqa: PLC0415

            self._tokens = Tokens(self._config.jwt.admin, caller_of)
            await self._tokens.start()

    async def _open_port(
        self, port: int, parts: "Parts", secret: bytes, render_metrics: "Callable[[], Awaitable[web.Response]]"
    ) -> str:
        from gateway.admin.port import AdminPort  # noqa: PLC0415

        opened = AdminPort(
            self._config.admin.model_copy(update={"port": port}),
            parts,
            secret=secret,
            tokens=self._tokens,
            render_metrics=render_metrics,
            has_first_key=not self._config.is_trial,
        )
        try:
            url = await opened.start()
        except OSError:
            await opened.stop()
            raise
        self._port = opened
        return url

    def make_link(self) -> str | None:
        """The token of a new one-time link, for the role admin; None where the admin port is not open."""
        return None if self._port is None else self._port.make_link()

    async def _view(self, target: bytes) -> bytes:
        """The live view at this path and query, as JSON, for a process that follows this one."""
        if self._port is None or not self.management.others.is_leading:
            raise StoreUnavailable("this process does not lead, or its admin port is not open")
        return await self._port.server.answer_peer(target.decode())

    async def _ask_leader(self, target: str) -> bytes | None:
        """The view of the process that leads; None: this one does. Raises StoreUnavailable."""
        others = self.management.others
        return None if others.is_leading else await others.ask_leader("view", target.encode())

    async def stop(self) -> None:
        """Write the checkpoint (call this before requests are disconnected), and stop all further changes."""
        await self.management.stop_learning()
        await self._searches.cancel()
        if self._port is not None:
            await self._port.stop()
        await self._reconciler.stop()
        if self._tokens is not None:
            await self._tokens.stop()
