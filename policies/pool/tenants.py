"""Tenants of one pool: their settings, and whether each may dispatch now.

The in-flight limit of a tenant or group holds over all queues. A removed tenant is rejected from then on, and forgotten
when its last request has ended. A removed tier or group is forgotten with its last tenant.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import zip_longest

from policies.admission import AdmissionRules
from policies.admission.scopes import group_scope, key_scope
from policies.fairness.node import FairNode
from policies.group_state import GroupState
from policies.pool.accounting import Accounting
from policies.pool.slot_fitting import SlotFitting
from policies.queueing.fair_queue import FairQueue, QueuedTenant
from policies.queueing.fair_queues import PresentQueues
from policies.queues import PoolQueues
from policies.slo.attainment import AttainmentCounts
from policies.types import Group, Request, Tenant, TenantView, Tier, Usage, Wait


@dataclass(slots=True)
class Tenants:
    """The tenants of one pool. This part of a Scheduler passes each change of a tenant, tier or group to the queues and
    to all parts that keep state per tenant. Mutable.
    """

    states: dict[str, QueuedTenant]
    tiers: dict[str, Tier]
    queues: PoolQueues
    present: PresentQueues
    accounting: Accounting
    slot_fitting: SlotFitting
    admission_rules: AdmissionRules
    attainment: AttainmentCounts
    noted: set[str] = field(default_factory=set)
    """Tenants whose queue, tier or rank may have changed; shedding reads and clears it."""
    groups: dict[str, GroupState] = field(default_factory=dict)
    grouped: Counter[str] = field(default_factory=Counter)
    """The number of tenants with a group, by tier."""
    _leaving_tiers: set[str] = field(default_factory=set)
    _leaving_groups: set[str] = field(default_factory=set)

    def admitted(self, tenant_id: str) -> Tenant | None:
        """The tenant, or None if it is unknown or removed."""
        state = self.states.get(tenant_id)
        return None if state is None or state.removed else state.tenant

    def tier_id(self, tenant_id: str) -> str:
        return self.states[tenant_id].tenant.tier_id

    def tier(self, tenant_id: str) -> Tier:
        return self.tiers[self.tier_id(tenant_id)]

    def ranks(self, tenant_id: str) -> tuple[float, ...]:
        """The keys that order the tenants of one tier (FairTree.ranks), summed over all queues."""
        tenant = self.states[tenant_id].tenant
        ranks = [fair_queue.order.ranks(tenant) for fair_queue in self.present.fair_queues.all()]
        return tuple(map(sum, zip_longest(*ranks, fillvalue=0.0)))

    def change(self, changed: Collection[Tenant], tiers: Iterable[Tier], groups: Iterable[Group], now: float) -> None:
        """Apply new settings in this order: tiers, groups, tenants."""
        new_tiers = {tier.id: tier for tier in tiers}
        self.tiers |= new_tiers
        self._leaving_tiers -= new_tiers.keys()
        self.accounting.settle_all()  # by the weights and tiers under which it was used
        self.slot_fitting.set_tiers(self.tiers.values())
        for fair_queue in self.present.fair_queues.all():
            fair_queue.order.set_tiers(new_tiers.values())
        for group in groups:
            self._group_changed(group)
        for tenant in changed:
            # A tenant whose tier or group has been removed meanwhile keeps the settings that it has here.
            if tenant.tier_id in self.tiers and (tenant.group_id is None or tenant.group_id in self.groups):
                self._changed(tenant, now)
        self.queues.note(self.queues.tenant_ids() if new_tiers or groups else [each.id for each in changed])

    def remove(
        self, removed: Iterable[str], tiers_removed: Iterable[str], groups_removed: Iterable[str], now: float
    ) -> list[Request]:
        """Remove these tenants, and these tiers and groups with the last tenant of each. Returns the waiting requests
        of removed tenants, which the caller rejects.
        """
        waiting = [request for tenant_id in removed for request in self._removed(tenant_id)]
        self._leaving_tiers |= self.tiers.keys() & tiers_removed
        self._forget_tiers()
        self._leaving_groups |= self.groups.keys() & groups_removed
        self._forget_groups()
        self._ungroup(now)
        return waiting

    def _group_changed(self, group: Group) -> None:
        """Add the group, or apply its new settings. Its tier is the tier of its tenants."""
        self._leaving_groups.discard(group.id)
        state = self.groups.setdefault(group.id, GroupState(group))
        was_full, state.group = state.is_full, group
        for node in self._nodes(group):
            node.reweigh(group.weight)
        self._hold(state, was_full=was_full)

    def _count_group(self, group: GroupState, change: int) -> None:
        """`change` more requests of the group are in flight, so it may reach its limit or have room again."""
        if group.group.in_flight_max is None:
            group.in_flight += change
            return
        was_full = group.is_full
        group.in_flight += change
        self._hold(group, was_full=was_full)

    def _hold(self, group: GroupState, *, was_full: bool) -> None:
        if group.is_full == was_full:
            return
        group.spells += 1
        for node in self._nodes(group.group):
            node.hold(held=group.is_full)

    def _nodes(self, group: Group) -> Iterator[FairNode]:
        """The group's node in each queue in which it has one."""
        for fair_queue in self.present.fair_queues.all():
            node = fair_queue.order.group(group)
            if node is not None:
                yield node

    def _changed(self, tenant: Tenant, now: float) -> None:
        """Add the tenant, or apply its new settings."""
        self._leaving_tiers.discard(tenant.tier_id)
        self.noted.add(tenant.id)
        group = None if tenant.group_id is None else self.groups[tenant.group_id]
        if group is not None:
            self._group(tenant, group, now)
        state = self.states.get(tenant.id)
        if state is None:
            self.states[tenant.id] = QueuedTenant(tenant, group=group)
            for fair_queue in self.present.fair_queues.all():
                fair_queue.welcome(tenant)
            return
        if state.group is not None:
            self._leave_group(state, state.group)
        before, state.tenant, state.removed, state.group = state.tenant, tenant, False, group
        for key_id in before.keys.keys() - tenant.keys.keys():
            self.admission_rules.forget(key_scope(key_id))
        if group is not None:
            self._count_group(group, state.in_flight)
        for fair_queue in self.present.fair_queues.all():
            fair_queue.change(before, state, now)

    def _group(self, tenant: Tenant, group: GroupState, now: float) -> None:
        """Add the tenant, which is about to join, to the group's counts."""
        group.tenants += 1
        self.grouped[tenant.tier_id] += 1
        if self.grouped[tenant.tier_id] == 1:
            for fair_queue in self.present.fair_queues.all():
                if not fair_queue.order.is_grouped(tenant.tier_id):
                    fair_queue.regroup(tenant.tier_id, now)
            self.noted.update(self.queues.tenant_ids())

    def _leave_group(self, state: QueuedTenant, group: GroupState) -> None:
        """Remove the tenant from the group's counts."""
        group.tenants -= 1
        self.grouped[state.tenant.tier_id] -= 1
        self._count_group(group, -state.in_flight)

    def _ungroup(self, now: float) -> None:
        """Take the level of groups away from tiers without a tenant that has a group."""
        for tier_id in [tier_id for tier_id, tenants in self.grouped.items() if not tenants]:
            del self.grouped[tier_id]
            if tier_id in self.tiers:
                for fair_queue in self.present.fair_queues.all():
                    if fair_queue.order.may_ungroup(tier_id):
                        fair_queue.regroup(tier_id, now)
                self.noted.update(self.queues.tenant_ids())

    def dispatched(self, tenant_id: str, fair_queue: FairQueue) -> None:
        """One of the tenant's requests was dispatched from this queue."""
        state = self.states[tenant_id]
        state.in_flight += 1
        if state.group is not None:
            self._count_group(state.group, 1)
        self.noted.add(tenant_id)
        fair_queue.refresh(state)
        if state.tenant.in_flight_max is not None:
            self._refresh_all(state)

    def freed(self, tenant_id: str, fair_queue: FairQueue) -> None:
        """One of the tenant's requests is no longer in flight; if it was returned, it waits in this queue."""
        state = self.states[tenant_id]
        state.in_flight -= 1
        if state.group is not None:
            self._count_group(state.group, -1)
        if tenant_id not in self.noted:
            self.noted.add(tenant_id)
        fair_queue.refresh(state)
        if state.tenant.in_flight_max is not None:
            self._refresh_all(state)
        if state.removed:
            self._forget_if_gone(state)

    def queue_changed(self, tenant_id: str, fair_queue: FairQueue) -> None:
        """The tenant's waiting requests in this queue have changed."""
        state = self.states[tenant_id]
        self.noted.add(tenant_id)
        fair_queue.refresh(state)
        if state.tenant.in_flight_max is not None:
            self._refresh_all(state)
        if state.removed:
            self._forget_if_gone(state)

    def left(self, tenant_id: str) -> None:
        """A request of the tenant that was in no order has ended."""
        self._forget_if_gone(self.states[tenant_id])

    def move_stranded(self, now: float) -> None:
        """Assign requests that wait for a backend that does not serve to one that does."""
        for request in self.present.fair_queues.stranded(now):
            move = self.present.fair_queues.move(request, now)
            self.accounting.moved(request, move, now)
            move.after.queued(request, now)
            for fair_queue in (move.before, move.after):
                self.queue_changed(request.tenant_id, fair_queue)

    def _removed(self, tenant_id: str) -> list[Request]:
        """Remove the tenant. Returns its waiting requests, oldest first, for the caller to reject."""
        state = self.states.get(tenant_id)
        if state is None:
            for fair_queue in self.present.fair_queues.all():
                fair_queue.forget_absent(tenant_id)
            return []
        state.removed = True
        waiting = self.queues.of(tenant_id).all()
        self._forget_if_gone(state)
        return waiting

    def views(
        self, tenant_ids: Iterable[str] | None, *, slacks_s: Mapping[str, float], waits: Callable[[Request], Wait]
    ) -> dict[str, TenantView]:
        """The views of these tenants (None: all). `waits` gives the reason why the first request of a tenant's queue
        waits.
        """
        return {
            tenant_id: self._view(state, slacks_s.get(tenant_id), waits)
            for tenant_id in (self.states if tenant_ids is None else tenant_ids)
            if (state := self.states.get(tenant_id)) is not None
        }

    def _view(self, state: QueuedTenant, slack_s: float | None, waits: Callable[[Request], Wait]) -> TenantView:
        """The view of one tenant, with counters summed over all queues."""
        tenant_id = state.tenant.id
        queue, served = self.queues.of(tenant_id), self.accounting.ledger.served(tenant_id)
        first = queue.requests.head() if queue.requests else next(iter(queue.held.values()), None)
        counter, rank, tokens, competes = 0.0, 0.0, 0, False
        for fair_queue in self.present.fair_queues.all():
            account = fair_queue.order.service_record(state.tenant)
            counter += account.counter
            rank += account.rank
            tokens += fair_queue.use.of(tenant_id).tokens
            competes = competes or fair_queue.competes(tenant_id)
        return TenantView(
            queued_requests=len(queue),
            queued_bytes=queue.body_bytes,
            in_flight_requests=state.in_flight,
            in_flight_tokens=tokens,
            service=served.service,
            counter=counter,
            rank=rank,
            waiting_spell=state.waiting_spell if competes else 0,
            slack_s_min=slack_s,
            attainment=self.attainment.of_tenant(tenant_id),
            used=Usage(served.prompt_tokens, served.cached_tokens, served.output_tokens),
            oldest_at=None if first is None else first.arrived_at,
            waits=None if first is None else waits(first),
        )

    def counter(self, tenant_id: str) -> float:
        """The tenant's counter, summed over all queues; 0 for an unknown tenant."""
        state = self.states.get(tenant_id)
        return (
            0.0
            if state is None
            else sum(
                fair_queue.order.service_record(state.tenant).counter for fair_queue in self.present.fair_queues.all()
            )
        )

    def _refresh_all(self, state: QueuedTenant) -> None:
        """A tenant with an in-flight limit has more or fewer requests in flight, which holds over all queues."""
        for each in self.present.fair_queues.all():
            each.refresh(state)

    def _forget_if_gone(self, state: QueuedTenant) -> None:
        tenant = state.tenant
        if state.removed and not state.in_flight and not len(self.queues.of(tenant.id)):
            del self.states[tenant.id]
            if state.group is not None:
                self._leave_group(state, state.group)
            self._forget(tenant)
            self._forget_tiers()
            self._forget_groups()

    def _forget(self, tenant: Tenant) -> None:
        """Forget the tenant in all parts of the pool."""
        for fair_queue in self.present.fair_queues.all():
            fair_queue.order.forget(tenant.tier_id, tenant.id)
        self.present.fair_queues.forget(tenant.id)
        self.accounting.ledger.forget(tenant.id)
        self.slot_fitting.forget(tenant.id)
        self.admission_rules.forget(tenant.id)
        for key_id in tenant.keys:
            self.admission_rules.forget(key_scope(key_id))
        self.attainment.forget(tenant.id)

    def _forget_tiers(self) -> None:
        """Forget removed tiers that have no tenants any more. Looks at all tenants only where a tier was removed."""
        if not self._leaving_tiers:
            return
        for tier_id in self._leaving_tiers - {state.tenant.tier_id for state in self.states.values()}:
            self._leaving_tiers.discard(tier_id)
            del self.tiers[tier_id]
            self.slot_fitting.set_tiers(self.tiers.values())
            for fair_queue in self.present.fair_queues.all():
                fair_queue.order.remove_tier(tier_id)
            self.attainment.forget_tier(tier_id)

    def _forget_groups(self) -> None:
        """Forget removed groups that have no tenants any more."""
        for group_id in [each for each in self._leaving_groups if not self.groups[each].tenants]:
            self._leaving_groups.discard(group_id)
            del self.groups[group_id]
            self.admission_rules.forget(group_scope(group_id))
