"""Models of the live state in the admin API."""

from typing import Literal

from gateway.admin.models.backends import StepsResource
from gateway.admin.models.resources import Fields, ModelName, Page, ResourceList
from gateway.config.value_types import Name
from policies.types import Attainment


class Reserve(Fields):
    """The capacity held for a tier: its `reserve_ratio`, or the free capacity that it was learned to need, where that
    is more.
    """

    sequences: int
    tokens: int


class BackendState(Fields):
    """The state of one backend. `steps` null: no step time model limits the backend. `foreign_*`: external load.
    `reserves` are by tier.
    """

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
    """The state of one tier. `slack_s_min`: the time until the next token of its most urgent request is due; null: no
    request has an envelope.
    """

    queued_requests: int
    in_flight_requests: int
    slack_s_min: float | None
    attainment: Attainment


class RequestState(Fields):
    """A request with an envelope. It is queued where `backend` is null; `slack_s` below 0: it is late."""

    request: str
    tenant: str
    backend: str | None
    output_tokens: int
    slack_s: float


class PoolState(Fields):
    """The state of one pool. `urgent`: the requests whose next token is due soonest, at most 100."""

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
    """The state of one tenant in one pool.

    `service` is the service charged since start, in service units (a price per token); `service_per_s` its recent rate.
    `rank` orders the tenants of a tier, least first; `key` is its old name. `slack_s_min` is that of the tenant's most
    urgent request, queued or running.
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
    rank: float
    key: float
    slack_s_min: float | None
    attainment: Attainment


class BudgetState(Fields):
    """A budget of tokens, or of cost in the currency of the price lists, whose amounts are text; `key` "": of the
    whole tenant; with `group`, `tenant` "": of a group. `used` is by calls that have ended, at all gateways that share
    the state; `reserved` is for calls that are queued or running. `renewed_at`: seconds since 1970.
    """

    tenant: str
    key: str
    group: str
    unit: Literal["tokens", "cost"]
    period: Literal["day", "month"]
    limit: int | str
    used: int | str
    reserved: int | str
    remaining: int | str
    renewed_at: int


class TenantStatePage(Page):
    pool: ModelName | None = None


class BudgetPage(Page):
    """The query of budgets. `group`: the group's own budgets, and those of its tenants and their keys."""

    group: Name | None = None


class TenantStates(ResourceList):
    items: list[TenantStateResource]


class BudgetStates(ResourceList):
    items: list[BudgetState]
