"""Models of the admin API: they validate requests, and the OpenAPI document is generated from them.

The settings are modelled by the sections that the configuration file is read with (resources/collection.py). Bodies are
read strictly as JSON: "5" is not a number. Times are seconds since 1970. A field that is not set has the default of the
configuration file; null in a patch resets a field to this default.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, Literal, Self, TypeVar, get_args

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, JsonValue

from gateway.admin.routes import Query
from gateway.config.marks import FormField
from gateway.config.value_types import DAY_PATTERN, DIGITS_PATTERN, POOL_CHARS_MAX, PoolName, TenantName, whole
from gateway.registry.entries import Origin
from gateway.registry.resource_kinds import KeyHolder, KeySection
from gateway.store.base import CHANGES_MAX

T = TypeVar("T")

PAGE_ROWS = 100
PAGE_ROWS_MAX = 1000
EXPIRY_S_MAX = 10 * 366 * 86_400
OVERLAP_S_MAX = 30 * 86_400

PART_CHARS_MAX = POOL_CHARS_MAX  # the longest name of what usage is of is a model's

ModelName = PoolName
FileKind = Literal["tiers", "groups", "tenants", "backends", "pools", "prices", "aliases"]
"""All kinds but keys, whose secrets are shown once. Each may refer to those before."""
ExpiresInS = Annotated[
    Annotated[int, Field(ge=1, le=EXPIRY_S_MAX), BeforeValidator(whole)] | None,
    Field(description="seconds from now on; null: never"),
    FormField("Expires after"),
]


class Fields(BaseModel):
    """The base of all models of the admin API: unknown fields are errors, values are immutable."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, allow_inf_nan=False, hide_input_in_errors=True, defer_build=True
    )

    @classmethod
    def made_of(cls, view: object, **beside: Any) -> Self:
        """The model of the view's fields and the values in `beside`, without another check of them."""
        known = {name: getattr(view, name) for name in cls.model_fields if name not in beside}
        return cls.model_construct(**known, **beside)


class StoredResource(Fields):
    """Common fields of all stored resources. `origin`: declared in the configuration file, made by the API, or both
    (the API's change overrides the file).
    """

    id: str
    origin: Origin


# -- pools -----------------------------------------------------------------------------------------------


class PoolResource(Fields):
    """The policies of a pool, each as in the configuration file: its name (`policy`) and its parameters."""

    id: str
    fairness: dict[str, JsonValue]
    prediction: dict[str, JsonValue]
    placement: dict[str, JsonValue]


# -- keys --------------------------------------------------------------------------------------------------


class NewKey(KeySection, KeyHolder, defer_build=True):
    """A request to make an API key for a tenant or for a role: set one of the two."""

    expires_in_s: ExpiresInS = None


class KeyChange(KeySection, defer_build=True):
    """A request to change an API key. `revoked` cannot be undone."""

    expires_in_s: ExpiresInS = None
    revoked: bool = False


class Rotation(Fields):
    """A request to replace a key by a new one. `overlap_s`: seconds for which the old key stays valid."""

    overlap_s: Annotated[int, Field(ge=0, le=OVERLAP_S_MAX), BeforeValidator(whole)] = 86_400


class KeyResource(StoredResource, KeySection, KeyHolder):
    """An API key. `last_used_on`: the last day (UTC) with usage of a tenant's key; null: there is none."""

    last_four: str
    last_used_on: str | None
    created_at: int
    expires_at: int | None
    revoked: bool


class KeyMade(KeyResource):
    """A new key. `secret` is the key itself, which is shown only this once."""

    secret: str


# -- usage and audit ---------------------------------------------------------------------------------------


