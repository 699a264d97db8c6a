"""PushOut: which waiting request makes room for an arrival when the pool's queue is full: the newest request of the
tenant that exceeds its share most.

Tiers share the queue by weight. Within a tier, its groups and the tenants without a group do, and within a group its
tenants. At each level the one with the most queued over its weight yields, if that is more than the newcomer's would
have with the newcomer. So a tenant with less than its share finds room, however full others have filled the queue, and
a queue that no other needs may be filled by one. A request never makes room for one of a less important tier. In a
queue that is full of bytes, bytes are counted, otherwise requests.

Buffers of routers that drop from the longest queue share memory in this way (Suter et al., "Design Considerations for
Supporting TCP with Per-flow Queueing", INFOCOM 1998).

The amounts of tenants change with almost every event, but a victim is needed in a full queue only. So once the queue
has been full, tenants whose amount changed are noted, and the heaps are updated before the next victim is chosen.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from policies.fairness.heap import Place, TenantHeap
from policies.pool.tenants import Tenants
from policies.types import Request

TIER, GROUP, TENANT = "tier", "group", "tenant"


class Level(NamedTuple):
    """One step on the path from a tier to a tenant: the tier, the group or the tenant, with its weight."""

    kind: str
    id: str
    weight: float


Path = tuple[Level, ...]
"""The levels from a tenant's tier to the tenant itself."""


class Holder(Place):
    """A tier, group or tenant, and the amount of the queue that its requests fill, in requests or bytes. Mutable."""

    __slots__ = ("amount", "inner", "key", "outer", "weight")

    def __init__(self, key: tuple[str, ...], level: Level, outer: "Holder | None") -> None:
        """`outer` is the holder that this one is within."""
        super().__init__(level.id)
        self.key = key
        self.weight = level.weight
        self.amount = 0
        self.outer = outer
        self.inner: TenantHeap[Holder] = TenantHeap(_most_first)

    def load(self, more: int = 0) -> float:
        """The amount that the holder has, plus `more`, over its weight."""
        return (self.amount + more) / self.weight


def _most_first(holder: Holder) -> float:
    return -holder.load()


class Holdings:
    """The amount of a full queue that each tier, group and tenant fills, in requests or in bytes. Mutable."""

    def __init__(self) -> None:
        self._root = Holder((), Level("", "", 1.0), None)
        self._holders: dict[tuple[str, ...], Holder] = {}  # that hold anything, by the kinds and ids on their paths
        self._tenants: dict[str, tuple[Holder, int]] = {}  # as of their last change

    def changed(self, tenant_id: str, path: Path, amount: int) -> None:
        """Set the amount that the tenant holds, and its place among tiers and groups."""
        before = self._tenants.pop(tenant_id, None)
        if before is not None:
            self._take(*before)
        if not amount:
            return
        holder = self._root
        for key, level in _keys(path):
            inner = self._holders.get(key)
            if inner is None:
                inner = self._holders[key] = Holder(key, level, holder)
            inner.weight = level.weight
            inner.amount += amount
            holder.inner.push(inner, len(self._holders))
            holder = inner
        self._tenants[tenant_id] = holder, amount

    def yielding(self, path: Path, amount: int, may_yield: Callable[[str], bool]) -> str | None:
        """The tenant that yields to a newcomer of this path and amount; None: no tenant exceeds its share more than the
        newcomer. `may_yield` tells whether a tier yields to the newcomer's tier.
        """
        holder: Holder | None = self._root
        for key, level in _keys(path):
            if holder is None:
                return None
            is_tier = level.kind == TIER
            most = holder.inner.first_of(lambda tier: may_yield(tier.tenant_id)) if is_tier else holder.inner.first()
            own = self._holders.get(key)
            own_load = amount / level.weight if own is None else own.load(amount)
            if most is not None and most is not own and most.load() > own_load:
                return _tenant_with_most(most)
            holder = own
        return None

    def _take(self, holder: Holder | None, amount: int) -> None:
        """Subtract the amount from the holder and from every holder that it is within; an empty holder is dropped."""
        while holder is not None and holder.outer is not None:
            holder.amount -= amount
            if not holder.amount:
                holder.stamp = 0
                del self._holders[holder.key]
            holder = holder.outer


def _keys(path: Path) -> Iterator[tuple[tuple[str, ...], Level]]:
    """Each level of the path, with the kinds and ids up to and including it."""
    key: tuple[str, ...] = ()
    for level in path:
        key = (*key, level.kind, level.id)
        yield key, level


def _tenant_with_most(holder: Holder) -> str:
    while (inner := holder.inner.first()) is not None:
        holder = inner
    return holder.tenant_id


class PushOut:
    """The choice of the waiting request that is rejected to make room for a new one, in a full queue. Mutable."""

    def __init__(self, tenants: Tenants) -> None:
        self._queues = tenants.queues
        self._tiers = tenants.tiers
        self._tenants = tenants.states
        self._requests = Holdings()
        self._bytes = Holdings()

    def victim(self, newcomer: Request, *, of_bytes: bool) -> Request | None:
        """The waiting request that makes room for the newcomer; None where none does. The queue is full of bytes
        (`of_bytes`) or of requests.
        """
        self._look()
        path = self._path(newcomer.tenant_id)
        priority = self._tiers[path[0].id].priority

        def may_yield(tier_id: str) -> bool:
            return self._tiers[tier_id].priority <= priority

        holdings, amount = (self._bytes, newcomer.body_bytes) if of_bytes else (self._requests, 1)
        tenant_id = holdings.yielding(path, amount, may_yield)
        return None if tenant_id is None else self._queues.of(tenant_id).newest()

    def _look(self) -> None:
        """Apply the changes since the last look."""
        changed: Iterable[str] | None = self._queues.changed
        if changed is None:
            self._requests, self._bytes = Holdings(), Holdings()
            changed = self._queues.tenant_ids()
        for tenant_id in changed:
            queue = self._queues.of(tenant_id)
            path = self._path(tenant_id) if len(queue) else ()
            self._requests.changed(tenant_id, path, len(queue))
            self._bytes.changed(tenant_id, path, queue.body_bytes)
        self._queues.changed = set()

    def _path(self, tenant_id: str) -> Path:
        state = self._tenants[tenant_id]
        tenant, group = state.tenant, state.group
        tier = Level(TIER, tenant.tier_id, self._tiers[tenant.tier_id].weight)
        own = Level(TENANT, tenant_id, tenant.weight)
        return (tier, own) if group is None else (tier, Level(GROUP, group.group.id, group.group.weight), own)
