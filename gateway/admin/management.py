"""Management of a running gateway: opens the stored state, and runs the reconciler, peer exchange and admin port."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from dataclasses import dataclass
from functools import partial

from aiohttp import web

from backends.address_allowlist import AddressAllowlist
from backends.pool import BackendPool
from backends.spec import BackendSpec
from gateway.admin.port import AdminPort, Parts
from gateway.admin.reconciler import Reconciler
from gateway.admin.routes import Caller
from gateway.admin.sign_in import caller_of
from gateway.config import Config
from gateway.config.jwt import AdminIssuer
from gateway.config.key_file import make_secret
from gateway.config.scheduling import PoolSettings, Scheduling
from gateway.forwarding.backend_client import BackendClient
from gateway.handlers.handlers import RequestHandlers
from gateway.identity.tokens import Tokens
from gateway.scheduling.pools import Pools
from gateway.scheduling.shared_limits import SharedLimits
from gateway.state.assembly import make_peer_exchange
from gateway.state.budgets import BUDGETED, BudgetLimits, Budgets, limits_of
from gateway.state.checkpoint import Checkpoint
from gateway.state.declaration import Declaration
from gateway.state.discovering import make_source
from gateway.state.key_secret import FingerprintCheck
from gateway.state.learning import Learning
from gateway.state.peer_exchange import Replicas
from gateway.state.registry import Changed, Registry
from gateway.state.resource_kinds import ApiKey
from gateway.state.usage import UsageBook
from gateway.store.base import Store
from policies.types import PeerUse, ReplicaShare, Tier

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Running:
    """The parts of a gateway that a configuration change affects."""

    handlers: RequestHandlers
    pools: Pools
    backends: BackendPool
    backend_clients: MutableMapping[str, BackendClient]
    make_backend_client: Callable[[BackendSpec], BackendClient]
    tiers: MutableMapping[str, Tier]
    shared_limits: SharedLimits


class Management:
    """The managed state of a gateway: registry, usage, budgets, checkpoint, reconciler, peer exchange and admin port.
    Call `open` before the gateway is assembled, `begin` before it serves. Create it on the loop that runs it.
    """

    def __init__(self, config: Config, store: Store) -> None:
        """Raises ValueError where the key file cannot be read, or a discovery source cannot be set up."""
        self._config = config
        self._store = store
        self._declaration = Declaration(config)
        self._sources = [make_source(section) for section in config.discovery]
        self._searches: list[asyncio.Task[None]] = []
        self.registry = Registry(store, self._declaration.declared())
        self.usage = UsageBook(store)
        self._memory = Checkpoint(store) if config.keeps_state else None
        self.budgets = Budgets(self.usage, store, is_shared=config.state.redis is not None)
        self.replicas: Replicas | None = None  # where gateways share their state
        self._is_open = False
        self._fingerprint_check: FingerprintCheck | None = None
        self._reconciler: Reconciler | None = None
        self._port: AdminPort | None = None
        self._running: Running | None = None
        self._tokens: Tokens[AdminIssuer, Caller] | None = None

    async def open(self) -> None:
        """Read the stored state. Raises StateFileError, StoreUnavailable, SecretMismatch; OSError where a secret cannot
        be written.
        """
        if self._config.admin.enabled and self._config.auth.secret is None:
            make_secret(self._config.auth.secret_file)  # for the HMACs of admin keys, which outlive the process
        await self.registry.start()
        self._is_open = True
        secret = self._config.auth.secret_bytes()
        if secret is not None:
            self._fingerprint_check = FingerprintCheck(self._store, secret)
            await self._fingerprint_check.start()
        if self._memory is not None:
            await self._memory.open()
        self.usage.start()
        self._budgets_changed(frozenset((kind, e.name) for kind in BUDGETED for e in self.registry.entries(kind)))
        self.registry.subscribe(self._budgets_changed)
        await self.budgets.start()

    @property
    def has_backends(self) -> bool:
        """Whether backends are configured, or a discovery source may find some."""
        return bool(self._sources or self.registry.entries("backends"))

    def scheduling_of(self, pool: str) -> Scheduling:
        """The current scheduling settings of this pool."""
        config = self._declaration.config
        scheduling, entry = config.scheduling_of(pool), self.registry.get("pools", pool)
        if entry is None or entry.origin == "declared":
            return scheduling
        assert isinstance(entry.section, PoolSettings), "an entry is of its kind"
        # The admin API's settings of a pool override the file's settings of it as a whole.
        return config.scheduling.overridden_by(entry.section.scheduling)

    def begin(self, running: Running) -> None:
        """Start the reconciler, the checkpoint and the discovery sources over these parts."""
        self._running = running
        if self._memory is not None:
            handlers = running.handlers
            self._memory.start(
                Learning(running.pools, running.backends, handlers.prompt_tokens, lambda: handlers.is_serving)
            )
        self._reconciler = Reconciler(
            self.registry,
            handlers=running.handlers,
            pools=running.pools,
            backends=running.backends,
            backend_clients=running.backend_clients,
            make_backend_client=running.make_backend_client,
            tiers=running.tiers,
            address_allowlist=self._address_allowlist(),
            folder=self._config.folder,
            scheduling_of=self.scheduling_of,
        )
        self._reconciler.start()
        self._searches = [
            asyncio.create_task(source.watch(partial(self._found, number)))
            for number, source in enumerate(self._sources)
        ]

    async def meet(self) -> None:
        """Start the peer exchange, where replicas share their state, before the gateway serves."""
        peer_exchange, running = make_peer_exchange(self._config.state), self._running
        if peer_exchange is None:
            return
        assert running is not None, "begun before it meets"
        self.replicas = Replicas(
            peer_exchange,
            limits=running.shared_limits,
            budgets=self.budgets,
            writer=self.usage.writer,
            on_share=self._shared,
        )
        await self.replicas.start()

    def _shared(self, share: ReplicaShare, peers: Mapping[str, PeerUse]) -> None:
        assert self._running is not None, "begun before it meets"
        assert self._reconciler is not None, "begun before it meets"
        self._reconciler.shared(share)
        self._running.pools.shared(share, peers)

    def reload(self, config: Config) -> None:
        """Apply a reloaded configuration file, and log the settings that wait for the next start. Raises ValueError."""
        assert self._reconciler is not None, "begun before it serves"
        before = self._declaration.config.scheduling
        late = self._declaration.read_anew(config)
        self.registry.redeclare(self._declaration.declared())
        if config.scheduling != before:
            self._reconciler.scheduling_changed()
        if late:
            log.warning("the configuration is in force, but for what waits for the next start: %s", ", ".join(late))
        else:
            log.info("the configuration is in force")

    def _budgets_changed(self, changed: Changed) -> None:
        for kind, name in changed:
            entry = self.registry.get(kind, name) if kind in BUDGETED else None
            section = None if entry is None else entry.section
            if limits_of(section) != BudgetLimits() and not self._config.keeps_state:
                log.warning(
                    "%s %s has a budget, which is kept from the next start on: usage is not counted", kind, name
                )
            if kind == "tenants":
                self.budgets.put((name, ""), limits_of(section))
            elif isinstance(section, ApiKey) and section.tenant is not None:
                self.budgets.put((section.tenant, name), limits_of(section))
            elif kind == "keys":
                self.budgets.forget_key(name)

    def _found(self, number: int, urls: frozenset[str]) -> None:
        self._declaration.found(number, urls)
        self.registry.redeclare(self._declaration.declared())

    async def serve(self, render_metrics: Callable[[], Awaitable[web.Response]] | None = None) -> str | None:
        """Start the admin port, if enabled; return its URL. Raises OSError, ValueError."""
        admin, auth = self._config.admin, self._config.auth
        if not admin.enabled:
            return None
        assert self._running is not None, "begun before it serves"
        assert self._reconciler is not None, "begun before it serves"
        secret = auth.secret_bytes()
        assert secret is not None, "made when it was opened"
        parts = Parts(
            registry=self.registry,
            store=self._store,
            pools=self._running.pools,
            budgets=self.budgets,
            backends=self._running.backends,
            in_force=self._reconciler,
            address_allowlist=self._address_allowlist(),
            tenant_keys=self._running.handlers.keys,
            clock=asyncio.get_running_loop().time,
        )
        self._tokens = Tokens(self._config.jwt.admin, caller_of)
        await self._tokens.start()
        self._port = AdminPort(admin, parts, secret=secret, tokens=self._tokens, render_metrics=render_metrics)
        return await self._port.start()

    async def stop(self) -> None:
        """Write the checkpoint before requests are disconnected, leave the peer exchange, and stop all further
        changes.
        """
        if self._memory is not None:
            await self._memory.stop()
        if self.replicas is not None:
            await self.replicas.stop()
        for search in self._searches:
            search.cancel()
        await asyncio.gather(*self._searches, return_exceptions=True)
        if self._port is not None:
            await self._port.stop()
        if self._reconciler is not None:
            await self._reconciler.stop()
        if self._tokens is not None:
            await self._tokens.stop()

    async def close(self) -> None:
        """Write usage and budgets, and close the store. Call it once nothing runs any more."""
        if self._fingerprint_check is not None:
            await self._fingerprint_check.stop()
        if self._is_open:
            await self.budgets.stop()
            await self.usage.stop()
            await self.registry.stop()

    def _address_allowlist(self) -> AddressAllowlist:
        return AddressAllowlist(self._config.admin.backend_networks)
