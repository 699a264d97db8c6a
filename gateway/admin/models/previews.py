"""Models of the preview of an edit in the admin API."""

from typing import Annotated

from pydantic import Field

from gateway.admin.models.resources import Fields, ModelName
from gateway.config.sections import GroupSection, TenantSection, TierSection
from gateway.config.value_types import Name, TenantName, Weight

EDITS_MAX = 1000


class PreviewedTenant(TenantSection, defer_build=True):
    """The edit of a tenant: any part of its fields; null resets one to its default. Only weights, groups and tiers
    change shares.
    """

    tier: Name | None = None  # type: ignore[assignment]  # null is of a patch
    weight: Weight | None = None  # type: ignore[assignment]


class PreviewedGroup(GroupSection, defer_build=True):
    """The edit of a group: any part of its fields; null resets one to its default. Only the weight changes shares."""

    weight: Weight | None = None  # type: ignore[assignment]


class PreviewedTier(TierSection, defer_build=True):
    """The edit of a tier: any part of its fields; null resets one to its default. Only the weight changes shares."""

    weight: Weight | None = None  # type: ignore[assignment]


class PreviewAsked(Fields):
    """The edit to preview, and the `pool` to look at; null: all pools."""

    pool: ModelName | None = None
    tenants: Annotated[dict[TenantName, PreviewedTenant], Field(max_length=EDITS_MAX, default_factory=dict)]
    groups: Annotated[dict[Name, PreviewedGroup], Field(max_length=EDITS_MAX, default_factory=dict)]
    tiers: Annotated[dict[Name, PreviewedTier], Field(max_length=EDITS_MAX, default_factory=dict)]


class SharePreview(Fields):
    """The shares of the pool's service, from 0 to 1, now and after the edit, by weights and demands of the last minute.
    `asks_all`: the member waits for more than it gets. Any other member gets what it asks for, whatever its weight.
    """

    share_now: float
    share_then: float
    asks_all: bool


class PoolPreview(Fields):
    tenants: dict[str, SharePreview]
    tiers: dict[str, SharePreview]
    groups: dict[str, SharePreview]


class PreviewResource(Fields):
    """The preview of each pool, by its name. Tenants that were idle for 15 minutes are left out."""

    pools: dict[str, PoolPreview]
