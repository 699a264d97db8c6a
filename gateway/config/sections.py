"""Sections of the configuration: one class per section of the file, with the defaults.

Names carry units. Every section forbids unknown keys, so a misspelt limit is an error at start, not a limit that has no
effect. Fields are validated here one by one; rules that span sections are in `config.py`.
"""

import os
import re
from collections.abc import Callable, Iterable
from ipaddress import IPv4Network, IPv6Network, ip_network
from pathlib import Path
from typing import Annotated, Any, Literal, Self
from urllib.parse import urlsplit

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ByteSize,
    ConfigDict,
    Field,
    SecretStr,
    field_validator,
    model_validator,
)

from backends.engine.batching import BATCHING
from backends.engine.coefficients import COEFFICIENTS
from backends.kinds import BACKEND_KINDS
from gateway.api.fields import CacheIsolation
from gateway.config.amounts import Amount
from policies.slo.engine_priority import PRIORITY_MAX

SECRET_BYTES_MIN = 16
SECRETS_MAX = 4  # of a file that holds several, of which one takes the place of another
SECRET_FILE_BYTES_MAX = 64 << 10
NAME_CHARS_MAX = 64
POOL_CHARS_MAX = 256

_NAME = re.compile(rf"[A-Za-z0-9][A-Za-z0-9._@-]{{0,{NAME_CHARS_MAX - 1}}}")
# A tenant name can be a model name, which may contain slashes.
TENANT_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@/:-]{0,127}")


def not_bool(value: object) -> object:
    """Rejects true and false, which pydantic would read as numbers."""
    if isinstance(value, bool):
        raise ValueError("must be a number, not true or false")  # noqa: TRY004 - pydantic collects ValueErrors
    return value


def _name(value: str) -> str:
    if not _NAME.fullmatch(value):
        raise ValueError(f"must be 1 to {NAME_CHARS_MAX} letters, digits, '.', '_', '@' or '-'")
    return value


def _tenant_name(value: str) -> str:
    if not TENANT_NAME.fullmatch(value):
        raise ValueError("must be 1 to 128 letters, digits, '.', '_', '@', '/', ':' or '-'")
    return value


def _network(value: object) -> object:
    if not isinstance(value, str):
        return value
    try:
        return ip_network(value)
    except ValueError:
        raise ValueError("must be a network like 10.0.0.0/8 or fc00::/7, with no bit set behind its prefix") from None


def read_choice_of(names: tuple[str, ...], value: str) -> str:
    if value not in names:
        raise ValueError(f"must be one of {', '.join(names)}")
    return value


def one_of(names: Iterable[str]) -> Any:
    """A field whose JSON schema lists these values."""
    return Field(json_schema_extra={"enum": list(names)})


Name = Annotated[str, AfterValidator(_name)]
Network = Annotated[IPv4Network | IPv6Network, BeforeValidator(_network)]
TenantName = Annotated[str, AfterValidator(_tenant_name)]
PoolName = Annotated[str, Field(min_length=1, max_length=POOL_CHARS_MAX)]  # a pool may be named after its model
Count = Annotated[int, Field(ge=1), BeforeValidator(not_bool)]
Bytes = Annotated[ByteSize, Field(ge=1), BeforeValidator(not_bool)]
Positive = Annotated[float, Field(gt=0), BeforeValidator(not_bool)]
NotNegative = Annotated[float, Field(ge=0), BeforeValidator(not_bool)]
Seconds = Annotated[float, Field(gt=0, le=86_400), BeforeValidator(not_bool)]
# Below 1 ms network latency dominates; beyond an hour no client waits.
TargetMs = Annotated[float, Field(ge=1, le=3_600_000), BeforeValidator(not_bool)]
Batching = Annotated[str, AfterValidator(lambda value: read_choice_of(tuple(BATCHING), value)), one_of(BATCHING)]
Wait = Annotated[float, Field(ge=0, le=86_400), BeforeValidator(not_bool)]
Kind = Annotated[str, AfterValidator(lambda value: read_choice_of(tuple(BACKEND_KINDS), value)), one_of(BACKEND_KINDS)]
Coefficients = Annotated[
    str, AfterValidator(lambda value: read_choice_of(tuple(COEFFICIENTS), value)), one_of(COEFFICIENTS)
]


