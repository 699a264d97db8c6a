"""The fair shares of a pool: how much service each tenant is due, by weights and demands alone.

Weighted max-min fairness by progressive filling (Bertsekas and Gallager, Data Networks, 1992, section 6.5.2), level by
level as the scheduler decides. The tiers divide the service of the pool by their weights; the groups of a tier, and its
tenants without a group, divide the tier's part; the tenants of a group divide the group's part. A member that asks for
less than its part gets what it asks for, and the others divide the rest. No member gets more than it asks for.

A tenant that waited asks for everything (`demand` inf); a tenant that did not wait asks for the service it received.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import fsum, inf
from operator import attrgetter
from typing import Final, TypeVar


@dataclass(frozen=True, slots=True)
class Claim:
    """The claim of a tenant, group or tier to service of a pool: its demand, in any unit, and its weight, above 0."""

    weight: float
    demand: float = inf


@dataclass(frozen=True, slots=True)
class TenantClaim(Claim):
    """A tenant's claim to a part of the pool's service, with the tenant's tier and its group; None: no group."""

    tier: str = ""
    group: str | None = None


NO_WEIGHTS: Final[Mapping[str, float]] = {}
Member = TypeVar("Member", str, tuple[str, str])
Level = tuple[Callable[[TenantClaim], str | None], Mapping[str, float]]
"""A depth of the tree: the node of this depth that a tenant is below, and the weights of these nodes."""


def fair_shares(service: float, claims: Mapping[Member, Claim]) -> dict[Member, float]:
    """The part of `service` that each member is due, in the same unit. The parts add up to `service`, or to the sum of
    the demands where that is less.
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
    """The part of `service` that each tenant is due, by tier, group and tenant. Each tenant's tier is one of
    `tier_weights`, and its group one of `group_weights`.
    """
    levels: list[Level] = [(attrgetter("tier"), tier_weights), (attrgetter("group"), group_weights)]
    return _parted(service, tenants, levels)


def _parted(service: float, tenants: Mapping[str, TenantClaim], levels: Sequence[Level]) -> dict[str, float]:
    """Divide the service among the nodes of the first level, and each node's part among the tenants below it. A tenant
    that is below no node competes with the nodes.
    """
    if not levels:
        return fair_shares(service, tenants)
    node_of, weights = levels[0]
    below: dict[str, dict[str, TenantClaim]] = {}
    # Ids of tenants and of nodes are told apart: a group may be named as a tenant is.
    members: dict[tuple[str, str], Claim] = {}
    for tenant_id, claim in tenants.items():
        node_id = node_of(claim)
        if node_id is None:
            members["tenant", tenant_id] = claim
        else:
            below.setdefault(node_id, {})[tenant_id] = claim
    for node_id, claims in below.items():
        members["node", node_id] = Claim(weights[node_id], fsum(claim.demand for claim in claims.values()))
    shares: dict[str, float] = {}
    for (kind, name), due in fair_shares(service, members).items():
        shares |= {name: due} if kind == "tenant" else _parted(due, below[name], levels[1:])
    return shares
