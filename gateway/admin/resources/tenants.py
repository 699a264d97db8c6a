"""Tenant, group and tier routes: weights, SLO envelopes and limits."""

from collections.abc import Iterator
from functools import partial

from pydantic import BaseModel

from gateway.admin.resources.collection import Collection, CollectionModels, EntryScope
from gateway.admin.resources.group_scope import GroupScope
from gateway.admin.routes import Role, Route
from gateway.config.sections import GroupSection, TenantSection, TierSection
from gateway.config.value_types import TENANT_PATTERN, Name, TenantName
from gateway.registry.entries import Entry
from gateway.registry.registry import Registry


def routes(registry: Registry) -> Iterator[Route]:
    """Routes of tenants, groups and tiers."""
    scope = GroupScope(registry)
    tenants = CollectionModels.of(TenantSection, "Tenant", TenantName)
    yield from Collection(
        kind="tenants",
        noun="tenant",
        registry=registry,
        models=tenants,
        show=partial(_tenant, registry, tenants.shown),
        role=Role.OPERATOR,
        id_pattern=TENANT_PATTERN,
        scope=EntryScope(
            sees=scope.sees_tenant, changes=True, keeps=("group",), name=scope.name_tenant, give=scope.give
        ),
    ).routes()
    yield from Collection(
        kind="groups",
        noun="group",
        registry=registry,
        models=CollectionModels.of(GroupSection, "Group", Name),
        role=Role.OPERATOR,
        scope=EntryScope(sees=scope.sees_group),
    ).routes()
    yield from Collection(
        kind="tiers",
        noun="tier",
        registry=registry,
        models=CollectionModels.of(TierSection, "Tier", Name),
        role=Role.OPERATOR,
    ).routes()


def _tenant(registry: Registry, shown: type[BaseModel], entry: Entry) -> BaseModel:
    section = entry.section
    assert isinstance(section, TenantSection), "an entry is of its kind"
    group = None if section.group is None else registry.get("groups", section.group)
    fields = dict(section)
    if group is not None and isinstance(group.section, GroupSection):
        fields["tier"] = group.section.tier
    return shown.model_construct(id=entry.name, origin=entry.origin, **fields)
