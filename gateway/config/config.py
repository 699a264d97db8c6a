"""Configuration: the complete settings as one frozen value, validated as a whole, and the values that other parts take
from it.

pydantic-settings merges YAML and environment: FAIRLEAD_QUEUE__WAIT_S_MAX=30 sets queue.wait_s_max and overrides the
file. Rules that span sections (a tenant's tier exists, names are unique, reserves leave room) are checked here, and all
problems are reported together.
"""

import os
import re
import ssl
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import fields
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import Field, PrivateAttr, model_validator
from pydantic_core import PydanticCustomError
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict

from backends.address_allowlist import AddressAllowlist
from backends.pool import BACKENDS_MAX
from backends.spec import BackendSpec
from backends.tls import tls_context
from gateway.api.calls import CallLimits
from gateway.api.endpoints import ENDPOINTS, ListedCharge, PathTable
from gateway.config.admin import Admin
from gateway.config.aliases import AliasSection, ModelName, alias_problems
from gateway.config.budgets import BudgetsSection
from gateway.config.cluster import ClusterSection
from gateway.config.discovery import SOURCES_MAX, Discovery
from gateway.config.files import resolve_files
from gateway.config.jwt import Jwt
from gateway.config.prices import PriceSection
from gateway.config.problems import Loc, dotted_path
from gateway.config.scheduling import PoolSettings, Scheduling
from gateway.config.sections import (
    AccessLog,
    AuthSection,
    BackendSection,
    ContinuationSection,
    EngineSection,
    GroupSection,
    HealthSection,
    LimitedSection,
    LimitsSection,
    Listen,
    Log,
    PromptTokens,
    QueueSection,
    Section,
    Shutdown,
    TenantSection,
    TierSection,
    TraceLog,
)
from gateway.config.state import RedisSection, StateSection
from gateway.config.step_time import read_configured_step_time
from gateway.config.telemetry import MetricsSection, TracingSection
from gateway.config.value_types import Name, PoolName, TenantName
from policies import types as policy
from policies.admission.bounded import TENANT_BYTES_MAX

ENV_PREFIX = "FAIRLEAD_"
ENV_DELIMITER = "__"
TENANTS_MAX = 100_000
WORKERS_MAX = 64
ANONYMOUS = "anonymous"
OPEN_TENANT_PREFIX = "key-"
ANY_ADDRESS = {"", "0.0.0.0", "::"}  # a port there is in use at every address

_PATH = re.compile(r"(/[A-Za-z0-9._~-]{1,64}){1,8}")


