"""Pools: all pools of one gateway, and the route from a model's name to the Dispatcher of its pool.

A pool's Scheduler is made when a backend of the pool is first seen, and lives as long as the gateway, because it holds
the tenants' counters of that pool. Updates about backends are coalesced. A measurement of one backend, of which there
are several a second, goes to its own pool alone, and changes no route.
"""

import asyncio
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace

from backends.catalog import ModelCard
from backends.pool import BackendPool
from gateway.scheduling.dispatcher import Dispatcher
from policies.accounts.checkpoint import ServiceCheckpoint
from policies.types import (
    ALONE,
    NO_PEERS,
    BackendLoad,
    PeerUse,
    PolicyChoice,
    ReplicaShare,
    Snapshot,
    Tenant,
    TenantView,
    Tier,
)


class Pools:
    """All pools of one gateway. Mutable; used on the gateway's loop."""

    def __init__(self, make_dispatcher: Callable[[str], Dispatcher]) -> None:
        """`make_dispatcher` is called with the name of each new pool."""
        self._make_dispatcher = make_dispatcher
        self._dispatchers: dict[str, Dispatcher] = {}
        self._backends: BackendPool
        self._updating = False
        self._measured: dict[str, None] = {}  # backends with a new measurement, in order
        self._is_other = False  # whether the backends, their models or the shares have changed
        self._tiers: dict[str, Tier] = {}  # tiers added or changed since the start
        self._tiers_removed: set[str] = set()
        self._checkpoint_of: Callable[[str], ServiceCheckpoint | None] = lambda _pool: None
        self._share: ReplicaShare = ALONE  # of the backends' capacity
        self._peers: Mapping[str, PeerUse] = {}  # by backend
        # By model: caches of `find` and `holders` until the backends change.
        self._routes: dict[str, tuple[Dispatcher, ModelCard]] = {}
        self._holders: dict[str, frozenset[str] | None] = {}

    def watch(self, backends: BackendPool) -> None:
        """Use these backends. The caller reports their changes with `changed` and `load_changed`."""
        self._backends = backends

    def remember(self, checkpoint_of: Callable[[str], ServiceCheckpoint | None]) -> None:
        """Restore each new pool from its checkpoint, where `checkpoint_of` has one."""
        self._checkpoint_of = checkpoint_of

    def changed(self) -> None:
        """The set of backends, or the models that they serve, has changed."""
        self._routes.clear()
        self._holders.clear()
        self._is_other = True
        self._update_soon()

    def load_changed(self, backend_id: str) -> None:
        """A backend has a new measurement."""
        self._measured[backend_id] = None
        self._update_soon()

    def shared(self, share: ReplicaShare, peers: Mapping[str, PeerUse]) -> None:
        """Set this replica's share of every backend, and what the other replicas use there, by backend."""
        before, self._share, self._peers = (self._share, self._peers), share, peers
        if share != before[0]:
            self._is_other = True
        else:
            moved = [each for each in peers.keys() | before[1].keys() if peers.get(each) != before[1].get(each)]
            self._measured |= dict.fromkeys(moved)
        self._update_soon()

    def find(self, model: str | None) -> tuple[Dispatcher, ModelCard] | None:
        """The dispatcher and the card of this model, None where no backend has it. None as the model means the only
        base model, as in vLLM.
        """
        route = self._routes.get(model) if model is not None else None
        if route is not None:
            return route
        card = self._backends.model_card(model) if model is not None else self._only_model()
        if card is None:
            return None
        pool = self._backends.pool_of(card.id)
        assert pool is not None, "a model is known from a backend, and every backend has a pool"
        route = self._dispatcher(pool), card
        if model is not None:
            self._routes[model] = route
        return route

    def any(self) -> tuple[Dispatcher, ModelCard] | None:
        """The route to some pool, for calls that do not depend on the model: an available one where there is one."""
        well = [pool for pool, loads in self._backends.loads().items() if any(load.available for load in loads)]
        cards = [card for entry in self._backends.models() if (card := self._backends.model_card(entry["id"]))]
        cards.sort(key=lambda card: self._backends.pool_of(card.id) not in well)
        return self.find(cards[0].id) if cards else None

    def holders(self, model: str) -> frozenset[str] | None:
        """The backends of its pool that have this model (an adapter may be loaded on some); None: all of them."""
        if model not in self._holders:
            mates = [load.backend_id for load in self._loads(model)]
            having = frozenset(each for each in mates if self._backends.serves(each, model))
            self._holders[model] = None if len(having) == len(mates) else having
        return self._holders[model]

    def available(self, model: str) -> list[str]:
        """The available backends of this model's pool."""
        return [load.backend_id for load in self._loads(model) if load.available]

    def may_come(self) -> bool:
        """Whether a backend that has not answered yet may serve a model that no other backend serves."""
        return bool(self._backends.undiscovered())

    def any_available(self) -> bool:
        return any(load.available for loads in self._backends.loads().values() for load in loads)

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
            dispatcher.tiers_changed(tiers)

    def tiers_removed(self, tier_ids: Collection[str]) -> None:
        """Remove tiers. In every pool a tier goes when the last of its tenants has gone."""
        self._tiers = {tier_id: tier for tier_id, tier in self._tiers.items() if tier_id not in tier_ids}
        self._tiers_removed |= set(tier_ids)
        for dispatcher in self._dispatchers.values():
            dispatcher.tiers_removed(tier_ids)

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
            dispatcher.policy_changed(**choices)

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

    def _loads(self, model: str) -> tuple[BackendLoad, ...]:
        return self._backends.loads_of(self._backends.pool_of(model) or "")

    def _only_model(self) -> ModelCard | None:
        cards = [self._backends.model_card(entry["id"]) for entry in self._backends.models()]
        bases = [card for card in cards if card is not None and card.parent is None]
        pools = {self._backends.pool_of(card.id) for card in bases}
        return bases[0] if len(pools) == 1 else None

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
                self._dispatcher(pool).load_changed(self._loads_of(pool))
            return
        for backend_id in measured:
            of = self._backends.pool_of_backend(backend_id)
            if of is not None:  # otherwise it is in no pool yet, or no longer
                self._dispatcher(of).measured(self._divided(self._backends.load(backend_id)))

    def _loads_of(self, pool: str) -> tuple[BackendLoad, ...]:
        return tuple(self._divided(load) for load in self._backends.loads_of(pool))

    def _divided(self, load: BackendLoad) -> BackendLoad:
        """The load with this replica's share, where other replicas use the backend, too."""
        if self._share is ALONE:
            return load
        return replace(load, share=self._share, peers=self._peers.get(load.backend_id, NO_PEERS))

    def _dispatcher(self, pool: str) -> Dispatcher:
        dispatcher = self._dispatchers.get(pool)
        if dispatcher is None:
            dispatcher = self._dispatchers[pool] = self._make_dispatcher(pool)
            if self._tiers:
                dispatcher.tiers_changed(list(self._tiers.values()))
            dispatcher.tiers_removed(self._tiers_removed)  # the configuration at the start may have declared them
            dispatcher.load_changed(self._loads_of(pool))
            checkpoint = self._checkpoint_of(pool)
            if checkpoint is not None:
                dispatcher.restored(checkpoint)
        return dispatcher