class UsageResource(Fields):
    """The usage of one day (UTC) by tenant, API key and model. `cost` is by the price list of the model, as exact
    decimal text; null if the model had no price on that day.
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


class UsageSumResource(Fields):
    """A sum of usage. `period`, `group`, `tenant`, `key` and `model` say whose usage it is; null: the query does not
    divide by this field; "": usage without a group, key or model. `cost` is that of all tokens but `unpriced_tokens`,
    whose models had no price on their day; null: no model had a price. `key_label`: the label that the key has now.
    """

    period: str | None
    group: str | None
    tenant: str | None
    key: str | None
    key_label: str | None
    model: str | None
    requests: int
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    unpriced_tokens: int
    cost: str | None
    currency: str | None


class LastDayResource(Fields):
    """The last day on which a tenant had usage, in UTC, like 2026-11-20."""

    tenant: str
    last_used_on: str


class AuditResource(Fields):
    """One change in the audit log. `at`: seconds since 1970. `replica` is the gateway at whose admin port it was made;
    null: not recorded. `actor_label`: the label that the actor's key has now. `declared`: the changed entry as the
    configuration file has it at present; null: it is not there.
    """

    revision: int
    at: float
    actor: str
    actor_label: str | None
    replica: str | None
    action: str
    kind: str
    name: str
    before: dict[str, JsonValue] | None
    after: dict[str, JsonValue] | None
    declared: dict[str, JsonValue] | None


# -- lists -------------------------------------------------------------------------------------------------


class Page(Query):
    """A query of one page of a list: `cursor` is the `next_cursor` of the previous page."""

    limit: Annotated[int, Field(ge=1, le=PAGE_ROWS_MAX)] = PAGE_ROWS
    cursor: Annotated[str, Field(min_length=1, max_length=1024)] | None = None


class KeyPage(Page):
    """A query of one page of the list of API keys. `tenant`: only the keys of this tenant; null: of all."""

    tenant: TenantName | None = None


class UsagePage(Page):
    """A query of one page of usage. `first_day` and `last_day` are UTC days, both included; null: today."""

    first_day: Annotated[str, Field(pattern=DAY_PATTERN)] | None = None
    last_day: Annotated[str, Field(pattern=DAY_PATTERN)] | None = None
    tenant: TenantName | None = None


class UsageDivided(Query):
    """A query of sums of usage. `by` and `period` divide usage into several sums; null: no division. The other fields
    select a part of the usage.
    """

    first_day: Annotated[str, Field(pattern=DAY_PATTERN)] | None = None
    last_day: Annotated[str, Field(pattern=DAY_PATTERN)] | None = None
    by: Literal["group", "tenant", "key", "model"] | None = None
    period: Literal["day", "month"] | None = None
    group: Annotated[str, Field(max_length=PART_CHARS_MAX)] | None = None
    tenant: Annotated[str, Field(max_length=PART_CHARS_MAX)] | None = None
    key: Annotated[str, Field(max_length=PART_CHARS_MAX)] | None = None
    model: Annotated[str, Field(max_length=PART_CHARS_MAX)] | None = None


class UsageSumsPage(UsageDivided):
    """A query of one page of sums of usage. `first_day` and `last_day` are UTC days, both included; by default, this
    month until today. `cursor` is the `next_cursor` of the previous page.
    """

    limit: Annotated[int, Field(ge=1, le=PAGE_ROWS_MAX)] = PAGE_ROWS
    cursor: Annotated[str, Field(pattern=DIGITS_PATTERN)] | None = None


class UsageExport(UsageDivided):
    """A query of usage as a file. `first_day` and `last_day` are UTC days, both included; by default, today, or with
    `by` or `period` this month until today.
    """

    format: Literal["csv", "parquet"] = "csv"


class AuditPage(Query):
    """A query of one page of the audit log, newest first; `cursor` is the `next_cursor` of the previous page."""

    limit: Annotated[int, Field(ge=1, le=PAGE_ROWS_MAX)] = PAGE_ROWS
    cursor: Annotated[str, Field(pattern=DIGITS_PATTERN)] | None = None
    kind: Literal[FileKind, "keys", "notices", "notes", "requests", "trials"] | None = None


class ResourceList(Fields):
    """One page of resources. `next_cursor` null: this is the last page."""

    next_cursor: str | None


def first_of(rows: Sequence[T], limit: int, cursor_of: Callable[[T], str]) -> tuple[Sequence[T], str | None]:
    """The rows of one page, and the cursor of the next page, which names the last row; None: there is no next page."""
    shown = rows[:limit]
    return shown, cursor_of(shown[-1]) if len(rows) > len(shown) else None


class KeyList(ResourceList):
    """One page of keys."""

    items: list[KeyResource]


class PoolList(ResourceList):
    """One page of pools."""

    items: list[PoolResource]


class UsageList(ResourceList):
    """One page of usage, by day, tenant, key and model."""

    items: list[UsageResource]


class LastDayList(ResourceList):
    """One page of the last days with usage, by tenant."""

    items: list[LastDayResource]


class UsageSumList(ResourceList):
    """One page of sums of usage, ordered by period. In each period, the sum with the highest cost comes first. `total`
    is the sum over all pages.
    """

    first_day: str
    last_day: str
    total: UsageSumResource
    items: list[UsageSumResource]


class AuditList(ResourceList):
    """One page of the audit log, newest first."""

    items: list[AuditResource]


# -- files of resources --------------------------------------------------------------------------------------

Declared = Annotated[Mapping[str, Mapping[str, JsonValue]], Field(default_factory=dict)]


class ResourceFile(Fields):
    """The content of a file of registry entries: the fields of each entry, by kind and id. A field that is not given
    stays as it is; null resets it to its default.
    """

    tiers: Declared
    groups: Declared
    tenants: Declared
    backends: Declared
    pools: Declared
    prices: Declared
    aliases: Declared

    def entries(self) -> list[tuple[FileKind, str, Mapping[str, JsonValue]]]:
        """Kind, id and fields, in an order in which each entry may refer to earlier ones."""
        return [(kind, name, fields) for kind in get_args(FileKind) for name, fields in getattr(self, kind).items()]


class AppliedFile(Fields):
    """A request to apply a file of registry entries. With `dry_run`, it only returns what would change."""

    resources: ResourceFile
    dry_run: bool = False


class AppliedResource(Fields):
    """The change of one entry when a file is applied. `before` and `after` are the fields that are set before and after
    the change; `before` null: there was no entry.
    """

    kind: FileKind
    id: str
    change: Literal["created", "configured", "unchanged"]
    before: dict[str, JsonValue] | None
    after: dict[str, JsonValue]


class AppliedResources(Fields):
    """The results of applying a file, one for each of its entries, ordered by kind, then as in that file."""

    items: Annotated[list[AppliedResource], Field(max_length=CHANGES_MAX)]


class DeclaredPage(Page):
    """A query of one page of the registry's entries, from the configuration file and the admin API. `kind` null: of all
    kinds.
    """

    kind: FileKind | None = None


class DeclaredResource(Fields):
    """One entry of the registry, with the fields that are set. The other fields have their defaults."""

    kind: FileKind
    id: str
    origin: Origin
    fields: dict[str, JsonValue]


class DeclaredResources(ResourceList):
    """One page of the registry's entries (tiers, tenants, backends and others), from the configuration file and the
    admin API, ordered by kind, then by id.
    """

    items: list[DeclaredResource]
