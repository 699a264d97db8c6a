"""Models of the admin API: they validate requests, and the OpenAPI document is generated from them.

Bodies are read strictly as JSON: "5" is no number. Times are seconds since 1970. A field that is not set has the
default of the configuration file; null in a patch resets a field to it.
"""

from typing import Annotated, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, JsonValue

from gateway.admin.routes import Query
from gateway.config.aliases import SHADOWS_MAX, TARGETS_MAX
from gateway.config.aliases import WEIGHT_MAX as TARGET_WEIGHT_MAX
from gateway.config.amounts import AMOUNT_PATTERN
from gateway.config.prices import PERIODS_MAX, Currency
from gateway.config.sections import NAME_CHARS_MAX, POOL_CHARS_MAX
from gateway.registry.entries import Origin
from gateway.registry.resource_kinds import KEY_MODELS_MAX, LABEL_CHARS_MAX, MODEL_NAME, Role
from policies.slo.engine_priority import PRIORITY_MAX

PAGE_ROWS = 100
PAGE_ROWS_MAX = 1000
COUNT_MAX = 10**12
WEIGHT_MAX = 1e6
WEIGHT_MIN = 1e-6
MILLISECONDS_MAX = 86_400_000.0
EXPIRY_S_MAX = 10 * 366 * 86_400
OVERLAP_S_MAX = 30 * 86_400

NAME_PATTERN = rf"^[A-Za-z0-9][A-Za-z0-9._@-]{{0,{NAME_CHARS_MAX - 1}}}$"
TENANT_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._@/:-]{0,127}$"
MODEL_PATTERN = rf"^{MODEL_NAME.pattern}$"
DAY_PATTERN = r"^[0-9]{4}-[0-9]{2}-[0-9]{2}$"
AMOUNT_MAX = 999_999_999
DIGITS_PATTERN = r"^[0-9]{1,18}$"


def whole(value: object) -> object:
    """In JSON, 2.0 is an integer too (JSON Schema 2020-12, 4.2.3)."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


WHOLE = BeforeValidator(whole)
Count = Annotated[int, Field(ge=1, le=COUNT_MAX), WHOLE]
Weight = Annotated[float, Field(ge=WEIGHT_MIN, le=WEIGHT_MAX)]
TargetWeight = Annotated[float, Field(ge=0, le=TARGET_WEIGHT_MAX)]
Milliseconds = Annotated[float, Field(gt=0, le=MILLISECONDS_MAX)]
Name = Annotated[str, Field(pattern=NAME_PATTERN)]
TenantName = Annotated[str, Field(pattern=TENANT_PATTERN)]
ModelName = Annotated[str, Field(min_length=1, max_length=POOL_CHARS_MAX)]
Amount = Annotated[str, Field(pattern=AMOUNT_PATTERN)] | Annotated[int, Field(ge=0, le=AMOUNT_MAX), WHOLE]
"""An amount of money: text like "12.50", or a whole number. Never a floating-point number."""


class Fields(BaseModel):
    model_config = ConfigDict(
        extra="forbid", frozen=True, allow_inf_nan=False, hide_input_in_errors=True, defer_build=True
    )


class StoredResource(Fields):
    """Common fields of all stored resources. `origin`: declared in the file, made here, or both (overridden)."""

    id: str
    origin: Origin


# -- tenants and tiers -------------------------------------------------------------------------------------


class EnvelopeFields(Fields):
    """Latency targets; null: none, or the tier's."""

    ttft_ms: Milliseconds | None = None
    tpot_ms: Milliseconds | None = None


class LimitedFields(Fields):
    """Null: no such limit. Days and months are UTC. Costs are in the currency of the price lists."""

    in_flight_max: Count | None = None
    requests_per_minute_max: Count | None = None
    tokens_per_minute_max: Count | None = None
    tokens_per_day_max: Count | None = None
    tokens_per_month_max: Count | None = None
    cost_per_day_max: Amount | None = None
    cost_per_month_max: Amount | None = None


class SharingFields(Fields):
    """What those have that share the pool by weight: tenants and groups."""

    tier: Name = "default"
    weight: Weight = 1.0


