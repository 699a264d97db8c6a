"""Pools: all pools of one gateway, each with its Dispatcher.

A pool's Scheduler is made when a backend of the pool is first seen, and lives as long as the gateway, because it holds
the tenants' counters of that pool. Updates about backends are coalesced. A measurement of one backend, of which there
are several a second, goes to its own pool alone, and changes no route.
"""

import asyncio
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

from backends.pool import BackendPool
from gateway.scheduling.dispatcher import Dispatcher
from gateway.scheduling.routes import Routes
from policies.accounts.checkpoint import ServiceCheckpoint
from policies.facts import LoadChanged, PolicyChanged, Restored, TenantsChanged
from policies.types import Group, PolicyChoice, Snapshot, Tenant, TenantView, Tier


class Pools:
    """All pools of one gateway. Mutable; used on the gateway's loop."""

    def __init__(self, make_dispatcher: Callable[[str], Dispatcher]) -> None:
        """`make_dispatcher` is called with the name of each new pool."""
        self._make_dispatcher = make_dispatcher
        self._dispatchers: dict[str, Dispatcher] = {}
        self._backends: BackendPool
        self.routes: Routes
        self._updating = False
        self._measured: dict[str, None] = {}  # backends with a new measurement, in order
        self._is_other = False  # whether the backends, or their models, have changed
        self._tiers: dict[str, Tier] = {}  # tiers added or changed since the start
        self._tiers_removed: set[str] = set()
        self._groups: dict[str, Group] = {}
        self._groups_removed: set[str] = set()
        self._checkpoint_of: Callable[[str], ServiceCheckpoint | None] = lambda _pool: None

    def watch(self, backends: BackendPool) -> None:
        """Use these backends. The caller reports their changes with `changed` and `load_changed`."""
        self._backends = backends
        self.routes = Routes(backends, self._dispatcher)

    def remember(self, checkpoint_of: Callable[[str], ServiceCheckpoint | None]) -> None:
        """Restore each new pool from its checkpoint, where `checkpoint_of` has one."""
        self._checkpoint_of = checkpoint_of

    def checkpoint_of(self, pool: str) -> ServiceCheckpoint | None:
        """What each new pool is restored from."""
        return self._checkpoint_of(pool)

    def changed_settings(self, now: float) -> TenantsChanged:
        """The tiers and groups that were added, changed or removed since the start."""
        return TenantsChanged(
            now,
            tiers=tuple(self._tiers.values()),
            tiers_removed=tuple(self._tiers_removed),
            groups=tuple(self._groups.values()),
            groups_removed=tuple(self._groups_removed),
        )

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
        return any(dispatcher.busy for dispatcher in self._dispatchers.values())

    def close(self) -> None:
        """Reject all queued and later requests, for good."""
        for dispatcher in self._dispatchers.values():
            dispatcher.close()

    def forget_if_idle(self, tenant_id: str) -> bool:
        """Forget a tenant in all pools, unless it has a request queued or in flight. Return whether it is forgotten."""
        if any(dispatcher.serves(tenant_id) for dispatcher in self._dispatchers.values()):
            return False
        for dispatcher in self._dispatchers.values():
            dispatcher.forget(tenant_id)
        return True

    def tenant_changed(self, tenant: Tenant) -> None:
        """Apply changed settings of a tenant in all pools, also to its queued requests."""
        for dispatcher in self._dispatchers.values():
            dispatcher.tenant_changed(tenant)

    def tiers_changed(self, tiers: Sequence[Tier]) -> None:
        """Add tiers, or apply their changed settings, in all present and later pools."""
        self._tiers |= {tier.id: tier for tier in tiers}
        self._tiers_removed -= {tier.id for tier in tiers}
        for dispatcher in self._dispatchers.values():
            dispatcher.told(TenantsChanged(dispatcher.now(), tiers=tuple(tiers)))

    def tiers_removed(self, tier_ids: Collection[str]) -> None:
        """Remove tiers. In every pool a tier goes when the last of its tenants has gone."""
        self._tiers = {tier_id: tier for tier_id, tier in self._tiers.items() if tier_id not in tier_ids}
        self._tiers_removed |= set(tier_ids)
        for dispatcher in self._dispatchers.values():
            dispatcher.told(TenantsChanged(dispatcher.now(), tiers_removed=tuple(tier_ids)))

    def groups_changed(self, groups: Sequence[Group], removed: Collection[str] = ()) -> None:
        """Add groups, apply their changed settings, or remove them, in all present and later pools."""
        self._groups |= {group.id: group for group in groups}
        self._groups = {group_id: group for group_id, group in self._groups.items() if group_id not in removed}
        self._groups_removed = (self._groups_removed | set(removed)) - {group.id for group in groups}
        for dispatcher in self._dispatchers.values():
            changes = TenantsChanged(dispatcher.now(), groups=tuple(groups), groups_removed=tuple(removed))
            dispatcher.told(changes)

    def forget(self, tenant_id: str) -> None:
        """Forget a tenant in all pools: its queued requests are rejected, what runs goes on."""
        for dispatcher in self._dispatchers.values():
            dispatcher.forget(tenant_id)

    def policy_changed(self, pool: str, choices: Mapping[str, PolicyChoice]) -> None:
        """Replace policies of the pool, by kind. No effect on a pool that does not exist yet: it is made with its
        configuration. Raises ValueError for an unknown policy.
        """
        dispatcher = self._dispatchers.get(pool)
        if dispatcher is not None:
            dispatcher.told(PolicyChanged(dispatcher.now()).but(**choices))

    def overviews(self) -> Mapping[str, Snapshot]:
        """Snapshots without tenants, whose cost does not grow with the number of tenants."""
        return {pool: dispatcher.snapshot(()) for pool, dispatcher in self._dispatchers.items()}

    def views(self, pool: str, tenant_ids: Iterable[str]) -> Mapping[str, TenantView]:
        """Those of these tenants that the pool knows; empty where there is no such pool."""
        dispatcher = self._dispatchers.get(pool)
        return {} if dispatcher is None else dispatcher.snapshot(tenant_ids).tenants

    def tenant_ids(self) -> Mapping[str, list[str]]:
        """The tenants that each pool knows, sorted."""
        return {
            pool: sorted(tenant.id for tenant in self._dispatchers[pool].tenants())
            for pool in sorted(self._dispatchers)
        }

    def runs_at(self, backend_id: str) -> bool:
        """Whether a backend runs a request of this gateway."""
        views = (snapshot.backends.get(backend_id) for snapshot in self.overviews().values())
        return any(view is not None and view.in_flight_requests for view in views)

    def dispatchers(self) -> Mapping[str, Dispatcher]:
        return self._dispatchers

    def snapshots(self) -> Mapping[str, Snapshot]:
        return {pool: dispatcher.snapshot() for pool, dispatcher in self._dispatchers.items()}

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
        dispatcher = self._dispatchers.get(pool)
        if dispatcher is None:
            dispatcher = self._dispatchers[pool] = self._make_dispatcher(pool)
            now = dispatcher.now()
            dispatcher.told(self.changed_settings(now))  # since the configuration at the start
            dispatcher.told(LoadChanged(now, self._backends.loads_of(pool)))
            checkpoint = self._checkpoint_of(pool)
            if checkpoint is not None:
                dispatcher.told(Restored(now, checkpoint))
        return dispatcher