class Config(BaseSettings):
    """All settings of the gateway. Without any, it serves its embedded engine, and accepts every API key."""

    model_config = SettingsConfigDict(
        env_prefix=ENV_PREFIX,
        env_nested_delimiter=ENV_DELIMITER,
        extra="forbid",
        frozen=True,
        hide_input_in_errors=True,
        validate_default=True,
    )

    workers: Annotated[int, Field(ge=1, le=WORKERS_MAX)] | Literal["auto"] = 1
    listen: Listen = Listen()
    backends: tuple[BackendSection, ...] = ()
    discovery: tuple[Discovery, ...] = ()
    engine: EngineSection = EngineSection()
    tiers: dict[Name, TierSection] = {}
    groups: dict[Name, GroupSection] = {}
    tenants: dict[TenantName, TenantSection] = {}
    prices: dict[PoolName, PriceSection] = {}
    budgets: BudgetsSection = BudgetsSection()
    aliases: dict[ModelName, AliasSection] = {}
    endpoints: dict[str, ListedCharge] = {}
    scheduling: Scheduling = Scheduling()
    pools: dict[PoolName, PoolSettings] = {}
    queue: QueueSection = QueueSection()
    limits: LimitsSection = LimitsSection()
    continuation: ContinuationSection = ContinuationSection()
    auth: AuthSection = AuthSection()
    admin: Admin = Admin()
    jwt: Jwt = Jwt()
    health: HealthSection = HealthSection()
    prompt_tokens: PromptTokens = PromptTokens()
    log: Log = Log()
    access_log: AccessLog = AccessLog()
    trace_log: TraceLog = TraceLog()
    tracing: TracingSection = TracingSection()
    metrics: MetricsSection = MetricsSection()
    shutdown: Shutdown = Shutdown()
    state: StateSection = StateSection()
    cluster: ClusterSection = ClusterSection()

    _folder: Path = PrivateAttr(default=Path())
    _is_trial: bool = PrivateAttr(default=False)
    _address: dict[str, Any] = PrivateAttr(default_factory=dict)

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],  # noqa: ARG003
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,  # noqa: ARG003
        file_secret_settings: PydanticBaseSettingsSource,  # noqa: ARG003
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """The environment overrides the file (which is passed as init values); .env files are not read. The lookup of
        every field in the environment takes three times as long as the check of all values, so it needs a set variable.
        """
        is_set = any(name.upper().startswith(ENV_PREFIX) for name in os.environ)
        return (env_settings, init_settings) if is_set else (init_settings,)

    @model_validator(mode="after")
    def _agrees(self) -> Self:
        problems = list(_disagreements(self))
        if problems:
            raise PydanticCustomError(
                "disagreement",
                "{text}",
                {"text": "; ".join(f"{dotted_path(path)}: {text}" for path, text in problems), "problems": problems},
            )
        return self

    def placed_in(self, folder: Path) -> Self:
        """Return a copy in which every relative path is below `folder`, the folder of the file."""
        placed = resolve_files(self, folder).model_copy()
        placed._folder = folder  # noqa: SLF001 - its own
        return placed

    @property
    def folder(self) -> Path:
        """The base of relative paths, also of those set by the admin API."""
        return self._folder

    @property
    def is_trial(self) -> bool:
        """Whether the gateway is a trial without a configuration (trial.py), whose admin port has no first key."""
        return self._is_trial

    def listening_at(self, address: Mapping[str, Any]) -> Self:
        """A copy that listens at this address (`host` and `port`, each if given), even if the file sets another."""
        copy = self.model_copy(update={"listen": self.listen.model_copy(update=dict(address))})
        copy._address = dict(address)  # noqa: SLF001 - its own
        return copy

    @property
    def given_address(self) -> Mapping[str, Any]:
        """The address that `listening_at` has set."""
        return self._address

    @property
    def keeps_state(self) -> bool:
        """Whether state has to outlive a restart: admin API changes, budgets, or a configured store."""
        budgets = any(each.has_budget for each in (*self.tenants.values(), *self.groups.values()))
        return self.admin.enabled or self.state != StateSection() or budgets

    @property
    def is_clustered(self) -> bool:
        """Whether this gateway shares one order with the gateways on the same Redis."""
        return self.cluster_redis is not None

    @property
    def cluster_redis(self) -> RedisSection | None:
        """The Redis of the gateways that share one order with this one; None: this gateway shares no order."""
        return None if self.cluster.enabled is False else self.state.redis

    def policy_tiers(self) -> list[policy.Tier]:
        """Return the configured tiers, and the default tier if it is not configured."""
        tiers = [policy_tier(name, tier) for name, tier in self.tiers.items()]
        return tiers if policy.DEFAULT_TIER.id in self.tiers else [policy.DEFAULT_TIER, *tiers]

    def policy_tenants(self) -> list[policy.Tenant]:
        return [policy_tenant(name, tenant, self.groups) for name, tenant in self.tenants.items()]

    def policy_groups(self) -> list[policy.Group]:
        return [policy_group(name, group) for name, group in self.groups.items()]

    def scheduling_of(self, pool: str) -> Scheduling:
        """Return the scheduling settings of this pool: the general ones, overridden by its own."""
        own = self.pools.get(pool)
        return self.scheduling if own is None else self.scheduling.overridden_by(own.scheduling)

    def backend_specs(self) -> list[BackendSpec]:
        """Return the configured backends with their credentials. Raises ValueError where a credential cannot be
        read.
        """
        return [backend_spec(backend) for backend in self.backends]

    def call_limits(self) -> CallLimits:
        return CallLimits(**_shared(self.limits, CallLimits))


def policy_tier(name: str, tier: TierSection) -> policy.Tier:
    """The tier of this section in the scheduler's form."""
    return policy.Tier(id=name, rejects_misses=tier.on_miss == "reject", **_shared(tier, policy.Tier))


