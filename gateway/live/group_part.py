"""GroupPart: what the administrator of a group sees of the live document, which is its group and its tenants.

It is made of the members that are named here. So whatever else the document gains stays out of it: other groups and
tenants, tiers, backends, processes, and sums over a pool.
"""

from dataclasses import dataclass

from gateway.live.schema import LiveGroupDocument, LiveGroupPool, LivePageDocument, LivePagePool


@dataclass(frozen=True, slots=True)
class GroupPart:
    """The part of the live document that the administrator of one group sees. Viewers of equal parts get the same
    bytes.
    """

    group: str

    def of(self, whole: LivePageDocument) -> LiveGroupDocument:
        """The pools that any tenant of the group uses; it shares members with the whole."""
        pools = {name: self._pool(pool) for name, pool in whole.pools.items()}
        shown = {name: pool for name, pool in pools.items() if pool.tenants}
        return LiveGroupDocument(at=whole.at, group=self.group, pools=shown)

    def _pool(self, pool: LivePagePool) -> LiveGroupPool:
        tenants = {name: row for name, row in pool.tenants.items() if row.group == self.group}
        rows = tenants.values()
        return LiveGroupPool(
            policy=pool.policy,
            queued=sum(row.queued for row in rows),
            in_flight=sum(row.in_flight for row in rows),
            oldest_wait_s=max((row.oldest_wait_s or 0.0 for row in rows if row.queued), default=None),
            groups={self.group: pool.groups[self.group]} if self.group in pool.groups else {},
            tenants=tenants,
        )
