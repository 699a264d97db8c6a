"""Tiers: they compete by weighted VTC, and the tenants of one tier by the pool's own order.

A tier is charged what its tenants receive, over its own weight, so its share does not depend on its number of tenants.
Both levels apply the same rule; the upper one is always VTC.
"""

from collections.abc import Callable, Collection, Iterable

from policies.accounts.checkpoint import QueueCheckpoint, TierCheckpoint
from policies.accounts.ledger import Charge, InFlight
from policies.fairness.base import (
    NOTHING,
    CachedBlocks,
    Changes,
    Eligible,
    Fairness,
    ServiceRecord,
    Waiting,
    anything_changes,
)
from policies.fairness.vtc import VirtualTokenCounter
from policies.types import Request, Tenant, Tier


class TieredFairness:
    """The order of tiers in one queue, and one order of tenants per tier."""

    def __init__(
        self,
        make_order: Callable[[], Fairness],
        tiers: Iterable[Tier],
        cached_blocks: CachedBlocks,
        cached_changes: Changes = anything_changes,
        noted: set[str] | None = None,
    ) -> None:
        """`cached_blocks` and `cached_changes` are the prefix cache of orders that read it (Fairness.look_up_in). The
        ids of charged tenants are added to `noted`.
        """
        self._noted = set[str]() if noted is None else noted
        self._make_order = make_order
        self._cached_blocks, self._cached_changes = cached_blocks, cached_changes
        self._tiers: dict[str, Tier] = {}
        self._tier_order = VirtualTokenCounter()
        self._orders: dict[str, Fairness] = {}
        self.waiting = 0
        """Number of waiting tenants over all tiers."""
        self.is_fair, self.follows_requests = True, False
        self.set_tiers(tiers)

    def set_tiers(self, tiers: Iterable[Tier]) -> None:
        """Add tiers or change their weights. Counters stay; outstanding service counts by the new weight."""
        for tier in tiers:
            before = self._tiers.get(tier.id, tier)
            self._tiers[tier.id] = tier
            self._order(tier.id)
            _reweigh(self._tier_order, tier.id, before.weight / tier.weight)
        self.is_fair = all(order.is_fair for order in self._orders.values())
        self.follows_requests = any(order.follows_requests for order in self._orders.values())

    def remove_tier(self, tier_id: str) -> None:
        """Remove a tier without tenants. Accounts of tenants that may return stay."""
        assert not self._orders[tier_id].waiting_count(), "a tier with waiting requests has tenants"
        del self._tiers[tier_id]
        if not self._orders[tier_id].received():
            del self._orders[tier_id]
        self._tier_order.forget(tier_id)
        self.set_tiers(())

    def tier(self, tier_id: str) -> Tier:
        return self._tiers[tier_id]

    def tiers(self) -> Collection[Tier]:
        return self._tiers.values()

    def queued(self, tier_id: str, request: Request, waiting: Waiting, now: float) -> None:
        self._orders[tier_id].queued(request, waiting, now)

    def dropped(self, tier_id: str, request: Request, now: float) -> None:
        self._orders[tier_id].dropped(request, now)

    def joined(self, tier_id: str, tenant_id: str, waiting: Waiting) -> None:
        order = self._orders[tier_id]
        if not order.waiting_count():
            self._tier_order.joined(tier_id, NOTHING)
        order.joined(tenant_id, waiting)
        self.waiting += 1

    def left(self, tier_id: str, tenant_id: str) -> None:
        order = self._orders[tier_id]
        order.left(tenant_id)
        self.waiting -= 1
        if not order.waiting_count():
            self._tier_order.left(tier_id)

    def charged(self, tenant: Tenant, charge: Charge) -> None:
        """Charge the tenant over its weight, and its tier over the tier's weight."""
        service, outstanding = charge
        weight, tier_id = tenant.weight, tenant.tier_id
        self._noted.add(tenant.id)
        self._orders[tier_id].charged(tenant.id, service / weight, outstanding / weight)
        tier_weight = self._tiers[tier_id].weight
        self._tier_order.charged(tier_id, service / tier_weight, outstanding / tier_weight)

    def dispatched(self, tier_id: str, entry: InFlight) -> None:
        self._orders[tier_id].dispatched(entry)

    def ended(self, tier_id: str, entry: InFlight, now: float) -> None:
        self._orders[tier_id].ended(entry, now)

    def waiting_tiers(self) -> frozenset[str]:
        """Ids of the tiers with a waiting tenant."""
        return frozenset(tier_id for tier_id, order in self._orders.items() if order.waiting_count())

    def pick_tier(self, passed_over: Collection[str]) -> str | None:
        """The next tier, except those passed over; None if no other waits."""
        return self._tier_order.least(passed_over)

    def pick(self, tier_id: str, eligible: Eligible, besides: Collection[str] = ()) -> Request | None:
        return self._orders[tier_id].pick(eligible, besides)

    def service_record(self, tenant: Tenant) -> ServiceRecord:
        return self._orders[tenant.tier_id].service_record(tenant.id)

    def tier_service_record(self, tier_id: str) -> ServiceRecord:
        return self._tier_order.service_record(tier_id)

    def checkpoint(self) -> QueueCheckpoint:
        """The counters of all tiers and tenants; takes time in proportion to their number."""
        tiers = {
            tier_id: TierCheckpoint(self.tier_service_record(tier_id).counter, order.level(), order.received())
            for tier_id, order in self._orders.items()
            if tier_id in self._tiers or order.received()
        }
        return QueueCheckpoint(self._tier_order.level(), tiers)

    def begin_at(self, checkpoint: QueueCheckpoint, *, returning: bool) -> None:
        """Start from these counters, before anything has waited here. The first tenant to join is lifted to the level;
        with `returning` all are, until `all_returned`. The checkpoint may have tiers that are not here yet.
        """
        self._tier_order.begin_at(checkpoint.level, returning=returning)
        for tier_id, tier in checkpoint.tiers.items():
            if tier_id in self._tiers or tier.tenants:
                self._tier_order.adopt(tier_id, ServiceRecord(tier.counter))
                order = self._order(tier_id)
                order.begin_at(tier.level, returning=returning)
                for tenant_id, counter in tier.tenants.items():
                    order.adopt(tenant_id, ServiceRecord(counter))

    def all_returned(self) -> None:
        """End `returning`: tenants that join from now on were away, and are lifted."""
        for order in (self._tier_order, *self._orders.values()):
            order.all_returned()

    def lag(self, tenant: Tenant, other: Tenant) -> float:
        """Service by which the tenant is behind the other, or across tiers, its tier behind the other's tier."""
        if tenant.tier_id == other.tier_id:
            return self._orders[tenant.tier_id].lag(tenant.id, other.id) * tenant.weight
        lag = self.tier_service_record(other.tier_id).rank - self.tier_service_record(tenant.tier_id).rank
        return lag * self._tiers[tenant.tier_id].weight

    def reweighed(self, before: Tenant, after: Tenant) -> None:
        """The tenant has a new weight: its counter stays, and outstanding service counts by the new weight."""
        _reweigh(self._orders[after.tier_id], after.id, before.weight / after.weight)

    def moved(self, before: Tenant, after: Tenant, now: float) -> None:
        """A tenant that does not wait has moved to another tier, perhaps with another weight.

        Counters of two tiers are not comparable: the tenant keeps only its distance to the tier's level. Its requests
        in flight count for the new tier from now on.
        """
        from_tier_id, to_tier_id = before.tier_id, after.tier_id
        outstanding = self._orders[from_tier_id].service_record(after.id).outstanding * before.weight
        self._orders[from_tier_id].hand_over(after.id, self._orders[to_tier_id], now)
        self.reweighed(before, after)
        for tier_id, amount in ((from_tier_id, -outstanding), (to_tier_id, outstanding)):
            if tier_id in self._tiers:
                self._tier_order.charged(tier_id, 0.0, amount / self._tiers[tier_id].weight)

    def forget(self, tier_id: str, tenant_id: str) -> None:
        self._orders[tier_id].forget(tenant_id)

    def _order(self, tier_id: str) -> Fairness:
        """The tier's order; makes it if there is none."""
        order = self._orders.get(tier_id)
        if order is None:
            order = self._orders[tier_id] = self._make_order()
            if order.reads_prefixes:
                order.look_up_in(self._cached_blocks, self._cached_changes)
        return order


def _reweigh(order: Fairness, account_id: str, ratio: float) -> None:
    """Restate an account's outstanding service for another weight; `ratio` is the old weight over the new."""
    if ratio != 1.0:
        outstanding = order.service_record(account_id).outstanding
        order.charged(account_id, 0.0, outstanding * ratio - outstanding)
