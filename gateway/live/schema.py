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
    """The role of a process in the cluster. `standalone`: it leads only itself. `leaderless`: it follows no leader yet,
    or no longer, and its requests wait.
    """

    LEADER = "leader"
    FOLLOWER = "follower"
    STANDALONE = "standalone"
    LEADERLESS = "leaderless"


class ClusterMember(Struct, frozen=True):
    """One process of the cluster; each process of it accepts clients. `since`: when the process that answers the query
    first saw this one in its `role`, in seconds since 1970.
    """

    name: str
    address: str | None
    role: MemberRole
    since: float


class ClusterView(Struct, frozen=True):
    """The cluster as the process `name` sees it. `leader` null: it knows no leader. `standalone`: it reaches neither a
    leader nor Redis, and leads only itself, with a part of every limit. `elections`: how often it began to lead.
    `round_trip_s`: the seconds that its last ping to the leader took; null at the leader.
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
    """The gateway process that made the live document (the data of the live page). `embedded_engine`: its backend is
    its own simulated engine. `demo`: whether demo tenants run; null: this gateway cannot run them.
    """

    name: str
    version: str
    role: MemberRole
    embedded_engine: bool
    demo: bool | None


class LivePageMember(Struct, kw_only=True):
    """A tier or a group in a pool, with its shares of the pool's service, from 0 to 1. Each share is given for the last
    10 s, minute and 15 minutes. `share` is the part that it got. `due` is the part that it should get by weights; a
    tenant whose queue was full for less than half of the window is due what it got. `asks` is the part that its tenants
    ask for; null: all. `by_weight` is the part by weights alone, among the tiers (or groups of its tier) that were
    served or waited. `due_by` says why `due` is not larger: `asks`, its tenants ask for no more; `weight`, others ask
    for the rest, and their weights count.
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
    """A tier of a pool. `gap` is the difference in service over weight between two tenants that wait throughout an
    interval, as measured `gap_age_s` seconds ago; `bound` is the largest gap that the policy guarantees; `jain` is
    Jain's fairness index. Null: not known, or not guaranteed. `gap_state` tells whether there was a gap in the last
    minute: `measured`; `not_throughout` (two tenants waited at once, but one queue emptied in between, so that nothing
    is guaranteed); `one_waits`; `none_waits`. A tenant at its own limit does not count as waiting.
    """

    gap: float | None
    bound: float | None
    jain: float | None
    gap_state: GapState
    gap_age_s: int | None
    attainment: Attainment


class LivePageWorkingSet(Struct, kw_only=True):
    """The contexts of agents' sessions that a backend keeps in its KV pool, and the room for them. `tokens` is their
    size. `pool_tokens` is the size of the KV pool; `eta`, from 0 to 1, is the part of it that contexts may take, and
    `tokens_max` is this part in tokens. The gateway learns `eta`. Null: not known. In about the last 10 s, the backend
    was busy for `busy_ratio` of the time. It spent `recomputed_ratio` of its busy time on computing contexts again. If
    these exceed 0.9 and 0.1, turns (calls of sessions) wait until the KV pool has room for their contexts, where this
    costs less than computing again.
    """

    tokens: int
    tokens_max: int | None
    pool_tokens: int | None
    eta: float | None = None
    busy_ratio: float | None = None
    recomputed_ratio: float | None = None