class Section(BaseModel):
    """A section of the configuration: unknown keys are errors, values are immutable."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, hide_input_in_errors=True)


class ServerTls(Section):
    """`cert_file`: a port's certificate and its intermediate certificates; `key_file`: its key, without a password.
    Both are PEM, and reloaded when they change.
    """

    cert_file: Path
    key_file: Path


class Listen(Section):
    """The data port: address, TLS, the networks of the proxies in front of it, optional response headers, and the
    origins that browsers may call it from.
    """

    host: str = "127.0.0.1"
    port: Annotated[int, Field(ge=0, le=65_535), BeforeValidator(not_bool)] = 8080
    tls: ServerTls | None = None
    trusted_hops: tuple[Network, ...] = ()
    show_queue_ms: bool = False
    show_backend: bool = False
    allowed_origins: tuple[str, ...] = ()


class StepTimeSection(Section):
    """A model of the time of one engine step: a base, and a cost per token computed, per KV token read and per request
    in it.

    `error_ratio` is the median relative error of its predictions, as far as known.
    """

    base_ms: NotNegative
    token_us: NotNegative
    context_token_ns: NotNegative = 0.0
    request_us: NotNegative = 0.0
    error_ratio: NotNegative = 0.2

    @model_validator(mode="after")
    def _takes_time(self) -> Self:
        if not (self.base_ms or self.token_us or self.context_token_ns or self.request_us):
            raise ValueError("a step takes some time: not all coefficients can be zero")
        return self


class BackendSection(Section):
    """One server. Settings that are None are queried, measured or learned. `ca_file` (PEM) is for https; so are
    `cert_file` and `key_file`, the certificate that the gateway shows there, which are read again when they change.
    """

    url: Annotated[str, Field(json_schema_extra={"pattern": "^https?://"})]
    name: Name | None = None
    pool: Name | None = None
    api_key: SecretStr | None = None
    api_key_file: Path | None = None
    api_key_env: str | None = None
    requests_running_max: Count | None = None
    kv_tokens_max: Count | None = None
    step_tokens_max: Count | None = None
    prompt_step_tokens_max: Count | None = None
    step_time: StepTimeSection | None = None
    step_time_file: Path | None = None
    kind: Kind | None = None
    scheduling_policy: Literal["fcfs", "priority"] | None = None
    revision: Name | None = None
    ca_file: Path | None = None
    cert_file: Path | None = None
    key_file: Path | None = None

    @property
    def id(self) -> str:
        return self.name or urlsplit(self.url).netloc

    @field_validator("url")
    @classmethod
    def _is_root(cls, url: str) -> str:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError("must be like http://host:port")
        if parts.username is not None or parts.query or parts.fragment:
            raise ValueError("must not hold credentials, a query or a fragment (credentials: api_key_file)")
        url = url.rstrip("/")
        if url.endswith("/v1"):
            raise ValueError("must be the server's root, without /v1")
        return url

    @model_validator(mode="after")
    def _has_one_key(self) -> Self:
        if sum(key is not None for key in (self.api_key, self.api_key_file, self.api_key_env)) > 1:
            raise ValueError("set only one of api_key, api_key_file and api_key_env")
        return self

    @model_validator(mode="after")
    def _has_a_pair(self) -> Self:
        if (self.cert_file is None) != (self.key_file is None):
            raise ValueError("set both of cert_file and key_file, or none")
        return self

    @model_validator(mode="after")
    def _has_one_step_time(self) -> Self:
        if self.step_time is not None and self.step_time_file is not None:
            raise ValueError("set only one of step_time and step_time_file")
        return self

    def credential(self) -> SecretStr | None:
        """Return the backend's API key, None where it has none. Raises ValueError where its file or variable holds no
        key.
        """
        if self.api_key_file is not None:
            key = file_text(self.api_key_file)
        elif self.api_key_env is not None:
            key = os.environ.get(self.api_key_env, "").strip()
            if not key:
                raise ValueError(f"the environment variable {self.api_key_env} is not set")
        elif self.api_key is not None:
            key = self.api_key.get_secret_value()
        else:
            return None
        if not key.isascii() or not key.isprintable():
            raise ValueError("the key must be one line of printable ASCII")
        return SecretStr(key)


class EngineSection(Section):
    """The embedded engine, which serves as the backend where none is configured."""

    model: Name = "fairlead-demo"
    coefficients: Coefficients = "a10g-llama2-7b"
    batching: Batching = "chunked-prefill"
    speed: Positive = 1.0
    requests_running_max: Count = 32
    kv_tokens_max: Count | None = None


class EnvelopeSection(Section):
    """Latency targets; None: no such target, or the tier's."""

    ttft_ms: TargetMs | None = None
    tpot_ms: TargetMs | None = None


