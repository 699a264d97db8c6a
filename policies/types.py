"""Values of the scheduler: the facts it takes, the actions it decides, the views it shows.

Times are seconds on one monotonic clock, chosen by the driver of the scheduler. Amounts of work are tokens. "Service"
is tokens weighted by a price (policies/accounts/cost.py).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from math import inf
from typing import Final, NamedTuple

from policies.step_time.model import StepTime


@dataclass(frozen=True, slots=True)
class SloEnvelope:
    """The latency targets of a request, in seconds: token j (from 0) is due at arrival + ttft_s + j * tpot_s. None: no
    target.

    If the request asks for a shorter TTFT than its tenant's, `ttft_s_given` is the tenant's. The scheduler uses it
    where it delays other requests for this one, so that asking for a shorter TTFT costs them nothing.
    """

    ttft_s: float | None = None
    tpot_s: float | None = None
    ttft_s_given: float | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class Tier:
    """A class of tenants. Tiers share the pool by weight, however many tenants each has.

    `reserve_ratio`, from 0 to 1, is the part of every backend's capacity that only this tier may use, so that an
    arrival finds a free slot without preemption. If `rejects_misses`, a request that cannot meet its envelope is
    rejected; otherwise it waits. Requests of a `preemptible` tier may be preempted, until their first token, for a
    request with an envelope.

    `priority` orders shedding, not the queue. Tiers with the lowest number are shed first, and only those below 0 (as
    in llm-d; vLLM's priority has the opposite direction).
    """

    id: str
    weight: float = 1.0
    reserve_ratio: float = 0.0
    rejects_misses: bool = False
    priority: int = 0
    preemptible: bool = False

    @property
    def is_sheddable(self) -> bool:
        return self.priority < 0


DEFAULT_TIER = Tier(id="default")


class RateLimited:
    """The base of what has limits per minute of its own: a tenant, a group or an API key."""

    __slots__ = ()
    requests_per_minute_max: int | None
    tokens_per_minute_max: int | None

    @property
    def has_rate_limit(self) -> bool:
        """Whether it has any limit per minute of its own."""
        return self.requests_per_minute_max is not None or self.tokens_per_minute_max is not None


@dataclass(frozen=True, slots=True)
class Group(RateLimited):
    """A group of tenants of one tier, such as a department or a customer. Its tenants share one account in the tier.
    The groups of a tier share it by weight, however many tenants each has; a tenant without a group counts as one
    group. A group's limits hold for all of its tenants together; None: no limit. Budgets per day and month hold over
    all pools, and are enforced before the scheduler.
    """

    id: str
    weight: float = 1.0
    tier_id: str = DEFAULT_TIER.id
    in_flight_max: int | None = None
    requests_per_minute_max: int | None = None
    tokens_per_minute_max: int | None = None
    tokens_per_day_max: int | None = None
    tokens_per_month_max: int | None = None


@dataclass(frozen=True, slots=True)
class KeyLimits(RateLimited):
    """Limits of one API key, within those of its tenant. None: no limit."""

    in_flight_max: int | None = None
    requests_per_minute_max: int | None = None
    tokens_per_minute_max: int | None = None


@dataclass(frozen=True, slots=True)
class Tenant(RateLimited):
    """An account that is served fairly. A limit of None is no limit. Budgets per day and month hold over all pools, and
    are enforced before the scheduler. A tenant with a group belongs to the tier of its group. `keys` has the limits of
    its API keys, by key id; a key without limits of its own is left out.
    """

    id: str
    weight: float = 1.0
    tier_id: str = DEFAULT_TIER.id
    in_flight_max: int | None = None
    queued_requests_max: int | None = None
    queued_bytes_max: int | None = None
    requests_per_minute_max: int | None = None
    tokens_per_minute_max: int | None = None
    tokens_per_day_max: int | None = None
    tokens_per_month_max: int | None = None
    group_id: str | None = None
    keys: Mapping[str, KeyLimits] = field(default_factory=dict, hash=False)

    def may_meet_rate_limit(self, key_id: str) -> bool:
        """Whether a limit per minute applies to requests with this key: the tenant's own, the key's, or the group's."""
        return self.has_rate_limit or self.group_id is not None or key_id in self.keys


@dataclass(slots=True)  # not frozen: that more than doubles the cost of making one. Treat it as immutable.
class Request:
    """One call that generates tokens, as far as the scheduler needs to know it.

    `choices` is the number of sequences (n times the number of prompts). `prompt_tokens` and `output_tokens_max` are
    sums over all of them; `prompt_tokens` is an estimate until the backend reports. `prefix` holds chained hashes of
    the prompt's leading blocks, `prefix_block_tokens` tokens each: equal hashes at one backend share KV blocks.
    `output_tokens_known` is the true output length, where a simulation knows it. `backend_ids` are the only backends
    that can serve the request (some have a LoRA adapter, or one keeps an earlier answer); None: all. `program_id` names
    the agent (an application of many calls) that the request belongs to. `sender` names the process that holds the
    client's connection and sends the request to its backend; empty: the scheduler's own.

    An answer that `is_resumable` may be interrupted after any token and continued from there, at any backend. An
    interrupted request has `produced_tokens` of its output, the last of them from the backend `ran_at`. `preemptions`
    counts how often it was preempted. A driver that submits a request does not set these three.

    `key_id` is the API key of the request; empty: none. `parent_id` is the `program_id` of the session that started the
    request's session. If `ends_session`, no further call of its session comes (policies/sessions/).

    A request that `may_pass_on` can go to another pool, as long as its client has no part of the answer. So it is
    rejected here, even in a tier without `rejects_misses`, if it would miss its envelope or wait for a backend to
    become available.
    """

    id: str
    tenant_id: str
    model: str
    arrived_at: float
    prompt_tokens: int
    output_tokens_max: int
    choices: int = 1
    body_bytes: int = 0
    prefix: tuple[int, ...] = ()
    prefix_block_tokens: float = 0.0
    output_tokens_known: int | None = None
    envelope: SloEnvelope | None = None
    backend_ids: frozenset[str] | None = None
    program_id: str | None = None
    endpoint: str = ""
    uses_tools: bool = False
    sender: str = ""
    is_resumable: bool = False
    produced_tokens: int = 0
    ran_at: str = ""
    preemptions: int = 0
    may_pass_on: bool = False
    key_id: str = ""
    parent_id: str | None = None
    ends_session: bool = False

    @property
    def passes_on(self) -> bool:
        """Whether the request goes to another pool now if this pool cannot serve it."""
        return self.may_pass_on and not self.produced_tokens

    @property
    def context_tokens(self) -> int:
        """Tokens that a backend has to compute or to have cached before the next token: the prompt, and the output so
        far of a request that is continued.
        """
        return self.prompt_tokens + self.produced_tokens


class Usage(NamedTuple):
    """Tokens that a request has used so far: cumulative, never a difference.

    A tuple, because one is made for every relayed chunk: it costs a third of a frozen dataclass.
    """

    prompt_tokens: int
    cached_tokens: int
    output_tokens: int

    def within(self, most: "Usage") -> "Usage":
        """The usage, with each count limited to that of `most`."""
        prompt_tokens = min(self.prompt_tokens, most.prompt_tokens)
        return Usage(prompt_tokens, min(self.cached_tokens, prompt_tokens), min(self.output_tokens, most.output_tokens))


class Timing(NamedTuple):
    """The measured latency of one answer, from the `tokens` that were seen (policies/slo/timeliness.py),
    `tokens_in_time` of which were not late.

    `ttft_s` is None for an answer that was not streamed, because its first token was not seen. After each later token,
    the time per output token so far is measured: from when the first token came, and from when it was due. `tpot_s` and
    `tpot_envelope_s` are the largest of these values; None: not known, such as without a second token.
    """

    ttft_s: float | None
    tpot_s: float | None
    tpot_envelope_s: float | None
    tokens: int
    tokens_in_time: int

    def within(self, tokens_max: int) -> "Timing":
        """The timing for an answer of at most `tokens_max` tokens. Tokens that were late stay late."""
        if self.tokens <= tokens_max:
            return self
        late = self.tokens - self.tokens_in_time
        return self._replace(tokens=tokens_max, tokens_in_time=max(0, tokens_max - late))


class ReplicaShare(NamedTuple):
    """One replica's part of a limit that `replicas` replicas share. They get equal parts; if it does not divide evenly,
    the replicas of the lowest `number` get one more.
    """

    replicas: int = 1
    number: int = 0

    def of(self, limit: int) -> int:
        """The part of one replica in `limit`: at least 1, unless the limit is 0."""
        if self.replicas == 1:
            return limit
        return max(min(1, limit), limit // self.replicas + (self.number < limit % self.replicas))


ALONE = ReplicaShare()


NO_USAGE = Usage(0, 0, 0)

KV_BLOCK_TOKENS: Final = 16
"""vLLM's block of KV memory: a reservation grows by blocks, so usage is told by blocks where it is told at all."""


@dataclass(frozen=True, slots=True)
class BackendLoad:
    """The size of a backend and its last measured load.

    Several engines behind one URL are one backend of their summed capacity; `engines` is their number. A size of None
    is unknown, and is then learnt or bounded by a default; a measurement of None is ignored.
    `requests_waiting_for_room` are the waiting requests that lack a slot or memory, not something else such as a
    grammar; None: the engine does not report them. `prefixes_shared`: requests with equal prompt blocks hold them once
    (automatic prefix caching). `measured_at` tells a new measurement from a repeated one; None: every one is new.

    An engine step computes at most `step_tokens_max` tokens (vLLM's max_num_batched_tokens), and at most
    `prompt_step_tokens_max` of one prompt (long_prefill_token_threshold; None: no lower limit). `batching` is the rule
    that chooses them: vLLM's own ("vllm") or FairBatching ("fair"). `step_time` is the step-time model as known so far.

    `pab_tokens` is the engine's reported prefill admission budget: prompt tokens that it can take without making a
    request late. For each sender, `pab_dispatches` has the number of the last dispatch to this backend
    (Dispatch.number) that the budget includes; None: it includes all that were sent before the report.

    `share` is this replica's part of the capacity; the other replicas are assumed to use theirs fully. `untold_tokens`
    are KV tokens that our requests hold there and that were not yet reported to the scheduler. A backend that `drains`
    gets no new request, and its running requests have to leave it soon.
    """

    backend_id: str
    available: bool = True
    engines: int = 1
    kv_tokens_max: int | None = None
    kv_block_tokens: int = 1
    prefixes_shared: bool = True
    requests_running_max: int | None = None
    requests_running: int | None = None
    requests_waiting: int | None = None
    requests_waiting_for_room: int | None = None
    kv_used_ratio: float | None = None
    preemptions_total: int | None = None
    measured_at: float | None = None
    step_tokens_max: int | None = None
    prompt_step_tokens_max: int | None = None
    batching: str = "vllm"
    step_time: StepTime | None = None
    pab_tokens: float | None = None
    pab_dispatches: Mapping[str, int] | None = None
    share: ReplicaShare = ALONE
    untold_tokens: int = 0
    drains: bool = False


class Outcome(StrEnum):
    """How a dispatched request ended. The three outcomes tell different things about the backend's health."""

    COMPLETED = "completed"
    CLIENT_DISCONNECTED = "client_gone"
    BACKEND_FAILED = "backend_failed"


class Cause(StrEnum):
    """The cause for which a dispatched request left its backend and waits again."""

    FAILED = "failed"
    """Its backend failed, or did not take it."""
    DRAINED = "drained"
    """Its backend drains."""
    PREEMPTED = "preempted"
    """It gave way to another."""


class Reason(StrEnum):
    """The reason for which a request was rejected. gateway/api/errors.py maps each Reason to a response."""

    TENANT_QUEUE_FULL = "tenant_queue_full"
    QUEUE_FULL = "queue_full"
    QUEUE_TIMEOUT = "queue_timeout"
    RATE_LIMITED = "rate_limited"
    TOO_MANY_AT_ONCE = "too_many_at_once"
    BUDGET_SPENT = "budget_spent"
    REQUEST_TOO_LARGE = "request_too_large"
    TENANT_UNKNOWN = "tenant_unknown"
    NO_BACKEND = "no_backend"
    SLO_UNREACHABLE = "slo_unreachable"
    SHED = "shed"
    DRAINING = "draining"
    CANCELLED = "cancelled"  # by an operator, whether it was queued or running


PASSED_ON: Final = frozenset({Reason.NO_BACKEND, Reason.SLO_UNREACHABLE})
"""Rejections after which another pool may serve the request. A limit or a full queue is the tenant's, and the request
may have broken a backend that broke.
"""


class LimitKind(StrEnum):
    """The kind of a tenant's, group's or key's limit that rejected a request: requests or tokens per minute, or tokens
    or cost per day or month.
    """

    REQUESTS = "requests"
    TOKENS = "tokens"
    DAY = "day"
    MONTH = "month"
    COST_DAY = "cost_day"
    COST_MONTH = "cost_month"


@dataclass(slots=True)  # not frozen, for the cost (see Request)
class Dispatch:
    """The decision to send this request to this backend now.

    While the answer has at most `quiet_tokens` output tokens, no decision depends on their number. So they may be
    reported to the scheduler late, but before the accounts are read. `cached_tokens` of the prompt are assumed to be in
    the backend's prefix cache, and are charged as cached until the backend reports. If `may_be_preempted`, the request
    may be preempted until its client has been sent something; if it is resumable, also later. `number` counts the
    requests that its sender has sent to this backend, this one included. The reservation has room for `output_tokens`.
    `expected_tokens` of the prompt were computed at the backend before, as far as sessions and prefixes tell.
    """

    request_id: str
    backend_id: str
    quiet_tokens: float = 0.0
    cached_tokens: int = 0
    may_be_preempted: bool = False
    number: int = 0
    output_tokens: float = field(default=0.0, compare=False)  # for a scheduler that adopts the request; no decision
    expected_tokens: int = field(default=0, compare=False)  # for people; no decision


@dataclass(frozen=True, slots=True)
class Reject:
    """The decision to reject this request. A client that retries before `retry_after_s` seconds have passed is rejected
    again. `limit` is the kind of rate limit or budget that the request exceeds; None: it was rejected for another
    reason.
    """

    request_id: str
    reason: Reason
    retry_after_s: float
    limit: LimitKind | None = None


@dataclass(frozen=True, slots=True)
class Preempt:
    """The decision to preempt this dispatched request, unless its client has been sent something and it is not
    resumable. `cause` is the reason: another request, or a backend that drains.

    The driver answers with the fact `returned` (with this cause) if the request was preempted before its first token,
    with `interrupted` if after it, with `kept` if the preemption was too late, and with no fact if the request has
    ended. A preempted request keeps its charge, and waits again at the head of its tenant's queue.
    """

    request_id: str
    cause: Cause = field(default=Cause.PREEMPTED, compare=False)  # no decision


Action = Dispatch | Reject | Preempt


@dataclass(frozen=True, slots=True)
class PolicyChoice:
    """A policy: its name in the table of its kind (FAIRNESS, PREDICTION, PLACEMENT) and its parameters."""

    name: str
    parameters: Mapping[str, float | str | bool] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class RateLimit:
    """The state of one limit per minute. Of `limit`, `remaining` is left now; the whole `limit` is free again after
    `reset_s` seconds.
    """

    limit: int
    remaining: int
    reset_s: float


@dataclass(frozen=True, slots=True)
class RateLimits:
    """The limits per minute that apply to a call. For each kind (requests, tokens) it has the limit with the least
    remaining; None: no limit. The fields have the names of their kinds.
    """

    requests: RateLimit | None = None
    tokens: RateLimit | None = None

    def by_kind(self) -> dict[LimitKind, RateLimit]:
        """The limits that there are."""
        return {LimitKind(kind): limit for kind in self.__slots__ if (limit := getattr(self, kind)) is not None}


class Wait(StrEnum):
    """Why a request is queued. If several reasons hold, it is the first one in this order."""

    NO_BACKEND = "no_backend"
    """No backend that can serve it is available."""
    BACKENDS_HELD = "backends_held"
    """The backends that can serve it have just rejected a request, and get none for a moment."""
    KEY_LIMIT = "key_limit"
    """Its API key is at its in-flight limit."""
    SESSION = "session"
    """Its session has no room: the contexts of other sessions fill the backends' KV pools."""
    TENANT_LIMIT = "tenant_limit"
    """Its tenant, or its tenant's group, is at its in-flight limit."""
    OWN_QUEUE = "own_queue"
    """An older request of its tenant is next."""
    NO_ROOM = "no_room"
    """No backend has room for the next request, which is this one or one of a tenant that has received less."""


@dataclass(frozen=True, slots=True)
class WaitView:
    """Why and how long one request is queued, in a Snapshot. `ahead` is the tenant whose request is next in the same
    queue; None: it is the request's own tenant, or the order is not why the request waits. `start_s` is the predicted
    time until the request is sent, in seconds; None: no forecast. `ahead_requests` counts the requests of its own
    tenant before it.
    """

    reason: Wait
    ahead: str | None = None
    start_s: float | None = None
    ahead_requests: int = 0


@dataclass(frozen=True, slots=True)
class Attainment:
    """How many requests of a tenant or tier met their latency targets (their SLO envelope). `requests` counts the
    requests with an envelope that have ended. One without any token counts only if its backend failed. Requests that
    were rejected are not in it; `refused` counts them. A target that is not set is met. `tpot_met` uses the time since
    the first token came, `tpot_envelope_met` since the first token was due. `met` counts requests with both `ttft_met`
    and `tpot_envelope_met`: all of their tokens were in time.
    """

    requests: int = 0
    ttft_met: int = 0
    tpot_met: int = 0
    tpot_envelope_met: int = 0
    met: int = 0
    tokens: int = 0
    tokens_in_time: int = 0
    refused: int = 0


SESSION_WAIT_BOUNDS_S: Final = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0)


class SessionState(StrEnum):
    """The state of an agent's session. While it is running or idle, its context keeps its room at its backend."""

    RUNNING = "running"
    IDLE = "idle"
    HELD = "held"
    """A turn of it waits for room."""
    PAUSED = "paused"
    """It has no room, and no turn of it waits: it was paused, or its backend has likely evicted its context."""


@dataclass(frozen=True, slots=True)
class SessionView:
    """One session of an agent in a Snapshot, in its `state` since `since_at`. The next call of a held session waits for
    room for `needs_tokens` KV tokens, until about `until_at` at the latest. Both times are in seconds on the snapshot's
    clock, so they stay the same from one snapshot to the next.
    """

    id: str
    state: SessionState
    context_tokens: int
    turns: int
    pauses: int
    backend_id: str
    parent_id: str | None
    since_at: float
    until_at: float | None
    needs_tokens: int | None


@dataclass(frozen=True, slots=True)
class WorkingSetView:
    """The contexts of sessions at one backend in a Snapshot. They have `tokens` KV tokens now, and may have
    `tokens_max`: the part `eta` of the KV pool (None: its size is not known). Over about the last 10 s, the backend was
    busy for `busy_ratio` of the time, and spent `recomputed_ratio` of the busy time on computing contexts again.
    """

    tokens: int
    tokens_max: int | None
    pool_tokens: int | None
    eta: float
    busy_ratio: float
    recomputed_ratio: float


@dataclass(frozen=True, slots=True)
class SessionsView:
    """The sessions of a pool in a Snapshot. `is_holding`: turns (calls) without room are held, that is, wait.
    `demand_tokens` are the KV tokens of all working sets and of the held turns' contexts. From `pauses` on, the fields
    are sums since the start. `pauses` counts paused sessions, `yields` those paused because they had used their quantum
    (SessionRules). Of the prompt tokens of later turns, `expected_tokens` were expected in the prefix cache, of which
    `recomputed_tokens` were computed again. `wait_counts` counts turns by how long they waited for room (bounds:
    SESSION_WAIT_BOUNDS_S); `wait_s` is the sum of these waits.
    """

    is_holding: bool
    backends: Mapping[str, WorkingSetView]
    states: Mapping[SessionState, int]
    demand_tokens: int
    pauses: int
    yields: int
    expected_tokens: int
    recomputed_tokens: int
    wait_counts: tuple[int, ...]
    wait_s: float


@dataclass(frozen=True, slots=True)
class TenantView:
    """One tenant in a Snapshot. `service` is the service that it was charged since start, in service units. `rank`
    orders the tenants of a tier, in service over weight. `slack_s_min` is the shortest time until a token of any of its
    requests with an envelope, queued or running, is late.

    `waiting_spell` is the number of the present spell: the time in which, without a break, a request of the tenant
    waits and the tenant's limits let it send. 0: no such request waits. If two snapshots show the same number above 0,
    the tenant waited all the time between.

    `used` are the tokens that it was charged for since start; a prompt counts from its dispatch. `oldest_at` is the
    arrival time of the first request of its queue, and `waits` is why that request waits; None: no request is queued.
    `sessions` has the sessions that are held or were used last; `session_states` counts all of its sessions by state.
    """

    queued_requests: int
    queued_bytes: int
    in_flight_requests: int
    in_flight_tokens: int
    service: float
    counter: float
    rank: float
    waiting_spell: int = 0
    slack_s_min: float | None = None
    attainment: Attainment = Attainment()
    used: Usage = NO_USAGE
    oldest_at: float | None = None
    waits: Wait | None = None
    sessions: tuple[SessionView, ...] = ()
    session_states: Mapping[SessionState, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TierView:
    """One tier in a Snapshot, with sums over its tenants. `service` was charged since start, in service units."""

    queued_requests: int
    in_flight_requests: int
    service: float
    slack_s_min: float | None = None


@dataclass(frozen=True, slots=True)
class RequestView:
    """One request with an SLO envelope in a Snapshot; `backend_id` None: it is queued. `slack_s` is the time until its
    next token is due, in seconds; negative: the token is late.
    """

    tenant_id: str
    backend_id: str | None
    output_tokens: int
    slack_s: float


@dataclass(frozen=True, slots=True)
class StepsView:
    """The state of a backend's limit by step time, in a Snapshot. `step_s` is the predicted time of a step in which all
    running requests decode. Its upper bound `step_s_max` is the tightest TPOT target of these requests, or the step
    time beyond which a larger batch gives little throughput; None: no bound. `prefill_s` is the predicted time to
    compute all prompts that were sent and are not computed yet. `budget_tokens` is the prefill admission budget: as the
    engine reports it, or the prompt tokens that it can compute in one second.
    """

    step_s: float
    step_s_max: float | None
    prefill_s: float
    budget_tokens: float


@dataclass(frozen=True, slots=True)
class ReserveView:
    """The capacity of a backend, in sequences and KV tokens, that only one tier may use, in a Snapshot. It is the
    larger of two: what the operator's `reserve_ratio` gives, and the learnt reserve (the room that the tier's next
    arrival needs).
    """

    sequences: int
    tokens: int


class Binding(StrEnum):
    """Why a backend gets no further request. If several reasons hold, it is the first one in this order."""

    UNHEALTHY = "unhealthy"
    """It is not available."""
    HELD = "held"
    """It has just rejected a request, or was not measured yet by a new leader, and gets none for a moment."""
    SLOTS = "slots"
    """All sequences that it can run do."""
    STEPS = "steps"
    """Its limit: the step with one more would take too long, or more at once have only made answers slower."""
    KV = "kv"
    """It has no KV tokens for a request of the mean size of those that run there."""
    PROMPTS = "prompts"
    """The prompts that it owes keep it busy for longer than a step."""
    RESERVED = "reserved"
    """What is free there is reserved for a tier, by the operator or as it was learnt to need: only that may enter."""


class SizeSource(StrEnum):
    """Where a backend's limit on the sequences that run at once comes from."""

    GIVEN = "given"
    """It is configured, or the backend says it."""
    LEARNT = "learnt"
    """So many have run there, and more have waited."""
    ASSUMED = "assumed"
    """Nothing is known yet."""


@dataclass(frozen=True, slots=True)
class BackendView:
    """One backend in a Snapshot: our load and external load (of other clients) against its limits. `step_time` is the
    step-time model, reliable or not. `steps` is the state of the limit by step time; None: there is no such model.
    `sequences_max` is the most sequences by the concurrency limit, which may be more than the slots; None: the backend
    has no such limit now. `size` tells whether `requests_limit` (the most sequences at once) is given, learnt or
    assumed. `bound_by` is why the backend gets no further request; None: it has room for one more.
    """

    available: bool
    in_flight_requests: int
    requests_limit: int
    reserved_tokens: int
    tokens_limit: int | None
    external_requests: int
    external_tokens: int
    step_time: StepTime | None = None
    steps: StepsView | None = None
    sequences_max: float | None = None
    size: SizeSource = SizeSource.GIVEN
    reserves: Mapping[str, ReserveView] = field(default_factory=dict)  # by tier
    bound_by: Binding | None = None


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The state of a Scheduler for the live page and metrics; never an input to a decision. `attainment` is by tier.

    `service_in_flight_max` is the price of the most output tokens that may be in flight at once, in service units (U in
    docs/fairness.md); infinite where the size of a backend is unknown. `sent_again_tokens` counts, since the start, the
    prompt and output tokens that were sent again to continue interrupted requests. `sessions` None: no session is
    known, or the caller did not ask for them.
    """

    now: float
    queued_requests: int
    queued_bytes: int
    in_flight_requests: int
    tenants: Mapping[str, TenantView] = field(default_factory=dict)
    tiers: Mapping[str, TierView] = field(default_factory=dict)
    requests: Mapping[str, RequestView] = field(default_factory=dict)  # the most urgent, least slack first
    backends: Mapping[str, BackendView] = field(default_factory=dict)
    attainment: Mapping[str, Attainment] = field(default_factory=dict)
    service_in_flight_max: float = inf
    interruptions: Mapping[Cause, int] = field(default_factory=dict)
    sent_again_tokens: int = 0
    sessions: SessionsView | None = None
