"""Shares of a pool's service in each window: the share that every tenant and tier got, and its due share.

A tenant is due its weighted max-min share (policies/fairness/fair_shares.py): a tenant whose queue stayed full for at
least half of the window asks for everything, any other tenant for the service that it got. A second share is by weight
alone: as if all tenants that were served or waited in the window asked for everything.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import fsum, inf
from typing import Final

from gateway.live.schema import ASKS, WEIGHT
from gateway.live.windows import SERVICE, WAITED_S, ServiceWindow
from policies.fairness.fair_shares import NO_WEIGHTS, TenantClaim, tiered_shares
from policies.types import Tenant, TenantView

SHARE_DIGITS: Final = 4  # a hundredth of a percent: a change below it is not worth a message
ROUNDING: Final = 2e-4  # two rounded shares that were equal differ by less


@dataclass(frozen=True, slots=True)
class ShareParts:
    """The shares, from 0 to 1, of tenants, of tiers or of groups in a pool's service in one window of time, by name:
    the share that each got, is due, would get by weights alone, and asks for. A missing name means 0.
    """

    got: Mapping[str, float] = field(default_factory=dict)
    due: Mapping[str, float] = field(default_factory=dict)
    by_weight: Mapping[str, float] = field(default_factory=dict)
    asks: Mapping[str, float | None] = field(default_factory=dict)
    """None: all there is."""

    def due_by(self, name: str) -> str:
        """Why this member's due share is not larger (`asks` or `weight`)."""
        asks = self.asks.get(name, 0.0)
        return WEIGHT if asks is None or self.due.get(name, 0.0) < asks - ROUNDING else ASKS


@dataclass(frozen=True, slots=True)
class WindowShares:
    """The shares in a pool's service in one window of time, as three tables: of tenants, of tiers and of groups."""

    tenants: ShareParts = ShareParts()
    tiers: ShareParts = ShareParts()
    groups: ShareParts = ShareParts()


def shares_of(
    window: ServiceWindow,
    tenants: Mapping[str, tuple[Tenant, TenantView]],
    tier_weights: Mapping[str, float],
    group_weights: Mapping[str, float] = NO_WEIGHTS,
) -> WindowShares:
    """The shares of these tenants, whose tiers are all in `tier_weights`; the service of removed tenants is left out. A
    group that is not in `group_weights` has just been removed, and counts as no group.
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
    demands = {tenant_id: claim.demand for tenant_id, claim in claims.items()}
    by_weight = _by_weight(claims, tier_weights, group_weights)
    whole = ShareParts(_parts(services, total), _parts(due, total), _parts(by_weight, 1.0), _asked(demands, total))
    sums = (
        ShareParts(
            _parts(_sums(services, of), total),
            _parts(_sums(due, of), total),
            _parts(_sums(by_weight, of), 1.0),
            _asked(_sums(demands, of), total),
        )
        for of in _members(claims)
    )
    return WindowShares(whole, *sums)


def _members(claims: Mapping[str, TenantClaim]) -> tuple[dict[str, list[str]], dict[str, list[str]]]:
    """The ids of the tenants of each tier, and of each group."""
    tiers: dict[str, list[str]] = {}
    groups: dict[str, list[str]] = {}
    for tenant_id, claim in claims.items():
        tiers.setdefault(claim.tier, []).append(tenant_id)
        if claim.group is not None:
            groups.setdefault(claim.group, []).append(tenant_id)
    return tiers, groups


def _by_weight(
    claims: Mapping[str, TenantClaim], tier_weights: Mapping[str, float], group_weights: Mapping[str, float]
) -> dict[str, float]:
    """The part of the whole that each tenant's weight gives it if all ask for all there is: at each level its weight
    over the sum of those beside it.
    """
    tiers: dict[str, float] = {}  # the sum of the weights in each: of groups, and of tenants without one
    groups: dict[str, float] = {}  # of the tenants in each
    for claim in claims.values():
        weight = claim.weight
        if claim.group is not None:
            weight = 0.0 if claim.group in groups else group_weights[claim.group]
            groups[claim.group] = groups.get(claim.group, 0.0) + claim.weight
        tiers[claim.tier] = tiers.get(claim.tier, 0.0) + weight
    whole = fsum(tier_weights[tier] for tier in tiers)
    found = {}
    for tenant_id, claim in claims.items():
        of_tier = tier_weights[claim.tier] / whole
        if claim.group is None:
            found[tenant_id] = of_tier * claim.weight / tiers[claim.tier]
        else:
            of_group = of_tier * group_weights[claim.group] / tiers[claim.tier]
            found[tenant_id] = of_group * claim.weight / groups[claim.group]
    return found


def _asked(demands: Mapping[str, float], total: float) -> dict[str, float | None]:
    return {name: None if demand == inf else round(demand / total, SHARE_DIGITS) for name, demand in demands.items()}


def _sums(amounts: Mapping[str, float], members: Mapping[str, list[str]]) -> dict[str, float]:
    return {name: fsum(amounts[each] for each in of) for name, of in members.items()}


def _parts(amounts: Mapping[str, float], total: float) -> dict[str, float]:
    return {member: round(amount / total, SHARE_DIGITS) for member, amount in amounts.items()}
