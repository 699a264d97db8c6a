"""The live document: one tree of Structs, which document.py fills, the stream encodes, and OpenAPI shows.

A follower decodes the document of its leader, which may have an older version: a new member needs a default.
"""

from enum import StrEnum
from typing import Annotated, Final

from msgspec import Meta, Struct

from policies.types import Attainment, Binding, SessionState, SizeSource, Wait

DRAINING: Final = "draining"
ASKS, WEIGHT, LIMIT = "asks", "weight", "limit"
"""Why a share is due: it is all that was asked for; the weight gives no more; the tenant's own limit lets it ask for no
more.
"""
MEASURED, NOT_THROUGHOUT, ONE_WAITS, NONE_WAITS = "measured", "not_throughout", "one_waits", "none_waits"

Windows = Annotated[tuple[float, ...], Meta(min_length=3, max_length=3)]
Asks = Annotated[tuple[float | None, ...], Meta(min_length=3, max_length=3)]
Backlogged = Annotated[tuple[bool, ...], Meta(min_length=3, max_length=3)]
Quantiles = Annotated[tuple[float, ...], Meta(min_length=2, max_length=2)]
DueBy = Annotated[str, Meta(extra_json_schema={"enum": [ASKS, WEIGHT, LIMIT]})]
DuesBy = Annotated[tuple[DueBy, ...], Meta(min_length=3, max_length=3)]
GapState = Annotated[str, Meta(extra_json_schema={"enum": [MEASURED, NOT_THROUGHOUT, ONE_WAITS, NONE_WAITS]})]
Bound = Annotated[str, Meta(extra_json_schema={"enum": [DRAINING, *Binding]})]


class MemberRole(StrEnum):
    """The role of a process in the cluster. `leaderless`: it follows no leader yet, or no longer, and its requests
    wait.
    """

    LEADER = "leader"
    FOLLOWER = "follower"
    STANDALONE = "standalone"
    LEADERLESS = "leaderless"


class ClusterMember(Struct, frozen=True):
    """One process that accepts clients. `since`: when the process that was asked first saw it in this role, in seconds
    since 1970.
    """

    name: str
    address: str | None
    role: MemberRole
    since: float


class ClusterView(Struct, frozen=True):
    """The cluster as the process `name` sees it. `leader` null: it knows no leader. `standalone`: it reaches neither a
    leader nor Redis, and leads only itself, within its part of every limit. `elections`: how often it began to lead.
    `round_trip_s`: the time of its last ping to the leader; null at the leader.
    """

    name: str
    role: MemberRole
    leader: str | None
    epoch: int
    standalone: bool
    elections: int
    round_trip_s: float | None
    members: tuple[ClusterMember, ...]


class LivePageGateway(Struct, kw_only=True):
    """The gateway process that made the live document. `embedded_engine`: it serves its own simulated engine. `demo`:
    demo tenants run; null: this gateway cannot run them.
    """

    name: str
    version: str
    role: MemberRole
    embedded_engine: bool
    demo: bool | None


class LivePageMember(Struct, kw_only=True):
    """The share of a tier or a group in a pool's service, and the share that it is due. `share`: its part of the
    service of the pool in the last 10 s, minute and 15 minutes; `due`: the part that it should have by weights, where
    tenants whose queue stayed full for less than half of the window are due what they got. `asks`: the part that its
    tenants ask for, null: all there is; `by_weight`: the part that weights alone would give it beside the tiers, or
    groups of its tier, that were served or waited. `due_by`: why `due` is not larger: its tenants ask for no more
    (`asks`), or weights give no more beside the demands of others (`weight`).
    """

    weight: float
    queued: int
    in_flight: int
    share: Windows
    due: Windows
    by_weight: Windows
    asks: Asks
    due_by: DuesBy


class LivePageTier(LivePageMember, kw_only=True):
    """A tier of a pool. `gap`: by how much the service over weight of two tenants that wait throughout an interval
    differs, as measured `gap_age_s` seconds ago; `bound`: the largest gap that the policy guarantees; `jain`: Jain's
    index. Null: not known, or not guaranteed. `gap_state`, of the last minute: it was `measured`; two waited at once,
    but the queue of one of them emptied in between, so that nothing is guaranteed between them (`not_throughout`);
    `one_waits`; `none_waits`. A tenant at its own limit does not wait in this sense.
    """

    gap: float | None
    bound: float | None
    jain: float | None
    gap_state: GapState
    gap_age_s: int | None
    attainment: Attainment


class LivePageWorkingSet(Struct, kw_only=True):
    """The contexts of sessions that a backend keeps, in `tokens`. They may take `tokens_max` of its KV pool
    (`pool_tokens`); `eta` is this limit as a part of the pool, as learnt. Null: not known. In
    about the last 10 s, the backend was busy for `busy_ratio` of the time, and spent `recomputed_ratio` of that on
    computing contexts again. If these two exceed 0.9 and 0.1, turns wait where waiting saves more than it costs.
    """

    tokens: int
    tokens_max: int | None
    pool_tokens: int | None
    eta: float | None = None
    busy_ratio: float | None = None
    recomputed_ratio: float | None = None


class LivePageSession(Struct, kw_only=True):
    """A session of an agent, in its `state` since `since_at`. A `held` session waits until `needs_tokens` have room in
    a KV pool (that of `backend`, if it probably still has the context), until about `until_at` at the latest; null: it
    is not held. Both are seconds since 1970. `parent`: the session that started it.
    """

    id: str
    state: SessionState
    context_tokens: int
    turns: int
    pauses: int
    backend: str | None
    parent: str | None
    since_at: float
    until_at: float | None
    needs_tokens: int | None = None


