"""Preview: what an edit of weights and tiers would change, before it is made.

The shares are those that tenants are due by weighted max-min fairness (policies/fairness/fair_shares.py) in the last
minute, once with the present settings and once with the changed ones. A backlogged tenant asks for all there is; any
other asks for what it got, and would get no more with a larger weight.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import inf
from typing import Any, Final

from policies.fairness.fair_shares import TenantClaim, tiered_shares

WINDOW: Final = 1  # of the live document's three: one minute, long enough for a mean and short enough to be now
SHARE_DIGITS: Final = 4  # as in the live document


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightEdit:
    """New weights of tenants and tiers, and new tiers of tenants, by id."""

    tenant_weights: Mapping[str, float] = field(default_factory=dict)
    tenant_tiers: Mapping[str, str] = field(default_factory=dict)
    tier_weights: Mapping[str, float] = field(default_factory=dict)
    group_weights: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class PreviewedShare:
    """The part of the pool's service that a tenant or a tier is due, from 0 to 1, before and after the edit.
    `asks_all`: a tenant waits, so that its weight matters.
    """

    now: float
    then: float
    asks_all: bool


@dataclass(frozen=True, slots=True)
class PreviewedPool:
    """One pool, by tenant and by tier."""

    tenants: Mapping[str, PreviewedShare]
    tiers: Mapping[str, PreviewedShare]


def preview(pool: Mapping[str, Any], tier_weights: Mapping[str, float], edit: WeightEdit) -> PreviewedPool:
    """What the edit changes in this pool of the live document. `tier_weights` has the present weights of all tiers."""
    tenants: Mapping[str, Any] = pool["tenants"]
    weights = {tier_id: tier["weight"] for tier_id, tier in pool["tiers"].items()}
    weights = {**{tenant["tier"]: 1.0 for tenant in tenants.values()}, **tier_weights, **weights}
    claims = {tenant_id: _claim(tenant) for tenant_id, tenant in tenants.items()}
    groups = {group_id: group["weight"] for group_id, group in pool["groups"].items()}
    changed = {
        tenant_id: TenantClaim(
            edit.tenant_weights.get(tenant_id, claim.weight),
            claim.demand,
            claim.tier if claim.group else edit.tenant_tiers.get(tenant_id, claim.tier),
            claim.group,
        )
        for tenant_id, claim in claims.items()
    }
    now = tiered_shares(1.0, tier_weights=weights, tenants=claims, group_weights=groups)
    then = tiered_shares(
        1.0,
        tier_weights={**weights, **edit.tier_weights},
        tenants=changed,
        group_weights={**groups, **edit.group_weights},
    )
    return PreviewedPool(
        {each: _share(now[each], then[each], asks_all=claims[each].demand == inf) for each in claims},
        {
            tier_id: _share(
                sum(now[each] for each in claims if claims[each].tier == tier_id),
                sum(then[each] for each in changed if changed[each].tier == tier_id),
                asks_all=any(each.demand == inf for each in changed.values() if each.tier == tier_id),
            )
            for tier_id in sorted({each.tier for each in (*claims.values(), *changed.values())})
        },
    )


def _claim(tenant: Mapping[str, Any]) -> TenantClaim:
    demand = inf if tenant["backlogged"][WINDOW] else tenant["share"][WINDOW]
    return TenantClaim(tenant["weight"], demand, tenant["tier"], tenant["group"])


def _share(now: float, then: float, *, asks_all: bool) -> PreviewedShare:
    return PreviewedShare(round(now, SHARE_DIGITS), round(then, SHARE_DIGITS), asks_all)
