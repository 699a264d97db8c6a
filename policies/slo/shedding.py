"""Shedding: which waiting request is dropped when the queues are full and a more important one arrives.

Only sheddable tiers (a priority below 0) yield, and only to more important ones. A request that is late already is
dropped first. Otherwise the lowest tier is chosen, within it the group and then the tenant furthest above its fair
share (the largest rank), and then that tenant's newest request, which has waited least. A running request is never
dropped.

Two heaps per tier keep the tenants by lateness and by rank. Ranks and queues change with almost every event. So a
changed tenant is only noted, and the heaps are updated when a victim is asked for or many tenants are noted.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import groupby
from math import inf

from policies.due_times import first_token_due_at
from policies.fairness.heap import Place, TenantHeap
from policies.queues import PoolQueues
from policies.types import Request, Tier

SHED_MAX = 64  # requests dropped for one arrival: a large body is not worth more small ones
NOTED_MAX = 64  # tenants that may be noted; of those beyond, every poll looks at one of PARTS
PARTS = 4


class _Waiter(Place):
    """A waiting tenant of a sheddable tier, in one of its tier's heaps."""

    __slots__ = ("last_id_first", "tier_id")

    def __init__(self, tenant_id: str, tier_id: str) -> None:
        super().__init__(tenant_id)
        self.tier_id = tier_id
        # Of equal ranks, the last id yields first; 1 sorts after any negated letter and ends the id.
        self.last_id_first = (*(-ord(letter) for letter in tenant_id), 1)


@dataclass(slots=True)
class _Yielding:
    """The waiting tenants of one tier, in two heaps: by the due time of each queue's head, and by rank."""

    due: TenantHeap[_Waiter]
    ahead: TenantHeap[_Waiter]


@dataclass(slots=True)
class Shedding:
    """The choice of the waiting request that is dropped when the queue is full and a request of a more important tier
    arrives. `tier` and `ranks` are functions of a tenant's id. `tier` returns its tier. `ranks` returns a tuple by
    which tenants of one tier are compared: the ranks of the groups above the tenant, then its own (FairTree.ranks). A
    request that is late already is dropped first. If there is none, the tenant with the largest tuple in the lowest
    tier loses its newest request. Mutable.
    """

    queues: PoolQueues
    tiers: Mapping[str, Tier]
    tier: Callable[[str], Tier]
    ranks: Callable[[str], tuple[float, ...]]
    noted: set[str] = field(default_factory=set)
    """Tenants whose queue, tier or rank may have changed since the last look. Other parts add to it."""
    is_on: bool = field(init=False)
    """Whether any tier yields."""
    _waiters: dict[str, tuple[_Waiter, _Waiter]] = field(default_factory=dict)
    _by_tier: dict[str, _Yielding] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.is_on = any(tier.is_sheddable for tier in self.tiers.values())

    def ranks_changed(self) -> None:
        """Note all waiting tenants, because any rank may have changed."""
        self.noted.update(self.queues.tenant_ids())

    def tiers_changed(self) -> None:
        """Apply a change of the tiers: added, removed or changed."""
        self.is_on = any(tier.is_sheddable for tier in self.tiers.values())
        self.ranks_changed()
        self._look()
        for tier_id in self._by_tier.keys() - self.tiers.keys():
            del self._by_tier[tier_id]

    def settle(self) -> None:
        """Update the heaps for a part of the noted tenants where these are many. Called regularly to bound the cost of
        `victim`: a burst notes hundreds, and no single call pays for all.
        """
        beyond = len(self.noted) - NOTED_MAX
        if not self.is_on:
            self.noted.clear()
        elif beyond >= 0:
            self._look_at([self.noted.pop() for _ in range(beyond // PARTS + 1)])

    def victim(self, newcomer: Request, now: float) -> Request | None:
        """The waiting request to drop for the newcomer; None where no request yields to it."""
        self._look()
        priority = self.tier(newcomer.tenant_id).priority
        levels = list(self._levels(priority))
        for level in levels:
            due = [waiter for each in level if (waiter := each.due.first()) and waiter.entry_key[0] < now]
            if due:
                return self.queues.head(min(due, key=lambda waiter: waiter.entry_key).tenant_id)
        for level in levels:
            ahead = [waiter for each in level if (waiter := each.ahead.first())]
            if ahead:
                tenant_id = min(ahead, key=lambda waiter: waiter.entry_key).tenant_id
                return self.queues.of(tenant_id).requests.last()
        return None

    def _levels(self, priority: float) -> Iterator[list[_Yielding]]:
        """The tiers that yield to this priority, grouped by priority, the lowest first."""
        yielding = [tier for tier_id in self._by_tier if (tier := self.tiers[tier_id]).priority < priority]
        yielding.sort(key=lambda tier: tier.priority)
        for _, tiers in groupby(yielding, key=lambda tier: tier.priority):
            yield [self._by_tier[tier.id] for tier in tiers]

    def _look(self) -> None:
        """Update the heaps for all noted tenants."""
        self._look_at(self.noted)
        self.noted.clear()

    def _look_at(self, tenant_ids: Iterable[str]) -> None:
        queues, waiters = self.queues, self._waiters
        for tenant_id in tenant_ids:
            before = waiters.get(tenant_id)
            tier = self.tier(tenant_id) if queues.of(tenant_id).requests else None
            if before is not None and (tier is None or tier.id != before[0].tier_id or not tier.is_sheddable):
                del waiters[tenant_id]
                before[0].stamp = before[1].stamp = 0
                before = None
            if tier is None or not tier.is_sheddable:
                continue
            if before is None:
                before = waiters[tenant_id] = _Waiter(tenant_id, tier.id), _Waiter(tenant_id, tier.id)
            heaps = self._by_tier.get(tier.id)
            if heaps is None:
                heaps = self._by_tier[tier.id] = _Yielding(TenantHeap(self._due), TenantHeap(self._ahead))
            for waiter, heap, key in zip(before, (heaps.due, heaps.ahead), (self._due, self._ahead), strict=True):
                if not waiter.stamp or key(waiter) < waiter.entry_key:
                    heap.push(waiter, len(waiters))

    def _due(self, waiter: _Waiter) -> tuple[float, str]:
        head = self.queues.head(waiter.tenant_id)
        due_at = first_token_due_at(head)
        return inf if due_at is None else due_at, head.id

    def _ahead(self, waiter: _Waiter) -> tuple[list[float], tuple[int, ...]]:
        return [-rank for rank in self.ranks(waiter.tenant_id)], waiter.last_id_first