class TierSection(Section):
    """`on_miss`: what happens to a request that cannot meet its envelope. `priority`: tiers of lower priority are shed
    first; below 0 a tier is sheddable.
    """

    weight: Positive = 1.0
    envelope: EnvelopeSection = EnvelopeSection()
    on_miss: Literal["wait", "reject"] = "wait"
    reserve_ratio: Annotated[float, Field(ge=0, lt=1), BeforeValidator(not_bool)] = 0.0
    priority: Annotated[int, Field(ge=-PRIORITY_MAX, le=PRIORITY_MAX), BeforeValidator(not_bool)] = 0
    preemptible: bool = False


class LimitedSection(Section):
    """What keys, tenants and groups have. None: no such limit."""

    in_flight_max: Count | None = None
    requests_per_minute_max: Count | None = None
    tokens_per_minute_max: Count | None = None
    tokens_per_day_max: Count | None = None
    tokens_per_month_max: Count | None = None
    cost_per_day_max: Amount | None = None
    cost_per_month_max: Amount | None = None

    @property
    def has_budget(self) -> bool:
        """Whether anything is limited per day or month, which has to be counted over restarts."""
        limits = (self.tokens_per_day_max, self.tokens_per_month_max, self.cost_per_day_max, self.cost_per_month_max)
        return any(limit is not None for limit in limits)


class SharingSection(Section):
    """What those have that share the pool by weight: tenants and groups."""

    tier: Name = "default"
    weight: Positive = 1.0


class GroupSection(LimitedSection, SharingSection):
    """A group of tenants, like a department, that shares its tier as one; its limits hold for all of them together."""


class TenantSection(LimitedSection, SharingSection):
    """None: no such limit; for queues: the defaults of `queue`. A tenant with a `group` is in the tier of that."""

    group: Name | None = None
    envelope: EnvelopeSection = EnvelopeSection()
    queued_requests_max: Count | None = None
    queued_bytes_max: Bytes | None = None


class QueueSection(Section):
    """Queue limits, in total and per tenant, and the longest wait."""

    requests_max: Count = 10_000
    bytes_max: Bytes = ByteSize(1 << 30)
    tenant_requests_max: Count = 2_000
    tenant_bytes_max: Bytes = ByteSize(256 << 20)
    wait_s_max: Seconds = 300.0
    backend_wait_s_max: Wait = 15.0
    heartbeat_s: Seconds | None = None


class LimitsSection(Section):
    """Limits on requests and responses. `memory_bytes_max` None: the limit of the process's control group.
    `resends_max`: how often a call is sent again after a backend broke its connection before the first byte.
    """

    body_bytes_max: Bytes = ByteSize(16 << 20)
    body_values_max: Count = 100_000
    header_bytes_max: Bytes = ByteSize(32 << 10)
    body_timeout_s: Seconds = 30.0
    answer_silence_s_max: Seconds = 600.0
    choices_max: Count = 16
    prompts_max: Count = 128
    inputs_max: Count = 2048
    output_tokens_max: Count = 131_072
    logprobs_max: Count = 20  # vLLM's own --max-logprobs; OpenAI allows as many
    header_tpot_ratio_min: Annotated[float, Field(gt=0, le=1), BeforeValidator(not_bool)] = 0.5
    unread_bytes_max: Bytes = ByteSize(256 << 20)
    resumable_bytes_max: Bytes = ByteSize(256 << 20)
    memory_bytes_max: Bytes | None = None
    resends_max: Annotated[int, Field(ge=0, le=3), BeforeValidator(not_bool)] = 1
    xargs_allowed: frozenset[str] | None = None


class GivingWay(Section):
    """Streams that are preempted after their first token, and continued later: each at most `times_max` times, after at
    least `tokens_between_min` tokens since it was sent last. For which requests, `scheduling.preempt_service` and
    `tiers.*.preemptible` say. Both limits are measured (docs/results/continue-simulated.md).
    """

    enabled: bool = False
    times_max: Count = 8
    tokens_between_min: Count = 64


