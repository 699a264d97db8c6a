"""Models of the live document in the admin API (gateway/live/document.py makes it)."""

from typing import Annotated, Literal

from pydantic import Field

from gateway.admin.live_models import AttainmentResource, ClusterResource
from gateway.admin.models import Fields
from gateway.cluster.view import MemberRole
from policies.types import Wait

Windows = Annotated[list[float], Field(min_length=3, max_length=3)]
Quantiles = Annotated[list[float], Field(min_length=2, max_length=2)]


class LivePageGateway(Fields):
    """The process that is asked. `embedded_engine`: it serves its own simulated engine. `demo`: demo tenants run;
    null: this gateway cannot have them.
    """

    name: str
    version: str
    role: MemberRole
    embedded_engine: bool
    demo: bool | None


class LivePageTier(Fields):
    """`share`: its part of the service of the pool in the last 10 s, minute and 15 minutes; `due`: the part that it
    should have by weights, where tenants whose queue stayed full for less than half of the window are due what they
    got. `gap`: by how much the service over weight of two tenants that wait side by side differs; `bound`: what the
    policy guarantees for it; `jain`: Jain's index. Null: nothing is known, or guaranteed.
    """

    weight: float
    queued: int
    in_flight: int
    share: Windows
    due: Windows
    gap: float | None
    bound: float | None
    jain: float | None
    attainment: AttainmentResource


class LivePageBackend(Fields):
    """`tokens`: KV tokens that are reserved. `queued_there`: requests that wait inside the server, as it reports.
    `step_s`: predicted time of a step in which all that runs there decodes; `step_measured_s`: measured time per token
    of a sequence. `bound_by`: what keeps one more request out; null: it has room.
    """

    available: bool
    draining: bool
    trouble: str | None
    in_flight: int
    requests_limit: int
    tokens: int
    tokens_limit: int | None
    queued_there: int
    external_requests: int
    external_tokens: int
    step_s: float | None
    step_measured_s: float | None
    bound_by: Literal["draining", "unhealthy", "held", "slots", "steps", "kv", "prompts"] | None


class LivePageTenant(Fields):
    """`share` and `due` as of a tier; `backlogged`: it asked for all there is, in each window. `service_per_s` and
    `output_tokens_per_s` are of the last 10 s; `ttft_s` and `tpot_s` the median and the 99th percentile of streams
    that ended in the last 15 minutes; `cached_ratio` the part of prompts that was cached, and `attainment_ratio`
    that of requests with an envelope which were in time throughout, of the last 15 minutes; `refused` calls of the
    last minute. `waits`: why its oldest request waits.
    """

    tier: str
    group: str | None
    weight: float
    queued: int
    in_flight: int
    oldest_wait_s: float | None
    share: Windows
    due: Windows
    backlogged: tuple[bool, bool, bool]
    service_per_s: float
    output_tokens_per_s: float
    ttft_s: Quantiles | None
    tpot_s: Quantiles | None
    cached_ratio: float | None
    attainment_ratio: float | None
    refused: int
    waits: Wait | None


class LivePageGroup(Fields):
    """The sums over the tenants of a group; `share` and `due` as of a tier."""

    tier: str
    weight: float
    queued: int
    in_flight: int
    share: Windows
    due: Windows


class LivePagePool(Fields):
    """`policy`: the fairness policy. `tokens_per_s`: tokens of prompts and answers served in the last 10 s. `refused`:
    calls of the last minute, by reason. `tenants`: those with anything queued, running, or served within 15 minutes;
    `groups`: the groups of these.
    """

    policy: str
    queued: int
    in_flight: int
    oldest_wait_s: float | None
    tokens_per_s: float
    refused: dict[str, int]
    tiers: dict[str, LivePageTier]
    groups: dict[str, LivePageGroup]
    backends: dict[str, LivePageBackend]
    tenants: dict[str, LivePageTenant]


class LivePageDocument(Fields):
    """All that the live page shows now. `at`: seconds since 1970. As `text/event-stream`: an event `state` with this
    document, then once a second an event `patch` with what has changed, a JSON merge patch (RFC 7396): null removes a
    member, which is the same as null.
    """

    at: float
    gateway: LivePageGateway
    cluster: ClusterResource
    pools: dict[str, LivePagePool]