def policy_group(name: str, group: GroupSection) -> policy.Group:
    """The group of this section in the scheduler's form."""
    return policy.Group(id=name, tier_id=group.tier, **_shared(group, policy.Group))


def policy_key(key: LimitedSection) -> policy.KeyLimits | None:
    """The limits of a key in the scheduler's form; None where the section has none of these limits."""
    limits = policy.KeyLimits(**_shared(key, policy.KeyLimits))
    return None if limits == policy.KeyLimits() else limits


def policy_tenant(
    name: str,
    tenant: TenantSection,
    groups: Mapping[str, GroupSection],
    keys: Mapping[str, policy.KeyLimits] | None = None,
) -> policy.Tenant:
    """The tenant of this section in the scheduler's form, in the tier of its group. A group that does not exist counts
    as no group. `keys` are the limits of its keys.
    """
    group = None if tenant.group is None else groups.get(tenant.group)
    return policy.Tenant(
        id=name,
        tier_id=tenant.tier if group is None else group.tier,
        group_id=None if group is None else tenant.group,
        keys=dict(keys or {}),
        **_shared(tenant, policy.Tenant),
    )


def _shared(section: Section, made: Any) -> dict[str, Any]:
    """The settings of a section that the policy's value has under the same name."""
    return {name: getattr(section, name) for name in _shared_names(type(section), made)}


@cache
def _shared_names(section: type[Section], made: Any) -> tuple[str, ...]:
    return tuple(each.name for each in fields(made) if each.name in section.model_fields)


def envelope_of(each: TierSection | TenantSection) -> policy.SloEnvelope | None:
    """The section's own latency targets; None where it has none."""
    envelope = policy.SloEnvelope(ttft_s=_seconds(each.envelope.ttft_ms), tpot_s=_seconds(each.envelope.tpot_ms))
    return None if envelope == policy.SloEnvelope() else envelope


def backend_spec(backend: BackendSection, address_allowlist: AddressAllowlist | None = None) -> BackendSpec:
    """The specification of a backend, with its credential. Raises ValueError where the credential cannot be read."""
    key = backend.credential()
    return BackendSpec(
        headers={} if key is None else {"authorization": f"Bearer {key.get_secret_value()}"},
        reads_priority=None if backend.scheduling_policy is None else backend.scheduling_policy == "priority",
        tls=backend_tls(backend),
        address_allowlist=address_allowlist,
        **_shared(backend, BackendSpec) | {"id": backend.id, "step_time": read_configured_step_time(backend)},
    )


def backend_tls(backend: BackendSection) -> ssl.SSLContext | None:
    """The TLS context of the backend's connections; None where none is configured. Raises ValueError."""
    if backend.ca_file is None and backend.cert_file is None:
        return None
    return tls_context(backend.ca_file, backend.cert_file, backend.key_file)


def _seconds(milliseconds: float | None) -> float | None:
    return None if milliseconds is None else milliseconds / 1000


def _disagreements(config: Config) -> Iterator[tuple[Loc, str]]:
    yield from _worker_disagreements(config)
    yield from _cluster_disagreements(config)
    yield from _port_disagreements(config)
    yield from _backend_disagreements(config)
    yield from _endpoint_disagreements(config)
    yield from _token_disagreements(config)
    yield from ((("aliases", name, "models"), text) for name, text in alias_problems(config.aliases))
    yield from _group_disagreements(config)
    auth = config.auth
    if auth.mode == "open" and not auth.trusted_proxies and auth.tenant_from != "model":  # nothing names a tenant
        for name in config.tenants:
            if name != ANONYMOUS and not name.startswith(OPEN_TENANT_PREFIX):
                yield ("tenants", name), "no request belongs to this tenant while auth.mode is open (set it to keys)"
    if auth.mode == "keys" and not config.tenants and not config.admin.enabled:
        yield ("auth", "mode"), "is keys, but there are no tenants"
    yield from _price_disagreements(config)
    if len(config.tenants) > TENANTS_MAX:
        yield ("tenants",), f"there are more than {TENANTS_MAX}"
    if sum(tier.reserve_ratio for tier in config.tiers.values()) >= 1:
        yield ("tiers",), "the reserve_ratio of all tiers together must be less than 1"
    queue = config.queue
    if queue.tenant_requests_max > queue.requests_max:
        yield ("queue", "tenant_requests_max"), "must not be more than queue.requests_max"
    if config.limits.body_bytes_max > TENANT_BYTES_MAX:
        yield ("limits", "body_bytes_max"), "must not be more than 256MiB, or such a body could not wait"


