"""Share cap: while others wait, a tenant may have at most the part phi of the pool's capacity in flight.

Counters only include requests that were dispatched, so a tenant that is behind could fill the whole pool before it has
paid for one output. A cap of phi * F on its tokens in flight (F: our tokens that the pool may hold) bounds the
difference in service of two backlogged tenants by U = max(price of the longest prompt, price of phi * F output tokens),
at almost no cost. The scheduler lifts the cap where it would do harm:
- a tenant that is alone has no cap, and when every waiting tenant is over the cap the room goes to the next one;
- a tenant that is next but over its share is passed over only while it is behind by no more than the possible cost of
  its requests in flight. A tenant of long answers needs more than half of the tokens for half of the service. The pool
  holds F tokens, or more where requests are reserved at the fullest moment (`kv_rule: expected` or `peak`) and their
  full lengths exceed F: a share is then a part of the requests in flight. Requests in flight count by the speed of
  their backend: slots of an engine that is three times as slow count a third. Counted in full, these slots would fill a
  tenant's share but serve it little, and the tenant would be passed over until its lag is G. The cap is never below the
  part of the pool that the tenant's weight entitles it to, or a weight of 4 against 1 would come out as 1 against 1.
"""

from typing import NamedTuple

from policies.fairness.node import FairNode
from policies.fairness.tree import FairTree
from policies.types import Tenant

SHARE_RATIO_MAX = 0.5  # phi


class InFlightShare(NamedTuple):
    """The part of a pool that one tenant would have in flight if one more of its requests were sent: its `sequences`
    and KV `tokens`, and the most that the pool can hold (`sequences_max`, `tokens_max`). All four numbers are weighted
    by the speed of the backends.
    """

    sequences: float
    tokens: float
    sequences_max: float
    tokens_max: float

    def is_within(self, ratio: float) -> bool:
        """Whether the share is at most this part of the pool."""
        return self.sequences <= ratio * self.sequences_max and self.tokens <= ratio * self.tokens_max


class ShareCap:
    """The cap on the part of a pool's capacity that one tenant may have in flight while others are active. A tenant is
    active while it has a request queued or in flight. Mutable.
    """

    def __init__(self, ratio_max: float, order: FairTree) -> None:
        """`ratio_max` is the phi of the module's head."""
        self._ratio_max = ratio_max
        self._order = order
        self.active: dict[str, tuple[FairNode, float]] = {}
        """By active tenant: the node that it is a child of, and the weight that counts there. To read."""

    def set_active(self, tenant: Tenant, *, active: bool) -> None:
        """Set whether the tenant has a request queued or in flight; its weight counts while it has one."""
        is_counted = tenant.id in self.active
        if active and not is_counted:
            leaf = self._order.root.nodes[tenant.tier_id]
            if leaf.level is not None:
                leaf = self._order.leaf(tenant)
            self.active[tenant.id] = leaf, tenant.weight
            leaf.count_active(1, tenant.weight)
        elif is_counted and not active:
            leaf, weight = self.active[tenant.id]
            del self.active[tenant.id]
            leaf.count_active(-1, -weight)

    def allows(self, tenant: Tenant, share: InFlightShare) -> bool:
        """Whether the active tenant may have this share in flight."""
        ratio = self._ratio_max
        if share.sequences <= ratio * share.sequences_max and share.tokens <= ratio * share.tokens_max:
            return True  # `is_within`, inlined: asked of every tenant that is next
        ratio = max(self._ratio_max, self.ratio_if_active(tenant))
        # No cap: a request larger than the whole pool blocks the queue instead of being passed over.
        return ratio >= 1.0 or share.is_within(ratio)

    def entitles(self, tenant: Tenant, share: InFlightShare) -> bool:
        """Whether the share is at most the part of the pool that the tenant's weight entitles it to, among active
        tenants.
        """
        return share.is_within(self.ratio_if_active(tenant))

    def ratio_if_active(self, tenant: Tenant) -> float:
        """The part of the pool that the tenant's weight entitles it to, if it is active. It is a product over the nodes
        above the tenant: at each, the node's part of the weights of its active siblings.
        """
        ratio, outer = 1.0, self._order.root
        for node in self._order.path(tenant):
            ratio, outer = outer.share_of(ratio, node.weight, is_active=node.active > 0), node
        return outer.share_of(ratio, tenant.weight, is_active=tenant.id in self.active)
