"""Models of the preview of an edit in the admin API."""

from typing import Annotated

from pydantic import Field

from gateway.admin.models.resources import Fields, ModelName
from gateway.config.sections import GroupSection, TenantSection, TierSection
from gateway.config.value_types import Name, TenantName, Weight

EDITS_MAX = 1000


class PreviewedTenant(TenantSection, defer_build=True):
    """Any part of a tenant's fields; null resets one to its default. Only weights, groups and tiers change shares."""

    tier: Name | None = None  # type: ignore[assignment]  # null is of a patch
    weight: Weight | None = None  # type: ignore[assignment]


class PreviewedGroup(GroupSection, defer_build=True):
    """Any part of a group's fields; null resets one to its default. Only the weight changes shares."""

    weight: Weight | None = None  # type: ignore[assignment]


class PreviewedTier(TierSection, defer_build=True):
    """Any part of a tier's fields; null resets one to its default. Only the weight changes shares."""

    weight: Weight | None = None  # type: ignore[assignment]


class PreviewAsked(Fields):
    """The edit, and the `pool` to look at; null: all of them."""

    pool: ModelName | None = None
    tenants: Annotated[dict[TenantName, PreviewedTenant], Field(max_length=EDITS_MAX, default_factory=dict)]
    groups: Annotated[dict[Name, PreviewedGroup], Field(max_length=EDITS_MAX, default_factory=dict)]
    tiers: Annotated[dict[Name, PreviewedTier], Field(max_length=EDITS_MAX, default_factory=dict)]


class SharePreview(Fields):
    """Parts of the pool's service, from 0 to 1, that are due by weights and demands in the last minute. `asks_all`: it
    waits for more than it gets. One that does not gets what it asks for, whatever its weight.
    """

    share_now: float
    share_then: float
    asks_all: bool


class PoolPreview(Fields):
    tenants: dict[str, SharePreview]
    tiers: dict[str, SharePreview]
    groups: dict[str, SharePreview]


class PreviewResource(Fields):
    """By pool. Tenants that were idle for 15 minutes are left out."""

    pools: dict[str, PoolPreview]
