"""Sections of the configuration: one class per section of the file, with the defaults.

Names carry units. Every section forbids unknown keys, so a misspelt limit is an error at start, not a limit that has no
effect. Fields are validated here one by one; rules that span sections are in `config.py`.
"""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Literal, Self
from urllib.parse import urlsplit

from pydantic import (
    BaseModel,
    BeforeValidator,
    ByteSize,
    ConfigDict,
    Field,
    SecretStr,
    field_validator,
    model_validator,
)

from gateway.api.fields import CacheIsolation
from gateway.api.token_counts import Ranks, read_ranks
from gateway.config.amounts import Amount
from gateway.config.marks import Budget, FormField, QueueLimit, marked
from gateway.config.value_types import (
    ERROR_RATIO_MAX,
    MILLISECONDS_MAX,
    Batching,
    Bytes,
    Coefficient,
    Coefficients,
    Count,
    Kind,
    Name,
    Network,
    Seconds,
    TargetMs,
    Wait,
    Weight,
    not_bool,
    whole,
)
from policies.slo.engine_priority import PRIORITY_MAX

SECRET_BYTES_MIN = 16
SECRETS_MAX = 4  # of a file that holds several, of which one takes the place of another
SECRET_FILE_BYTES_MAX = 64 << 10


class Section(BaseModel):
    """The base of all sections of the configuration: unknown keys are errors, values are immutable."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, hide_input_in_errors=True)


class ServerTls(Section):
    """The TLS files of a port. `cert_file` has its certificate and the intermediate certificates; `key_file` has its
    key, without a password. Both are PEM, and are read again when they change.
    """

    cert_file: Path
    key_file: Path


class Listen(Section):
    """The settings of the data port: address, TLS, the networks of the proxies in front of it, optional response
    headers, and the origins that browsers may call it from.
    """

    host: str = "127.0.0.1"
    port: Annotated[int, Field(ge=0, le=65_535), BeforeValidator(not_bool)] = 8080
    tls: ServerTls | None = None
    trusted_hops: tuple[Network, ...] = ()
    show_queue_ms: bool = False
    show_backend: bool = False
    allowed_origins: tuple[str, ...] = ()


class StepTimeSection(Section):
    """The coefficients of a step time model, which predicts the time of an engine step from the tokens and requests in
    the step. Not all can be zero.
    """

    base_ms: Annotated[float, Field(ge=0, le=MILLISECONDS_MAX, description="of each step"), BeforeValidator(not_bool)]
    token_us: Annotated[Coefficient, Field(description="per token that is computed")]
    context_token_ns: Annotated[Coefficient, Field(description="per KV token that is read")] = 0.0
    request_us: Annotated[Coefficient, Field(description="per request in the step")] = 0.0
    error_ratio: Annotated[
        float,
        Field(ge=0, le=ERROR_RATIO_MAX, description="the median relative error of its predictions, as far as known"),
        BeforeValidator(not_bool),
    ] = 0.2

    @model_validator(mode="after")
    def _takes_time(self) -> Self:
        if not (self.base_ms or self.token_us or self.context_token_ns or self.request_us):
            raise ValueError("a step takes some time: not all coefficients can be zero")
        return self


class BackendSizes(Section):
    """The settings of a backend that can change while it serves. None: the gateway measures or learns the value."""

    requests_running_max: Annotated[
        Count | None,
        Field(description="its --max-num-seqs; default: learnt as requests begin there"),
        FormField("Requests at once"),
    ] = None
    kv_tokens_max: Annotated[
        Count | None,
        Field(description="size of its KV cache in tokens; default: read from its metrics"),
        FormField("KV cache", "tokens"),
    ] = None
    step_tokens_max: Annotated[
        Count | None,
        Field(description="its --max-num-batched-tokens: the most tokens of one step; default: learnt, 2,048 at first"),
        FormField("Tokens of a step", "tokens"),
    ] = None
    prompt_step_tokens_max: Annotated[
        Count | None,
        Field(description="its --long-prefill-token-threshold: tokens of one prompt per step; default: no limit"),
        FormField("Tokens of one prompt in a step", "tokens"),
    ] = None
    step_time: Annotated[
        StepTimeSection | None,
        Field(description="what its steps take at first, which is learned further; default: learnt"),
    ] = None


class BackendPlace(BackendSizes):
    """The settings that say which server a backend is: its URL, its pool, its kind (the server's software) and the
    revision of its model. A setting that is None is detected by asking the server.
    """

    url: Annotated[
        str, Field(json_schema_extra={"pattern": "^https?://"}, description="its root, without /v1 and credentials")
    ]
    pool: Annotated[
        Name | None,
        Field(description="backends of one pool share one fair queue; default: those with the same base model"),
    ] = None
    kind: Annotated[Kind | None, Field(description="vllm, sglang, llama.cpp, tgi ...; default: detected")] = None
    api_key_env: Annotated[str | None, Field(description="the environment variable that holds its API key")] = None
    scheduling_policy: Annotated[
        Literal["fcfs", "priority"] | None,
        Field(description="its --scheduling-policy, if no plugin reports it; priority: it gets calls' urgency"),
    ] = None
    revision: Annotated[
        Name | None,
        Field(description="of its model: streams go on only where it is the same; default: by the model's root alone"),
    ] = None

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


class BackendSection(BackendPlace):
    """A backend in the configuration file, where it may also name files of this machine and hold an API key."""

    name: Annotated[Name | None, Field(description="in logs and metrics; default: host:port")] = None
    api_key: Annotated[SecretStr | None, Field(description="its API key; a backend never gets a client's")] = None
    api_key_file: Annotated[Path | None, Field(description="the file that holds its API key")] = None
    step_time_file: Annotated[Path | None, Field(description="what 'fairlead calibrate' stored")] = None
    ca_file: Annotated[
        Path | None,
        Field(description="the CA of an https backend's certificate; default: those that the system trusts"),
    ] = None
    cert_file: Annotated[
        Path | None,
        Field(description="a certificate for backends that ask for one (mTLS), read again when renewed"),
    ] = None
    key_file: Annotated[Path | None, Field(description="the key of cert_file")] = None

    @property
    def id(self) -> str:
        return self.name or urlsplit(self.url).netloc

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
        """Return the backend's API key; None where it has none. Raises ValueError where its file or variable holds no
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
    """The settings of the embedded engine, which serves as the backend where none is configured."""

    model: Name = "fairlead-demo"
    coefficients: Coefficients = "a10g-llama2-7b"
    batching: Batching = "chunked-prefill"
    requests_running_max: Count = 32
    kv_tokens_max: Count | None = None


class EnvelopeSection(Section):
    """The latency targets of a tenant or tier, in milliseconds. None: no target; for a tenant, the tier's."""

    ttft_ms: Annotated[
        TargetMs | None,
        Field(description="time to first token; requests are sent early enough for it, where weights let them"),
        FormField("TTFT target", "ms"),
    ] = None
    tpot_ms: Annotated[
        TargetMs | None,
        Field(description="time per output token after the first; backends get so few requests that steps stay below"),
        FormField("TPOT target", "ms"),
    ] = None


class TierSection(Section):
    """The settings of a tier, a class of tenants. Tiers share each pool by weight, however many tenants they have."""

    weight: Annotated[Weight, Field(description="its share of each pool, beside other tiers"), FormField("Weight")] = (
        1.0
    )
    envelope: Annotated[
        EnvelopeSection, Field(description="latency targets: time to first token, time per output token after it")
    ] = EnvelopeSection()
    on_miss: Annotated[
        Literal["wait", "reject"],
        Field(description="a request that cannot meet its envelope: reject (429) or wait"),
        FormField("Late requests"),
    ] = "wait"
    reserve_ratio: Annotated[
        float,
        Field(
            ge=0,
            lt=1,
            description="the part of every backend that is reserved for it; of all tiers together less than 1",
        ),
        BeforeValidator(not_bool),
        FormField("Reserve", "of every backend"),
    ] = 0.0
    priority: Annotated[
        int,
        Field(
            ge=-PRIORITY_MAX,
            le=PRIORITY_MAX,
            description="lower is shed first; below 0: sheddable when others are late or queues are full",
        ),
        BeforeValidator(whole),
        FormField("Priority"),
    ] = 0
    preemptible: Annotated[
        bool,
        Field(description="its requests without output return to the queue for one that would miss an envelope"),
        FormField("Preemptible"),
    ] = False


class LimitedSection(Section):
    """The limits of a key, a tenant or a group. None: no such limit. Days and months are UTC."""

    in_flight_max: Annotated[
        Count | None,
        Field(description="requests at backends at once"),
        FormField("In-flight limit", "requests in flight", example="64"),
    ] = None
    requests_per_minute_max: Annotated[
        Count | None,
        Field(description="beyond it 429; scheduling.rate_window says what a minute is"),
        FormField("Requests per minute", example="600"),
    ] = None
    tokens_per_minute_max: Annotated[
        Count | None,
        Field(description="of prompts and outputs; reserved on arrival, settled when an answer has ended"),
        FormField("Tokens per minute", example="100000"),
    ] = None
    tokens_per_day_max: Annotated[
        Count | None,
        Field(description="a budget, renewed at 0:00 UTC: beyond it 429 (insufficient_quota); docs/admin.md"),
        FormField("Tokens per day", example="5000000"),
        Budget("tokens"),
    ] = None
    tokens_per_month_max: Annotated[
        Count | None,
        Field(description="a budget, renewed on the first of the month"),
        FormField("Tokens per month", example="100000000"),
        Budget("tokens"),
    ] = None
    cost_per_day_max: Annotated[
        Amount | None,
        Field(description="a budget in money, in the currency of the price lists"),
        FormField("Cost per day", "in the price lists' currency", example="20.00"),
        Budget("cost"),
    ] = None
    cost_per_month_max: Annotated[
        Amount | None,
        Field(description="a budget in money, renewed on the first of the month"),
        FormField("Cost per month", "in the price lists' currency", example="400.00"),
        Budget("cost"),
    ] = None

    @property
    def has_budget(self) -> bool:
        """Whether any limit is per day or month, so that it has to be counted over restarts."""
        return any(getattr(self, name) is not None for name in marked(LimitedSection, Budget))


class SharingSection(Section):
    """The settings by which a tenant or a group shares the pools: its tier, and its weight in it."""

    tier: Annotated[
        Name, Field(description="where it shares; a tenant with a group is in the tier of that"), FormField("Tier")
    ] = "default"
    weight: Annotated[
        Weight,
        Field(description="its share of the tier, or of its group, beside others that wait"),
        FormField("Weight"),
    ] = 1.0


class GroupSection(LimitedSection, SharingSection):
    """The settings of a group of tenants, such as a department. In its tier, the group counts as one tenant, with the
    group's weight. The limits hold for all tenants of the group together.
    """


class TenantSection(LimitedSection, SharingSection):
    """The settings of a tenant. None: no such limit; for a queue limit, the default of the section `queue`."""

    group: Annotated[Name | None, Field(description="its tier is the group's"), FormField("Group")] = None
    envelope: Annotated[
        EnvelopeSection,
        Field(description="overrides its tier's; a request may tighten it (x-llm-d-slo-ttft-ms)"),
    ] = EnvelopeSection()
    queued_requests_max: Annotated[
        Count | None,
        Field(description="default: queue.tenant_requests_max"),
        FormField("Queue limit", "requests queued", example="500"),
        QueueLimit(),
    ] = None
    queued_bytes_max: Annotated[
        Bytes | None,
        Field(description="default: 256MiB"),
        FormField("Queue limit, bytes", "bytes", example="64MiB"),
        QueueLimit(),
    ] = None


class QueueSection(Section):
    """The limits of the queues: the most queued requests of a pool and of a tenant, and the longest wait in seconds."""

    requests_max: Count = 10_000
    tenant_requests_max: Count = 2_000
    wait_s_max: Seconds = 300.0
    backend_wait_s_max: Wait = 15.0
    heartbeat_s: Seconds | None = None


class LimitsSection(Section):
    """The limits on requests and responses. `memory_bytes_max` None: the limit of the process's control group.
    `resends_max`: how often a call is sent again after a backend broke the connection before the first byte of its
    response.
    """

    body_bytes_max: Bytes = ByteSize(16 << 20)
    body_timeout_s: Seconds = 30.0
    answer_silence_s_max: Seconds = 600.0
    output_tokens_max: Count = 131_072
    logprobs_max: Count = 20  # vLLM's own --max-logprobs; OpenAI allows as many
    memory_bytes_max: Bytes | None = None
    resends_max: Annotated[int, Field(ge=0, le=3), BeforeValidator(not_bool)] = 1
    xargs_allowed: frozenset[str] | None = None


class GivingWay(Section):
    """The setting that allows preemption of streams that have begun. A preempted stream waits, and is continued later.
    `scheduling.preempt_service` and `tiers.*.preemptible` say which requests may be preempted.
    """

    enabled: bool = False


class ContinuationSection(Section):
    """The settings for continuing streams at another backend (docs/continue.md). `drain_s`: seconds that a drained
    backend may take to end its streams, before they move. `silence_s`: seconds without data after which a backend has
    failed, once it has sent a token. `preempt`: whether streams that have begun may be preempted, too.
    """

    enabled: bool = True
    drain_s: Wait = 20.0
    silence_s: Seconds = 60.0
    preempt: GivingWay = GivingWay()


class AuthSection(Section):
    """The settings of authentication at the data port. `secret` is the HMAC key for all API keys. Without a secret, a
    random one is generated at every start if `mode` is open (all API keys are accepted, and calls without one).
    """

    mode: Literal["open", "keys"] = "open"
    tenant_from: Literal["key", "model"] = "key"
    trusted_proxies: tuple[Network, ...] = ()
    cache_isolation: CacheIsolation = "none"
    secret: SecretStr | None = None
    secret_file: Path = Path("fairlead.secret")
    keys_file: Path = Path("fairlead.keys")

    @field_validator("secret")
    @classmethod
    def _is_long(cls, secret: SecretStr | None) -> SecretStr | None:
        if secret is not None and len(secret.get_secret_value().encode()) < SECRET_BYTES_MIN:
            raise ValueError(f"must have at least {SECRET_BYTES_MIN} bytes")
        return secret

    def secret_bytes(self) -> bytes | None:
        """Return the configured secret; None means that mode "open" generates one. Raises ValueError."""
        may_lack = self.secret is None and self.mode == "open" and not self.secret_file.exists()
        return None if may_lack else self.given_secret()

    def given_secret(self) -> bytes:
        """Return the secret that is configured. Raises ValueError where there is none."""
        if self.secret is not None:
            return self.secret.get_secret_value().encode()
        secret = file_text(self.secret_file).encode()
        if len(secret) < SECRET_BYTES_MIN:
            raise ValueError(f"the file {self.secret_file} must hold at least {SECRET_BYTES_MIN} bytes")
        return secret


class HealthSection(Section):
    """The timing of health polls, in seconds: `idle_s` between polls of an idle backend, `busy_s` between polls of one
    that is busy or gets no calls, and the timeout of a poll.
    """

    idle_s: Seconds = 1.0
    busy_s: Seconds = 0.25
    timeout_s: Seconds = 3.0


class PromptTokens(Section):
    """The settings for counting prompt tokens exactly, with a ranks file of tiktoken. `encoding` names the file's
    encoding. For an encoding without a name here, set `pattern`, the regular expression that cuts text.
    """

    ranks_file: Path | None = None
    encoding: Literal["cl100k_base", "o200k_base", "p50k_base", "r50k_base"] = "cl100k_base"
    pattern: str | None = None

    def ranks(self) -> Ranks | None:
        """The ranks of the file; None where none is set. Raises ValueError."""
        return None if self.ranks_file is None else read_ranks(self.ranks_file)


class AccessLog(Section):
    """The settings of the access log, which has one line per call."""

    enabled: bool = True
    path: Path = Path("-")


class Log(Section):
    """The settings of the gateway's own log, on standard error."""

    level: Literal["debug", "info", "warning", "error"] = "info"
    format: Literal["text", "json"] = "text"


class TraceLog(Section):
    """The settings of the trace log, which records the traffic for `fairlead simulate run`."""

    enabled: bool = False
    path: Path = Path("fairlead-trace.jsonl")


class Shutdown(Section):
    """The settings of the shutdown at SIGTERM, in seconds. For `lame_duck_s` the gateway reports "not ready" but
    serves. Then it waits at most `drain_s` for running requests to end.
    """

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
    """The secrets of a file, one a line, as `read` reads each. Raises ValueError where no secret is usable."""
    lines = [line.strip() for line in file_text(path).splitlines() if line.strip()]
    if len(lines) > SECRETS_MAX:
        raise ValueError(f"the file {path} holds more than {SECRETS_MAX} secrets")
    found = [read(line) for line in lines]
    if any(len(each) < SECRET_BYTES_MIN for each in found):
        raise ValueError(f"the file {path} must hold secrets of at least {SECRET_BYTES_MIN} bytes")
    return found


def _cause(error: Exception) -> str:
    return error.strerror or str(error) if isinstance(error, OSError) else "it is not UTF-8"
