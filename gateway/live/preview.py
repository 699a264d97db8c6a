"""Preview: the effects of an edit of weights, groups and tiers, before it is made.

The shares are those that tenants are due by weighted max-min fairness (policies/fairness/fair_shares.py) in the last
minute, once with the present settings and once with the changed ones. A backlogged tenant asks for everything; any
other tenant asks for the service that it got, and would get no more with a larger weight.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from math import inf
from typing import Final, NamedTuple

from gateway.live.schema import LivePagePool, LivePageTenant
from gateway.live.shares import SHARE_DIGITS
from policies.fairness.fair_shares import TenantClaim, tiered_shares

WINDOW: Final = 1  # of the live document's three: one minute, long enough for a mean and short enough to be now


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightEdit:
    """An edit to preview: new weights of tenants, groups and tiers, and new tiers and groups of tenants, by id."""

    tenant_weights: Mapping[str, float] = field(default_factory=dict)
    tenant_tiers: Mapping[str, str] = field(default_factory=dict)
    tier_weights: Mapping[str, float] = field(default_factory=dict)
    group_weights: Mapping[str, float] = field(default_factory=dict)
    tenant_groups: Mapping[str, str | None] = field(default_factory=dict)


class GroupWeight(NamedTuple):
    """The tier of a group, and the group's weight in it."""

    tier: str
    weight: float


NO_GROUPS: Final[Mapping[str, GroupWeight]] = {}


@dataclass(frozen=True, slots=True)
class SharePreview:
    """The share of one tenant, tier or group in the pool's service, from 0 to 1, now and after an edit. It is computed
    from weights and from the demands of the last minute. `asks_all`: it waits for more service than it gets. If false,
    it gets all that it asks for, whatever its weight.
    """

    share_now: float
    share_then: float
    asks_all: bool


@dataclass(frozen=True, slots=True)
class PoolPreview:
    """The previewed shares of one pool, by tenant, tier and group."""

    tenants: dict[str, SharePreview]
    tiers: dict[str, SharePreview]
    groups: dict[str, SharePreview]


def preview(
    pool: LivePagePool,
    tier_weights: Mapping[str, float],
    edit: WeightEdit,
    groups: Mapping[str, GroupWeight] = NO_GROUPS,
) -> PoolPreview:
    """The effects of the edit on this pool. `tier_weights` and `groups` have all present tiers and groups."""
    tenants = pool.tenants
    weights = {tier_id: tier.weight for tier_id, tier in pool.tiers.items()}
    weights = {**{tenant.tier: 1.0 for tenant in tenants.values()}, **tier_weights, **weights}
    shown = {group_id: GroupWeight(group.tier, group.weight) for group_id, group in pool.groups.items()}
    known = {**groups, **shown}
    claims = {tenant_id: _claim(tenant) for tenant_id, tenant in tenants.items()}
    changed = {tenant_id: _edited(tenant_id, claim, edit, known) for tenant_id, claim in claims.items()}
    group_weights = {group_id: group.weight for group_id, group in known.items()}
    groups_then = {**group_weights, **edit.group_weights}
    now = tiered_shares(1.0, tier_weights=weights, tenants=claims, group_weights=group_weights)
    tiers_then = {**weights, **edit.tier_weights}
    then = tiered_shares(1.0, tier_weights=tiers_then, tenants=changed, group_weights=groups_then)

    def sums(names: set[str], of: Callable[[TenantClaim], str | None]) -> dict[str, SharePreview]:
        return {
            name: _share(
                sum(now[each] for each in claims if of(claims[each]) == name),
                sum(then[each] for each in changed if of(changed[each]) == name),
                asks_all=any(each.demand == inf for each in changed.values() if of(each) == name),
            )
            for name in sorted(names)
        }

    both = [*claims.values(), *changed.values()]
    return PoolPreview(
        {each: _share(now[each], then[each], asks_all=claims[each].demand == inf) for each in claims},
        sums({each.tier for each in both}, lambda claim: claim.tier),
        sums({each.group for each in both if each.group is not None}, lambda claim: claim.group),
    )


def _edited(tenant_id: str, claim: TenantClaim, edit: WeightEdit, groups: Mapping[str, GroupWeight]) -> TenantClaim:
    """The claim after the edit; a tenant with a group is in the group's tier."""
    group = edit.tenant_groups.get(tenant_id, claim.group)
    tier = edit.tenant_tiers.get(tenant_id, claim.tier) if group is None else groups[group].tier
    return TenantClaim(edit.tenant_weights.get(tenant_id, claim.weight), claim.demand, tier, group)


def _claim(tenant: LivePageTenant) -> TenantClaim:
    demand = inf if tenant.backlogged[WINDOW] else tenant.share[WINDOW]
    return TenantClaim(tenant.weight, demand, tenant.tier, tenant.group)


def _share(now: float, then: float, *, asks_all: bool) -> SharePreview:
    return SharePreview(round(now, SHARE_DIGITS), round(then, SHARE_DIGITS), asks_all)
