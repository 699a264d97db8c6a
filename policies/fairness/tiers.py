"""Tiers above tenants: tiers compete by weighted VTC, the tenants of a tier by the pool's own order.

A tier is charged for what its tenants receive, over its weight, so its share does not depend on how many
tenants it has. Both levels are the same idea, and the upper one is always VTC.
"""

from collections.abc import Callable, Collection, Iterable

from policies.fairness.base import Fairness, Standing
from policies.fairness.vtc import VirtualTokenCounter
from policies.types import Request, Tenant, Tier


class TieredFairness:
    """Which tier is served next, and which tenant in it?"""

    def __init__(self, order: Callable[[], Fairness], tiers: Iterable[Tier]) -> None:
        self._order = order
        self._tiers: dict[str, Tier] = {}
        self._tier_order = VirtualTokenCounter()
        self._tenant_orders: dict[str, Fairness] = {}
        self._waiting = 0
        self.set_tiers(tiers)
        self.reads_counters = any(order.reads_counters for order in self._tenant_orders.values())
        self.is_fair = all(order.is_fair for order in self._tenant_orders.values())

    def set_tiers(self, tiers: Iterable[Tier]) -> None:
        """Add tiers or change their weights; the counters stay as they are."""
        for tier in tiers:
            self._tiers[tier.id] = tier
            self._tenant_orders.setdefault(tier.id, self._order())

    def tier(self, tier_id: str) -> Tier:
        return self._tiers[tier_id]

    def has(self, tier_id: str) -> bool:
        return tier_id in self._tiers

    def tiers(self) -> Collection[Tier]:
        return self._tiers.values()

    def joined(self, tier_id: str, tenant_id: str, head: Request) -> None:
        order = self._tenant_orders[tier_id]
        if not order.waiting_count():
            self._tier_order.joined(tier_id, head)
        order.joined(tenant_id, head)
        self._waiting += 1

    def advanced(self, tier_id: str, tenant_id: str, head: Request) -> None:
        self._tenant_orders[tier_id].advanced(tenant_id, head)

    def left(self, tier_id: str, tenant_id: str) -> None:
        order = self._tenant_orders[tier_id]
        order.left(tenant_id)
        self._waiting -= 1
        if not order.waiting_count():
            self._tier_order.left(tier_id)

    def charged(self, tier_id: str, tenant_id: str, weight: float, service: float, outstanding: float) -> None:
        """Charge a tenant of this weight, and its tier: service and outstanding are in service units."""
        self._tenant_orders[tier_id].charged(tenant_id, service / weight, outstanding / weight)
        tier_weight = self._tiers[tier_id].weight
        self._tier_order.charged(tier_id, service / tier_weight, outstanding / tier_weight)

    def pick_tier(self, eligible: Callable[[str], bool]) -> str | None:
        return self._tier_order.pick(eligible)

    def pick_tenant(self, tier_id: str, eligible: Callable[[str], bool]) -> str | None:
        return self._tenant_orders[tier_id].pick(eligible)

    def waiting_count(self) -> int:
        """How many tenants wait, over all tiers."""
        return self._waiting

    def standing(self, tier_id: str, tenant_id: str) -> Standing:
        return self._tenant_orders[tier_id].standing(tenant_id)

    def lag(self, tenant: Tenant, other: Tenant) -> float:
        """Service by which the tenant is behind the other, or its tier behind the other's tier."""
        if tenant.tier_id == other.tier_id:
            order = self._tenant_orders[tenant.tier_id]
            return (order.standing(other.id).key - order.standing(tenant.id).key) * tenant.weight
        tiers = self._tier_order
        lag = tiers.standing(other.tier_id).key - tiers.standing(tenant.tier_id).key
        return lag * self._tiers[tenant.tier_id].weight

    def moved(self, tenant_id: str, from_tier_id: str, to_tier_id: str) -> None:
        """A tenant that is not waiting takes its account to another tier."""
        standing = self._tenant_orders[from_tier_id].standing(tenant_id)
        self._tenant_orders[from_tier_id].forget(tenant_id)
        self._tenant_orders[to_tier_id].adopt(tenant_id, standing)

    def forget(self, tier_id: str, tenant_id: str) -> None:
        self._tenant_orders[tier_id].forget(tenant_id)
