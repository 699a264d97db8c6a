"""FairQueue: one queue of a pool, and which of its requests is next.

A pool has one queue before all its backends, or one before each of them (policies/queueing/fair_queues.py). A queue has
its own order and counters, and counts the requests of its tenants that are in flight from it. A tenant's in-flight
limit holds over all queues; pool/tenants.py counts for it.

The order of precedence: limits make a tenant eligible, tiers compete by weighted VTC, and so do the groups of a tier,
if it has any; inside the group the pool's fairness policy picks the request. backfill.py handles a request that fits
nowhere.
"""

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from math import inf
from typing import NamedTuple

from policies.accounts.checkpoint import QueueCheckpoint
from policies.accounts.cost import Price
from policies.accounts.ledger import Charge, InFlight
from policies.fairness.base import Fairness, any_request
from policies.fairness.tree import FairTree
from policies.fleet.fleet import BackendHold
from policies.group_state import GroupState
from policies.queueing.queue_use import QueueUse
from policies.queueing.share_cap import ShareCap
from policies.queues import TenantQueues
from policies.types import Request, Tenant


class AccountPlace(NamedTuple):
    """The tier and the group (None: no group) in which a tenant competes."""

    tier_id: str
    group_id: str | None


@dataclass(slots=True)
class QueuedTenant:
    """A tenant of the pool with its number of requests in flight, and whether its limits allow one more. `group` is
    None for a tenant without a group. Mutable.
    """

    tenant: Tenant
    in_flight: int = 0
    removed: bool = False  # forgotten when its last request has ended
    spells: int = 0  # times that it began to wait in a queue
    group: GroupState | None = None

    @property
    def may_send(self) -> bool:
        """Whether the tenant's own limit lets it send."""
        limit = self.tenant.in_flight_max
        return limit is None or self.in_flight < limit

    @property
    def is_limited(self) -> bool:
        """Whether the tenant's own limit, or that of its group, keeps it from sending."""
        return not self.may_send or (self.group is not None and self.group.is_full)

    @property
    def waiting_spell(self) -> int:
        """A number that changes each time the tenant, or its group, stops waiting."""
        return self.spells if self.group is None else self.spells + self.group.spells


