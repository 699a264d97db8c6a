"""Shares of the service of a pool in each window: what every tenant and tier got, and what it was due.

What a tenant is due is its weighted max-min share (policies/fairness/fair_shares.py): one that waited for at least half
of the window asks for all there is, any other for what it got.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import inf

from gateway.live.windows import ServiceWindow
from policies.fairness.fair_shares import TenantClaim, tiered_shares
from policies.types import Tenant

SHARE_DIGITS = 4  # a hundredth of a percent: a change below it is not worth a message


@dataclass(frozen=True, slots=True)
class WindowShares:
    """Of one window: shares of the pool's service by tenant and by tier, from 0 to 1. Absent: 0."""

    got: Mapping[str, float] = field(default_factory=dict)
    due: Mapping[str, float] = field(default_factory=dict)
    tier_got: Mapping[str, float] = field(default_factory=dict)
    tier_due: Mapping[str, float] = field(default_factory=dict)


def shares_of(window: ServiceWindow, tenants: Mapping[str, Tenant], tier_weights: Mapping[str, float]) -> WindowShares:
    """The shares of these tenants, whose tiers are all in `tier_weights`. A tenant that is gone counts for nobody."""
    services = {tenant_id: each for tenant_id, each in window.services().items() if tenant_id in tenants}
    total = sum(services.values())
    if total <= 0:
        return WindowShares()
    claims = {
        tenant_id: TenantClaim(
            tenants[tenant_id].weight,
            inf if window.has_waited(tenant_id) else service,
            tenants[tenant_id].tier_id,
        )
        for tenant_id, service in services.items()
    }
    due = tiered_shares(total, tier_weights=tier_weights, tenants=claims)
    return WindowShares(
        _parts(services, total), _parts(due, total), _by_tier(services, tenants, total), _by_tier(due, tenants, total)
    )


def _parts(amounts: Mapping[str, float], total: float) -> dict[str, float]:
    return {member: round(amount / total, SHARE_DIGITS) for member, amount in amounts.items()}


def _by_tier(amounts: Mapping[str, float], tenants: Mapping[str, Tenant], total: float) -> dict[str, float]:
    sums: dict[str, float] = {}
    for tenant_id, amount in amounts.items():
        tier_id = tenants[tenant_id].tier_id
        sums[tier_id] = sums.get(tier_id, 0.0) + amount
    return _parts(sums, total)