class GroupFields(LimitedFields, SharingFields):
    """The limits hold for all tenants of the group together. Null: no such limit. Days and months are UTC. Costs are in
    the currency of the price lists.
    """


class NewGroup(GroupFields):
    id: Name


class GroupResource(StoredResource, GroupFields):
    pass


class TenantFields(LimitedFields, SharingFields):
    """Null: no such limit; for queues: the configuration's. Days and months are UTC. Costs are in the currency of the
    price lists. A tenant with a `group` is in the tier of that.
    """

    group: Name | None = None
    envelope: EnvelopeFields = EnvelopeFields()
    queued_requests_max: Count | None = None
    queued_bytes_max: Count | None = None


class NewTenant(TenantFields):
    id: TenantName


class TenantResource(StoredResource, TenantFields):
    pass


class TierFields(Fields):
    """`on_miss`: what happens to a request that cannot meet its envelope. `reserve_ratio`: the part of every backend
    that is reserved for this tier. `priority`: tiers of lower priority are shed first; below 0 a tier is sheddable.
    """

    weight: Weight = 1.0
    envelope: EnvelopeFields = EnvelopeFields()
    on_miss: Literal["wait", "reject"] = "wait"
    reserve_ratio: Annotated[float, Field(ge=0, lt=1)] = 0.0
    priority: Annotated[int, Field(ge=-PRIORITY_MAX, le=PRIORITY_MAX), WHOLE] = 0
    preemptible: bool = False


class NewTier(TierFields):
    id: Name


class TierResource(StoredResource, TierFields):
    pass


# -- keys --------------------------------------------------------------------------------------------------


class KeyFields(LimitedFields):
    """`models` null: all. The limits and budgets are of the key alone, within its tenant's; null: no such limit. Days
    and months are UTC. Costs are in the currency of the price lists.
    """

    label: Annotated[str, Field(max_length=LABEL_CHARS_MAX)] = ""
    models: Annotated[list[ModelName], Field(max_length=KEY_MODELS_MAX)] | None = None


class NewKey(KeyFields):
    """A key for a tenant (data port) or for a role (admin port): set one of the two. The role group-admin is for one
    `group`.
    """

    tenant: TenantName | None = None
    role: Role | None = None
    group: Name | None = None
    expires_in_s: Annotated[int, Field(ge=1, le=EXPIRY_S_MAX), WHOLE] | None = None


class KeyChange(KeyFields):
    """`revoked` cannot be undone."""

    expires_in_s: Annotated[int, Field(ge=1, le=EXPIRY_S_MAX), WHOLE] | None = None
    revoked: bool = False


class Rotation(Fields):
    """`overlap_s`: seconds for which the old key stays valid."""

    overlap_s: Annotated[int, Field(ge=0, le=OVERLAP_S_MAX), WHOLE] = 86_400


class KeyResource(StoredResource, KeyFields):
    """`last_used_on`: the last day (UTC) of the usage of a tenant's key; null: none is kept."""

    tenant: str | None
    role: Role | None
    group: str | None
    last_four: str
    last_used_on: str | None
    created_at: int
    expires_at: int | None
    revoked: bool


class KeyMade(KeyResource):
    """`secret` is the key itself: it is shown this once."""

    secret: str


# -- pools -------------------------------------------------------------------------------------------------


class PoolResource(Fields):
    """Each policy as in the configuration file: its name (`policy`) and its parameters."""

    id: str
    fairness: dict[str, JsonValue]
    prediction: dict[str, JsonValue]
    placement: dict[str, JsonValue]


# -- prices ------------------------------------------------------------------------------------------------


class PricePeriodFields(Fields):
    """Prices per million tokens from the day `valid_from` on (UTC; null: always) until a later period begins.
    `cached_prompt` null: the price of `prompt`. Two periods cannot begin on one day.
    """

    valid_from: Annotated[str, Field(pattern=DAY_PATTERN)] | None = None
    prompt: Amount
    cached_prompt: Amount | None = None
    output: Amount


class PriceFields(Fields):
    """The price list of a model. All price lists have one `currency` (ISO 4217)."""

    currency: Currency
    periods: Annotated[list[PricePeriodFields], Field(min_length=1, max_length=PERIODS_MAX)]


