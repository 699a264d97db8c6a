"""Pools: all pools of one gateway, each with its Dispatcher.

A pool's Scheduler is made when a backend of the pool is first seen, and lives as long as the gateway, because it holds
the tenants' counters of that pool. Updates about backends are coalesced. A measurement of one backend (there are
several per second) goes only to its own pool, and changes no route.
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping

from backends.pool import BackendPool
from gateway.scheduling.dispatcher import Dispatcher
from gateway.scheduling.live_settings import LiveSettings
from gateway.scheduling.routes import Routes
from policies.accounts.checkpoint import ServiceCheckpoint
from policies.facts import LoadChanged, Restored
from policies.types import BackendView, Snapshot, TenantView


class Pools:
    """The pools of one gateway, each with its Dispatcher. Mutable; used on the gateway's loop."""

    def __init__(self, make_dispatcher: Callable[[str], Dispatcher]) -> None:
        """`make_dispatcher` is called with the name of each new pool."""
        self._make_dispatcher = make_dispatcher
        self.dispatchers: dict[str, Dispatcher] = {}
        """By pool, to read only."""
        self._backends: BackendPool
        self.routes: Routes
        self._updating = False
        self._measured: dict[str, None] = {}  # backends with a new measurement, in order
        self._is_other = False  # whether the backends, or their models, have changed
        self.settings = LiveSettings(self.dispatchers)
        self.checkpoint_of: Callable[[str], ServiceCheckpoint | None] = lambda _pool: None
        """The checkpoint from which a pool is restored when it is new; None: it has none."""

    def watch(self, backends: BackendPool) -> None:
        """Use these backends. The caller reports their changes with `changed` and `load_changed`."""
        self._backends = backends
        self.routes = Routes(backends, self._dispatcher)

    def changed(self) -> None:
        """The set of backends, or the models that they serve, has changed."""
        self.routes.changed()
        self._is_other = True
        self._update_soon()

    def load_changed(self, backend_id: str) -> None:
        """A backend has a new measurement."""
        self._measured[backend_id] = None
        self._update_soon()

    def busy(self) -> bool:
        """Whether any request holds a lease."""
        return any(dispatcher.leases for dispatcher in self.dispatchers.values())

    def close(self) -> None:
        """Reject all queued and later requests, for good."""
        for dispatcher in self.dispatchers.values():
            dispatcher.close()

    def overviews(self) -> Mapping[str, Snapshot]:
        """Snapshots without tenants, whose cost does not grow with the number of tenants."""
        return {pool: dispatcher.snapshot(()) for pool, dispatcher in self.dispatchers.items()}

    def views(self, pool: str, tenant_ids: Iterable[str]) -> Mapping[str, TenantView]:
        """The views of those of these tenants that the pool knows; empty where there is no such pool."""
        dispatcher = self.dispatchers.get(pool)
        return {} if dispatcher is None else dispatcher.snapshot(tenant_ids).tenants

    def tenant_ids(self) -> Mapping[str, list[str]]:
        """The tenants that each pool knows, sorted."""
        return {
            pool: sorted(tenant.id for tenant in self.dispatchers[pool].tenants()) for pool in sorted(self.dispatchers)
        }

    def backend_view(self, backend_id: str) -> BackendView | None:
        """The view of the backend in its pool; None: it is in no pool."""
        views = (snapshot.backends.get(backend_id) for snapshot in self.overviews().values())
        return next((view for view in views if view is not None), None)

    def _update_soon(self) -> None:
        if not self._updating:
            self._updating = True
            asyncio.get_running_loop().call_soon(self._update)

    def _update(self) -> None:
        self._updating = False
        measured, self._measured = self._measured, {}
        if self._is_other:
            self._is_other = False
            for pool in self._backends.loads():
                dispatcher = self._dispatcher(pool)
                dispatcher.told(LoadChanged(dispatcher.now(), self._backends.loads_of(pool)))
            return
        for backend_id in measured:
            of = self._backends.catalog.pool_of_backend(backend_id)
            if of is not None:  # otherwise it is in no pool yet, or no longer
                self._dispatcher(of).measured(self._backends.load(backend_id))

    def _dispatcher(self, pool: str) -> Dispatcher:
        dispatcher = self.dispatchers.get(pool)
        if dispatcher is None:
            dispatcher = self.dispatchers[pool] = self._make_dispatcher(pool)
            now = dispatcher.now()
            dispatcher.told(self.settings.changed(now))  # since the configuration at the start
            dispatcher.told(LoadChanged(now, self._backends.loads_of(pool)))
            checkpoint = self.checkpoint_of(pool)
            if checkpoint is not None:
                dispatcher.told(Restored(now, checkpoint))
        return dispatcher
