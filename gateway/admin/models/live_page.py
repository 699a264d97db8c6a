"""Models of the live document in the admin API (gateway/live/document.py makes it)."""

from typing import Annotated, Literal

from pydantic import Field

from gateway.admin.models.live import AttainmentResource, ClusterResource
from gateway.admin.models.resources import Fields
from gateway.cluster.view import MemberRole
from policies.types import SizeSource, Wait

Windows = Annotated[list[float], Field(min_length=3, max_length=3)]
Asks = Annotated[list[float | None], Field(min_length=3, max_length=3)]
DueBy = Literal["asks", "weight", "limit"]
Bound = Literal["draining", "unhealthy", "held", "slots", "steps", "kv", "prompts", "reserved"]
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


class LivePageMember(Fields):
    """What a tier or a group of a pool gets. `share`: its part of the service of the pool in the last 10 s, minute and
    15 minutes; `due`: the part that it should have by weights, where tenants whose queue stayed full for less than half
    of the window are due what they got. `asks`: the part that its tenants ask for, null: all there is; `by_weight`: the
    part that weights alone would give it beside the tiers, or groups of its tier, that were served or waited. `due_by`:
    why `due` is due, because it is all that is asked for (`asks`), or because weights give no more beside what others
    ask for (`weight`).
    """

    weight: float
    queued: int
    in_flight: int
    share: Windows
    due: Windows
    by_weight: Windows
    asks: Asks
    due_by: tuple[DueBy, DueBy, DueBy]


class LivePageTier(LivePageMember):
    """`gap`: by how much the service over weight of two tenants that wait throughout an interval differs, as measured
    `gap_age_s` seconds ago; `bound`: what the policy guarantees for it; `jain`: Jain's index. Null: not known, or not
    guaranteed. `gap_state`, of the last minute: it was `measured`; two waited at once, but the queue of one of them
    emptied in between, so that nothing is guaranteed between them (`not_throughout`); `one_waits`; `none_waits`. A
    tenant at its own limit does not wait in this sense.
    """

    gap: float | None
    bound: float | None
    jain: float | None
    gap_state: Literal["measured", "not_throughout", "one_waits", "none_waits"]
    gap_age_s: int | None
    attainment: AttainmentResource


class LivePageBackend(Fields):
    """`tokens`: KV tokens that are reserved. `queued_there`: requests that wait inside the server, as it reports.
    `step_s`: predicted time of a step in which all that runs there decodes; `step_measured_s`: measured time per token
    of a sequence. `bound_by`: what keeps one more request out; null: it has room. `reserved`: what is free there is
    reserved for tiers, whose slots are in `reserves`.

    `size`: where `requests_limit` is from.

    Of the last minute, as far as a page was open: `token_s`: the median of the measured time per token of a sequence;
    `step_error_ratio`: the median of predicted over measured; `slow_ratio`: `token_s` over the (lower) median of the
    pool's backends; `full_ratio`: in which part of the looks at which requests waited for a backend it took no more.
    Null: not known, or none waited.
    """

    available: bool
    draining: bool
    trouble: str | None
    in_flight: int
    requests_limit: int
    size: SizeSource
    tokens: int
    tokens_limit: int | None
    queued_there: int
    external_requests: int
    external_tokens: int
    step_s: float | None
    step_measured_s: float | None
    bound_by: Bound | None
    reserves: dict[str, int]
    token_s: float | None
    step_error_ratio: float | None
    slow_ratio: float | None
    full_ratio: float | None


class LivePageBottleneck(Fields):
    """The backend that limits the pool, where requests waited for a backend in most of the last minute's looks: one
    that was not available in most of them; else, of those that took no more in most of them (`full`), the one that
    takes longest for a token. `bound_by`: why it takes no more, mostly. `slow_ratio`: how many times as long as the
    pool's median it takes for a token; null: below 2, it is not slow.
    """

    backend: str
    bound_by: Bound
    slow_ratio: float | None
    full: list[str]


class LivePageTenant(Fields):
    """`share`, `due`, `by_weight` and `due_by` as of a tier; `limit`: it got all that it may ask for at its own
    limit, or its group's, in flight. `backlogged`: it asked for all there is, in each window, else for its `share`.
    `service_per_s` and `output_tokens_per_s` are of the last 10 s; `ttft_s` and `tpot_s` the median and the 99th
    percentile of streams that ended in the last 15 minutes; `cached_ratio` the part of prompts that was cached, and
    `attainment_ratio` that of requests with an envelope which were in time throughout, of the last 15 minutes;
    `refused` calls of the last minute. `waits`: why its oldest request waits.
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
    by_weight: Windows
    due_by: tuple[DueBy, DueBy, DueBy]
    service_per_s: float
    output_tokens_per_s: float
    ttft_s: Quantiles | None
    tpot_s: Quantiles | None
    cached_ratio: float | None
    attainment_ratio: float | None
    refused: int
    waits: Wait | None


class LivePageGroup(LivePageMember):
    """The sums over the tenants of a group."""

    tier: str


class LivePagePool(Fields):
    """`policy`: the fairness policy. `tokens_per_s`: tokens of prompts and answers served in the last 10 s.
    `refused` by reason, and `passed_on` to another model by alias and reason: calls of the last minute. `bottleneck`
    null: no backend limits the pool. `tenants`: those with anything queued, running, or served within 15 minutes;
    `groups`: the groups of these.
    """

    policy: str
    queued: int
    in_flight: int
    oldest_wait_s: float | None
    tokens_per_s: float
    refused: dict[str, int]
    passed_on: dict[str, dict[str, int]]
    tiers: dict[str, LivePageTier]
    groups: dict[str, LivePageGroup]
    bottleneck: LivePageBottleneck | None
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


class LiveGroupPool(Fields):
    """One pool as a group uses it: `queued`, `in_flight` and `oldest_wait_s` are of its tenants. `groups`: the group
    itself.
    """

    policy: str
    queued: int
    in_flight: int
    oldest_wait_s: float | None
    groups: dict[str, LivePageGroup]
    tenants: dict[str, LivePageTenant]


class LiveGroupDocument(Fields):
    """The part of the live document that is one group's: the pools that any of its tenants used within 15 minutes. As
    a stream like the whole.
    """

    at: float
    group: str
    pools: dict[str, LiveGroupPool]
