"""Groups: inside a tier they compete by weighted VTC, and the tenants of one group by the pool's own order.

It is the same rule as among tiers, once more: a group is charged what its tenants receive, over its own weight, so its
share does not depend on its number of tenants. In a tier that has groups, a tenant without one is a group by itself, of
the tenant's weight; so under VTC, tenants without a group share as they did without groups. A tier without groups is
one order of tenants, as if groups did not exist.

A group at its in-flight limit does not wait, as a tenant at its limit does not: the group is lifted when it returns.
Its tenants keep their order among each other meanwhile.
"""

from collections.abc import Callable, Collection, Mapping
from typing import ClassVar, Self

from policies.accounts.ledger import InFlight
from policies.fairness.base import (
    NOTHING,
    CachedBlocks,
    Changes,
    Eligible,
    Fairness,
    ServiceRecord,
    Waiting,
    anything_changes,
)
from policies.fairness.fairness_bound import FairnessBound
from policies.fairness.group_seats import GroupSeats
from policies.group_state import GroupState
from policies.types import Request, Tenant


class GroupedFairness:
    """The order of a tier that has groups. It answers the protocol Fairness for all tenants of the tier."""

    bound: ClassVar[FairnessBound | None] = None
    chooses_among_requests: ClassVar[bool] = False

    def __init__(
        self,
        make_order: Callable[[], Fairness],
        tenant: Callable[[str], Tenant | None],
        groups: Mapping[str, GroupState],
    ) -> None:
        """The arguments are those of GroupSeats."""
        self.seats = GroupSeats(make_order, tenant, groups)
        self._level, self._members, self._seat_of = self.seats.level, self.seats.members, self.seats.all
        self._waiting = 0
        example = make_order()
        self.reads_counters, self.follows_requests = example.reads_counters, example.follows_requests
        self.reads_prefixes, self.is_fair = example.reads_prefixes, example.is_fair

    def look_up_in(self, cached_blocks: CachedBlocks, changes: Changes = anything_changes) -> None:
        return  # `make_order` has done so

    # -- the order -------------------------------------------------------------------------------------------

    def queued(self, request: Request, waiting: Waiting, now: float) -> None:
        self._order(request.tenant_id).queued(request, waiting, now)

    def dropped(self, request: Request, now: float) -> None:
        self._order(request.tenant_id).dropped(request, now)

    def dispatched(self, entry: InFlight) -> None:
        self._order(entry.request.tenant_id).dispatched(entry)

    def ended(self, entry: InFlight, now: float) -> None:
        self._order(entry.request.tenant_id).ended(entry, now)

    def joined(self, tenant_id: str, waiting: Waiting) -> None:
        member = self.seats.of(tenant_id).member
        if not member.is_held:
            if not member.order.waiting_count():
                self._level.joined(member.id, NOTHING)
            self._waiting += 1
        member.order.joined(tenant_id, waiting)

    def left(self, tenant_id: str) -> None:
        member = self.seats.all[tenant_id].member
        member.order.left(tenant_id)
        if not member.is_held:
            self._waiting -= 1
            if not member.order.waiting_count():
                self._level.left(member.id)

    def charged(self, tenant_id: str, service: float, outstanding: float) -> None:
        seat = self._seat_of.get(tenant_id) or self.seats.of(tenant_id)
        member = seat.member
        member.order.charged(tenant_id, service, outstanding)
        ratio = seat.weight / member.weight
        self._level.charged(member.id, service * ratio, outstanding * ratio)

    def pick(self, eligible: Eligible, besides: Collection[str] = ()) -> Request | None:
        level, members = self._level, self._members
        first_id = level.least(())
        if first_id is None:
            return None
        first = members[first_id].order.pick(eligible, besides)
        if first is not None:
            return first
        found: list[Request] = []  # compiled, a variable that `has_one` sets would be of the type that it had before

        def has_one(member_id: str) -> bool:
            request = members[member_id].order.pick(eligible, besides)
            if request is not None:
                found.append(request)
            return request is not None

        level.first_such(has_one)
        return found[0] if found else None

    def pick_beside(self, tenant_id: str, eligible: Eligible, besides: Collection[str]) -> Request | None:
        """The next request of the tenant's own group."""
        return self.seats.of(tenant_id).member.order.pick(eligible, besides)

    def waiting_count(self) -> int:
        """Number of tenants that wait, and whose group is not at its in-flight limit."""
        return self._waiting

    def hold(self, group_id: str, *, held: bool) -> None:
        """The group has reached its in-flight limit, or has room again."""
        member = self.seats.members.get(group_id)
        if member is None or member.is_held == held:
            return
        member.is_held = held
        waiting = member.order.waiting_count()
        if waiting:
            (self._level.left if held else self._join)(member.id)
            self._waiting += -waiting if held else waiting

    # -- accounts --------------------------------------------------------------------------------------------

    def service_record(self, tenant_id: str) -> ServiceRecord:
        """The tenant's account in its group; that of a tenant without one is its account among the groups."""
        seat = self.seats.all.get(tenant_id)
        if seat is None:
            return ServiceRecord()
        member = seat.member
        if member.group_id is None:
            return self._level.service_record(member.id)
        return member.order.service_record(tenant_id)

    def group_record(self, tenant_id: str) -> ServiceRecord:
        """The account of the tenant's group among the others."""
        seat = self.seats.all.get(tenant_id)
        return ServiceRecord() if seat is None else self._level.service_record(seat.member.id)

    def lag(self, tenant_id: str, other_id: str) -> float:
        """Service over the tenant's weight by which it is behind the other; of another group: by which its group is
        behind the other's.
        """
        seat, other = self.seats.of(tenant_id), self.seats.of(other_id)
        if seat.member is other.member:
            return seat.member.order.lag(tenant_id, other_id)
        return self._level.lag(seat.member.id, other.member.id) * seat.member.weight / seat.weight

    def own_lag(self, tenant_id: str, other_id: str) -> float:
        """Service over weight by which the tenant is behind another of its own group."""
        return self.seats.of(tenant_id).member.order.lag(tenant_id, other_id)

    def adopt(self, tenant_id: str, record: ServiceRecord) -> None:
        member = self.seats.of(tenant_id).member
        member.order.adopt(tenant_id, record)
        if member.group_id is None:
            self._level.adopt(member.id, record)

    def hand_over(self, tenant_id: str, to: Self, now: float) -> None:
        order = self.seats.leave(tenant_id)
        if order is not None:
            order.hand_over(tenant_id, to._order(tenant_id), now)

    def forget(self, tenant_id: str) -> None:
        self.seats.forget(tenant_id)

    def received(self, tenant_ids: Collection[str] | None = None) -> Mapping[str, float]:
        """The counter of every tenant without a group, among the groups."""
        return self.seats.received_alone(tenant_ids)

    def level(self) -> float:
        return self._level.level()

    def begin_at(self, level: float, *, returning: bool) -> None:
        self._level.begin_at(level, returning=returning)

    def all_returned(self) -> None:
        self._level.all_returned()
        for member in self.seats.members.values():
            member.order.all_returned()

    def _join(self, member_id: str) -> None:
        self._level.joined(member_id, NOTHING)

    def _order(self, tenant_id: str) -> Fairness:
        return self.seats.of(tenant_id).member.order
