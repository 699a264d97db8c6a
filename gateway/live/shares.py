"""Shares of the service of a pool in each window: what every tenant and tier got, and what it was due.

What a tenant is due is its weighted max-min share (policies/fairness/fair_shares.py): one whose queue stayed full
for at least half of the window asks for all there is, any other for what it got.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import fsum, inf
from typing import Final

from gateway.live.windows import SERVICE, WAITED_S, ServiceWindow
from policies.fairness.fair_shares import NO_WEIGHTS, TenantClaim, tiered_shares
from policies.types import Tenant, TenantView

SHARE_DIGITS: Final = 4  # a hundredth of a percent: a change below it is not worth a message


@dataclass(frozen=True, slots=True)
class WindowShares:
    """Of one window: shares of the pool's service by tenant and by tier, from 0 to 1. Absent: 0."""

    got: Mapping[str, float] = field(default_factory=dict)
    due: Mapping[str, float] = field(default_factory=dict)
    tier_got: Mapping[str, float] = field(default_factory=dict)
    tier_due: Mapping[str, float] = field(default_factory=dict)
    group_got: Mapping[str, float] = field(default_factory=dict)
    group_due: Mapping[str, float] = field(default_factory=dict)
    backlogged: frozenset[str] = frozenset()
    """The tenants that asked for all there is."""


def shares_of(
    window: ServiceWindow,
    tenants: Mapping[str, tuple[Tenant, TenantView]],
    tier_weights: Mapping[str, float],
    group_weights: Mapping[str, float] = NO_WEIGHTS,
) -> WindowShares:
    """The shares of these tenants, whose tiers are all in `tier_weights`; what one that is gone got is left out. A
    group that is not in `group_weights` has just been removed, and counts as none.
    """
    waited_s_min = window.covered_s / 2
    services: dict[str, float] = {}
    claims: dict[str, TenantClaim] = {}
    for tenant_id, amounts in window.amounts.items():
        if tenant_id in tenants:
            tenant = tenants[tenant_id][0]
            service = services[tenant_id] = max(0.0, amounts[SERVICE])
            demand = inf if amounts[WAITED_S] >= waited_s_min else service
            group_id = tenant.group_id if tenant.group_id in group_weights else None
            claims[tenant_id] = TenantClaim(tenant.weight, demand, tenant.tier_id, group_id)
    total = fsum(services.values())
    if total <= 0:
        return WindowShares()
    due = tiered_shares(total, tier_weights=tier_weights, tenants=claims, group_weights=group_weights)
    tiers: dict[str, list[str]] = {}
    groups: dict[str, list[str]] = {}
    for tenant_id, claim in claims.items():
        tiers.setdefault(claim.tier, []).append(tenant_id)
        if claim.group is not None:
            groups.setdefault(claim.group, []).append(tenant_id)
    return WindowShares(
        _parts(services, total),
        _parts(due, total),
        _parts(_sums(services, tiers), total),
        _parts(_sums(due, tiers), total),
        _parts(_sums(services, groups), total),
        _parts(_sums(due, groups), total),
        frozenset(tenant_id for tenant_id, claim in claims.items() if claim.demand == inf),
    )


def _sums(amounts: Mapping[str, float], members: Mapping[str, list[str]]) -> dict[str, float]:
    return {name: fsum(amounts[each] for each in of) for name, of in members.items()}


def _parts(amounts: Mapping[str, float], total: float) -> dict[str, float]:
    return {member: round(amount / total, SHARE_DIGITS) for member, amount in amounts.items()}
