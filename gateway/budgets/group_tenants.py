"""GroupTenants: which tenants each group has, as its budgets count them.

The usage of a deleted tenant still counts for its group until the month ends.
"""

import hashlib
from collections import defaultdict
from collections.abc import Collection

from gateway.budgets.accounts import Holder, Unit, group_holder, group_of

MEMBERS_BYTES = 8  # of a hash of a group's tenants


class GroupTenants:
    """A mapping from each tenant that is in a group to that group, for the budgets of groups: a tenant that is deleted
    stays in it until the month ends, because its usage still counts. Mutable.
    """

    def __init__(self) -> None:
        self.group_of: dict[str, str] = {}  # by tenant, to read only
        self._deleted: dict[str, str] = {}  # tenants that are still in there, with the month
        self._hashes: defaultdict[Holder, int] = defaultdict(int)

    def move(self, tenant: str, group: str | None) -> tuple[Holder | None, Holder | None]:
        """Set or clear the tenant's group. Returns the group that it left and the group that it joined, or None."""
        self._deleted.pop(tenant, None)
        before = self.group_of.get(tenant)
        if before == group:
            return None, None
        self.group_of.pop(tenant, None)
        if group is not None:
            self.group_of[tenant] = group
        left, joined = (None if each is None else group_holder(each) for each in (before, group))
        for holder in (left, joined):
            if holder is not None:
                self._hashes[holder] ^= _hash_of(tenant)
        return left, joined

    def delete(self, tenant: str, month: str) -> None:
        """The tenant was deleted in this month (like 2026-11); it counts for its group until the month ends."""
        if tenant in self.group_of:
            self._deleted[tenant] = month

    def deleted_before(self, month: str) -> list[str]:
        """The tenants that were deleted in earlier months."""
        return [tenant for tenant, deleted_in in self._deleted.items() if deleted_in < month]

    def holders(self, tenant: str, key: str) -> tuple[Holder, ...]:
        """The tenant, its key and its group: the holders of budgets that a call may count for."""
        group = self.group_of.get(tenant)
        own: tuple[Holder, ...] = ((tenant, ""), (tenant, key)) if key else ((tenant, ""),)
        return own if group is None else (*own, group_holder(group))

    def tenants(self, holders: Collection[Holder]) -> set[str]:
        """The tenants that belong to these holders: the tenant itself, the tenant of a key, the tenants of a group."""
        own = {tenant for tenant, _ in holders}
        return own | {tenant for tenant, group in self.group_of.items() if group_holder(group) in holders}

    def hash_of(self, holder: Holder) -> int:
        """A hash of the tenants that a group has now; 0 for another holder."""
        return self._hashes.get(holder, 0)

    def tally_name(self, holder: Holder, unit: Unit) -> str:
        """The tally as other processes name it: one line for a tenant's tokens, two for a key's, three for the cost of
        either. That of a group says in the place of a key of which tenants: processes hear of a tenant that moves at
        different times, and what they count meanwhile does not compare.
        """
        tenant, key = holder
        of = (tenant, f"{self.hash_of(holder):0{2 * MEMBERS_BYTES}x}" if group_of(holder) else key)
        if unit is Unit.COST:
            return "\n".join((*of, unit))
        return "\n".join(of) if of[1] else tenant


def _hash_of(tenant: str) -> int:
    return int.from_bytes(hashlib.blake2b(tenant.encode(), digest_size=MEMBERS_BYTES).digest(), "big")
