"""Group rules: assign the tenants of a trace to groups, independently of the trace.

    name[:SEPARATOR]       the part of a tenant's name before the first separator ("/"), if it has one

Without a rule, tenants have the groups of the configuration. A group that is not configured has weight 1.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace

from policies.types import Group, Tenant

USAGE = "name[:SEPARATOR]"


@dataclass(slots=True)
class Grouping:
    """The rule that assigns a trace's tenants to groups. Mutable: a group is made with its first tenant."""

    tenant_of: Callable[[str], Tenant]
    separator: str | None = None
    """The separator of the rule; None: tenants have their configured groups."""
    groups: dict[str, Group] = field(default_factory=dict)

    def find(self, tenant_id: str) -> Tenant:
        """The tenant with its group."""
        tenant = self.tenant_of(tenant_id)
        if self.separator is None:
            return tenant
        name, found, _ = tenant_id.partition(self.separator)
        if not found:
            return replace(tenant, group_id=None)
        group = self.groups.setdefault(name, Group(name, tier_id=tenant.tier_id))
        return replace(tenant, group_id=name, tier_id=group.tier_id)


def grouping(rule: str | None, tenant_of: Callable[[str], Tenant], groups: Iterable[Group]) -> Grouping:
    """The grouping by this rule; None: as configured. Raises ValueError."""
    known = {group.id: group for group in groups}
    if rule is None:
        return Grouping(tenant_of, groups=known)
    kind, given, separator = rule.partition(":")
    if kind != "name" or (given and not separator):
        raise ValueError(f"there is no rule '{rule}' for groups (there is: {USAGE})")
    return Grouping(tenant_of, separator or "/", known)