class ContinuationSection(Section):
    """Streams that go on at another backend (docs/continue.md). `drain_s`: seconds that a backend which is drained may
    take to end its streams, before they move. `silence_s`: a backend that sends nothing for so long after the first
    token has failed. `token_bytes_max`: what is kept of one stream's token ids; one that may need more is not
    continued. `preempt`: whether streams also give way to others.
    """

    enabled: bool = True
    drain_s: Wait = 20.0
    silence_s: Seconds = 60.0
    token_bytes_max: Bytes = ByteSize(8 << 20)
    preempt: GivingWay = GivingWay()


class AuthSection(Section):
    """`secret` is the HMAC key of all API keys. Without one, `mode` open generates a random one at every start."""

    mode: Literal["open", "keys"] = "open"
    tenant_from: Literal["key", "model"] = "key"
    trusted_proxies: tuple[Network, ...] = ()
    cache_isolation: CacheIsolation = "none"
    secret: SecretStr | None = None
    secret_file: Path = Path("fairlead.secret")
    keys_file: Path = Path("fairlead.keys")
    open_tenants_max: Count = 10_000

    @field_validator("secret")
    @classmethod
    def _is_long(cls, secret: SecretStr | None) -> SecretStr | None:
        if secret is not None and len(secret.get_secret_value().encode()) < SECRET_BYTES_MIN:
            raise ValueError(f"must have at least {SECRET_BYTES_MIN} bytes")
        return secret

    def secret_bytes(self) -> bytes | None:
        """Return the configured secret; None means that mode "open" generates one. Raises ValueError."""
        if self.secret is not None:
            return self.secret.get_secret_value().encode()
        if self.mode == "open" and not self.secret_file.exists():
            return None
        secret = file_text(self.secret_file).encode()
        if len(secret) < SECRET_BYTES_MIN:
            raise ValueError(f"the file {self.secret_file} must hold at least {SECRET_BYTES_MIN} bytes")
        return secret


class HealthSection(Section):
    """How often backends are polled: every `idle_s` while idle, every `busy_s` while they are busy or get no calls."""

    idle_s: Seconds = 1.0
    busy_s: Seconds = 0.25
    timeout_s: Seconds = 3.0


class PromptTokens(Section):
    """Exact token counts from a local tiktoken ranks file. `pattern` is for ranks that `encoding` does not name."""

    ranks_file: Path | None = None
    encoding: Literal["cl100k_base", "o200k_base", "p50k_base", "r50k_base"] = "cl100k_base"
    pattern: str | None = None


class AccessLog(Section):
    """A log of one line per call."""

    enabled: bool = True
    path: Path = Path("-")


class Log(Section):
    """The gateway's own log, on standard error."""

    level: Literal["debug", "info", "warning", "error"] = "info"
    format: Literal["text", "json"] = "text"


class TraceLog(Section):
    """A log of the traffic as a trace for `fairlead simulate run`."""

    enabled: bool = False
    path: Path = Path("fairlead-trace.jsonl")


class Shutdown(Section):
    """At SIGTERM: report "not ready" but serve for `lame_duck_s`, then wait at most `drain_s` for running requests."""

    lame_duck_s: Wait = 5.0
    drain_s: Wait = 20.0


def file_text(path: Path) -> str:
    """The text of a small file that holds a secret. Raises ValueError where it cannot be read or is empty."""
    try:
        with path.open(encoding="utf-8") as file:
            text = file.read(SECRET_FILE_BYTES_MAX).strip()
    except (OSError, UnicodeError) as error:
        raise ValueError(f"the file {path} cannot be read: {_cause(error)}") from error
    if not text:
        raise ValueError(f"the file {path} is empty")
    return text


def secret_lines(path: Path, *, read: Callable[[str], bytes] = str.encode) -> list[bytes]:
    """The secrets of a file with one a line, as `read` reads each. Raises ValueError where it has none that is good
    enough.
    """
    lines = [line.strip() for line in file_text(path).splitlines() if line.strip()]
    if len(lines) > SECRETS_MAX:
        raise ValueError(f"the file {path} holds more than {SECRETS_MAX} secrets")
    found = [read(line) for line in lines]
    if any(len(each) < SECRET_BYTES_MIN for each in found):
        raise ValueError(f"the file {path} must hold secrets of at least {SECRET_BYTES_MIN} bytes")
    return found


def _cause(error: Exception) -> str:
    return error.strerror or str(error) if isinstance(error, OSError) else "it is not UTF-8"
