"""The fair shares of a pool: how much service each tenant is due, by weights and demands alone.

Weighted max-min fairness by progressive filling (Bertsekas and Gallager, Data Networks, 1992, section 6.5.2), in two
levels as the scheduler decides: the tiers part what the pool serves by their weights, then the tenants of a tier part
what the tier gets by theirs. In a tier with groups there is a third level between: the groups, and each tenant without
one as a group by itself. A member that asks for less than its part gets what it asks for, and the others part the
rest. No member gets more than it asks for.

A tenant that waited asks for all there is (`demand` inf); one that did not wait asks for what it was served.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import accumulate
from math import fsum, inf
from typing import Final, TypeVar


@dataclass(frozen=True, slots=True)
class Claim:
    """What one member asks for, in any unit of service, and its weight, above 0."""

    weight: float
    demand: float = inf


@dataclass(frozen=True, slots=True)
class TenantClaim(Claim):
    """The claim of a tenant of this tier and group; None: of no group."""

    tier: str = ""
    group: str | None = None


NO_WEIGHTS: Final[Mapping[str, float]] = {}
Member = TypeVar("Member", str, tuple[str, str])


def fair_shares(service: float, claims: Mapping[Member, Claim]) -> dict[Member, float]:
    """The part of `service` that each member is due, in its unit; all of it, or the sum of the demands where that is
    less.
    """
    # The member that has enough at the lowest level comes last, and is taken first. Ids break ties, so that the order
    # of the claims changes nothing. Sums of weights from the front are exact where differences would not be.
    waiting = sorted(claims, key=lambda member: (claims[member].demand / claims[member].weight, member), reverse=True)
    weights = list(accumulate(claims[member].weight for member in waiting))
    shares = {}
    while waiting:
        member, weight_left = waiting.pop(), weights.pop()
        shares[member] = min(claims[member].demand, service * (claims[member].weight / weight_left))
        service = max(0.0, service - shares[member])
    return shares


def tiered_shares(
    service: float,
    *,
    tier_weights: Mapping[str, float],
    tenants: Mapping[str, TenantClaim],
    group_weights: Mapping[str, float] = NO_WEIGHTS,
) -> dict[str, float]:
    """The part of `service` that each tenant is due. Each tenant's tier is one of `tier_weights`, and its group one of
    `group_weights`.
    """
    members: dict[str, dict[str, TenantClaim]] = {}
    for tenant_id, claim in tenants.items():
        members.setdefault(claim.tier, {})[tenant_id] = claim
    tiers = {
        tier: Claim(tier_weights[tier], fsum(claim.demand for claim in claims.values()))
        for tier, claims in members.items()
    }
    shares: dict[str, float] = {}
    for tier, due in fair_shares(service, tiers).items():
        shares |= _grouped_shares(due, members[tier], group_weights)
    return shares


def _grouped_shares(
    service: float, tenants: Mapping[str, TenantClaim], group_weights: Mapping[str, float]
) -> dict[str, float]:
    groups: dict[str, dict[str, TenantClaim]] = {}
    for tenant_id, claim in tenants.items():
        if claim.group is not None:
            groups.setdefault(claim.group, {})[tenant_id] = claim
    # Ids of tenants and of groups are told apart: a group may be named as a tenant is.
    parties: dict[tuple[str, str], Claim] = {
        ("tenant", tenant_id): claim for tenant_id, claim in tenants.items() if claim.group is None
    }
    for group, claims in groups.items():
        parties["group", group] = Claim(group_weights[group], fsum(claim.demand for claim in claims.values()))
    shares: dict[str, float] = {}
    for (kind, name), due in fair_shares(service, parties).items():
        shares |= {name: due} if kind == "tenant" else fair_shares(due, groups[name])
    return shares