class FairQueue:
    """One queue of a pool: the fair order of its waiting requests, and its requests in flight. Mutable."""

    def __init__(
        self,
        order: FairTree,
        queues: TenantQueues,
        tenants: Mapping[str, QueuedTenant],
        *,
        price: Price,
        share_ratio_max: float,
        limits: Callable[[], tuple[float, float]],
        output_tokens: Callable[[Request], float],
        backend_id: str | None = None,
    ) -> None:
        """`limits` gives the sequences and tokens that may be in flight from this queue. `output_tokens` gives the
        output that a request's reservation is sized for. `backend_id` is the backend for which requests wait here;
        None: any.
        """
        self.backend_id = backend_id
        self.order = order
        self.queues = queues
        self.first: dict[str, None] = {}
        """Ids of waiting requests that precede any new choice, in this order: a backend rejected them after they were
        chosen and charged, or another request was preempted for them.
        """
        self.held: dict[str, BackendHold] = {}
        """The backend held for each waiting request that last fitted nowhere while another could pass, by request id.
        """
        self.output_tokens = output_tokens
        self.tenants = tenants
        """All tenants of the pool. To read."""
        self._price = price
        self._is_capped = share_ratio_max < 1.0
        self.share = ShareCap(share_ratio_max, order)
        self.use = QueueUse(limits, output_tokens, counts_speed=backend_id is None)
        """The requests in flight from this queue."""
        self._competing: set[str] = set()  # tenants that wait and may send
        self._absent: dict[str, AccountPlace] = {}  # of restored tenants that have not joined yet

    @property
    def is_empty(self) -> bool:
        """Whether no request waits in the queue or is in flight from it."""
        return not self.use.by_tenant and not self.queues.tenant_ids()

    # -- waiting tenants -------------------------------------------------------------------------------------

    def competes(self, tenant_id: str) -> bool:
        """Whether the tenant waits in this queue and may send."""
        if tenant_id not in self._competing:
            return False
        group = self.tenants[tenant_id].group
        return group is None or not group.is_full

    def queued(self, request: Request, now: float) -> None:
        """The request has joined its tenant's queue."""
        if self.order.follows_requests:
            waiting = self.queues.of(request.tenant_id).requests
            self._order_of(request).queued(request, waiting, now)

    def dropped(self, request: Request, now: float) -> None:
        """The request has left its tenant's queue for good without being dispatched."""
        if self.order.follows_requests:
            self._order_of(request).dropped(request, now)

    def refresh(self, state: QueuedTenant) -> None:
        """Update the order from the tenant's queue, requests in flight and limits."""
        tenant = state.tenant
        tenant_id, limit = tenant.id, tenant.in_flight_max
        queue = self.queues.by_tenant.get(tenant_id) if self.queues.by_tenant else None
        waits = queue is not None and (not queue.held or len(queue.requests) > 0)
        # For the order, a tenant at its in-flight limit does not wait: it is lifted like one that was away. Otherwise
        # it would accumulate credit for service that only its own limit denies it.
        if queue is not None and waits and (limit is None or state.in_flight < limit):
            if tenant_id not in self._competing:
                self._competing.add(tenant_id)
                state.spells += 1
                self.order.leaf(tenant).joined(tenant_id, queue.requests)
        elif tenant_id in self._competing:
            self._leave(tenant)
        is_active = waits or tenant_id in self.use.by_tenant
        if is_active != (tenant_id in self.share.active):
            self.share.set_active(tenant, active=is_active)

    def change(self, before: Tenant, state: QueuedTenant, now: float) -> None:
        """Apply the tenant's new settings; `before` are the old ones."""
        tenant = state.tenant
        self.share.set_active(before, active=False)
        if before.tier_id != tenant.tier_id or before.group_id != tenant.group_id:
            if tenant.id in self._competing:
                self._leave(before)
            self.order.moved(before, tenant, now)
            for request in self.queues.of(tenant.id).requests.values():
                self.queued(request, now)
        else:
            self.order.reweighed(before, tenant)
        self.refresh(state)

    def regroup(self, tier_id: str, now: float) -> None:
        """Add the level of groups to a tier, or take it away. None of the tier's tenants has a group."""
        level = self.order.root.nodes[tier_id].order.level()
        states = [state for state in self.tenants.values() if state.tenant.tier_id == tier_id]
        waiting = [state for state in states if state.tenant.id in self._competing]
        waiting.sort(key=lambda state: (self.order.ranks(state.tenant), state.tenant.id))
        for state in waiting:
            self._leave(state.tenant)
        for state in states:
            self.share.set_active(state.tenant, active=False)
        self.order.regroup(tier_id, level, now)
        for state in states:
            for request in self.queues.of(state.tenant.id).requests.values():
                self.queued(request, now)
        for state in (*waiting, *states):  # the least served first, to which the others are lifted
            self.refresh(state)

    # -- service received ------------------------------------------------------------------------------------

    def restore(self, checkpoint: QueueCheckpoint, *, returning: bool = False) -> None:
        """Start from these counters, before any request has waited. With `returning`, tenants are lifted at most to the
        checkpoint's level, until the root's `all_returned`.
        """
        self.order.begin_at(checkpoint, returning=returning)
        for tier_id, tier in checkpoint.tiers.items():
            for tenant_id, group_id in tier.accounts:
                self.forget_absent(tenant_id)  # it was in another tier in one of the queues summed here
                self._absent[tenant_id] = AccountPlace(tier_id, group_id)
        for tenant_id in self._absent.keys() & self.tenants.keys():
            self.welcome(self.tenants[tenant_id].tenant)

    def welcome(self, tenant: Tenant) -> None:
        """Open the account of a tenant that is new in this queue, or that returns, perhaps in another tier or group."""
        here = AccountPlace(tenant.tier_id, tenant.group_id)
        place = self._absent.pop(tenant.id, here)
        if place != here:
            # Nothing of the tenant waits or runs, so the move does not depend on the time.
            self.order.moved(replace(tenant, tier_id=place.tier_id, group_id=place.group_id), tenant, -inf)
        else:
            self.order.reweighed(tenant, tenant)

    def forget_absent(self, tenant_id: str) -> None:
        """Drop the account of a restored tenant that will not return."""
        if tenant_id in self._absent:
            self.order.forget(self._absent.pop(tenant_id).tier_id, tenant_id)

    # -- requests in flight from here ------------------------------------------------------------------------

    def charged(self, tenant_id: str, charge: Charge) -> None:
        self.order.charged(self.tenants[tenant_id].tenant, charge)

    def opened(self, entry: InFlight, charge: Charge) -> None:
        """The entry was dispatched from this queue at this charge."""
        tenant = self.tenants[entry.request.tenant_id].tenant
        entry.weight = tenant.weight
        self.use.count(entry, 1, entry.reservation.sequences, entry.reservation.tokens)
        if self.order.follows_requests:
            self._order_of(entry.request).dispatched(entry)
        self.order.charged(tenant, charge)

    def served_at_once(self, state: QueuedTenant, entry: InFlight, charge: Charge) -> None:
        """Account for the entry as if its request had waited here and been dispatched at this charge. No request waits
        here, and the tenant has no limits.
        """
        tenant = state.tenant
        state.spells += 1
        entry.weight = tenant.weight
        self.use.count(entry, 1, entry.reservation.sequences, entry.reservation.tokens)
        self.order.served_at_once(tenant, charge)
        if tenant.id not in self.share.active:
            self.share.set_active(tenant, active=True)

    def ended(self, entry: InFlight, now: float) -> None:
        """The entry, dispatched from this queue, has ended or belongs to another queue from now on."""
        if self.order.follows_requests:
            self._order_of(entry.request).ended(entry, now)

    def ahead(self, tenant_id: str, other_id: str) -> float:
        """The amount by which the rank of one tenant is above that of another of its tier (FairTree.ahead)."""
        return self.order.ahead(self.tenants[tenant_id].tenant, self.tenants[other_id].tenant)

    def lead_service(self, tenant: Tenant) -> float:
        """Service by which the tenant is ahead of the tenant that is next in its tier, and within a group in its group;
        0.0 if it is next itself or there is no other.
        """
        lead, before = 0.0, ""
        for node in self.order.path(tenant):
            request = node.pick(any_request)
            if request is None:
                break
            if request.tenant_id != before:
                before = request.tenant_id
                lead += max(0.0, -self.order.lag(tenant, self.tenants[before].tenant))
        return lead

    # -- the next request ------------------------------------------------------------------------------------

    def next(self, blocked: Collection[str], besides: Collection[str]) -> tuple[str, Request] | None:
        """The next request of a tenant that is not in `besides`, with the request's tier, which is not in `blocked`;
        None if there is no such request.
        """
        first = self._pick(blocked, any_request, besides)
        if first is None or first[1].tenant_id not in self.use.by_tenant or self.may_go_first(first[1]):
            return first
        return self.within_shares(first, blocked, besides)

    def may_go_first(self, request: Request) -> bool:
        """Whether the request, which is next, may be sent although its tenant already has requests in flight."""
        if request.tenant_id not in self.use.by_tenant or not self.order.is_fair or self.order.root.waiting == 1:
            return True
        return self.share.allows(self.tenants[request.tenant_id].tenant, self.use.share_with(request))

    def within_shares(
        self, first: tuple[str, Request], blocked: Collection[str], besides: Collection[str]
    ) -> tuple[str, Request]:
        """The next request of a tenant that is within its share, with its tier, if the request may pass `first`;
        otherwise `first`.
        """
        # Where every waiting tenant is over its share, the rest of the room is for the next tenant.
        other = self._pick(blocked, self._is_within_share, besides)
        if other is None or not self._may_be_passed(first[1].tenant_id, other[1].tenant_id):
            return first
        # The other may be of another tier or group, and pass over a tenant there, too.
        tenant = self.tenants[other[1].tenant_id].tenant
        for node in self.order.path(tenant):
            beside = node.pick(any_request, besides)
            assert beside is not None, "the other is one that it may pick"
            if not self._may_be_passed(beside.tenant_id, tenant.id):
                return first
        return other

    def is_light(self, request: Request) -> bool:
        """Whether the request's tenant has nothing in flight from this queue, or stays within its entitlement with the
        request. The tenant's weight gives the entitlement.
        """
        if request.tenant_id not in self.use.by_tenant:
            return True
        return self.share.entitles(self.tenants[request.tenant_id].tenant, self.use.share_with(request))

    def first_not_to_pass(
        self, tenant_id: str, passed: dict[str, tuple[str, Request]], holds: dict[str, BackendHold]
    ) -> tuple[str, Request] | None:
        """The first of the `passed` requests (with their tiers, by tenant) that a request of the tenant may not pass.
        `holds` has the backends that are held for passed requests, by request id.

        The tenant may be ahead of another by at most the price of the tokens that were in flight at the held backend;
        where shares are capped, also by the price of its own tokens in flight. Both are priced as if all tokens were
        outputs.
        """
        tenant, own_worth = self.tenants[tenant_id].tenant, -1.0
        leaf, tier_id, weight = self.order.root.nodes[tenant.tier_id], tenant.tier_id, tenant.weight
        is_flat, order = leaf.level is None, leaf.order
        for each in passed.values():
            other_tier_id, other = each
            if is_flat and other_tier_id == tier_id:  # `FairTree.lag`, inlined: a poll asks of many
                lead = -(order.lag(tenant_id, other.tenant_id) * weight)
            else:
                lead = -self.order.lag(tenant, self.tenants[other.tenant_id].tenant)
            if lead <= 0.0:
                continue
            worth = 0.0
            if other.id in holds:
                hold = holds[other.id]
                worth = self._worth(hold.requests, hold.tokens)
            if self._is_capped:
                if own_worth < 0.0:
                    use = self.use.of(tenant_id)
                    own_worth = self._worth(use.requests, use.tokens)
                worth += own_worth
            if lead > worth:
                return each
        return None

    def next_of_tiers(self) -> Iterator[tuple[str, Request]]:
        """The waiting tiers in order, each with its next request, whether or not that request fits."""
        blocked: set[str] = set()
        while (choice := self._pick(blocked, any_request, ())) is not None:
            yield choice
            blocked.add(choice[0])

    def _pick(
        self, blocked: Collection[str], eligible: Callable[[Request], bool], besides: Collection[str]
    ) -> tuple[str, Request] | None:
        order = self.order
        if blocked and len(blocked) == len(order.tier_ids):
            return None
        request = order.root.pick(eligible, besides, blocked)
        return None if request is None else (self.tenants[request.tenant_id].tenant.tier_id, request)

    def _is_within_share(self, request: Request) -> bool:
        if request.tenant_id not in self.use.by_tenant:
            return True
        return self.share.allows(self.tenants[request.tenant_id].tenant, self.use.share_with(request))

    def _may_be_passed(self, tenant_id: str, other_id: str) -> bool:
        """Whether one tenant is behind another by no more than its requests in flight may still cost."""
        lag = self.order.lag(self.tenants[tenant_id].tenant, self.tenants[other_id].tenant)
        use = self.use.of(tenant_id)
        return lag <= self._worth(use.requests, use.tokens)

    def _worth(self, requests: int, tokens: float) -> float:
        """The price of this many requests with this many tokens, if all are outputs (the w_q * M of VTC's U)."""
        return requests and self._price.service(0, 0, tokens / requests) * requests

    def _leave(self, tenant: Tenant) -> None:
        self._competing.discard(tenant.id)
        self.order.leaf(tenant).left(tenant.id)

    def _order_of(self, request: Request) -> Fairness:
        """The order in which the request's tenant is."""
        return self.order.leaf(self.tenants[request.tenant_id].tenant).order