def _price_disagreements(config: Config) -> Iterator[tuple[Loc, str]]:
    currencies = sorted({price.currency for price in config.prices.values()})
    if len(currencies) > 1:
        for model in config.prices:
            yield ("prices", model, "currency"), f"all price lists have one currency, here are {', '.join(currencies)}"


def _group_disagreements(config: Config) -> Iterator[tuple[Loc, str]]:
    tiers = {policy.DEFAULT_TIER.id, *config.tiers}
    for kind, named in (("groups", config.groups), ("tenants", config.tenants)):
        for name, each in named.items():
            if each.tier not in tiers:
                yield (kind, name, "tier"), f"there is no tier '{each.tier}' (tiers: {', '.join(sorted(tiers))})"
    for name, tenant in config.tenants.items():
        group = None if tenant.group is None else config.groups.get(tenant.group)
        if tenant.group is not None and group is None:
            yield ("tenants", name, "group"), f"there is no group '{tenant.group}'"
        elif group is not None and "tier" in tenant.model_fields_set and tenant.tier != group.tier:
            yield ("tenants", name, "tier"), f"must be that of its group, '{group.tier}', or not be set"


def _worker_disagreements(config: Config) -> Iterator[tuple[Loc, str]]:
    if config.workers != 1 and config.state.redis is not None:
        yield ("workers",), "is for one machine: gateways that share a Redis have one process each"


def _cluster_disagreements(config: Config) -> Iterator[tuple[Loc, str]]:
    if config.cluster.enabled and config.state.redis is None:
        yield ("cluster", "enabled"), "needs a Redis that elects: set state.redis.url"


def _port_disagreements(config: Config) -> Iterator[tuple[Loc, str]]:
    taken = [("listen", config.listen.host, config.listen.port)]
    if config.admin.enabled:
        taken.append(("admin", config.admin.host, config.admin.port))
    if config.metrics.port is not None:
        taken.append(("metrics", config.metrics.host, config.metrics.port))
    if config.is_clustered and config.cluster.host is not None:
        taken.append(("cluster", config.cluster.host, config.cluster.port))
    for number, (section, host, port) in enumerate(taken):
        for other, other_host, other_port in taken[:number]:
            if port == other_port != 0 and (host == other_host or {host, other_host} & ANY_ADDRESS):
                yield (section, "port"), f"is {other}.port, too"


def _backend_disagreements(config: Config) -> Iterator[tuple[Loc, str]]:
    if len(config.backends) > BACKENDS_MAX:
        yield ("backends",), f"there are more than {BACKENDS_MAX}"
    if len(config.discovery) > SOURCES_MAX:
        yield ("discovery",), f"there are more than {SOURCES_MAX}"
    names = Counter(backend.id for backend in config.backends)
    for index, backend in enumerate(config.backends):
        if names[backend.id] > 1:
            yield ("backends", index, "name"), f"'{backend.id}' is the name of more than one backend"


def _token_disagreements(config: Config) -> Iterator[tuple[Loc, str]]:
    if config.jwt.data and config.auth.mode != "keys":
        yield ("jwt", "data"), "is for auth.mode keys: mode open authenticates no caller"
    for port, issuers in (("data", config.jwt.data), ("admin", config.jwt.admin)):
        if len({each.issuer for each in issuers}) < len(issuers):
            yield ("jwt", port), "has an issuer twice"


def _endpoint_disagreements(config: Config) -> Iterator[tuple[Loc, str]]:
    ours = PathTable(ENDPOINTS)
    for path in config.endpoints:
        if not _PATH.fullmatch(path) or ".." in path:
            yield ("endpoints", path), "must be a path like /v1/name of letters, digits, '.', '_', '~' and '-'"
        elif ours.find(path)[0] is not None:
            yield ("endpoints", path), "is served already"
