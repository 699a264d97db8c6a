"""Preview route: the shares that an edit of weights, groups and tiers would change. It changes nothing."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import BaseModel, Field

from gateway.admin.models.resources import Fields, ModelName
from gateway.admin.problems import AdminProblem, FieldError
from gateway.admin.routes import AdminAnswer, AdminRequest, Role, Route
from gateway.config.sections import GroupSection, TenantSection, TierSection
from gateway.config.value_types import Name, TenantName, Weight
from gateway.live.live import Live
from gateway.live.preview import GroupWeight, PoolPreview, WeightEdit, preview
from gateway.live.schema import LivePagePool
from gateway.registry.registry import Registry
from policies.types import DEFAULT_TIER

DEFAULT_WEIGHT = 1.0
EDITS_MAX = 1000


class PreviewedTenant(TenantSection, defer_build=True):
    """An edit of a tenant to preview. Any of the tenant's fields can be given; null resets one to its default. Only
    weights, groups and tiers change shares of service.
    """

    tier: Name | None = None  # type: ignore[assignment]  # null is of a patch
    weight: Weight | None = None  # type: ignore[assignment]


class PreviewedGroup(GroupSection, defer_build=True):
    """An edit of a group to preview. Any of the group's fields can be given; null resets one to its default. Only the
    weight changes shares of service.
    """

    weight: Weight | None = None  # type: ignore[assignment]


class PreviewedTier(TierSection, defer_build=True):
    """An edit of a tier to preview. Any of the tier's fields can be given; null resets one to its default. Only the
    weight changes shares of service.
    """

    weight: Weight | None = None  # type: ignore[assignment]


class PreviewAsked(Fields):
    """A request to preview edits, by id, of tenants, groups and tiers: how the shares of service would change. `pool`
    null: all pools.
    """

    pool: ModelName | None = None
    tenants: Annotated[dict[TenantName, PreviewedTenant], Field(max_length=EDITS_MAX, default_factory=dict)]
    groups: Annotated[dict[Name, PreviewedGroup], Field(max_length=EDITS_MAX, default_factory=dict)]
    tiers: Annotated[dict[Name, PreviewedTier], Field(max_length=EDITS_MAX, default_factory=dict)]


class PreviewResource(Fields):
    """The shares of service in each pool before and after an edit, by pool name. Tenants that were idle for 15 minutes
    are left out.
    """

    pools: dict[str, PoolPreview]


@dataclass(frozen=True, slots=True, kw_only=True)
class PreviewRoutes:
    """The admin route that previews an edit: how it would change the shares of service."""

    registry: Registry
    live: Live

    def routes(self) -> Iterator[Route]:
        yield Route(
            method="POST", path="/preview", role=Role.VIEWER,
            summary="The shares that tenants are due now, and would be after this edit, which is not made.",
            run=self.show, body=PreviewAsked, answer=PreviewResource, stored=True,
        )  # fmt: skip

    async def show(self, asked: AdminRequest) -> AdminAnswer:
        body: PreviewAsked = asked.body
        pools = (await self.live.document()).pools
        weights = {entry.name: entry.of(TierSection).weight for entry in self.registry.entries("tiers")}
        weights.setdefault(DEFAULT_TIER.id, DEFAULT_WEIGHT)
        sections = {entry.name: entry.of(GroupSection) for entry in self.registry.entries("groups")}
        groups = {name: GroupWeight(each.tier, each.weight) for name, each in sections.items()}
        self._check(body, pools, weights.keys(), groups.keys())
        edit = _edit(body)
        shown = {
            name: preview(pool, weights, edit, groups) for name, pool in pools.items() if body.pool in (None, name)
        }
        return AdminAnswer(PreviewResource(pools=shown))

    def _check(self, body: PreviewAsked, pools: Mapping[str, LivePagePool], tiers: Any, groups: Any) -> None:
        """Raise AdminProblem, naming every id that does not exist."""
        errors = []
        if body.pool is not None and body.pool not in pools:
            errors.append(("pool", "is no pool here"))
        live = {tenant for pool in pools.values() for tenant in pool.tenants}
        for tenant, fields in body.tenants.items():
            if tenant not in live and self.registry.get("tenants", tenant) is None:
                errors.append((f"tenants.{tenant}", "is no tenant here"))
            if fields.tier is not None and fields.tier not in tiers:
                errors.append((f"tenants.{tenant}.tier", "is no tier here"))
            if fields.group is not None and fields.group not in groups:
                errors.append((f"tenants.{tenant}.group", "is no group here"))
        errors += [(f"groups.{group}", "is no group here") for group in body.groups if group not in groups]
        errors += [(f"tiers.{tier}", "is no tier here") for tier in body.tiers if tier not in tiers]
        if errors:
            named = [FieldError(field=f"body.{path}", reason=reason) for path, reason in errors]
            raise AdminProblem(422, f"{named[0].field}: {named[0].reason}", named)


def _edit(body: PreviewAsked) -> WeightEdit:
    return WeightEdit(
        tenant_groups=_named(body.tenants, "group", None),
        group_weights=_named(body.groups, "weight", DEFAULT_WEIGHT),
        tenant_weights=_named(body.tenants, "weight", DEFAULT_WEIGHT),
        tenant_tiers=_named(body.tenants, "tier", DEFAULT_TIER.id),
        tier_weights=_named(body.tiers, "weight", DEFAULT_WEIGHT),
    )


def _named(edits: Mapping[str, BaseModel], field: str, default: Any) -> dict[str, Any]:
    """The value of this field for each edit that sets it; null stands for the default."""
    return {name: getattr(edit, field) or default for name, edit in edits.items() if field in edit.model_fields_set}
