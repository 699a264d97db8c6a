"""Share cap: a tenant may have at most phi of what the pool can hold in flight, while others wait.

Counters move only by what was dispatched already, so a tenant that is behind could fill the whole pool before it has
paid for one output. A cap of phi * F on what it has in flight (F: what the pool may hold of ours) bounds the difference
of two backlogged tenants by U = max(price of the longest prompt, price of phi * F output tokens), at almost no cost.
The scheduler lifts the cap where it would do harm:
- a tenant that is alone has no cap, and when every waiting tenant is over the cap the room goes to the next one;
- a tenant that is next but over its share is passed over only while it is behind by no more than what it has in flight
  can cost. A tenant of long answers needs more than half of the tokens for half of the service.
The pool holds F tokens, or more where requests are reserved at the fullest moment (`kv_rule: expected` or `peak`) and
their full lengths exceed F: the share is then of what is in flight.
What is in flight counts by the speed of its backend: slots of an engine that is three times as slow count a third.
Counted in full they would fill a tenant's share but serve it little, and it would be passed over until its lag is G.
The cap is never below the part of the pool that the tenant's weight entitles it to, or a weight of 4 against 1 would
come out as 1 against 1.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from policies.fairness.node import FairNode
from policies.group_state import NO_GROUPS, GroupState
from policies.types import Group, Tenant

SHARE_RATIO_MAX = 0.5  # phi


class InFlightShare(NamedTuple):
    """Sequences and KV tokens that a tenant would have in flight, and those that the pool can hold, all times the speed
    of their backends.
    """

    sequences: float
    tokens: float
    sequences_max: float
    tokens_max: float

    def is_within(self, ratio: float) -> bool:
        """Whether it is at most this part of what the pool can hold."""
        return self.sequences <= ratio * self.sequences_max and self.tokens <= ratio * self.tokens_max


class _Active(NamedTuple):
    """The members of a tier or group with anything queued or in flight: their number and the sum of their weights. The
    members of a tier are its groups, and its tenants without one.
    """

    members: int
    weight: float

    def plus(self, weight: float) -> "_Active":
        return _Active(self.members + 1, self.weight + weight)

    def minus(self, weight: float) -> "_Active":
        return _Active(self.members - 1, self.weight - weight)


NO_MEMBERS = _Active(0, 0.0)


@dataclass(slots=True)
class _ActiveGroup:
    """A group with anything queued or in flight, with the tier and weight that count."""

    tier_id: str
    weight: float
    tenants: _Active


class ShareCap:
    """The cap on each tenant's share of what is in flight."""

    def __init__(
        self, ratio_max: float, tier: Callable[[str], FairNode], groups: Mapping[str, GroupState] = NO_GROUPS
    ) -> None:
        """`ratio_max` is phi; `tier` gives the current tier of an id, `groups` has all groups."""
        self._ratio_max = ratio_max
        self._tier = tier
        self._groups = groups
        self._entered: dict[str, Tenant] = {}  # by id, with the settings that they entered with
        self._active: dict[str, _Active] = {}  # tier id -> its active members
        self._active_groups: dict[str, _ActiveGroup] = {}

    def set_active(self, tenant: Tenant, *, active: bool) -> None:
        """Set whether the tenant has anything queued or in flight; its weight counts while it has."""
        entered = self._entered.get(tenant.id)
        if active and entered is None:
            self._entered[tenant.id] = tenant
            if tenant.group_id is None:
                self._enter(tenant.tier_id, tenant.weight)
            else:
                self._enter_group(tenant, tenant.group_id)
        elif entered is not None and not active:
            del self._entered[tenant.id]
            if entered.group_id is None:
                self._leave(entered.tier_id, entered.weight)
            else:
                self._leave_group(entered, entered.group_id)

    def group_changed(self, group: Group) -> None:
        """The group has this tier and weight now."""
        active = self._active_groups.get(group.id)
        if active is not None and (active.weight != group.weight or active.tier_id != group.tier_id):
            self._leave(active.tier_id, active.weight)
            active.tier_id, active.weight = group.tier_id, group.weight
            self._enter(active.tier_id, active.weight)

    def allows(self, tenant: Tenant, share: InFlightShare) -> bool:
        """Whether the active tenant may have this share in flight."""
        if share.is_within(self._ratio_max):
            return True
        ratio = max(self._ratio_max, self._weight_ratio(tenant))
        # No cap: a request larger than the whole pool blocks the queue instead of being passed over.
        return ratio >= 1.0 or share.is_within(ratio)

    def entitles(self, tenant: Tenant, share: InFlightShare) -> bool:
        """Whether the share is at most the part that the tenant's weight entitles it to, among the active tenants."""
        return share.is_within(self.ratio_if_active(tenant))

    def ratio_if_active(self, tenant: Tenant) -> float:
        """The part of the pool that the tenant's weight entitles it to, among the active tenants and itself."""
        if tenant.id in self._entered:
            return self._weight_ratio(tenant)
        tiers_weight = sum(self._tier(tier_id).weight for tier_id in self._active.keys() | {tenant.tier_id})
        tier_ratio = self._tier(tenant.tier_id).weight / tiers_weight
        members_weight = self._active.get(tenant.tier_id, NO_MEMBERS).weight
        if tenant.group_id is None:
            return tier_ratio * tenant.weight / (members_weight + tenant.weight)
        group = self._active_groups.get(tenant.group_id)
        if group is not None:
            tenants_weight = group.tenants.weight + tenant.weight
            return tier_ratio * group.weight / members_weight * tenant.weight / tenants_weight
        group_weight = self._group_weight(tenant.group_id)
        return tier_ratio * group_weight / (members_weight + group_weight)

    def _weight_ratio(self, tenant: Tenant) -> float:
        """The tenant's part of its tier's or group's weight, times the group's part of the tier's, times the tier's
        part of all weights, among active tenants.
        """
        weights = {tier_id: self._tier(tier_id).weight for tier_id in self._active}
        if tenant.group_id is None:
            tier_ratio = weights[tenant.tier_id] / sum(weights.values())
            return tier_ratio * tenant.weight / self._active[tenant.tier_id].weight
        group = self._active_groups[tenant.group_id]
        tier_ratio = weights[group.tier_id] / sum(weights.values())
        group_ratio = tier_ratio * group.weight / self._active[group.tier_id].weight
        return group_ratio * tenant.weight / group.tenants.weight

    def _enter(self, tier_id: str, weight: float) -> None:
        self._active[tier_id] = self._active.get(tier_id, NO_MEMBERS).plus(weight)

    def _leave(self, tier_id: str, weight: float) -> None:
        self._active[tier_id] = self._active[tier_id].minus(weight)
        if not self._active[tier_id].members:
            del self._active[tier_id]

    def _enter_group(self, tenant: Tenant, group_id: str) -> None:
        group = self._active_groups.get(group_id)
        if group is None:
            weight = self._group_weight(group_id)
            group = self._active_groups[group_id] = _ActiveGroup(tenant.tier_id, weight, NO_MEMBERS)
            self._enter(tenant.tier_id, weight)
        group.tenants = group.tenants.plus(tenant.weight)

    def _leave_group(self, tenant: Tenant, group_id: str) -> None:
        group = self._active_groups[group_id]
        group.tenants = group.tenants.minus(tenant.weight)
        if not group.tenants.members:
            del self._active_groups[group_id]
            self._leave(group.tier_id, group.weight)

    def _group_weight(self, group_id: str) -> float:
        state = self._groups.get(group_id)
        return 1.0 if state is None else state.group.weight
