"""The vocabulary of the scheduler: what it is told, what it decides, what it shows.

Everything here is a value. Times are seconds on one monotonic clock, chosen by whoever drives the
scheduler; amounts of work are tokens; "service" is tokens weighted by a price (policies/accounts/cost.py).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from math import inf
from typing import NamedTuple

from policies.step_time.model import StepTime


@dataclass(frozen=True, slots=True)
class SloEnvelope:
    """Latency targets of a request: token j (0-based) is due at arrival + ttft_s + j * tpot_s.

    `ttft_s_given` is what its tenant was given where the request asks for less. What others have to bear for it is by
    that.
    """

    ttft_s: float | None = None
    tpot_s: float | None = None
    ttft_s_given: float | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class Tier:
    """A class of tenants. Tiers share the pool by weight, whatever number of tenants they have.

    `reserve_ratio` is the part of every backend's capacity that only this tier may enter, so that an
    arrival finds a seat without anybody being preempted.

    `rejects_misses`: a request that cannot meet its envelope is refused; otherwise it waits. `priority` says who is
    shed first, the higher the later (llm-d's polarity, vLLM's is the other); a tier below 0 is sheddable, all others
    are protected. It orders nobody in the queue. What a `preemptible` tier has sent and was not answered yet may
    be taken back for a tier with an envelope.
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


@dataclass(frozen=True, slots=True)
class Tenant:
    """Who is served fairly. A limit that is None does not exist. Budgets per day and month hold over all pools: they
    are kept before the scheduler.
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


@dataclass(slots=True)  # not frozen: that would more than double what making one costs; nobody changes it
class Request:
    """One call that generates tokens, as far as the scheduler needs to know it.

    `choices` is the number of sequences it occupies (n, or the number of prompts times n);
    `prompt_tokens` (an estimate until the backend reports) and `output_tokens_max` count all of them.
    `prefix` are chained hashes of the prompt's leading blocks, `prefix_block_tokens` tokens each:
    equal hashes at one backend share KV blocks. `output_tokens_known` is the true output length
    where there is one (oracle prediction in a simulation). Only `backend_ids` can serve it, where that is
    not None: an adapter that a part of the pool has, an answer that one backend keeps. `program_id` names the
    agent (the application of many calls) that it belongs to.
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


class Usage(NamedTuple):
    """What a request has used so far, in tokens: cumulative, never a difference.

    A tuple because one is made for every chunk that passes: a third of the cost of a frozen dataclass.
    """

    prompt_tokens: int
    cached_tokens: int
    output_tokens: int


class Timing(NamedTuple):
    """How promptly one answer came, of which so many tokens were seen (policies/slo/timeliness.py).

    `ttft_s` is None where the answer came whole, so that nobody saw its first token. Times per output token are the
    largest over the answer's tokens: since the first one came, and since it was due. None: there was no second.
    """

    ttft_s: float | None
    tpot_s: float | None
    tpot_envelope_s: float | None
    tokens: int
    tokens_in_time: int


