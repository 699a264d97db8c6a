"""ServiceGap: the fairness of one pool, measured as the difference in service of tenants that wait side by side.

A fair policy bounds the difference between two tenants that are both backlogged, over any interval (docs/fairness.md).
Here an interval is from an earlier observation to now, for the tenants that have waited throughout. Two figures are
reported: the largest difference of received service over weight, max |Wi/wi - Wj/wj|, and Jain's index, which is 1 if
all received the same, and 1/n if one of n received everything (Jain, Chiu, Hawe, DEC-TR-301, 1984).

Whether a tenant waited throughout is known from the number of its waiting spell, not from samples: a queue that was
empty for a moment begins a new spell, and its tenant gets a lift then.
"""

from collections import defaultdict
from collections.abc import Generator, Mapping
from dataclasses import dataclass
from math import fsum, inf
from typing import Final, NamedTuple

from gateway.config.scheduling import Scheduling
from policies.fairness.bounds import BOUNDS
from policies.fairness.fairness_bound import FairnessBound

# Short windows are for tenants that wait briefly; the longest for pools whose backends hold much service in flight.
WINDOWS_S: Final = (2.0, 10.0, 60.0, 300.0)


class TenantService(NamedTuple):
    """The service of one tenant at one moment. `service` is its total so far. `waiting_spell` is the number of its
    present period of waiting; 0: it does not wait.
    """

    tier_id: str
    weight: float
    service: float
    waiting_spell: int
    group_id: str | None = None


class Evenness(NamedTuple):
    """The evenness of service in one tier, among tenants that waited at the same time. Only tenants of one group, or
    without a group, are compared. `gap` is the largest difference in service over weight. `jain_index` is Jain's index
    of the group where it is least; None: no tenant received service.
    """

    gap: float
    jain_index: float | None


@dataclass(slots=True)
class _Noted:
    """The record of all tenants that waited at one moment, in seconds."""

    at: float
    tenants: Mapping[str, TenantService]


class ServiceGap:
    """The measurement of one pool's service gap: the largest difference in service over weight between tenants that
    waited side by side. Mutable.
    """

    def __init__(self, windows_s: tuple[float, ...] = WINDOWS_S) -> None:
        """An interval is at most as long as its window; tenants that have waited for half of a window are compared."""
        self._windows: dict[float, list[_Noted]] = {window_s: [] for window_s in windows_s}

    def observing(
        self, now: float, tenants: Mapping[str, TenantService], found: dict[str, Evenness]
    ) -> Generator[None, None, None]:
        """Observe all tenants at `now`, in seconds, and put the evenness of each tier into `found`. That is the largest
        gap of all intervals, and Jain's index over the longest interval in which any tenant received service. Each step
        of the generator takes time in proportion to all tenants.
        """
        waiting = {tenant_id: each for tenant_id, each in tenants.items() if each.waiting_spell}
        for window_s, noted in self._windows.items():
            for then in reversed(noted):  # the oldest last: its index stands
                yield
                tiers = received_since(then.tenants, waiting)
                yield
                for tier_id, of_groups in tiers.items():
                    gap = max(max(received) - min(received) for received in of_groups)
                    jain = min((index for each in of_groups if (index := jain_index(each)) is not None), default=None)
                    before = found.get(tier_id, Evenness(0.0, None))
                    found[tier_id] = Evenness(max(gap, before.gap), jain or before.jain_index)
            if not noted or now - noted[-1].at >= window_s / 2:
                noted.append(_Noted(now, waiting))
                del noted[:-2]


def received_since(
    before: Mapping[str, TenantService], waiting: Mapping[str, TenantService]
) -> dict[str, list[list[float]]]:
    """The service over weight that each tenant which has waited since `before` received, by tier and by group. Only
    groups with at least two such tenants are included; tenants without a group are compared with each other. A tenant
    whose weight, tier or group has changed is left out.
    """
    groups: defaultdict[tuple[str, str | None], list[float]] = defaultdict(list)
    for tenant_id, now in waiting.items():
        then = before.get(tenant_id)
        is_same = then is not None and (then.waiting_spell, then.group_id) == (now.waiting_spell, now.group_id)
        if then is not None and is_same and then[:2] == now[:2]:
            groups[now.tier_id, now.group_id].append((now.service - then.service) / now.weight)
    tiers: defaultdict[str, list[list[float]]] = defaultdict(list)
    for (tier_id, _), received in groups.items():
        if len(received) > 1:
            tiers[tier_id].append(received)
    return tiers


def jain_index(received: list[float]) -> float | None:
    """Jain's index: (sum x)^2 / (n sum x^2); a net refund counts as 0. None where no tenant received service."""
    amounts = [max(0.0, amount) for amount in received]
    squares = fsum(amount * amount for amount in amounts)
    return fsum(amounts) ** 2 / (len(amounts) * squares) if squares else None


@dataclass(frozen=True, slots=True)
class GapBound:
    """The largest service gap that a pool's fairness policy guarantees. `ahead_service` is K of docs/fairness.md: how
    far, in service over weight, the policy lets one tenant run ahead of another. `is_capped`: a tenant may hold only a
    part of the service in flight. `is_per_engine`: each request waits for one backend, and the bound holds for each
    backend.
    """

    bound: FairnessBound
    ahead_service: float = 0.0
    is_capped: bool = True
    is_per_engine: bool = False

    @property
    def is_lasting(self) -> bool:
        """Whether it bounds the gap of the whole pool at any time: a bound that ends with every refund ends all the
        time.
        """
        return not (self.is_per_engine or self.bound.until_refund)

    def gap_max(self, service_in_flight_max: float, weight_min: float) -> float:
        """The bound on the gap between tenants of a tier whose least weight is `weight_min`.

        U, the price of all that may be in flight, comes from the size of the backends and not from the present load, so
        the bound is constant. A capped tenant may be passed over because of its requests in flight (G), and refunds are
        at most the price of all requests in flight: each of the two adds at most U once more.
        """
        if service_in_flight_max == inf:
            return inf
        in_flight = service_in_flight_max / weight_min
        sides = in_flight * (1 + self.is_capped + self.bound.plus_refunds) + self.ahead_service
        return self.bound.both_wait * sides


def gap_bound_of(scheduling: Scheduling) -> GapBound | None:
    """The bound of a pool's fairness policy; None: the policy has none."""
    bound = BOUNDS[scheduling.fairness.policy]
    if bound is None:
        return None
    return GapBound(
        bound,
        bound.ahead_service(scheduling.fairness.parameters()),
        is_capped=scheduling.share_ratio_max < 1.0,
        is_per_engine=scheduling.has_queues_per_backend,
    )
