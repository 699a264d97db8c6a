"""FairTree: the tree of nodes (FairNode) that orders one queue, and the place of each tenant in it.

A tier whose tenants have no groups has them as its children, as if groups did not exist. In a tier that has groups, a
tenant without one has a node of its own, with the tenant's weight. So under VTC, such tenants get the same shares as in
a tier without groups.
"""

from collections.abc import Callable, Collection, Iterable, Mapping

from policies.accounts.checkpoint import QueueCheckpoint, TierCheckpoint
from policies.accounts.ledger import Charge
from policies.fairness.base import CachedBlocks, Changes, Fairness, ServiceRecord, anything_changes
from policies.fairness.node import FairNode, reweigh
from policies.group_state import NO_GROUPS, GroupState
from policies.types import Group, Tenant, Tier

OWN = "="  # before the id of a tenant whose node is its own; no configured name begins with it


def unknown_tenant(tenant_id: str) -> Tenant | None:  # noqa: ARG001
    return None


class FairTree:
    """The fair order of one queue, as a tree of tiers, groups and tenants. Mutable."""

    def __init__(
        self,
        make_order: Callable[[], Fairness],
        tiers: Iterable[Tier],
        cached_blocks: CachedBlocks,
        cached_changes: Changes = anything_changes,
        noted: set[str] | None = None,
        *,
        groups: Mapping[str, GroupState] = NO_GROUPS,
        grouped: Collection[str] = (),
        tenant: Callable[[str], Tenant | None] = unknown_tenant,
    ) -> None:
        """`cached_blocks` and `cached_changes` read the prefix cache, for orders that need it (Fairness.look_up_in).

        The ids of charged tenants are added to `noted`. `groups` are those of all tiers. `grouped` has the ids of the
        tiers whose tenants have groups. `tenant` gives the settings of a tenant by id; None: the tenant was restored
        from a checkpoint and has sent no request yet.
        """
        self._noted = set[str]() if noted is None else noted
        self._make_order = make_order
        self._groups, self._grouped, self._tenant = groups, grouped, tenant
        self._cached_blocks, self._cached_changes = cached_blocks, cached_changes
        self.root = FairNode("", 1.0, None)
        self.tier_ids = set[str]()
        """The ids of the pool's tiers. Removed tiers may still have accounts of tenants that may return."""
        example = make_order()
        self.is_fair, self.follows_requests = example.is_fair, example.follows_requests
        self.set_tiers(tiers)

    # -- nodes -----------------------------------------------------------------------------------------------

    def set_tiers(self, tiers: Iterable[Tier]) -> None:
        """Add tiers or change their weights. Counters stay; outstanding service counts by the new weight."""
        for tier in tiers:
            node = self._tier(tier.id)
            if tier.id in self.tier_ids:
                node.reweigh(tier.weight)
            else:
                self.tier_ids.add(tier.id)
                node.weight = tier.weight

    def remove_tier(self, tier_id: str) -> None:
        """Remove a tier without tenants. The accounts of tenants that may return are kept."""
        assert not self.root.nodes[tier_id].waiting, "a tier with waiting requests has tenants"
        self.tier_ids.discard(tier_id)
        if not self._has_accounts(tier_id):
            del self.root.nodes[tier_id]
        self.root.order.forget(tier_id)

    def group(self, group: Group) -> FairNode | None:
        """The group's node; None if none of its tenants has used this queue."""
        tier = self.root.nodes.get(group.tier_id)
        return None if tier is None else tier.nodes.get(group.id)

    def is_grouped(self, tier_id: str) -> bool:
        """Whether the tier has groups between itself and its tenants in this queue."""
        tier = self.root.nodes.get(tier_id)
        return tier is not None and tier.level is not None

    def may_ungroup(self, tier_id: str) -> bool:
        """Whether the tier has groups between itself and its tenants, and no group has an account."""
        return self.is_grouped(tier_id) and all(node.is_own for node in self.root.nodes[tier_id].nodes.values())

    def regroup(self, tier_id: str, level: float, now: float) -> None:
        """Put groups between a tier and its tenants, or take them away. None of the tenants waits or has a group. All
        counters stay; the first tenant to join afterwards is lifted to `level`.
        """
        tier = self.root.nodes[tier_id]
        before, leaves, is_grouped = tier.order, tier.leaves, tier.level is not None
        tier.arrange(self._made_order() if is_grouped else None)
        tier.order.begin_at(level, returning=False)
        if is_grouped:
            for tenant_id, leaf in leaves.items():
                tier.order.adopt(tenant_id, before.service_record(leaf.id))
            return
        for tenant_id in list(before.received()):
            leaf = self._seat(tier, tenant_id, self._tenant(tenant_id))
            tier.order.adopt(leaf.id, before.service_record(tenant_id))
            before.hand_over(tenant_id, leaf.order, now)

    def _tier(self, tier_id: str) -> FairNode:
        """The tier's node, made at first use."""
        tier = self.root.nodes.get(tier_id)
        if tier is None:
            order = None if tier_id in self._grouped else self._made_order()
            tier = self.root.nodes[tier_id] = FairNode(tier_id, 1.0, self.root, order)
        return tier

    def _has_accounts(self, tier_id: str) -> bool:
        tier = self.root.nodes[tier_id]
        return bool(tier.nodes if self.is_grouped(tier_id) else tier.order.received())

    def _made_order(self) -> Fairness:
        order = self._make_order()
        if order.reads_prefixes:
            order.look_up_in(self._cached_blocks, self._cached_changes)
        return order

    # -- places of tenants -----------------------------------------------------------------------------------

    def leaf(self, tenant: Tenant) -> FairNode:
        """The node that has the tenant as a child. It is made at first use."""
        tier = self.root.nodes[tenant.tier_id]
        if tier.level is None:
            return tier
        return tier.leaves.get(tenant.id) or self._seat(tier, tenant.id, tenant)

    def path(self, tenant: Tenant) -> list[FairNode]:
        """The nodes from the tenant's tier down to its leaf."""
        path, node = [], self.leaf(tenant)
        while node.outer is not None:
            path.append(node)
            node = node.outer
        return path[::-1]

    def moved(self, before: Tenant, after: Tenant, now: float) -> None:
        """A tenant that does not wait has moved to another tier or group, perhaps with another weight. Counters of
        children of different nodes are not comparable. So the tenant keeps only its distance to the level, and its
        requests in flight count at its new place from now on.
        """
        source, outstanding = self._placed(before.tier_id, before.id), 0.0
        if source is not None:
            outstanding = source.order.service_record(after.id).outstanding * before.weight
            if outstanding:
                source.expect(-outstanding)
            self._unseat(source, before.tier_id, before.id)
        target = self.leaf(after)
        if source is not None:
            source.order.hand_over(after.id, target.order, now)
        reweigh(target.order, after.id, before.weight / after.weight)
        if outstanding:
            target.expect(outstanding)

    def reweighed(self, before: Tenant, after: Tenant) -> None:
        """The tenant has a new weight. Its counter stays, and outstanding service counts by the new weight."""
        leaf = self._placed(after.tier_id, after.id)
        if leaf is not None:
            reweigh(leaf.order, after.id, before.weight / after.weight)
            if leaf.is_own:
                leaf.reweigh(after.weight)

    def forget(self, tier_id: str, tenant_id: str) -> None:
        """Drop the account of a tenant that does not wait."""
        leaf = self._placed(tier_id, tenant_id)
        if leaf is not None:
            leaf.order.forget(tenant_id)
            self._unseat(leaf, tier_id, tenant_id)

    def _placed(self, tier_id: str, tenant_id: str) -> FairNode | None:
        """The node that the tenant is a child of; None: the tenant has no place yet."""
        tier = self.root.nodes[tier_id]
        return tier if tier.level is None else tier.leaves.get(tenant_id)

    def _seat(self, tier: FairNode, tenant_id: str, tenant: Tenant | None) -> FairNode:
        """Give a tenant a place in a tier that has groups. `tenant` None: its settings are not known yet."""
        group_id, weight = (None, 1.0) if tenant is None else (tenant.group_id, tenant.weight)
        if group_id is not None:
            return self._seat_in(tier, tenant_id, group_id)
        leaf = FairNode(OWN + tenant_id, weight, tier, self._made_order(), is_own=True)
        tier.nodes[leaf.id] = tier.leaves[tenant_id] = leaf
        leaf.tenants = 1
        return leaf

    def _seat_in(self, tier: FairNode, tenant_id: str, group_id: str) -> FairNode:
        leaf = tier.leaves[tenant_id] = self._group_node(tier, group_id)
        leaf.tenants += 1
        return leaf

    def _group_node(self, tier: FairNode, group_id: str) -> FairNode:
        node = tier.nodes.get(group_id)
        if node is None:
            state = self._groups.get(group_id)
            weight, is_held = (1.0, False) if state is None else (state.group.weight, state.is_full)
            node = tier.nodes[group_id] = FairNode(group_id, weight, tier, self._made_order(), is_held=is_held)
        return node

    def _unseat(self, leaf: FairNode, tier_id: str, tenant_id: str) -> None:
        """Remove a tenant from its place. The last tenant of a node below a tier takes the node, and its account, with
        it.
        """
        tier = self.root.nodes[tier_id]
        if leaf is tier:
            return
        del tier.leaves[tenant_id]
        leaf.tenants -= 1
        if not leaf.tenants:
            del tier.nodes[leaf.id]
            tier.order.forget(leaf.id)

    # -- service received ------------------------------------------------------------------------------------

    def charged(self, tenant: Tenant, charge: Charge) -> None:
        """Charge the tenant and every node above it, each over its own weight."""
        service, outstanding = charge
        weight = tenant.weight
        if tenant.id not in self._noted:
            self._noted.add(tenant.id)
        node = self.root.nodes[tenant.tier_id]
        if node.level is not None:
            node = node.leaves.get(tenant.id) or self._seat(node, tenant.id, tenant)  # `leaf`, inlined
        node.order.charged(tenant.id, service / weight, outstanding / weight)
        outer = node.outer
        while outer is not None:
            outer.order.charged(node.id, service / node.weight, outstanding / node.weight)
            node, outer = outer, outer.outer

    def served_at_once(self, tenant: Tenant, charge: Charge) -> None:
        """The tenant starts to wait, is charged, and has no more waiting requests. No other waits, and no node above
        it is held.
        """
        service, outstanding = charge
        if tenant.id not in self._noted:
            self._noted.add(tenant.id)
        node, account_id, weight = self.root.nodes[tenant.tier_id], tenant.id, tenant.weight
        if node.level is not None:
            node = self.leaf(tenant)
        while True:
            node.order.served_at_once(account_id, service / weight, outstanding / weight)
            if node.outer is None:
                return
            node, account_id, weight = node.outer, node.id, node.weight

    def service_record(self, tenant: Tenant) -> ServiceRecord:
        """The tenant's account. Where the tenant has a node of its own, it is the node's account, comparable with
        groups.
        """
        leaf = self._placed(tenant.tier_id, tenant.id)
        if leaf is None:
            return ServiceRecord()
        if leaf.is_own and leaf.outer is not None:
            return leaf.outer.order.service_record(leaf.id)
        return leaf.order.service_record(tenant.id)

    def ranks(self, tenant: Tenant) -> tuple[float, ...]:
        """The keys by which the tenants of one tier are ordered: the rank of each node above the tenant, then its own
        rank.
        """
        node = self._placed(tenant.tier_id, tenant.id)
        if node is None:
            return 0.0, 0.0  # it has received nothing
        ranks = [self.service_record(tenant).rank]
        while node.outer is not None and node.outer is not self.root:
            ranks.append(node.outer.order.service_record(node.id).rank)
            node = node.outer
        return tuple(ranks[::-1])

    def lag(self, tenant: Tenant, other: Tenant) -> float:
        """Service over weight by which the tenant is behind the other. Where the two have different leaves, the nodes
        above them that share a parent are compared.
        """
        leaf = self.root.nodes[tenant.tier_id]
        if leaf.level is not None or tenant.tier_id != other.tier_id:
            leaf, other_leaf = self.leaf(tenant), self.leaf(other)
            if leaf is not other_leaf:
                order, node, other_node = _fork(leaf, other_leaf)
                return order.lag(node.id, other_node.id) * node.weight
        return leaf.order.lag(tenant.id, other.id) * tenant.weight

    def ahead(self, tenant: Tenant, other: Tenant) -> float:
        """The amount by which the rank of one tenant is above that of another, in service over weight. Where the two
        have different leaves, the nodes above them that share a parent are compared, as in `lag`.
        """
        node, other_node = self.leaf(tenant), self.leaf(other)
        if node is other_node:
            return node.order.service_record(tenant.id).rank - node.order.service_record(other.id).rank
        order, node, other_node = _fork(node, other_node)
        return order.service_record(node.id).rank - order.service_record(other_node.id).rank

    # -- checkpoints -----------------------------------------------------------------------------------------

    def checkpoint(self, tenant_ids: Collection[str] | None = None) -> QueueCheckpoint:
        """The counters of all nodes and tenants, or of `tenant_ids`, including tenants that have not returned yet.
        Takes time in proportion to their number.
        """
        tiers = {
            tier_id: tier.checkpoint(tenant_ids)
            for tier_id, tier in self.root.nodes.items()
            if tier_id in self.tier_ids or self._has_accounts(tier_id)
        }
        return QueueCheckpoint(self.root.order.level(), tiers)

    def begin_at(self, checkpoint: QueueCheckpoint, *, returning: bool) -> None:
        """Start from these counters, before any request has waited. The first tenant to join is lifted to the level;
        with `returning`, every tenant is until the root's `all_returned`. The checkpoint may have tiers that do not
        exist yet.
        """
        self.root.order.begin_at(checkpoint.level, returning=returning)
        for tier_id, of_tier in checkpoint.tiers.items():
            if tier_id not in self.tier_ids and not of_tier.tenants and not of_tier.groups:
                continue
            tier = self._tier(tier_id)
            if of_tier.groups and tier.level is None:
                tier.arrange(None)
            self._begin_node_at(tier, of_tier, returning=returning)
            for group_id, of_group in of_tier.groups.items():
                for tenant_id in of_group.tenants:
                    self._seat_in(tier, tenant_id, group_id)
                self._begin_node_at(self._group_node(tier, group_id), of_group, returning=returning)

    def _begin_node_at(self, node: FairNode, checkpoint: TierCheckpoint, *, returning: bool) -> None:
        """Set the counters of a node and of its tenants."""
        assert node.outer is not None, "the root has no counter"
        node.outer.order.adopt(node.id, ServiceRecord(checkpoint.counter))
        node.order.begin_at(checkpoint.level, returning=returning)
        for tenant_id, counter in checkpoint.tenants.items():
            leaf = node if node.level is None else node.leaves.get(tenant_id)
            leaf = leaf or self._seat(node, tenant_id, self._tenant(tenant_id))
            leaf.order.adopt(tenant_id, ServiceRecord(counter))
            if leaf.is_own:
                node.order.adopt(leaf.id, ServiceRecord(counter))


def _fork(node: FairNode, other: FairNode) -> tuple[Fairness, FairNode, FairNode]:
    """The lowest order that two leaves share, and the node of that order above (or at) each leaf."""
    while node.outer is not other.outer:
        if node.depth >= other.depth:
            assert node.outer is not None, "both are below the root"
            node = node.outer
        else:
            assert other.outer is not None, "both are below the root"
            other = other.outer
    assert node.outer is not None, "both are below the root"
    return node.outer.order, node, other
