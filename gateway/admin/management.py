"""Management: the stored state of a gateway."""

import socket
from collections.abc import Callable
from typing import TYPE_CHECKING

from gateway.admin.reconciler import BudgetReconciler
from gateway.budgets.budgets import Budgets
from gateway.budgets.claims import BudgetClaims
from gateway.budgets.money.pricing import PriceBook
from gateway.budgets.notices.assembly import BudgetNotices
from gateway.budgets.usage import CallPricing, UsageBook
from gateway.config import Config
from gateway.config.key_file import make_secret
from gateway.config.scheduling import PoolSettings, Scheduling
from gateway.identity.key_secret import FingerprintCheck
from gateway.others import Others
from gateway.registry.declaration import Declaration
from gateway.registry.registry import Registry
from gateway.scheduling.checkpoint.checkpoint import Checkpoint, Learning
from gateway.store.base import Store

if TYPE_CHECKING:  # loaded only where the admin port or discovery is on
    from backends.discovery import Source


class Management:
    """The managed state of a gateway: registry, usage, budgets, prices and checkpoint. Create it on the loop that runs
    it. Call `open` before the gateway is assembled, and `close` after all other parts have stopped.
    """

    def __init__(
        self,
        config: Config,
        store: Store,
        *,
        has_state: bool,
        others: Others,
        on_found: Callable[[int, frozenset[str]], None],
    ) -> None:
        """`has_state`: this process has the state, discovers backends and serves the admin API. Other processes run
        without these parts, and apply the state that this one sends. `on_found` is told of the servers that a discovery
        source has found, by its number. Raises ValueError where the key file cannot be read, or a source cannot be set
        up.
        """
        self._config = config
        self.store = store
        self.others = others
        self.has_state = has_state
        self._on_found = on_found
        self._declaration = Declaration(config)
        self.sources = _discovery_sources(config) if has_state else []
        """The sources of discovery; what each finds is passed to `found`."""
        self.registry = Registry(
            store, self._declaration.declared(), replica=config.cluster.name or socket.gethostname()
        )
        self.usage = UsageBook(store)
        self._memory = Checkpoint(store) if config.keeps_state and has_state else None
        self.prices = PriceBook()
        self.pricing = CallPricing(self.prices, self.usage.today)
        is_shared = config.state.redis is not None or config.workers != 1
        self.budgets = Budgets(self.usage, store, is_shared=is_shared, prices=self.prices)
        self.claims = BudgetClaims(self.budgets, self.usage.writer, others)
        self.notices: BudgetNotices | None = None  # from `open` on, in the process that has the state
        self._writes_learnt = not config.is_clustered  # in a cluster its leader does
        self._is_open = False
        self._fingerprint_check: FingerprintCheck | None = None

    async def open(self) -> None:
        """Read the stored state. Raises StateFileError, StoreUnavailable, SecretMismatch; OSError where a secret cannot
        be written.
        """
        make_admin_secret(self._config)
        await self.registry.start()
        self._is_open = True
        secret = self._config.auth.secret_bytes()
        if secret is not None and self.has_state:
            self._fingerprint_check = FingerprintCheck(self.store, secret)
            await self._fingerprint_check.start()
        if self._memory is not None:
            await self._memory.open()
        self.usage.start()
        reconciler = BudgetReconciler(self.registry, self.budgets, keeps_state=self._config.keeps_state)
        await reconciler.start(recalls_deleted=self.has_state)
        await self.budgets.start()
        if self.has_state:
            self.notices = BudgetNotices(
                self._config.budgets,
                self.budgets,
                self.store,
                replica=self._config.cluster.name or socket.gethostname(),
                place=str(self._config.state.file or self._config.folder),
            )
            self.notices.start()

    @property
    def keeps_state(self) -> bool:
        """Whether usage is counted and stored."""
        return self._config.keeps_state

    @property
    def has_backends(self) -> bool:
        """Whether backends are configured, or a discovery source may find some."""
        return bool(self._config.discovery or self.registry.entries("backends"))

    def scheduling_of(self, pool: str) -> Scheduling:
        """The current scheduling settings of this pool."""
        config = self._declaration.config
        scheduling, entry = config.scheduling_of(pool), self.registry.get("pools", pool)
        if entry is None or entry.origin == "declared":
            return scheduling
        # The admin API's settings of a pool override the file's settings of it as a whole.
        return config.scheduling.overridden_by(entry.of(PoolSettings).scheduling)

    def learn(self, learning: Learning) -> None:
        """Restore the checkpoint, and write it from time to time."""
        if self._memory is not None:
            self._memory.start(learning)
            self._memory.is_writing = self._writes_learnt

    async def stop_learning(self) -> None:
        """Write the checkpoint for the last time. Call it before requests are disconnected."""
        if self._memory is not None:
            await self._memory.stop()

    async def lead(self, *, is_leading: bool) -> None:
        """Set whether this process leads, where one order is shared. The leader writes the checkpoint; a new leader
        first reads the checkpoint of the earlier one.
        """
        self._writes_learnt = is_leading
        if self._memory is not None:
            if is_leading and self._config.is_clustered:
                await self._memory.read_anew()
            self._memory.is_writing = self._writes_learnt

    async def write_learnt(self) -> None:
        """Write the checkpoint now, if this process writes it."""
        if self._memory is not None:
            await self._memory.try_write()

    def declare(self, config: Config) -> list[str]:
        """Apply the file's declarations. Returns the settings that wait for the next start. Raises ValueError."""
        late = self._declaration.read_anew(config)
        self.registry.redeclare(self._declaration.declared())
        return late

    @property
    def scheduling(self) -> Scheduling:
        """The scheduling settings of the file, which all pools have by default."""
        return self._declaration.config.scheduling

    def found(self, number: int, urls: frozenset[str]) -> None:
        """Apply the servers that this discovery source has found, here or in the leading process."""
        self._on_found(number, urls)
        self._declaration.found(number, urls)
        self.registry.redeclare(self._declaration.backends())

    async def close(self) -> None:
        """Write usage and budgets, and close the store."""
        if self._fingerprint_check is not None:
            await self._fingerprint_check.stop()
        if self.notices is not None:
            await self.notices.stop()
        if self._is_open:
            await self.budgets.stop()
            await self.usage.stop()
            await self.registry.stop()


def _discovery_sources(config: Config) -> "list[Source]":
    """The configured sources of discovery. Raises ValueError where one cannot be set up."""
    if not config.discovery:
        return []
    from gateway.registry.discovering import make_source  # noqa: PLC0415 - loaded only where it is on

    return [make_source(section) for section in config.discovery]


def make_admin_secret(config: Config) -> None:
    """Create the secret for HMACs of admin keys, if it is missing. It outlives the process. May raise OSError."""
    if config.admin.enabled and config.auth.secret is None:
        make_secret(config.auth.secret_file)
