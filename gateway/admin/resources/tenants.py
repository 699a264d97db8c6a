"""Tenant, group and tier routes: weights, SLO envelopes and limits."""

from collections.abc import Iterator
from functools import partial

from gateway.admin.models import resources as models
from gateway.admin.resources.collection import Collection, CollectionModels, EntryScope
from gateway.admin.resources.group_scope import GroupScope
from gateway.admin.routes import Role, Route
from gateway.config.sections import GroupSection, TenantSection, TierSection
from gateway.config.value_types import TENANT_PATTERN
from gateway.registry.entries import Entry
from gateway.registry.registry import Registry


def routes(registry: Registry) -> Iterator[Route]:
    """Routes of tenants, groups and tiers."""
    scope = GroupScope(registry)
    yield from Collection(
        kind="tenants",
        noun="tenant",
        registry=registry,
        models=CollectionModels(
            made=models.NewTenant,
            whole=TenantSection,
            fields=TenantSection,
            shown=models.TenantResource,
            listed=models.TenantList,
        ),
        show=partial(_tenant, registry),
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
        models=CollectionModels(
            made=models.NewGroup,
            whole=GroupSection,
            fields=GroupSection,
            shown=models.GroupResource,
            listed=models.GroupList,
        ),
        role=Role.OPERATOR,
        scope=EntryScope(sees=scope.sees_group),
    ).routes()
    yield from Collection(
        kind="tiers",
        noun="tier",
        registry=registry,
        models=CollectionModels(
            made=models.NewTier,
            whole=TierSection,
            fields=TierSection,
            shown=models.TierResource,
            listed=models.TierList,
        ),
        role=Role.OPERATOR,
    ).routes()


def _tenant(registry: Registry, entry: Entry) -> models.TenantResource:
    section = entry.section
    assert isinstance(section, TenantSection), "an entry is of its kind"
    group = None if section.group is None else registry.get("groups", section.group)
    fields = dict(section)
    if group is not None and isinstance(group.section, GroupSection):
        fields["tier"] = group.section.tier
    return models.TenantResource.model_construct(id=entry.name, origin=entry.origin, **fields)
