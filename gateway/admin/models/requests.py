"""Models of single requests in the admin API."""

from typing import Annotated, Literal

from pydantic import Field

from gateway.admin.models.resources import Fields, ModelName, Page, ResourceList
from gateway.config.value_types import REQUEST_CURSOR_PATTERN, TenantName
from policies.types import Wait


class PhasesResource(Fields):
    """The seconds of a request in the queue, from its dispatch to its first token, and since then, as far as it has
    come. An answer that is not streamed has its first token at its end.
    """

    queue_s: float | None
    prefill_s: float | None
    decode_s: float | None


class WaitResource(Fields):
    """The reason why a request is queued, as a `reason` and as a sentence.

    `ahead`: the tenant whose turn it is; null: its own turn, or turns are not why it waits. `ahead_requests`: how many
    requests of its own tenant are queued before it. `start_s`: the predicted seconds until it is sent, by these and by
    how fast its tenant's requests that waited were sent lately; null: there is no forecast.
    """

    reason: Wait
    text: str
    ahead: str | None
    ahead_requests: int
    start_s: float | None


class RequestResource(Fields):
    """One request; `id` is its x-request-id.

    The prompt tokens are estimated until the backend reports them, which may change them by some; `output_tokens_max`
    follows where the model's context is what limits it. `waits` is of a queued request; `outcome`, `status` and
    `ended_at` are of one that has ended: `outcome` says how, or why it was rejected, and `cost` what its tokens cost by
    the price list of its model, as exact decimal text. `key` is the id of its API key, empty without one of the
    API; `trace_id` that of its trace, which its backend was told, null where the client's own was passed on.
    `slack_s`: seconds until its next token is due; null without an SLO envelope. `process`: the process that holds
    the client's connection. `arrived_at`, `ended_at`: seconds since 1970.
    """

    id: str
    pool: str | None
    tenant: str
    model: str | None
    endpoint: str
    state: Literal["queued", "running", "ended"]
    backend: str | None
    arrived_at: float
    age_s: float
    phases: PhasesResource
    prompt_tokens: int
    output_tokens: int
    output_tokens_max: int | None
    cost: str | None
    currency: str | None
    key: str
    trace_id: str | None
    waits: WaitResource | None
    slack_s: float | None
    outcome: str | None
    status: int | None
    ended_at: float | None
    process: str


class RequestPage(Page):
    """A page of requests. `state` absent: the queued and the running requests. `outcome` is of those that ended."""

    state: Literal["queued", "running", "ended"] | None = None
    tenant: TenantName | None = None
    key: ModelName | None = None
    pool: ModelName | None = None
    model: ModelName | None = None
    backend: ModelName | None = None
    outcome: ModelName | None = None
    cursor: Annotated[str, Field(pattern=REQUEST_CURSOR_PATTERN)] | None = None


class RequestList(ResourceList):
    """A list of requests. `missing`: processes that did not answer, whose requests are not in the list."""

    items: list[RequestResource]
    missing: list[str]
