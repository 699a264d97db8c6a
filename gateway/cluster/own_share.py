"""OwnShare: a member's part of every limit while it is alone.

The part is 1/N (rule 25), N being the highest number of members that the store listed within the last minute, so that
the parts of all members add up to at most the whole.
"""

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import fields, replace
from typing import Any, Final, TypeVar

from policies.facts import Fact, LoadChanged, Measured, TenantsChanged
from policies.types import ALONE, Group, KeyLimits, ReplicaShare, Tenant

L = TypeVar("L", Tenant, Group, KeyLimits)

COUNT_S: Final = 60.0  # rule 25: N is the most members within so long


class OwnShare:
    """The part of every limit that one member (a process of the cluster) may use while it is alone: 1/N, where N is the
    highest number of members that the election store has listed in the last minute. It returns tenants, and facts about
    groups and backends, with their limits reduced to that part. Mutable.
    """

    def __init__(self, name: str, tenant_of: Callable[[str], Tenant | None]) -> None:
        """`tenant_of` looks a tenant up in the registry."""
        self.part: ReplicaShare = ALONE
        """All of it while the member is not alone."""
        self._name = name
        self._tenant_of = tenant_of
        self._divided: dict[str, tuple[Tenant, Tenant]] = {}
        self._lists: deque[tuple[float, frozenset[str]]] = deque()

    def listed(self, members: Iterable[str], now: float) -> None:
        """The store lists these members."""
        self._lists.append((now, frozenset(members)))

    def members(self, now: float) -> frozenset[str]:
        """The largest list of members within the last minute."""
        while len(self._lists) > 1 and now - self._lists[0][0] > COUNT_S:  # the last list stands without the store
            self._lists.popleft()
        return max((names | {self._name} for _, names in self._lists), key=len, default=frozenset({self._name}))

    def divide(self, now: float) -> ReplicaShare:
        """The member is alone from now on; returns its part of every limit."""
        names = self.members(now)
        self.end()
        self.part = ReplicaShare(len(names), sorted(names).index(self._name))
        return self.part

    def end(self) -> None:
        """The member is no longer alone."""
        self.part = ALONE
        self._divided.clear()

    def of_fact(self, fact: Fact) -> Fact:
        """The fact, with the limits of backends and groups in it reduced to this member's part."""
        if self.part.replicas == 1:
            return fact
        match fact:
            case LoadChanged():
                return replace(fact, loads=tuple(replace(load, share=self.part) for load in fact.loads))
            case Measured():
                return replace(fact, load=replace(fact.load, share=self.part))
            case TenantsChanged():
                return replace(fact, groups=tuple(divided(group, self.part) for group in fact.groups))
        return fact

    def of_tenant(self, tenant_id: str) -> Tenant | None:
        """A tenant from the registry with this member's part of its limits; None: the registry does not know it."""
        tenant = self._tenant_of(tenant_id)
        if tenant is None or self.part.replicas == 1:
            return tenant
        known = self._divided.get(tenant_id)
        if known is None or known[0] is not tenant:
            known = self._divided[tenant_id] = tenant, divided(tenant, self.part)
        return known[1]


def divided(limited: L, share: ReplicaShare) -> L:
    """The tenant, key or group with every maximum reduced to one member's part."""
    limits = {each.name: getattr(limited, each.name) for each in fields(limited) if each.name.endswith("_max")}
    parts: dict[str, Any] = {name: share.of(limit) for name, limit in limits.items() if limit is not None}
    if isinstance(limited, Tenant):
        parts["keys"] = {key_id: divided(key, share) for key_id, key in limited.keys.items()}
    return replace(limited, **parts)
