"""Seats of a tier with groups: which group each tenant belongs to, and the account of each group among the others."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field

from policies.accounts.checkpoint import TierCheckpoint
from policies.fairness.base import Fairness, ServiceRecord
from policies.fairness.vtc import VirtualTokenCounter
from policies.group_state import GroupState
from policies.types import Group, Tenant

ALONE = "="  # before the id of a tenant that is a group by itself; no configured name begins with it


@dataclass(slots=True)
class TierMember:
    """A group, or a tenant that is one by itself: its account among the others has this id."""

    id: str
    weight: float
    order: Fairness
    group_id: str | None
    tenant_ids: set[str] = field(default_factory=set)
    is_held: bool = False  # at its in-flight limit


@dataclass(slots=True)
class Seat:
    """A tenant's place, and its weight there."""

    member: TierMember
    weight: float


class GroupSeats:
    """The groups of one tier, and the tenants of each. Mutable."""

    def __init__(
        self,
        make_order: Callable[[], Fairness],
        tenant: Callable[[str], Tenant | None],
        groups: Mapping[str, GroupState],
    ) -> None:
        """`make_order` makes the order of one group; `tenant` gives the settings of an id, None for a tenant that was
        restored and has not returned.
        """
        self._make_order, self._tenant, self._groups = make_order, tenant, groups
        self.level = VirtualTokenCounter()
        """The accounts of the groups."""
        self.members: dict[str, TierMember] = {}
        self.all: dict[str, Seat] = {}
        """By tenant."""

    def of(self, tenant_id: str) -> Seat:
        """The tenant's seat; takes one in its group if it has none."""
        seat = self.all.get(tenant_id)
        if seat is None:
            tenant = self._tenant(tenant_id)
            group_id = None if tenant is None else tenant.group_id
            member = self._alone(tenant_id, tenant) if group_id is None else self.group(group_id)
            seat = self._sit(tenant_id, member, 1.0 if tenant is None else tenant.weight)
        return seat

    def group(self, group_id: str) -> TierMember:
        member = self.members.get(group_id)
        if member is None:
            state = self._groups.get(group_id)
            weight, is_held = (1.0, False) if state is None else (state.group.weight, state.is_full)
            member = TierMember(group_id, weight, self._make_order(), group_id, is_held=is_held)
            self.members[group_id] = member
        return member

    @property
    def has_groups(self) -> bool:
        return any(member.group_id is not None for member in self.members.values())

    # -- tenants that move -----------------------------------------------------------------------------------

    def take(self, tenant: Tenant) -> Fairness:
        """The order of the group that the tenant moves to; its account is to be handed over to that."""
        group_id = tenant.group_id
        member = self._alone(tenant.id, tenant) if group_id is None else self.group(group_id)
        return self._sit(tenant.id, member, tenant.weight).member.order

    def leave(self, tenant_id: str) -> Fairness | None:
        """The order that has the tenant's account, which is about to be handed over; None: it has none. Its group
        expects nothing any more of its requests in flight.
        """
        seat = self.all.pop(tenant_id, None)
        if seat is None:
            return None
        member = seat.member
        outstanding = member.order.service_record(tenant_id).outstanding * seat.weight
        self.level.charged(member.id, 0.0, -outstanding / member.weight)
        self._vacate(member, tenant_id)
        return member.order

    def expect(self, tenant_id: str, outstanding: float) -> None:
        """The tenant's requests in flight count for its group from now on, with this outstanding service."""
        member = self.all[tenant_id].member
        self.level.charged(member.id, 0.0, outstanding / member.weight)

    def forget(self, tenant_id: str) -> None:
        """Drop the account of a tenant that does not wait."""
        seat = self.all.pop(tenant_id, None)
        if seat is not None:
            seat.member.order.forget(tenant_id)
            self._vacate(seat.member, tenant_id)

    def seat_alone(self, tenant_id: str, before: Fairness, now: float) -> None:
        """Take over a tenant without a group from the order that the tier had without groups; its account becomes that
        of a group by itself.
        """
        record = before.service_record(tenant_id)
        member = self.of(tenant_id).member
        before.hand_over(tenant_id, member.order, now)
        self.level.adopt(member.id, record)

    # -- weights ---------------------------------------------------------------------------------------------

    def reweighed(self, tenant: Tenant) -> None:
        """The tenant has this weight now; its counter stays, and outstanding service counts by the new weight."""
        seat = self.all.get(tenant.id)
        if seat is None or seat.weight == tenant.weight:
            return
        member = seat.member
        reweigh(member.order, tenant.id, seat.weight / tenant.weight)
        if member.group_id is None:
            reweigh(self.level, member.id, member.weight / tenant.weight)
            member.weight = tenant.weight
        seat.weight = tenant.weight

    def group_changed(self, group: Group) -> None:
        """The group has this weight now."""
        member = self.members.get(group.id)
        if member is not None and member.weight != group.weight:
            reweigh(self.level, member.id, member.weight / group.weight)
            member.weight = group.weight

    # -- checkpoints -----------------------------------------------------------------------------------------

    def received_alone(self, tenant_ids: Collection[str] | None = None) -> Mapping[str, float]:
        """The counter of every tenant without a group, among the groups. With `tenant_ids`: of these."""
        ids = self.all if tenant_ids is None else [each for each in tenant_ids if each in self.all]
        seats = {tenant_id: self.all[tenant_id] for tenant_id in ids}
        return {
            tenant_id: self.level.service_record(seat.member.id).counter
            for tenant_id, seat in seats.items()
            if seat.member.group_id is None
        }

    def groups_received(self, tenant_ids: Collection[str] | None = None) -> Mapping[str, TierCheckpoint]:
        """The counters of each group and of its tenants, or of those of these ids."""
        return {
            member.group_id: TierCheckpoint(
                self.level.service_record(member.id).counter, member.order.level(), member.order.received(tenant_ids)
            )
            for member in self.members.values()
            if member.group_id is not None
        }

    def begin_group_at(self, group_id: str, group: TierCheckpoint, *, returning: bool) -> None:
        """Set the counters of a group in which nothing has waited yet."""
        member = self.group(group_id)
        self.level.adopt(member.id, ServiceRecord(group.counter))
        member.order.begin_at(group.level, returning=returning)
        for tenant_id, counter in group.tenants.items():
            tenant = self._tenant(tenant_id)
            self._sit(tenant_id, member, 1.0 if tenant is None else tenant.weight)
            member.order.adopt(tenant_id, ServiceRecord(counter))

    def _alone(self, tenant_id: str, tenant: Tenant | None) -> TierMember:
        member_id = ALONE + tenant_id
        member = self.members.get(member_id)
        if member is None:
            weight = 1.0 if tenant is None else tenant.weight
            member = self.members[member_id] = TierMember(member_id, weight, self._make_order(), None)
        return member

    def _sit(self, tenant_id: str, member: TierMember, weight: float) -> Seat:
        member.tenant_ids.add(tenant_id)
        seat = self.all[tenant_id] = Seat(member, weight)
        return seat

    def _vacate(self, member: TierMember, tenant_id: str) -> None:
        """The tenant has left the group, whose account goes with its last tenant."""
        member.tenant_ids.discard(tenant_id)
        if not member.tenant_ids:
            del self.members[member.id]
            self.level.forget(member.id)


def reweigh(order: Fairness, account_id: str, ratio: float) -> None:
    """Restate an account's outstanding service for another weight; `ratio` is the old weight over the new."""
    if ratio != 1.0:
        outstanding = order.service_record(account_id).outstanding
        order.charged(account_id, 0.0, outstanding * ratio - outstanding)
