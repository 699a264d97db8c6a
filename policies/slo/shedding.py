"""The queues are full and somebody more important comes: who waits in vain?

Only tiers that are sheddable (a priority below 0) give, and only to more important ones. What is late already goes
first, then the lowest tier, inside it the tenant furthest above its fair share (the largest key), inside it the
newest request, for which the least was waited. Whatever runs is never touched.
"""

from collections.abc import Callable
from dataclasses import dataclass
from math import inf

from policies.queues import Queues
from policies.slo.envelope import first_token_due_at
from policies.types import Request, Tier

SHED_MAX = 64  # for one that comes: a large body is not worth more small ones


@dataclass(frozen=True, slots=True)
class Shedding:
    """Which waiting request makes room? `tier` gives the tier of a tenant's id, `key` its key."""

    queues: Queues
    tier: Callable[[str], Tier]
    key: Callable[[str], float]

    def victim(self, newcomer: Request, now: float) -> Request | None:
        """The request that goes first, None where nobody yields to this one. Looks at every tenant once."""
        priority = self.tier(newcomer.tenant_id).priority
        yielding = [
            tenant_id
            for tenant_id in self.queues.tenant_ids()
            if (tier := self.tier(tenant_id)).is_sheddable and tier.priority < priority
        ]
        if not yielding:
            return None
        late = [head for tenant_id in yielding if _due_at(head := self.queues.head(tenant_id)) < now]
        if late:
            return min(late, key=lambda request: (self.tier(request.tenant_id).priority, _due_at(request), request.id))
        ahead = max(yielding, key=lambda tenant_id: (-self.tier(tenant_id).priority, self.key(tenant_id), tenant_id))
        return next(reversed(self.queues.of(ahead).requests.values()))


def _due_at(request: Request) -> float:
    due_at = first_token_due_at(request)
    return inf if due_at is None else due_at
