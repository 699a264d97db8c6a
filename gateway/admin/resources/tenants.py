"""Tenant and tier routes: weights, SLO envelopes and limits."""

from collections.abc import Iterator

from gateway.admin import models
from gateway.admin.models import NAME_PATTERN, TENANT_PATTERN
from gateway.admin.resources.collection import Collection, CollectionModels
from gateway.admin.routes import Role, Route
from gateway.state.entries import Entry
from gateway.state.registry import Registry


def routes(registry: Registry) -> Iterator[Route]:
    """Routes of tenants and tiers."""
    yield from Collection(
        kind="tenants",
        noun="tenant",
        registry=registry,
        models=CollectionModels(
            made=models.NewTenant,
            whole=models.TenantFields,
            fields=models.TenantFields,
            shown=models.TenantResource,
            listed=models.TenantList,
        ),
        show=_tenant,
        role=Role.OPERATOR,
        id_schema={"type": "string", "pattern": TENANT_PATTERN},
    ).routes()
    yield from Collection(
        kind="tiers",
        noun="tier",
        registry=registry,
        models=CollectionModels(
            made=models.NewTier,
            whole=models.TierFields,
            fields=models.TierFields,
            shown=models.TierResource,
            listed=models.TierList,
        ),
        show=_tier,
        role=Role.OPERATOR,
        id_schema={"type": "string", "pattern": NAME_PATTERN},
    ).routes()


def _tenant(entry: Entry) -> models.TenantResource:
    return models.TenantResource.model_construct(
        id=entry.name, origin=entry.origin, **entry.section.model_dump(mode="json")
    )


def _tier(entry: Entry) -> models.TierResource:
    return models.TierResource.model_construct(
        id=entry.name, origin=entry.origin, **entry.section.model_dump(mode="json")
    )
