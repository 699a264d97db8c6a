"""LiveSettings: the present tenants, tiers, groups and policies, whose changes go to the Schedulers of all pools.

Changes since the start are kept for pools that are made later.
"""

from collections.abc import Collection, Mapping, Sequence

from gateway.scheduling.dispatcher import Dispatcher
from policies.facts import PolicyChanged, TenantsChanged
from policies.types import Group, PolicyChoice, Tenant, Tier


class LiveSettings:
    """The present settings of tenants, tiers, groups and policies. It reports changes to all Schedulers. Mutable."""

    def __init__(self, dispatchers: Mapping[str, Dispatcher]) -> None:
        """`dispatchers` are the present Dispatchers, by pool."""
        self._dispatchers = dispatchers
        self._tiers: dict[str, Tier] = {}  # added or changed since the start
        self._tiers_removed: set[str] = set()
        self._groups: dict[str, Group] = {}
        self._groups_removed: set[str] = set()

    def changed(self, now: float) -> TenantsChanged:
        """The tiers and groups that were added, changed or removed since the start."""
        return TenantsChanged(
            now,
            tiers=tuple(self._tiers.values()),
            tiers_removed=tuple(self._tiers_removed),
            groups=tuple(self._groups.values()),
            groups_removed=tuple(self._groups_removed),
        )

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
        """Remove tiers. In every pool, a tier is removed with its last tenant."""
        self._tiers = {tier_id: tier for tier_id, tier in self._tiers.items() if tier_id not in tier_ids}
        self._tiers_removed |= set(tier_ids)
        for dispatcher in self._dispatchers.values():
            dispatcher.told(TenantsChanged(dispatcher.now(), tiers_removed=tuple(tier_ids)))

    def groups_changed(self, groups: Sequence[Group], removed: Collection[str]) -> None:
        """Add groups, apply their changed settings, or remove them, in all present and later pools."""
        self._groups |= {group.id: group for group in groups}
        self._groups = {group_id: group for group_id, group in self._groups.items() if group_id not in removed}
        self._groups_removed = (self._groups_removed | set(removed)) - {group.id for group in groups}
        for dispatcher in self._dispatchers.values():
            changes = TenantsChanged(dispatcher.now(), groups=tuple(groups), groups_removed=tuple(removed))
            dispatcher.told(changes)

    def forget(self, tenant_id: str) -> None:
        """Forget a tenant in all pools: its queued requests are rejected, its running requests continue."""
        for dispatcher in self._dispatchers.values():
            dispatcher.forget(tenant_id)

    def policy_changed(self, pool: str, choices: Mapping[str, PolicyChoice]) -> None:
        """Replace policies of the pool, by kind. This has no effect on a pool that does not exist yet, because a new
        pool is made with its configuration. Raises ValueError for an unknown policy.
        """
        dispatcher = self._dispatchers.get(pool)
        if dispatcher is not None:
            dispatcher.told(PolicyChanged(dispatcher.now()).but(**choices))
