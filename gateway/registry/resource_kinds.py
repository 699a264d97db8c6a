"""Resource kinds: the class of the body of each kind, which is a section of the configuration file.

A body holds the fields that were set; the others have their defaults. Bodies hold no secrets: they have the HMAC and
the last four characters of an API key, and the place of a backend's credential.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Self

from pydantic import (
    AwareDatetime,
    BaseModel,
    Field,
    StringConstraints,
    ValidationError,
    field_validator,
    model_validator,
)

from backends.tls import tls_context_of
from gateway.config.aliases import AliasSection
from gateway.config.jwt import Role
from gateway.config.marks import FormField
from gateway.config.prices import PriceSection
from gateway.config.problems import ConfigProblem, validation_problems
from gateway.config.scheduling import PoolSettings
from gateway.config.sections import BackendSection, GroupSection, LimitedSection, Section, TenantSection, TierSection
from gateway.config.value_types import (
    CA_PATTERN,
    MODEL_NAME,
    NAME_CHARS_MAX,
    TENANT_NAME,
    Name,
    PoolName,
    TenantName,
)

CA_CHARS_MAX = 16 << 10
KEY_MODELS_MAX = 256
LABEL_CHARS_MAX = 256

Hmac = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]

_NAME = re.compile(rf"[A-Za-z0-9][A-Za-z0-9._@:-]{{0,{NAME_CHARS_MAX - 1}}}")


class DrainedSection(Section):
    """The setting that drains a backend: running requests end, and no new ones are sent."""

    draining: Annotated[bool, Field(description="running requests end, and no new ones are sent")] = False


class CaSection(Section):
    """The setting of a CA's certificates as PEM text. The text is replicated to every gateway, and names no file on
    their disks.
    """

    ca_pem: Annotated[
        str | None,
        Field(
            max_length=CA_CHARS_MAX,
            pattern=CA_PATTERN,
            description="certificates of the CA that signs the server's certificate; default: the system's CAs",
        ),
    ] = None

    @field_validator("ca_pem")
    @classmethod
    def _is_of_certificates(cls, ca_pem: str | None) -> str | None:
        if ca_pem is not None:
            if "PRIVATE KEY" in ca_pem:
                raise ValueError("holds a private key, which only the CA may have")
            tls_context_of(ca_pem)
        return ca_pem


class ManagedBackend(CaSection, DrainedSection, BackendSection):
    """A backend with the settings of the configuration file, and those that only the admin API sets."""

    @model_validator(mode="after")
    def _has_one_ca(self) -> Self:
        if self.ca_file is not None and self.ca_pem is not None:
            raise ValueError("set only one of ca_file and ca_pem")
        return self

    @model_validator(mode="after")
    def _holds_no_secret(self) -> Self:
        if self.api_key is not None:
            raise ValueError("api_key is not kept here: name where it is with api_key_file or api_key_env")
        return self


class KeySection(LimitedSection):
    """The settings of an API key that can change. Its limits and budgets apply besides those of its tenant."""

    label: Annotated[
        str, Field(max_length=LABEL_CHARS_MAX, description="what it is for"), FormField("Label", example="for people")
    ] = ""
    models: Annotated[
        tuple[PoolName, ...] | None,
        Field(max_length=KEY_MODELS_MAX, description="the only models that it may call; default: all"),
    ] = None


class KeyHolder(Section):
    """The holder of an API key: a tenant (for the data port) or a role (for the admin port)."""

    tenant: Annotated[TenantName | None, Field(description="with it the key is for the data port")] = None
    role: Annotated[Role | None, Field(description="with it the key is for the admin port")] = None
    group: Annotated[Name | None, Field(description="the one that the role group-admin is for")] = None


class ApiKey(KeySection, KeyHolder):
    """An API key as it is stored: its HMAC and last characters, but not the key itself."""

    hmac: Hmac
    last_four: Annotated[str, Field(min_length=4, max_length=4)]
    created_at: AwareDatetime
    expires_at: AwareDatetime | None = None
    revoked: bool = False

    @model_validator(mode="after")
    def _is_of_a_tenant_or_a_role(self) -> Self:
        if (self.tenant is None) == (self.role is None):
            raise ValueError("set one of tenant and role")
        if (self.role == "group-admin") != (self.group is not None):
            raise ValueError("set a group with the role group-admin, and with no other")
        return self


@dataclass(frozen=True, slots=True)
class ResourceKind:
    """A kind of registry entry: the model of its body, its name pattern, and the largest number of entries."""

    section: type[Section]
    name: re.Pattern[str]
    entries_max: int


RESOURCE_KINDS: Mapping[str, ResourceKind] = {
    "tiers": ResourceKind(TierSection, _NAME, 1_000),
    "groups": ResourceKind(GroupSection, _NAME, 10_000),
    "tenants": ResourceKind(TenantSection, TENANT_NAME, 100_000),
    "keys": ResourceKind(ApiKey, _NAME, 100_000),
    "backends": ResourceKind(ManagedBackend, _NAME, 1_000),
    "pools": ResourceKind(PoolSettings, MODEL_NAME, 1_000),
    "prices": ResourceKind(PriceSection, MODEL_NAME, 1_000),
    "aliases": ResourceKind(AliasSection, MODEL_NAME, 1_000),
}


GROUP_ENTRIES_MAX: Mapping[str, int] = {"tenants": 1_000, "keys": 1_000}
"""The most entries that a group's administrator may make for its group: a hundredth of all. An operator may make more.
"""


def read_body(kind: str, body: Mapping[str, Any]) -> tuple[Section | None, list[ConfigProblem]]:
    """Return the body as an instance of its section, or all problems with it."""
    section = RESOURCE_KINDS[kind].section
    try:
        return section.model_validate(body), []
    except ValidationError as error:
        return None, validation_problems(error, section, {}, {})


def body_to_json(section: BaseModel) -> dict[str, Any]:
    """The fields that were set, as JSON. A null field is left out: it means its default."""
    return section.model_dump(mode="json", exclude_unset=True, exclude_none=True)