class ReplicaShare(NamedTuple):
    """What is this replica's part of a limit that so many share: one of them takes what does not come out even."""

    replicas: int = 1
    number: int = 0

    def of(self, limit: int) -> int:
        """Its part, which is never nothing."""
        if self.replicas == 1:
            return limit
        return max(min(1, limit), limit // self.replicas + (self.number < limit % self.replicas))


ALONE = ReplicaShare()


class PeerUse(NamedTuple):
    """What other replicas have at a backend, as they say: requests, and KV tokens that are reserved for them."""

    requests: int = 0
    tokens: int = 0


NO_PEERS = PeerUse()


class RateWindowReport(NamedTuple):
    """What one replica says of one tenant's limits per minute, of requests and of tokens: what it has let in, what it
    means to let in yet, and whether it was asked to lately (policies/admission/shared_limits.py).
    """

    used: tuple[float, float]
    claims: tuple[float, float]
    asks: bool


@dataclass(frozen=True, slots=True)
class BackendLoad:
    """What is known of a backend: its size, and what it was last measured to be doing.

    Several engines behind one URL are one backend of their summed capacity (`engines` of them).
    None means not known: sizes are then learnt or bounded by defaults, measurements ignored.
    `prefixes_shared`: requests with equal prompt blocks hold them once (automatic prefix caching).
    `measured_at` tells a new measurement from one that is told again; None: every one is new.

    An engine step computes at most `step_tokens_max` tokens (vLLM's max_num_batched_tokens), of one prompt at most
    `prompt_step_tokens_max` (long_prefill_token_threshold; None: no less), chosen by the rule
    `batching`, one of vLLM's own ("vllm") or FairBatching ("fair"). `step_time` is what is known of how long it takes.

    `pab_tokens` is the prefill admission budget that the engine reports, reckoned when it had all up to the
    `pab_dispatches`-th that we sent it (Dispatch.number); None there: all that was sent before this was told.

    Of what it can hold a `share` is ours; other replicas have the rest, and `peers` there now.
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
    kv_used_ratio: float | None = None
    preemptions_total: int | None = None
    measured_at: float | None = None
    step_tokens_max: int | None = None
    prompt_step_tokens_max: int | None = None
    batching: str = "vllm"
    step_time: StepTime | None = None
    pab_tokens: float | None = None
    pab_dispatches: int | None = None
    share: ReplicaShare = ALONE
    peers: PeerUse = NO_PEERS


class Outcome(StrEnum):
    """How a dispatched request ended; three kinds of evidence about its backend."""

    COMPLETED = "completed"
    CLIENT_GONE = "client_gone"
    BACKEND_FAILED = "backend_failed"


class Reason(StrEnum):
    """Why a request was refused. gateway/api/errors.py has the one table from Reason to answer."""

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


class LimitKind(StrEnum):
    """Which limit of a tenant refused: of requests or tokens in a minute, of tokens in a day or month."""

    REQUESTS = "requests"
    TOKENS = "tokens"
    DAY = "day"
    MONTH = "month"


@dataclass(slots=True)  # not frozen, as a request
class Dispatch:
    """Send this request to this backend now.

    Up to `quiet_tokens` of output no decision depends on how many have passed: the scheduler may be told of them
    late, as long as it is before anybody reads its books. `cached_tokens` of the prompt are believed to be in the
    backend's prefix cache; until the backend reports, they are charged as such. A request that `may_be_preempted` may
    be asked for back until its client has been sent something. It is the `number`-th that this backend is sent.
    """

    request_id: str
    backend_id: str
    quiet_tokens: float = 0.0
    cached_tokens: int = 0
    may_be_preempted: bool = False
    number: int = 0


@dataclass(frozen=True, slots=True)
class Reject:
    """Answer this request with a refusal; a client that comes back sooner than `retry_after_s` gets another. `limit`
    is the tenant's that refused, None where none did.
    """

    request_id: str
    reason: Reason
    retry_after_s: float
    limit: LimitKind | None = None


@dataclass(frozen=True, slots=True)
class Preempt:
    """Take this dispatched request back from its backend, unless its client has been sent something.

    Answered by the fact `returned` where it was taken back, and by nothing where it was too late. What came back waits
    at its tenant's head, as charged as it was, and goes by the order of the pool.
    """

    request_id: str


Action = Dispatch | Reject | Preempt


@dataclass(frozen=True, slots=True)
class PolicyChoice:
    """A policy by its name in the table of its kind (FAIRNESS, PREDICTION, PLACEMENT), and its parameters."""

    name: str
    parameters: Mapping[str, float | str | bool] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class RateLimit:
    """One limit of a tenant as it stands: `remaining` of `limit` now, all of it again after `reset_s`. Where gateways
    share it, this one may let in `remaining_here` of that before they have met again; None: all that remains.
    """

    limit: int
    remaining: int
    reset_s: float
    remaining_here: int | None = None


@dataclass(frozen=True, slots=True)
class RateLimits:
    """A tenant's limits per minute; None where there is none."""

    requests: RateLimit | None = None
    tokens: RateLimit | None = None


class Wait(StrEnum):
    """Why a request is in the queue. The order is that in which they are looked for."""

    NO_BACKEND = "no_backend"
    """No backend that would do is there."""
    BACKENDS_HELD = "backends_held"
    """Those that would do have just refused something, and are left alone for a moment."""
    TENANT_LIMIT = "tenant_limit"
    """Its tenant has as much in flight as it may."""
    OWN_QUEUE = "own_queue"
    """Older requests of its tenant wait too."""
    NO_ROOM = "no_room"
    """No backend has room for whoever is next, itself or somebody who has received less."""


@dataclass(frozen=True, slots=True)
class Attainment:
    """Of requests with an envelope that have ended, how many kept which of their targets; a target that was not set
    is kept. `tpot_met` is by the time since the first token came, `tpot_envelope_met` since it was due; `met` are those
    that kept their TTFT and the latter: all of their tokens were in time. Refused ones are not among `requests`.
    """

    requests: int = 0
    ttft_met: int = 0
    tpot_met: int = 0
    tpot_envelope_met: int = 0
    met: int = 0
    tokens: int = 0
    tokens_in_time: int = 0
    refused: int = 0


@dataclass(frozen=True, slots=True)
class TenantView:
    """One tenant in a snapshot. Service is charged since start; the key orders the tenants of a tier. The slack is the
    least of its requests with an envelope, queued or running.

    `waiting_spell` numbers the times in which it waits without a break: equal ones, that are not 0, at two instants say
    that it had something waiting all the time between them, which its limits would let it send. 0: it has not.
    """

    queued_requests: int
    queued_bytes: int
    in_flight_requests: int
    in_flight_tokens: int
    service: float
    counter: float
    key: float
    waiting_spell: int = 0
    slack_s_min: float | None = None
    attainment: Attainment = Attainment()


@dataclass(frozen=True, slots=True)
class TierView:
    """One tier in a snapshot: what its tenants have together. `service` is charged since start."""

    queued_requests: int
    in_flight_requests: int
    service: float
    slack_s_min: float | None = None


@dataclass(frozen=True, slots=True)
class RequestView:
    """One request with an envelope in a snapshot; it waits where it has no backend. `slack_s` is the time until its
    next token is due, negative: it is late.
    """

    tenant_id: str
    backend_id: str | None
    output_tokens: int
    slack_s: float


@dataclass(frozen=True, slots=True)
class StepsView:
    """What a backend's limit makes of its step-time model. `step_s` is predicted of a step in which all that runs
    decodes, and may be `step_s_max`: the tightest TPOT target of what runs, or the knee of throughput (None: there is
    none). `prefill_s` is what the prompts that were sent and are not computed yet will take. `budget_tokens` is the
    prefill admission budget, as the engine reports it, or reckoned over a second.
    """

    step_s: float
    step_s_max: float | None
    prefill_s: float
    budget_tokens: float


@dataclass(frozen=True, slots=True)
class ReserveView:
    """What of a backend is held for one tier: the operator's `reserve_ratio`, or what was learnt where that is more."""

    sequences: int
    tokens: int


@dataclass(frozen=True, slots=True)
class BackendView:
    """One backend in a snapshot: what it holds of ours and of others, against its limits. `step_time` is what is
    believed of its steps, sure or not; `steps` None: nothing is limited by that; `sequences_max` is how many sequences
    its limit allows beside its seats (None: it does not go by a number). It `is_sized` where its seats or its memory
    are known; else `requests_limit` is assumed, or learnt from its answers.
    """

    available: bool
    in_flight_requests: int
    requests_limit: int
    reserved_tokens: int
    tokens_limit: int | None
    foreign_requests: int
    foreign_tokens: int
    step_time: StepTime | None = None
    steps: StepsView | None = None
    sequences_max: float | None = None
    is_sized: bool = True
    reserves: Mapping[str, ReserveView] = field(default_factory=dict)  # by tier


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The scheduler's state for people and metrics; never an input to a decision. `attainment` is by tier.

    `service_in_flight_max` is the price of as many output tokens as may be in flight at once (fairness.md calls it U),
    infinite where the size of a backend is not known.
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
