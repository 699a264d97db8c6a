"""Group scope: the rule that the administrator of a group sees and may change its own group only.

Entries of another group do not exist for the administrator: a read gets 404, as for an unknown name. It creates tenants
under names that begin with its group's name (`research/alice`), so that no two groups compete for a name, and no name
reveals another group. A change applies to the checked version of the entry, even if the request names none.

A group cannot give what it does not have: the budgets of its tenants sum up to at most its own, no limit of a tenant is
above the group's, and no envelope is tighter than the tier's.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from gateway.admin.problems import AdminProblem, field_problem
from gateway.admin.routes import AdminRequest, Caller
from gateway.config.marks import Budget, QueueLimit, marked
from gateway.config.sections import EnvelopeSection, GroupSection, LimitedSection, TenantSection, TierSection
from gateway.registry.changes import ANY_THERE, DeclaredInFile, Guard
from gateway.registry.entries import Entry
from gateway.registry.registry import Registry
from gateway.registry.resource_kinds import GROUP_ENTRIES_MAX, read_body

BUDGETS = marked(LimitedSection, Budget)
LIMITS = tuple(name for name in LimitedSection.model_fields if name not in BUDGETS)
NOT_GIVEN = marked(TenantSection, QueueLimit)
SEPARATOR = "/"


@dataclass(frozen=True, slots=True)
class GroupScope:
    """The rights of groups' administrators: which registry entries each of them may see and change. Callers that
    administer no group are not limited here.
    """

    registry: Registry

    def sees_group(self, caller: Caller, entry: Entry) -> bool:
        return caller.group in (None, entry.name)

    def sees_tenant(self, caller: Caller, entry: Entry) -> bool:
        section = entry.section
        return caller.group is None or (isinstance(section, TenantSection) and section.group == caller.group)

    def sees_tenant_named(self, caller: Caller, name: str | None) -> bool:
        """Whether this tenant exists for the caller."""
        if caller.group is None:
            return True
        entry = None if name is None else self.registry.get("tenants", name)
        return entry is not None and self.sees_tenant(caller, entry)

    def tenants_of(self, caller: Caller) -> frozenset[str] | None:
        """The tenants that the caller sees; None: all."""
        if caller.group is None:
            return None
        return frozenset(entry.name for entry in self.registry.entries("tenants") if self.sees_tenant(caller, entry))

    def name_tenant(self, caller: Caller, name: str, path: str) -> None:
        """Check that the caller may create a tenant of this name. Raises AdminProblem about the field `path`."""
        if caller.group is not None and not name.startswith(caller.group + SEPARATOR):
            raise field_problem(path, f"must begin with '{caller.group}{SEPARATOR}'", status=403)

    def give(self, caller: Caller, name: str, before: Entry | None, body: Mapping[str, Any]) -> dict[str, Any]:
        """The body that the caller may give a tenant whose present entry is `before`. Raises AdminProblem."""
        if caller.group is None:
            return dict(body)
        entry = self.registry.get("groups", caller.group)
        if entry is None:
            raise AdminProblem(403, "your group is not there any more")
        group, given = entry.of(GroupSection), dict(body)
        if before is None:
            given.setdefault("group", caller.group)
            self._check_room("tenants", len(self.tenants_of(caller) or ()))
        if given.get("group") != caller.group:
            raise field_problem("body.group", "is not yours to change", status=403)
        if given.get("tier", group.tier) != group.tier:  # whether there is such a tier is not the caller's to learn
            raise field_problem("body.tier", f"must be that of its group, '{group.tier}', or not be set", status=409)
        after, _ = read_body("tenants", given)
        if after is None:
            return given  # the registry says why
        assert isinstance(after, TenantSection), "it is a tenant's"
        now = TenantSection() if before is None else before.of(TenantSection)
        for field in NOT_GIVEN:
            if getattr(after, field) != getattr(now, field):
                raise field_problem(f"body.{field}", "is not a group's to give", status=403)
        self._check_limits(group, now, after)
        self._check_budgets(name, group, now, after)
        self._check_envelope(group, now, after)
        return given

    def make_key(self, caller: Caller) -> Guard | None:
        """The condition that the caller's group has room for one more key; None: the caller administers no group."""
        return None if caller.group is None else Guard(caller.group, partial(self._check_keys, caller))

    def _check_keys(self, caller: Caller) -> None:
        tenants = self.tenants_of(caller) or ()
        keys = (entry.body.get("tenant") for entry in self.registry.entries("keys"))
        self._check_room("keys", sum(tenant in tenants for tenant in keys))

    def _check_room(self, kind: str, count: int) -> None:
        most = GROUP_ENTRIES_MAX[kind]
        if count >= most:
            raise AdminProblem(409, f"the group has {most} {kind}, which is as many as its administrators may make")

    def _check_limits(self, group: GroupSection, now: TenantSection, after: TenantSection) -> None:
        for field in LIMITS:
            limit, value = getattr(group, field), getattr(after, field)
            if limit is not None and value is not None and value > limit and value != getattr(now, field):
                raise field_problem(f"body.{field}", f"must be at most {limit}, which the group has", status=409)

    def _check_budgets(self, name: str, group: GroupSection, now: TenantSection, after: TenantSection) -> None:
        for field in BUDGETS:
            budget, value = getattr(group, field), getattr(after, field)
            if budget is None or value is None or value == getattr(now, field):
                continue
            others = [entry.of(TenantSection) for entry in self.registry.entries("tenants") if entry.name != name]
            left = budget - _sum(getattr(each, field) for each in others if each.group == after.group)
            if value > left:
                reason = f"must be at most {max(left, 0)}, which the group has left of {budget}"
                raise field_problem(f"body.{field}", reason, status=409)

    def _check_envelope(self, group: GroupSection, now: TenantSection, after: TenantSection) -> None:
        entry = self.registry.get("tiers", group.tier)
        tier = TierSection() if entry is None else entry.of(TierSection)
        for field in EnvelopeSection.model_fields:
            least, value = getattr(tier.envelope, field), getattr(after.envelope, field)
            if value is None or value == getattr(now.envelope, field):
                continue
            if least is None or value < least:
                text = "the tier has none" if least is None else f"must be at least {least:g}, as of the tier"
                raise field_problem(f"body.envelope.{field}", text, status=409)


def pinned(asked: AdminRequest, etag: str | None, entry: Entry) -> str | None:
    """The etag that a change expects; for a group's administrator, the etag of the entry that was checked."""
    if asked.caller.group is None:
        return etag
    return entry.etag if etag in (None, ANY_THERE) else etag


def check_deletes(caller: Caller, entry: Entry) -> None:
    """Check that the entry is really gone after a group's administrator deletes it. Raises DeclaredInFile: an entry
    that the file declares would come back as in the file, in another group or with a key that was revoked.
    """
    if caller.group is not None and entry.origin != "admin":
        raise DeclaredInFile


def _sum(amounts: Iterable[Any]) -> Any:
    """The sum of the amounts that are set, of tokens or of money."""
    return sum(amount for amount in amounts if amount is not None)