class LivePageSessions(Struct, kw_only=True):
    """The sessions of a pool's agents. `holding`: turns wait where their contexts have no room. `demand_tokens`: the
    working sets of all backends, and the contexts of turns that are held. `recomputed_ratio`: of the prompt tokens that
    their backends had computed before, the part that was computed again, since start; null: there were no such tokens.
    """

    holding: bool
    running: int
    idle: int
    held: int
    paused: int
    demand_tokens: int
    recomputed_ratio: float | None


class LivePageBackend(Struct, kw_only=True):
    """A backend of a pool. `tokens`: KV tokens that are reserved. `queued_there`: requests that wait inside the server,
    as it reports. `step_s`: predicted time of a step in which all its running requests decode; `step_measured_s`:
    measured time per token of a sequence. `bound_by`: the limit that keeps one more request out; null: it has room.
    `reserved`: its free room is reserved for tiers, whose slots are in `reserves`.

    `size`: where `requests_limit` is from. `unavailable_since`: in seconds since 1970, as this process saw it; null: it
    is available, or is only being drained.

    Of the last minute, as far as a page was open: `token_s`: the median of the measured time per token of a sequence;
    `step_error_ratio`: the median of predicted over measured; `slow_ratio`: `token_s` over the (lower) median of the
    pool's backends; `full_ratio`: of the samples in which requests waited for a backend, the part in which it took no
    more. Null: not known, or no request waited.
    """

    available: bool
    draining: bool
    unavailable_since: float | None
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
    working_set: LivePageWorkingSet | None = None
    token_s: float | None = None
    step_error_ratio: float | None = None
    slow_ratio: float | None = None
    full_ratio: float | None = None


class LivePageBottleneck(Struct, kw_only=True):
    """The backend that limits a pool. A pool has one only if requests waited for a backend in most of the last minute's
    samples. It is a backend that was not available in most of them; otherwise, of the backends that took no more
    requests in most of them (`full`), the one with the longest time per token. `bound_by`: the limit that most often
    kept requests out. `slow_ratio`: its time per token over the pool's median; null: below 2, it is not slow.
    """

    backend: str
    bound_by: Bound
    slow_ratio: float | None
    full: list[str]


class LivePageTenant(Struct, kw_only=True):
    """A tenant in a pool. `share`, `due`, `by_weight` and `due_by` are as for a tier; `due_by` can also be `limit`: the
    in-flight limit of the tenant or its group allows no more. `backlogged`: whether it asked for everything, in each
    window; else it asked for its `share`. `service_per_s` and `output_tokens_per_s` are of the last 10 s; `ttft_s` and
    `tpot_s` the median and the 99th percentile of streams that ended in the last 15 minutes; `cached_ratio` is the
    cached part of prompts, and `attainment_ratio` the part of requests with an envelope that were in time throughout,
    in the last 15 minutes; `refused` calls of the last minute, `refused_by` reason. `waits`: why its oldest request
    waits. `sessions`: at most 16 of its agents' sessions: held ones, the next one first, then those used last.
    `session_states` counts all of them by state.
    """

    tier: str
    group: str | None
    weight: float
    queued: int
    in_flight: int
    oldest_wait_s: float | None
    share: Windows
    due: Windows
    backlogged: Backlogged
    by_weight: Windows
    due_by: DuesBy
    service_per_s: float
    output_tokens_per_s: float
    ttft_s: Quantiles | None
    tpot_s: Quantiles | None
    cached_ratio: float | None
    attainment_ratio: float | None
    refused: int
    waits: Wait | None
    sessions: list[LivePageSession] = []
    session_states: dict[SessionState, int] = {}
    refused_by: dict[str, int] = {}


class LivePageGroup(LivePageMember, kw_only=True):
    """A group of tenants in a pool: the sums over its tenants."""

    tier: str


class LivePagePool(Struct, kw_only=True):
    """A pool. `policy`: the fairness policy. `tokens_per_s`: tokens of prompts and answers served in the last 10 s.
    `refused` by reason, and `passed_on` to another model by alias and reason: calls of the last minute. `bottleneck`
    null: no backend limits the pool. `tenants`: those with requests that are queued, running, served within 15 minutes,
    or refused within one minute; `groups`: their groups. `sessions` null: turns are never held in this pool.
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
    sessions: LivePageSessions | None = None


class LivePageDocument(Struct, kw_only=True):
    """Everything that the live page shows now. `at`: seconds since 1970. `keys_refused`: calls of the last minute
    without a key or with one that is not valid, which count for no tenant. As `text/event-stream`: an event `state`
    with this document, then once a second an event `patch` with the changes, a JSON merge patch (RFC 7396): null
    removes a member, and a missing member means the same as null.
    """

    at: float
    gateway: LivePageGateway
    cluster: ClusterView
    keys_refused: int
    pools: dict[str, LivePagePool]


class LiveGroupPool(Struct, kw_only=True):
    """The state of one pool for one group. `queued`, `in_flight` and `oldest_wait_s` are over the group's tenants.
    `groups`: the group itself.
    """

    policy: str
    queued: int
    in_flight: int
    oldest_wait_s: float | None
    groups: dict[str, LivePageGroup]
    tenants: dict[str, LivePageTenant]


class LiveGroupDocument(Struct, kw_only=True):
    """The part of the live document that the administrator of one group sees. It has the pools that any of the group's
    tenants used within 15 minutes. It can be streamed like the whole document.
    """

    at: float
    group: str
    pools: dict[str, LiveGroupPool]
