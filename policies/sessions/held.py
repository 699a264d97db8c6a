"""Held turns: the turns that wait until their session has room, in the fair order of the pool.

Tiers, groups and tenants share by VTC as in the pool's order, by the charges of their calls. A tenant waits here while
any of its turns is held. Among a tenant's turns, overdue ones are first, then turns of sessions that were paused before
they had their quantum, then the others, the oldest first.
"""

from collections.abc import Callable, Iterator
from itertools import chain

from policies.fairness.tree import FairTree
from policies.queues import ArrivalOrder
from policies.sessions.session import Turn
from policies.types import Request, Tenant


class TenantTurns(ArrivalOrder):
    """The held turns (see HeldTurns) of one tenant. The head is the first turn that is not in `tried`: the current
    search for room has not tried it yet. Mutable.
    """

    __slots__ = ("first", "overdue", "then", "tried")

    def __init__(self, tried: set[str]) -> None:
        super().__init__()
        self.overdue: dict[str, Turn] = {}
        self.first: dict[str, Turn] = {}
        self.then: dict[str, Turn] = {}
        self.tried = tried

    def head(self) -> Request:
        return next((turn.request for turn in self.all() if turn.request.id not in self.tried), self.oldest)

    @property
    def oldest(self) -> Request:
        return next(self.all()).request

    @property
    def count(self) -> int:
        return len(self.overdue) + len(self.first) + len(self.then)

    def all(self) -> Iterator[Turn]:
        """All held turns, in the order in which they are tried."""
        return chain(self.overdue.values(), self.first.values(), self.then.values())


class HeldTurns:
    """The held turns of one pool: calls of agents' sessions that wait until a backend has room for their context, in
    the fair order of their tenants. Mutable.
    """

    def __init__(self, make_order: Callable[[], FairTree], tenant: Callable[[str], Tenant]) -> None:
        """`make_order` makes a separate VTC order for held turns, with the present tiers and groups."""
        self._make_order = make_order
        self._order: FairTree | None = None
        self._tenant = tenant
        self._charges: dict[str, tuple[Tenant, float]] = {}  # by tenant, that the order does not have yet
        self._of: dict[str, TenantTurns] = {}
        self.turns: dict[str, Turn] = {}
        """By the ids of their requests, those that are held longest first."""
        self._punctual: dict[str, Turn] = {}  # those that are not overdue
        self.tried: set[str] = set()
        """Ids of the turns for which there was no room in this round."""

    def __len__(self) -> int:
        return len(self.turns)

    @property
    def order(self) -> FairTree:
        """The order of the tenants with held turns, by their charges since the order was made."""
        if self._order is None:
            self._order = self._make_order()
            for tenant_id, of_tenant in self._of.items():
                self._order.leaf(self._tenant(tenant_id)).joined(tenant_id, of_tenant)
        for tenant, service in self._charges.values():
            self._order.charged(tenant, (service, 0.0))
        self._charges.clear()
        return self._order

    def charged(self, tenant: Tenant, service: float) -> None:
        """Note a charge for a call of the tenant. The order gets it when the order is next read."""
        before = self._charges.get(tenant.id)
        self._charges[tenant.id] = tenant, service if before is None else before[1] + service

    def rearrange(self) -> None:
        """Tiers, groups, or weights or places of tenants have changed: make a new order without any charges."""
        self._order = None
        self._charges.clear()

    def forget(self, tenant: Tenant) -> None:
        """The tenant is gone, and none of its turns is held."""
        order = self.order
        if tenant.tier_id in order.root.nodes:
            order.forget(tenant.tier_id, tenant.id)

    def add(self, turn: Turn) -> None:
        """Hold a turn."""
        order, tenant_id, request_id = self.order, turn.session.tenant_id, turn.request.id
        of_tenant = self._of.get(tenant_id)
        if of_tenant is None:
            of_tenant = self._of[tenant_id] = TenantTurns(self.tried)
        (of_tenant.first if turn.session.goes_first else of_tenant.then)[request_id] = self.turns[request_id] = turn
        self._punctual[request_id] = turn.session.held[request_id] = turn
        if of_tenant.count == 1:
            order.leaf(self._tenant(tenant_id)).joined(tenant_id, of_tenant)

    def remove(self, turn: Turn) -> None:
        """End the hold of a turn."""
        order, tenant_id, request_id = self.order, turn.session.tenant_id, turn.request.id
        of_tenant = self._of[tenant_id]
        del self.turns[request_id], turn.session.held[request_id]
        self._punctual.pop(request_id, None)
        for turns in (of_tenant.overdue, of_tenant.first, of_tenant.then):
            turns.pop(request_id, None)
        if not of_tenant.count:
            del self._of[tenant_id]
            order.leaf(self._tenant(tenant_id)).left(tenant_id)

    def age(self, arrived_by: float) -> None:
        """Mark turns that arrived by `arrived_by` as overdue: they precede all other turns of their tenant."""
        while (turn := next(iter(self._punctual.values()), None)) is not None and turn.arrived_at <= arrived_by:
            request_id, of_tenant = turn.request.id, self._of[turn.session.tenant_id]
            del self._punctual[request_id]
            turns = of_tenant.first if request_id in of_tenant.first else of_tenant.then
            of_tenant.overdue[request_id] = turns.pop(request_id)

    def next(self) -> Turn | None:
        """The next turn in order that was not tried in this round; None if all were."""
        request = self.order.root.pick(self._is_untried)
        return None if request is None else self.turns[request.id]

    def of_tenant(self, tenant_id: str) -> Iterator[Turn]:
        """The held turns of a tenant, in the order in which they are tried."""
        of_tenant = self._of.get(tenant_id)
        return of_tenant.all() if of_tenant is not None else iter(())

    def waited_longest(self) -> Turn | None:
        return next(iter(self.turns.values()), None)

    def _is_untried(self, request: Request) -> bool:
        return request.id not in self.tried
