"""How far apart are tenants that wait side by side? The evidence of fairness, of one pool.

A fair policy promises something of tenants that both wait, over any stretch of time (docs/fairness.md). Here are
such stretches: from a moment that was noted to now, for those that have waited all the time between. Among them it is
said by how much the received service over weight differs at most, max |Wi/wi - Wj/wj|, and how evenly it was received:
Jain's index, 1 where all got alike, 1/n where one got everything (Jain, Chiu, Hawe, DEC-TR-301, 1984).

Whether somebody waited all the time is known from the number of the spell in which he waits, not from looking now and
then: a queue that was empty for a moment begins a new one, and its tenant is lifted then.
"""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from math import fsum, inf
from typing import Final, NamedTuple

from policies.fairness.bounds import FairnessBound

# Short ones for tenants that do not wait for long; in the longest a pool whose backends hold much shows what it does.
WINDOWS_S: Final = (2.0, 10.0, 60.0, 300.0)


class TenantService(NamedTuple):
    """A tenant at one moment. `service` is all it ever received; `waiting_spell` is 0 while it does not wait."""

    tier_id: str
    weight: float
    service: float
    waiting_spell: int


class Evenness(NamedTuple):
    """Of the tenants of one tier that waited side by side: the gap, in service over weight, and Jain's index (None
    where nobody received anything).
    """

    gap: float
    jain_index: float | None


@dataclass(slots=True)
class _Noted:
    """All that waited at one moment."""

    at: float
    standings: Mapping[str, TenantService]


class ServiceGap:
    """Watches one pool. Mutable."""

    def __init__(self, windows_s: tuple[float, ...] = WINDOWS_S) -> None:
        """A stretch is at most as long as its window; whoever has waited for half of that is compared."""
        self._windows: dict[float, list[_Noted]] = {window_s: [] for window_s in windows_s}

    def observe(self, now: float, standings: Mapping[str, TenantService]) -> dict[str, Evenness]:
        """The state by now, in seconds; returns by tier how even it is among those who waited: the largest gap of all
        stretches, and Jain's index over the longest in which anybody received anything.
        """
        waiting = {tenant_id: each for tenant_id, each in standings.items() if each.waiting_spell}
        found: dict[str, Evenness] = {}
        for window_s, noted in self._windows.items():
            for then in reversed(noted):  # the oldest last: its index stands
                for tier_id, received in received_since(then.standings, waiting).items():
                    gap = max(received) - min(received)
                    before = found.get(tier_id, Evenness(0.0, None))
                    found[tier_id] = Evenness(max(gap, before.gap), jain_index(received) or before.jain_index)
            if not noted or now - noted[-1].at >= window_s / 2:
                noted.append(_Noted(now, waiting))
                del noted[:-2]
        return found


def received_since(before: Mapping[str, TenantService], waiting: Mapping[str, TenantService]) -> dict[str, list[float]]:
    """Service over weight, by tier, of all that have waited since then; of tiers that have at least two such tenants.
    One whose weight or tier has changed has begun anew.
    """
    tiers: defaultdict[str, list[float]] = defaultdict(list)
    for tenant_id, now in waiting.items():
        then = before.get(tenant_id)
        if then is not None and then.waiting_spell == now.waiting_spell and then[:2] == now[:2]:
            tiers[now.tier_id].append((now.service - then.service) / now.weight)
    return {tier_id: received for tier_id, received in tiers.items() if len(received) > 1}


def jain_index(received: list[float]) -> float | None:
    """(sum x)^2 / (n sum x^2); what was given back counts as nothing received."""
    amounts = [max(0.0, amount) for amount in received]
    squares = fsum(amount * amount for amount in amounts)
    return fsum(amounts) ** 2 / (len(amounts) * squares) if squares else None


@dataclass(frozen=True, slots=True)
class GapBound:
    """What a pool's policy promises. `ahead_service` is its K; `is_capped`: a tenant may hold only a part of what is in
    flight.
    """

    bound: FairnessBound
    ahead_service: float = 0.0
    is_capped: bool = True

    def gap_max(self, service_in_flight_max: float, weight_min: float) -> float:
        """The gap that is allowed between tenants of a tier whose least weight is this.

        U, the price of all that may be in flight, comes from the size of the backends and not from what happened to be
        in flight, so the bound does not move. Whoever is capped may be passed over for what he has in flight (G), and
        where refunds come on top they are at most what is in flight too: each at most U once more.
        """
        if service_in_flight_max == inf:
            return inf
        in_flight = service_in_flight_max / weight_min
        sides = in_flight * (1 + self.is_capped + self.bound.plus_refunds) + self.ahead_service
        return self.bound.both_wait * sides
