"""Collections of tenants, groups, tiers, price lists and aliases: each has the fields of its section of the file."""

from collections.abc import Iterator
from functools import partial

from pydantic import BaseModel

from gateway.admin.resources.collection import Collection, CollectionModels, EntryScope
from gateway.admin.resources.group_scope import GroupScope
from gateway.admin.routes import Role
from gateway.config.aliases import AliasSection
from gateway.config.prices import PriceSection
from gateway.config.sections import GroupSection, TenantSection, TierSection
from gateway.config.value_types import MODEL_PATTERN, TENANT_PATTERN, Name, PoolName, TenantName
from gateway.registry.entries import Entry
from gateway.registry.registry import Registry

TENANTS = CollectionModels.of(TenantSection, "Tenant", TenantName)
GROUPS = CollectionModels.of(GroupSection, "Group", Name)
TIERS = CollectionModels.of(TierSection, "Tier", Name)
PRICES = CollectionModels.of(PriceSection, "Price", PoolName)
ALIASES = CollectionModels.of(AliasSection, "Alias", PoolName)


def collections(registry: Registry) -> Iterator[Collection]:
    """All these collections. The id of a price list is a model, the id of an alias is the name that clients use."""
    scope, make = GroupScope(registry), partial(Collection, registry=registry, role=Role.OPERATOR)
    yield make(
        kind="tenants",
        noun="tenant",
        models=TENANTS,
        show=partial(_tenant, registry),
        id_pattern=TENANT_PATTERN,
        scope=EntryScope(
            sees=scope.sees_tenant, changes=True, keeps=("group",), name=scope.name_tenant, give=scope.give
        ),
    )
    yield make(kind="groups", noun="group", models=GROUPS, scope=EntryScope(sees=scope.sees_group))
    yield make(kind="tiers", noun="tier", models=TIERS)
    yield make(kind="prices", noun="price list", models=PRICES, id_pattern=MODEL_PATTERN)
    yield make(kind="aliases", noun="alias", models=ALIASES, id_pattern=MODEL_PATTERN)


def _tenant(registry: Registry, entry: Entry) -> BaseModel:
    section = entry.of(TenantSection)
    group = None if section.group is None else registry.get("groups", section.group)
    fields = dict(section)
    if group is not None:
        fields["tier"] = group.of(GroupSection).tier
    return TENANTS.shown.model_construct(id=entry.name, origin=entry.origin, **fields)
