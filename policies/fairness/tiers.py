"""Tiers: they compete by weighted VTC, and the tenants of one tier by the pool's own order.

A tier is charged what its tenants receive, over its own weight, so its share does not depend on its number of tenants.
Both levels apply the same rule; the upper one is always VTC. A tier whose tenants belong to groups has one level more
between both (groups.py).
"""

from collections.abc import Callable, Collection, Iterable, Mapping

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
from policies.fairness.group_seats import reweigh
from policies.fairness.groups import GroupedFairness
from policies.fairness.vtc import VirtualTokenCounter
from policies.group_state import NO_GROUPS, GroupState
from policies.types import Group, Request, Tenant, Tier


def unknown_tenant(tenant_id: str) -> Tenant | None:  # noqa: ARG001
    return None


class TieredFairness:
    """The order of tiers in one queue, and one order of tenants per tier."""

    def __init__(
        self,
        make_order: Callable[[], Fairness],
        tiers: Iterable[Tier],
        cached_blocks: CachedBlocks,
        cached_changes: Changes = anything_changes,
        noted: set[str] | None = None,
        *,
        groups: Mapping[str, GroupState] = NO_GROUPS,
        grouped: Collection[str] = (),
        tenant: Callable[[str], Tenant | None] = unknown_tenant,
    ) -> None:
        """`cached_blocks` and `cached_changes` are the prefix cache of orders that read it (Fairness.look_up_in). The
        ids of charged tenants are added to `noted`. `groups` are those of all tiers, `grouped` the ids of the tiers
        whose tenants have groups; `tenant` gives the settings of an id.
        """
        self._noted = set[str]() if noted is None else noted
        self._make_order = make_order
        self._groups, self._grouped, self._tenant = groups, grouped, tenant
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
            reweigh(self._tier_order, tier.id, before.weight / tier.weight)
        self.is_fair = all(order.is_fair for order in self._orders.values())
        self.follows_requests = any(order.follows_requests for order in self._orders.values())

    def remove_tier(self, tier_id: str) -> None:
        """Remove a tier without tenants. Accounts of tenants that may return stay."""
        assert not self._orders[tier_id].waiting_count(), "a tier with waiting requests has tenants"
        del self._tiers[tier_id]
        if not _has_accounts(self._orders[tier_id]):
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
        before = order.waiting_count()
        order.joined(tenant_id, waiting)
        self._count(tier_id, before, order.waiting_count())

    def left(self, tier_id: str, tenant_id: str) -> None:
        order = self._orders[tier_id]
        before = order.waiting_count()
        order.left(tenant_id)
        self._count(tier_id, before, order.waiting_count())

    def hold_group(self, group: Group, *, held: bool) -> None:
        """The group has reached its in-flight limit, or has room again."""
        order = self._orders.get(group.tier_id)
        if isinstance(order, GroupedFairness):
            before = order.waiting_count()
            order.hold(group.id, held=held)
            self._count(group.tier_id, before, order.waiting_count())

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

    def next_beside(self, tenant: Tenant, eligible: Eligible, besides: Collection[str]) -> Request | None:
        """The next request of the tenant's own group; in a tier without groups, of its tier."""
        order = self._orders[tenant.tier_id]
        if isinstance(order, GroupedFairness):
            return order.pick_beside(tenant.id, eligible, besides)
        return order.pick(eligible, besides)

    def service_record(self, tenant: Tenant) -> ServiceRecord:
        return self._orders[tenant.tier_id].service_record(tenant.id)

    def ranks(self, tenant: Tenant) -> tuple[float, float]:
        """What orders the tenants of one tier: the rank of the tenant's group, then its own rank in it. In a tier
        without groups, its own rank, then 0.
        """
        order = self._orders[tenant.tier_id]
        rank = order.service_record(tenant.id).rank
        return (order.group_record(tenant.id).rank, rank) if isinstance(order, GroupedFairness) else (rank, 0.0)

    def tier_service_record(self, tier_id: str) -> ServiceRecord:
        return self._tier_order.service_record(tier_id)

    def checkpoint(self, tenant_ids: Collection[str] | None = None) -> QueueCheckpoint:
        """The counters of all tiers and tenants, or these tenants; takes time in proportion to their number."""
        tiers = {
            tier_id: TierCheckpoint(
                self.tier_service_record(tier_id).counter,
                order.level(),
                order.received(tenant_ids),
                order.seats.groups_received(tenant_ids) if isinstance(order, GroupedFairness) else {},
            )
            for tier_id, order in self._orders.items()
            if tier_id in self._tiers or _has_accounts(order)
        }
        return QueueCheckpoint(self._tier_order.level(), tiers)

    def begin_at(self, checkpoint: QueueCheckpoint, *, returning: bool) -> None:
        """Start from these counters, before anything has waited here. The first tenant to join is lifted to the level;
        with `returning` all are, until `all_returned`. The checkpoint may have tiers that are not here yet.
        """
        self._tier_order.begin_at(checkpoint.level, returning=returning)
        for tier_id, tier in checkpoint.tiers.items():
            if tier_id in self._tiers or tier.tenants or tier.groups:
                self._tier_order.adopt(tier_id, ServiceRecord(tier.counter))
                order = self._grouped_order(tier_id) if tier.groups else self._order(tier_id)
                order.begin_at(tier.level, returning=returning)
                for tenant_id, counter in tier.tenants.items():
                    order.adopt(tenant_id, ServiceRecord(counter))
                if isinstance(order, GroupedFairness):
                    for group_id, group in tier.groups.items():
                        order.seats.begin_group_at(group_id, group, returning=returning)

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

    def lead_service(self, tenant: Tenant, first: Tenant) -> float:
        """Service by which the tenant is ahead of `first`, whose turn it is in its tier; in a group, also by which it
        is ahead of the next tenant of its group. At least 0.
        """
        lead = max(0.0, -self.lag(tenant, first))
        order = self._orders[tenant.tier_id]
        if isinstance(order, GroupedFairness):
            beside = order.pick_beside(tenant.id, any_request, ())
            if beside is not None and beside.tenant_id != first.id:
                lead += max(0.0, -order.own_lag(tenant.id, beside.tenant_id) * tenant.weight)
        return lead

    def reweighed(self, before: Tenant, after: Tenant) -> None:
        """The tenant has a new weight: its counter stays, and outstanding service counts by the new weight."""
        order = self._orders[after.tier_id]
        if isinstance(order, GroupedFairness):
            order.seats.reweighed(after)
        else:
            reweigh(order, after.id, before.weight / after.weight)

    def group_changed(self, group: Group) -> None:
        """The group has a new weight: its counter stays."""
        order = self._orders.get(group.tier_id)
        if isinstance(order, GroupedFairness):
            order.seats.group_changed(group)

    def moved(self, before: Tenant, after: Tenant, now: float) -> None:
        """A tenant that does not wait has moved to another tier or group, perhaps with another weight.

        Counters of two tiers or groups are not comparable: the tenant keeps only its distance to the level. Its
        requests in flight count for the new tier and group from now on.
        """
        from_order, to_order = self._orders[before.tier_id], self._orders[after.tier_id]
        outstanding = from_order.service_record(after.id).outstanding * before.weight
        of_group = from_order.seats.leave(after.id) if isinstance(from_order, GroupedFairness) else from_order
        to_group = to_order.seats.take(after) if isinstance(to_order, GroupedFairness) else to_order
        if of_group is not None:
            of_group.hand_over(after.id, to_group, now)
        reweigh(to_group, after.id, before.weight / after.weight)
        if isinstance(to_order, GroupedFairness):
            to_order.seats.expect(after.id, outstanding)
        for tier_id, amount in ((before.tier_id, -outstanding), (after.tier_id, outstanding)):
            if tier_id in self._tiers:
                self._tier_order.charged(tier_id, 0.0, amount / self._tiers[tier_id].weight)

    def forget(self, tier_id: str, tenant_id: str) -> None:
        self._orders[tier_id].forget(tenant_id)

    # -- groups ----------------------------------------------------------------------------------------------

    def is_grouped(self, tier_id: str) -> bool:
        """Whether the tier has the level of groups here."""
        return isinstance(self._orders.get(tier_id), GroupedFairness)

    def may_ungroup(self, tier_id: str) -> bool:
        """Whether the tier has the level of groups here, and no account of a group."""
        order = self._orders.get(tier_id)
        return isinstance(order, GroupedFairness) and not order.seats.has_groups

    def level(self, tier_id: str) -> float:
        """The counter to which a tenant without a group is lifted that returns to the tier."""
        return self._order(tier_id).level()

    def regroup(self, tier_id: str, level: float, now: float) -> None:
        """Add the level of groups to a tier in which nothing waits and no tenant has a group, or take it away. All
        counters stay; the first tenant to join is lifted to `level`.
        """
        before = self._orders.pop(tier_id)
        if isinstance(before, GroupedFairness):
            after = self._order(tier_id)
            after.begin_at(level, returning=False)
            for tenant_id in before.received():
                after.adopt(tenant_id, before.service_record(tenant_id))
            return
        grouped = self._grouped_order(tier_id)
        grouped.begin_at(level, returning=False)
        for tenant_id in list(before.received()):
            grouped.seats.seat_alone(tenant_id, before, now)

    def _grouped_order(self, tier_id: str) -> GroupedFairness:
        order = self._orders.get(tier_id)
        if not isinstance(order, GroupedFairness):
            order = self._orders[tier_id] = GroupedFairness(self._made_order, self._tenant, self._groups)
        return order

    def _order(self, tier_id: str) -> Fairness:
        """The tier's order; makes it if there is none."""
        order = self._orders.get(tier_id)
        if order is None:
            if tier_id in self._grouped:
                return self._grouped_order(tier_id)
            order = self._orders[tier_id] = self._made_order()
        return order

    def _made_order(self) -> Fairness:
        order = self._make_order()
        if order.reads_prefixes:
            order.look_up_in(self._cached_blocks, self._cached_changes)
        return order

    def _count(self, tier_id: str, before: int, now: int) -> None:
        """As many tenants of the tier wait now, and did before: a tier waits while any does."""
        self.waiting += now - before
        if now and not before:
            self._tier_order.joined(tier_id, NOTHING)
        elif before and not now:
            self._tier_order.left(tier_id)


def any_request(request: Request) -> bool:  # noqa: ARG001
    return True


def _has_accounts(order: Fairness) -> bool:
    return bool(order.received()) or (isinstance(order, GroupedFairness) and order.seats.has_groups)
