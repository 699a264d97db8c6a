"""FairNode: a weighted node of the tree that orders one queue. Its children are nodes, or tenants.

The root has the tiers of the pool; a tier has its tenants, or its groups; a group has its tenants. One rule holds at
every depth: a node is charged what all tenants below it receive, over its own weight, so its share does not depend on
their number. Children of one parent compete by weighted VTC if they are nodes, and by the pool's own policy if they are
tenants. A node at its in-flight limit does not wait, as a tenant at its limit does not. It is lifted when it returns,
and the order below it stays as it was.
"""

from collections.abc import Collection, Iterator
from itertools import chain
from typing import Optional

from policies.accounts.checkpoint import TierCheckpoint
from policies.fairness.base import NOTHING, Eligible, Fairness, Waiting
from policies.fairness.vtc import VirtualTokenCounter
from policies.types import Request


class FairNode:
    """A node of the tree that orders one queue: the root, a tier, a group, or, in a tier with groups, a node for one
    tenant without a group. The node competes with the other children of its parent by its weight. It orders its own
    children: nodes or tenants. Mutable.
    """

    __slots__ = (
        "active",
        "active_weight",
        "depth",
        "id",
        "is_held",
        "is_own",
        "leaves",
        "level",
        "nodes",
        "order",
        "outer",
        "tenants",
        "waiting",
        "weight",
    )

    def __init__(
        self,
        node_id: str,
        weight: float,
        outer: Optional["FairNode"],
        order: Fairness | None = None,
        *,
        is_held: bool = False,
        is_own: bool = False,
    ) -> None:
        """`order` orders the node's tenants; None: its children are nodes. `is_held`: the node is at its in-flight
        limit. `is_own`: the node is for one tenant alone, because its siblings are groups.
        """
        self.id = node_id
        self.weight = weight
        self.depth: int = 0 if outer is None else outer.depth + 1
        self.outer = outer
        """The node's parent; None: it is the root."""
        self.is_held, self.is_own = is_held, is_own
        self.waiting = 0
        """The number of waiting tenants below the node, except below nodes at their limits."""
        self.tenants = 0
        """The number of tenants that have their place in the node."""
        self.active, self.active_weight = 0, 0.0
        """The number of children with requests queued or in flight, and the sum of their weights."""
        self.arrange(order)

    def arrange(self, order: Fairness | None) -> None:
        """Replace the node's children, before any of them waits, by tenants in this order; None: by nodes."""
        self.level: VirtualTokenCounter | None = None
        """The order of the node's children, if these are nodes."""
        if order is None:
            self.level = order = VirtualTokenCounter()
        self.order = order
        """The order of the node's children."""
        self.nodes: dict[str, FairNode] = {}
        """The children that are nodes, by their accounts' ids."""
        self.leaves: dict[str, FairNode] = {}
        """The node in which each tenant has its place, by tenant; only in a tier that has groups."""

    def joined(self, tenant_id: str, waiting: Waiting) -> None:
        """A tenant of the node starts to wait."""
        self.order.joined(tenant_id, waiting)
        self.count(1)

    def left(self, tenant_id: str) -> None:
        """A tenant of the node has no more waiting requests that it may send."""
        self.order.left(tenant_id)
        self.count(-1)

    def hold(self, *, held: bool) -> None:
        """The node has reached its in-flight limit (`held`), or has room again."""
        if held != self.is_held:
            waiting = self.waiting
            self.count(-waiting)
            self.is_held = held
            self.count(waiting)

    def count(self, change: int) -> None:
        """`change` more tenants below the node wait. The node waits while any of them does, unless it is held."""
        node = self
        while True:
            before = node.waiting
            node.waiting += change
            outer = node.outer
            if outer is None or node.is_held or not change:
                return
            if not before:
                outer.order.joined(node.id, NOTHING)
            elif not node.waiting:
                outer.order.left(node.id)
            node = outer

    def expect(self, outstanding: float) -> None:
        """Add outstanding service to the node, and to every node above it."""
        if self.outer is not None:
            self.outer.order.charged(self.id, 0.0, outstanding / self.weight)
            self.outer.expect(outstanding)

    def pick(self, eligible: Eligible, besides: Collection[str] = (), blocked: Collection[str] = ()) -> Request | None:
        """The next request below the node, of the waiting and eligible ones. Requests of the tenants `besides`, and
        requests below the children `blocked`, are excluded.
        """
        level, nodes = self.level, self.nodes
        if level is None:
            return self.order.pick(eligible, besides)
        first_id = level.least(blocked)
        if first_id is None:
            return None
        node = nodes[first_id]
        first = node.order.pick(eligible, besides) if node.level is None else node.pick(eligible, besides)
        if first is not None:
            return first
        found: list[Request] = []  # compiled, a variable that `has_one` sets would be of the type that it had before

        def has_one(node_id: str) -> bool:
            request = nodes[node_id].pick(eligible, besides)
            if request is not None:
                found.append(request)
            return request is not None

        level.first_such(has_one, {*blocked, first_id})
        return found[0] if found else None

    def heads(self, besides: Collection[str]) -> Iterator[Request]:
        """The requests that `pick` would return one after another, as described for Fairness.heads."""
        if self.level is None:
            return self.order.heads(besides)
        return chain.from_iterable(self.nodes[each].heads(besides) for each in self.level.in_order(()))

    def reweigh(self, weight: float) -> None:
        """Change the node's weight. Its counter stays, and outstanding service counts by the new weight."""
        if self.outer is not None:
            reweigh(self.outer.order, self.id, self.weight / weight)
            if self.active:
                self.outer.active_weight += weight - self.weight
        self.weight = weight

    def count_active(self, change: int, weight: float) -> None:
        """`change` more children of the node have requests queued or in flight; their weights add up to `weight`. The
        node is active while any of its children is.
        """
        node = self
        while True:
            before = node.active
            node.active += change
            node.active_weight = node.active_weight + weight if node.active else 0.0  # without the error of rounding
            outer = node.outer
            if outer is None or bool(before) == bool(node.active):
                return
            node, weight = outer, node.weight if node.active else -node.weight

    def share_of(self, whole: float, weight: float, *, is_active: bool) -> float:
        """The part of `whole` that a child of this weight is entitled to, among the node's active children.
        `is_active`: the child itself is active.
        """
        if self.active == int(is_active):
            return whole
        return whole * weight / (self.active_weight if is_active else self.active_weight + weight)

    def checkpoint(self, tenant_ids: Collection[str] | None) -> TierCheckpoint:
        """The node's counter, and the counters of its children; of all tenants, or of `tenant_ids`."""
        assert self.outer is not None, "the root has no counter"
        counter, level = self.outer.order.service_record(self.id).counter, self.order.level()
        if self.level is None:
            return TierCheckpoint(counter, level, self.order.received(tenant_ids))
        ids = self.leaves if tenant_ids is None else [each for each in tenant_ids if each in self.leaves]
        own = {each: leaf.id for each in ids if (leaf := self.leaves[each]).is_own}
        return TierCheckpoint(
            counter,
            level,
            {tenant_id: self.order.service_record(own_id).counter for tenant_id, own_id in own.items()},
            {each.id: each.checkpoint(tenant_ids) for each in self.nodes.values() if not each.is_own},
        )

    def all_returned(self) -> None:
        """End `returning` (Fairness.begin_at) for this node and all below: tenants that join from now on are lifted."""
        self.order.all_returned()
        for node in self.nodes.values():
            node.all_returned()


def reweigh(order: Fairness, account_id: str, ratio: float) -> None:
    """Restate an account's outstanding service for another weight; `ratio` is the old weight over the new."""
    if ratio != 1.0:
        outstanding = order.service_record(account_id).outstanding
        order.charged(account_id, 0.0, outstanding * ratio - outstanding)
