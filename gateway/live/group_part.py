"""GroupPart: the part of the live document that the administrator of a group sees: its group and its tenants.

The part has only the members that are named here. So other groups and tenants, tiers, backends, processes, sums over a
pool, and all future members stay out of it.
"""

from dataclasses import dataclass

from gateway.live.schema import LiveGroupDocument, LiveGroupPool, LivePageDocument, LivePagePool


@dataclass(frozen=True, slots=True)
class GroupPart:
    """The rule that reduces the live document (the data of the live page) to the part that the administrator of one
    group sees. Viewers with equal rules get the same bytes.
    """

    group: str

    def of(self, whole: LivePageDocument) -> LiveGroupDocument:
        """The group's part of the document: the pools that its tenants use. It shares members with the whole."""
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