class NewPrice(PriceFields):
    id: ModelName


class PriceResource(StoredResource, PriceFields):
    pass


# -- aliases -----------------------------------------------------------------------------------------------


class ShadowFields(Fields):
    """Copies of calls that are sent to another model, and whose answers are dropped: this part of the calls, at most so
    many at once in each process.
    """

    model: ModelName
    ratio: Annotated[float, Field(gt=0, le=1)] = 1.0
    in_flight_max: Annotated[int, Field(ge=1, le=SHADOWS_MAX), WHOLE] = 1


class AliasFields(Fields):
    """What a model name stands for. `models` are tried in order. With `split` one of its models is tried first, by
    weight: the same one for every call of a tenant, or of a session (`sticky`).
    """

    models: Annotated[list[ModelName], Field(min_length=1, max_length=TARGETS_MAX)]
    split: Annotated[dict[ModelName, TargetWeight], Field(max_length=TARGETS_MAX)] = {}
    sticky: Literal["tenant", "session"] = "tenant"
    shadow: ShadowFields | None = None


class NewAlias(AliasFields):
    id: ModelName


class AliasResource(StoredResource, AliasFields):
    pass


# -- usage and audit ---------------------------------------------------------------------------------------


class UsageResource(Fields):
    """Usage of one day (UTC). `cost` is by the price list of the model, as exact decimal text; null where it has no
    price on that day.
    """

    day: str
    tenant: str
    key: str
    model: str
    requests: int
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    cost: str | None
    currency: str | None


class AuditResource(Fields):
    """One change. `replica` is the gateway at whose admin port it was made; null where that was not kept."""

    revision: int
    at: float
    actor: str
    replica: str | None
    action: str
    kind: str
    name: str
    before: dict[str, JsonValue] | None
    after: dict[str, JsonValue] | None


# -- lists -------------------------------------------------------------------------------------------------


class Page(Query):
    """One page of a list: `cursor` is the `next_cursor` of the page before."""

    limit: Annotated[int, Field(ge=1, le=PAGE_ROWS_MAX)] = PAGE_ROWS
    cursor: Annotated[str, Field(min_length=1, max_length=1024)] | None = None


class KeyPage(Page):
    tenant: TenantName | None = None


class UsagePage(Page):
    """Days are UTC, both inclusive; today by default."""

    first_day: Annotated[str, Field(pattern=DAY_PATTERN)] | None = None
    last_day: Annotated[str, Field(pattern=DAY_PATTERN)] | None = None
    tenant: TenantName | None = None


class UsageExport(Query):
    """Days are UTC, both inclusive; today by default."""

    format: Literal["csv", "parquet"] = "csv"
    first_day: Annotated[str, Field(pattern=DAY_PATTERN)] | None = None
    last_day: Annotated[str, Field(pattern=DAY_PATTERN)] | None = None
    tenant: TenantName | None = None


class AuditPage(Query):
    """Newest first; `cursor` is the `next_cursor` of the page before."""

    limit: Annotated[int, Field(ge=1, le=PAGE_ROWS_MAX)] = PAGE_ROWS
    cursor: Annotated[str, Field(pattern=DIGITS_PATTERN)] | None = None
    kind: (
        Literal["tenants", "groups", "tiers", "keys", "backends", "pools", "prices", "aliases", "notices", "requests"]
        | None
    ) = None


class ResourceList(Fields):
    """`next_cursor` null: this is the last page."""

    next_cursor: str | None


class TenantList(ResourceList):
    items: list[TenantResource]


class GroupList(ResourceList):
    items: list[GroupResource]


class TierList(ResourceList):
    items: list[TierResource]


class KeyList(ResourceList):
    items: list[KeyResource]


class PriceList(ResourceList):
    items: list[PriceResource]


class AliasList(ResourceList):
    items: list[AliasResource]


class PoolList(ResourceList):
    items: list[PoolResource]


class UsageList(ResourceList):
    items: list[UsageResource]


class AuditList(ResourceList):
    items: list[AuditResource]