class LivePageSession(Struct, kw_only=True):
    """A session of an agent. It is in its `state` since `since_at`. In the state `held`, its next turn waits until a KV
    pool has room for `needs_tokens` (the pool of `backend`, if it probably still has the context), at the latest until
    about `until_at`; null: it is not held. Times are seconds since 1970. `parent`: the session that started it.
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
    """The sessions of a pool's agents, counted by state. `holding`: whether, at present, turns (calls of sessions) are
    held, that is, made to wait while no KV pool has room for their contexts. `demand_tokens` is the size of the
    contexts that backends keep, and of held turns. `recomputed_ratio`: of the prompt tokens that backends had computed
    before, the part that was computed again, since start; null: there were none.
    """

    holding: bool
    running: int
    idle: int
    held: int
    paused: int
    demand_tokens: int
    recomputed_ratio: float | None


class LivePageBackend(Struct, kw_only=True):
    """A backend of a pool. `tokens`: reserved KV tokens. `queued_there`: requests that wait inside the server, as it
    reports. `step_s`: the predicted seconds of a step in which all its running requests decode; `step_measured_s`: the
    measured seconds per token of a sequence. `bound_by`: the limit by which it gets no further request (`reserved`: its
    room is reserved for tiers, whose slots are in `reserves`); null: it has room.

    `size`: whether `requests_limit` is `given` (configured or reported), `learnt` or `assumed`. `unavailable_since`: in
    seconds since 1970, as this process saw it; null: it is available, or is only being drained.

    The rest is of the last minute, while a live page was open. `token_s`: the median of `step_measured_s`.
    `step_error_ratio`: the median of predicted over measured time. `slow_ratio`: `token_s` over the (lower) median of
    the pool's backends. `full_ratio`: of the samples in which requests waited for a backend, the part in which it took
    no more. Null: not known, or no request waited.
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
    """The backend that limits a pool. There is one only if requests waited for a backend in most samples of the last
    minute. `full` has the backends that took no more requests in most of the samples with waiting requests. The
    bottleneck is one of these: one that was mostly unavailable, or else the one with the longest time per token.
    `bound_by`: the limit that most often kept requests out of it. `slow_ratio`: its time per token over the pool's
    median; null: this ratio is below 2 (the backend is not slow) or not known.
    """

    backend: str
    bound_by: Bound
    slow_ratio: float | None
    full: list[str]


class LivePageTenant(Struct, kw_only=True):
    """A tenant in a pool. `share`, `due`, `by_weight` and `due_by` are as for a tier (LivePageMember); `due_by` can
    also be `limit`: the in-flight limit of the tenant or its group. `backlogged`: for each window, whether it asked for
    all service; if not, it asked for its `share`. `service_per_s` and `output_tokens_per_s` are of the last 10 s. Of
    the last 15 minutes are: `ttft_s` and `tpot_s`, each the median and the 99th percentile of ended streams;
    `cached_ratio`, the cached part of prompt tokens; `attainment_ratio`, the part of requests with latency targets
    whose tokens were all in time. `refused` are calls of the last minute, in all and by reason (`refused_by`). `waits`:
    why its oldest request waits. `sessions`: at most 16 of its agents' sessions; held ones come first, then the last
    used ones. `session_states` counts all of them by state.
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
    """A group of tenants in a pool, with the sums over its tenants."""

    tier: str


class LivePagePool(Struct, kw_only=True):
    """A pool in the live document (the data of the live page). `policy`: the fairness policy. `tokens_per_s`: prompt
    and output tokens per second in the last 10 s. Calls of the last minute: `refused` by reason, and `passed_on` to
    another model by alias and reason. `bottleneck` null: no backend limits the pool. `tenants` are those with requests
    that are queued, running, served within 15 minutes, or refused within one minute; `groups`: their groups. `sessions`
    null: turns (calls of agents' sessions) are never held in this pool.
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
    """All data of the live page, as of `at`, in seconds since 1970. `keys_refused`: calls of the last minute without a
    valid key, which count for no tenant. As `text/event-stream`, it is an event `state` with this document, then once a
    second an event `patch` with the changes as a JSON merge patch (RFC 7396). Null removes a member: a missing member
    means the same as null.
    """

    at: float
    gateway: LivePageGateway
    cluster: ClusterView
    keys_refused: int
    pools: dict[str, LivePagePool]


class LiveGroupPool(Struct, kw_only=True):
    """A pool in the part of the live document that one group's administrator sees. `queued`, `in_flight` and
    `oldest_wait_s` are over the group's tenants. `groups` has only the group itself.
    """

    policy: str
    queued: int
    in_flight: int
    oldest_wait_s: float | None
    groups: dict[str, LivePageGroup]
    tenants: dict[str, LivePageTenant]


class LiveGroupDocument(Struct, kw_only=True):
    """The part of the live document (the data of the live page) that the administrator of one group sees. It has the
    pools that any of the group's tenants used within 15 minutes. It can be streamed like the whole document.
    """

    at: float
    group: str
    pools: dict[str, LiveGroupPool]
