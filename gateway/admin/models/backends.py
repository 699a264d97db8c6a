"""Models of backends in the admin API (resources.py holds the rules of parsing)."""

from typing import Annotated, Literal

from pydantic import Field

from gateway.admin.models.resources import MILLISECONDS_MAX, Count, Fields, Name, ResourceList, StoredResource
from gateway.registry.resource_kinds import CA_CHARS_MAX

COEFFICIENT_MAX = 1e9
ERROR_RATIO_MAX = 1e3
URL_CHARS_MAX = 2048
URL_PATTERN = r"^https?://([A-Za-z0-9.-]{1,253}|\[[0-9A-Fa-f:.]{2,45}\])(:[0-9]{1,5})?/?$"
# Restricted by prefix: otherwise a caller could send any environment variable's value to a server of its own.
KEY_VARIABLE_PATTERN = r"^BACKEND_KEY_[A-Z0-9_]{1,64}$"
CA_PATTERN = r"-----BEGIN CERTIFICATE-----"
Coefficient = Annotated[float, Field(ge=0, le=COEFFICIENT_MAX)]
BackendKind = Literal["vllm", "sglang", "llama.cpp", "tgi", "openai", "openai-basic"]  # as in backends/kinds.py


class StepTimeFields(Fields):
    """A model of the time of one engine step: a base, and a cost per token computed, per KV token read and per request
    in it. `base_ms` and `token_us` must be given, and not all of them can be zero. `error_ratio` is the median relative
    error of its predictions.
    """

    base_ms: Annotated[float, Field(ge=0, le=MILLISECONDS_MAX)] = 0.0
    token_us: Coefficient = 0.0
    context_token_ns: Coefficient = 0.0
    request_us: Coefficient = 0.0
    error_ratio: Annotated[float, Field(ge=0, le=ERROR_RATIO_MAX)] = 0.2


class BackendFields(Fields):
    """`draining`: running requests end, and no new ones are sent. Sizes that are null are detected. `step_time`: the
    initial step time model, which is learned further; null: it is learned from the start. `step_tokens_max` is the
    engine's --max-num-batched-tokens, `prompt_step_tokens_max` its --long-prefill-token-threshold.
    """

    requests_running_max: Count | None = None
    kv_tokens_max: Count | None = None
    step_tokens_max: Count | None = None
    prompt_step_tokens_max: Count | None = None
    step_time: StepTimeFields | None = None
    draining: bool = False


class WholeBackend(BackendFields):
    """`url` is the server's root, without /v1. `pool` null: that of the base model that it serves. `kind` null: it is
    detected. `api_key_env`: the environment variable of the gateway that holds the backend's credential. `ca_pem`:
    certificates of the CA that signs the server's certificate, as PEM text; null: the system's CAs.
    `scheduling_policy`: the engine's --scheduling-policy. `revision`: the version of the model that it serves; streams
    go on only where it is the same.
    """

    url: Annotated[str, Field(max_length=URL_CHARS_MAX, pattern=URL_PATTERN)]
    pool: Name | None = None
    kind: BackendKind | None = None
    api_key_env: Annotated[str, Field(pattern=KEY_VARIABLE_PATTERN)] | None = None
    ca_pem: Annotated[str, Field(max_length=CA_CHARS_MAX, pattern=CA_PATTERN)] | None = None
    scheduling_policy: Literal["fcfs", "priority"] = "fcfs"
    revision: Name | None = None


class NewBackend(WholeBackend):
    id: Name


class BelievedStepTime(StepTimeFields):
    """The current step time model. `origin`: `named` (as in `step_time`), `stored` (from a calibration file, or learned
    before a restart), or `learnt` since. While it is not `sure`, no TTFT is forecast from it.
    """

    sure: bool
    origin: Literal["named", "stored", "learnt"]


class StepsResource(Fields):
    """The limits that the step time model sets. `step_s` is the predicted time of a step in which all running requests
    decode; its limit `step_s_max` is the tightest TPOT target of the running requests, or the knee of the throughput.
    `prefill_s` is the time of prompts that were sent and are not yet computed; `budget_tokens` the prompt tokens that
    can be added.
    """

    step_s: float
    step_s_max: float | None
    prefill_s: float
    budget_tokens: float


class BackendResource(StoredResource):
    """`state`: by its health polls; `trouble`: why the last one failed. `step_time` is the configured model,
    `step_time_now` the current one. Null: not known.
    """

    url: str
    pool: str | None
    kind: str | None
    requests_running_max: int | None
    kv_tokens_max: int | None
    step_tokens_max: int | None
    prompt_step_tokens_max: int | None
    step_time: StepTimeFields | None
    step_time_now: BelievedStepTime | None
    draining: bool
    state: str
    trouble: str
    models: list[str]
    in_flight_requests: int
    requests_limit: int | None
    reserved_tokens: int
    tokens_limit: int | None
    steps: StepsResource | None


class BackendList(ResourceList):
    items: list[BackendResource]
