"""What the admin API reads and answers of backends (models.py says how models are read)."""

from typing import Annotated, Literal

from pydantic import Field

from gateway.admin.models import MILLISECONDS_MAX, Count, Fields, Name, ResourceList, StoredResource
from gateway.state.resource_kinds import CA_CHARS_MAX

COEFFICIENT_MAX = 1e9
ERROR_RATIO_MAX = 1e3
URL_CHARS_MAX = 2048
URL_PATTERN = r"^https?://([A-Za-z0-9.-]{1,253}|\[[0-9A-Fa-f:.]{2,45}\])(:[0-9]{1,5})?/?$"
# Not any variable: who may name one could have its value sent to a server of his own.
KEY_VARIABLE_PATTERN = r"^BACKEND_KEY_[A-Z0-9_]{1,64}$"
CA_PATTERN = r"-----BEGIN CERTIFICATE-----"
Coefficient = Annotated[float, Field(ge=0, le=COEFFICIENT_MAX)]
BackendKind = Literal["vllm", "sglang", "llama.cpp", "tgi", "openai", "openai-basic"]  # as in backends/kinds.py


class StepTimeFields(Fields):
    """What one engine step takes: so much, for every token computed, KV token read and request in it. `base_ms` and
    `token_us` have to be given, and not all of them can be zero. `error_ratio` is the median relative error of what
    it predicts.
    """

    base_ms: Annotated[float, Field(ge=0, le=MILLISECONDS_MAX)] = 0.0
    token_us: Coefficient = 0.0
    context_token_ns: Coefficient = 0.0
    request_us: Coefficient = 0.0
    error_ratio: Annotated[float, Field(ge=0, le=ERROR_RATIO_MAX)] = 0.2


class BackendFields(Fields):
    """`draining`: what runs there ends, and nothing new is sent. Null sizes are found out. `step_time`: what is known
    of its steps, which are learnt from there on; null: they are learnt. `step_tokens_max` is its
    --max-num-batched-tokens, `prompt_step_tokens_max` its --long-prefill-token-threshold.
    """

    requests_running_max: Count | None = None
    kv_tokens_max: Count | None = None
    step_tokens_max: Count | None = None
    prompt_step_tokens_max: Count | None = None
    step_time: StepTimeFields | None = None
    draining: bool = False


class WholeBackend(BackendFields):
    """`url` is its root, without /v1. `pool` null: that of the base model that it serves. `kind` null: it is found out.
    `api_key_env`: the variable of the gateway's environment that holds its credential. `ca_pem`: the certificates of
    the CA that its own has to be signed by, as PEM text; null: whom the system trusts. `scheduling_policy`: its
    --scheduling-policy.
    """

    url: Annotated[str, Field(max_length=URL_CHARS_MAX, pattern=URL_PATTERN)]
    pool: Name | None = None
    kind: BackendKind | None = None
    api_key_env: Annotated[str, Field(pattern=KEY_VARIABLE_PATTERN)] | None = None
    ca_pem: Annotated[str, Field(max_length=CA_CHARS_MAX, pattern=CA_PATTERN)] | None = None
    scheduling_policy: Literal["fcfs", "priority"] = "fcfs"


class NewBackend(WholeBackend):
    id: Name


class BelievedStepTime(StepTimeFields):
    """What is believed of a backend's steps now. `origin`: `named` (as `step_time` says), `stored` (of a calibration's
    file, or learnt before a restart), or `learnt` since. While it is not `sure`, nothing is promised by it.
    """

    sure: bool
    origin: Literal["named", "stored", "learnt"]


class StepsResource(Fields):
    """What a backend's limit makes of its step time. `step_s` is predicted of a step in which all that runs decodes,
    and may be `step_s_max`: the tightest TPOT target of what runs, or the knee of the throughput. `prefill_s` is what
    prompts take that were sent and are not computed; `budget_tokens` the prompt tokens that it can take on in time.
    """

    step_s: float
    step_s_max: float | None
    prefill_s: float
    budget_tokens: float


class BackendResource(StoredResource):
    """`state`: what its health polls say; `trouble`: why the last failed. `step_time` is what was set, and
    `step_time_now` what is believed. Nulls are not known.
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
