"""What the admin API answers of what happens now."""

from typing import Literal

from gateway.admin.backend_models import StepsResource
from gateway.admin.models import Fields, ModelName, Page, ResourceList


class AttainmentResource(Fields):
    """Since start, of requests with an envelope that were sent and have ended: how many kept which target (one that is
    not set is kept). `tpot_met` is by the time per token since the first one came, `tpot_envelope_met` since it was
    due; `met`: every token was in time. `refused` ones are not among `requests`.
    """

    requests: int
    ttft_met: int
    tpot_met: int
    tpot_envelope_met: int
    met: int
    tokens: int
    tokens_in_time: int
    refused: int


class Reserve(Fields):
    """What is held for a tier: its `reserve_ratio`, or what was learnt that it needs free where that is more."""

    sequences: int
    tokens: int


class BackendState(Fields):
    """`steps` null: nothing is known of them by which it could be limited. `reserves` by tier."""

    available: bool
    in_flight_requests: int
    requests_limit: int
    reserved_tokens: int
    tokens_limit: int | None
    foreign_requests: int
    foreign_tokens: int
    steps: StepsResource | None
    reserves: dict[str, Reserve]


class TierState(Fields):
    """`slack_s_min`: the time until the next token of its most urgent request is due; null: nobody was promised one."""

    queued_requests: int
    in_flight_requests: int
    slack_s_min: float | None
    attainment: AttainmentResource


class RequestState(Fields):
    """A request that was promised something. It waits where `backend` is null; `slack_s` below 0: it is late."""

    request: str
    tenant: str
    backend: str | None
    output_tokens: int
    slack_s: float


class PoolState(Fields):
    """`urgent`: the requests whose next token is due soonest, at most 100."""

    pool: str
    queued_requests: int
    queued_bytes: int
    in_flight_requests: int
    tenants: int
    tiers: dict[str, TierState]
    urgent: list[RequestState]
    backends: dict[str, BackendState]


class LiveState(Fields):
    store_available: bool
    pools: list[PoolState]


class TenantStateResource(Fields):
    """`service` is charged since start, in service units (a price per token); `service_per_s` of late. `slack_s_min`
    is of its most urgent request, queued or running.
    """

    pool: str
    tenant: str
    queued_requests: int
    queued_bytes: int
    in_flight_requests: int
    in_flight_tokens: int
    service: float
    service_per_s: float
    counter: float
    key: float
    slack_s_min: float | None
    attainment: AttainmentResource


class BudgetState(Fields):
    """A budget of tokens; `key` "": of its tenant as a whole. `used` is by calls that have ended, at all gateways that
    share the state; `reserved` is for those that are waiting or running. `renewed_at`: seconds since 1970.
    """

    tenant: str
    key: str
    period: Literal["day", "month"]
    limit: int
    used: int
    reserved: int
    remaining: int
    renewed_at: int


class TenantStatePage(Page):
    pool: ModelName | None = None


class TenantStates(ResourceList):
    items: list[TenantStateResource]


class BudgetStates(ResourceList):
    items: list[BudgetState]
