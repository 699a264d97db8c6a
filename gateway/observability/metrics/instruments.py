"""Instruments: the names, help texts and labels of all metrics. docs/reference/metrics.md lists names and labels (made
by `make reference`).

There are two kinds. Histograms are by model and tier; their series are looked up once and kept (call_counts.py,
histograms.py). A Family is for metrics that may have a thousand series, mainly by tenant: its numbers are kept where
they arise (call_counts.py, scheduler_metrics.py) and become samples in slices on a scrape. Its series exist as long as
their subjects. Tenants have counters and gauges only, because a histogram for each would take a megabyte in all.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from gateway.observability.metrics.histograms import HistogramFamily, Labels
from gateway.observability.tracing import genai
from policies.types import SESSION_WAIT_BOUNDS_S, Attainment

WAIT_BUCKETS_S: Final = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0)
LAG_BUCKETS_S: Final = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0)

POOL: Final = ("pool",)
POOL_TENANT: Final = ("pool", "tenant")
POOL_TIER: Final = ("pool", "tier")
POOL_BACKEND: Final = ("pool", "backend")
POOL_BACKEND_TIER: Final = ("pool", "backend", "tier")
MODEL: Final = ("gen_ai_operation_name", "gen_ai_request_model", "tier")

Values = dict[Labels, float]


@dataclass(frozen=True, slots=True, eq=False)  # compared by identity, so a look-up hashes no text
class Family:
    """A metric whose values are read on a scrape: a counter if its name ends in `_total`, otherwise a gauge."""

    name: str
    help: str
    labels: Labels = ()

    def metric(self, values: Iterable[tuple[Labels, float]]) -> Metric:
        """The metric with these values, by label values."""
        make = CounterMetricFamily if self.name.endswith("_total") else GaugeMetricFamily
        metric = make(self.name, self.help, labels=self.labels)
        for labels, value in values:
            metric.add_metric(labels, value)
        return metric


class SloFamilies(NamedTuple):
    """The counter metrics of SLO attainment, over requests with an SLO envelope (latency targets)."""

    requests: Family
    kept: Family
    tokens: Family
    tokens_in_time: Family
    refused: Family

    def rows(self, labels: Labels, attained: Attainment) -> Iterator[tuple[Family, Labels, int]]:
        """Yield the counts of `attained` as samples, with `labels`."""
        yield self.requests, labels, attained.requests
        yield self.kept, (*labels, "ttft"), attained.ttft_met
        yield self.kept, (*labels, "tpot"), attained.tpot_met
        yield self.kept, (*labels, "tpot_envelope"), attained.tpot_envelope_met
        yield self.kept, (*labels, "all"), attained.met
        yield self.tokens, labels, attained.tokens
        yield self.tokens_in_time, labels, attained.tokens_in_time
        yield self.refused, labels, attained.refused


def _slo(of: str) -> SloFamilies:
    labels = ("pool", of)
    return SloFamilies(
        Family(f"fairlead_{of}_slo_requests_total", "Requests with an envelope that were sent and ended.", labels),
        Family(
            f"fairlead_{of}_slo_requests_kept_total", "Those that kept this target; an unset one is kept.",
            (*labels, "target"),
        ),
        Family(f"fairlead_{of}_slo_tokens_total", "Output tokens sent to their clients.", labels),
        Family(f"fairlead_{of}_slo_tokens_in_time_total", "Those tokens that came in time.", labels),
        Family(f"fairlead_{of}_slo_refused_total", "Refused requests with an envelope.", labels),
    )  # fmt: skip


TENANT_REQUESTS: Final = Family(
    "fairlead_tenant_requests_total", "Calls that ended, by outcome.", ("tenant", "outcome")
)
TENANT_REFUSALS: Final = Family("fairlead_tenant_refusals_total", "Refused calls, by reason.", ("tenant", "reason"))
TENANT_TOKENS: Final = Family(
    "fairlead_tenant_tokens_total", "Tokens of calls that ended; cached_input is part of input.", ("tenant", "type")
)
TENANT_COST: Final = Family(
    "fairlead_tenant_cost_total", "Cost of calls that ended, at the prices of that time.", ("tenant", "currency")
)
TENANT_UNPRICED: Final = Family(
    "fairlead_tenant_unpriced_tokens_total", "Tokens of models without a price, while price lists exist.", ("tenant",)
)
TENANT_BUDGET: Final = Family(
    "fairlead_tenant_budget_used_ratio",
    "Used part of the budget of this day or month; of other the highest, if at a threshold.",
    ("tenant", "unit", "period"),
)
GROUP_BUDGET: Final = Family(
    "fairlead_group_budget_used_ratio", "Used part of the budget of this day or month.", ("group", "unit", "period")
)
ALIAS_CALLS: Final = Family(
    "fairlead_alias_calls_total",
    "Calls of aliases that ended, by serving model; kind shadow: copies with dropped answers.",
    ("alias", "model", "kind", "outcome"),
)
ALIAS_PASSED_ON: Final = Family(
    "fairlead_alias_passed_on_total",
    "Calls of aliases that went on from this model, by reason.",
    ("alias", "model", "reason"),
)
BACKEND_OVERSTATED: Final = Family(
    "fairlead_backend_usage_overstated_total",
    "Calls whose reported tokens exceed what they can use; that maximum is charged.",
    ("backend",),
)
NOT_CONTINUED: Final = Family(
    "fairlead_streams_not_continued_total",
    "Streams that ended because no backend served the same model, by what differed.",
    ("difference",),
)
TENANT_WAITED: Final = Family("fairlead_tenant_queue_wait_seconds_total", "Time of calls in the queue.", ("tenant",))
TENANT_SERVICE: Final = Family(
    "fairlead_tenant_service_total", "Charged service, as tokens pass; refunds are not subtracted.", POOL_TENANT
)
TENANT_QUEUED: Final = Family("fairlead_tenant_queued_requests", "Waiting requests.", POOL_TENANT)
TENANT_IN_FLIGHT: Final = Family("fairlead_tenant_in_flight_requests", "Requests at backends.", POOL_TENANT)
TENANT_IN_FLIGHT_TOKENS: Final = Family(
    "fairlead_tenant_in_flight_tokens", "KV tokens reserved for requests at backends.", POOL_TENANT
)
POOL_SERVICE: Final = Family("fairlead_pool_service_total", "Service charged to all tenants.", POOL)
POOL_QUEUED: Final = Family("fairlead_pool_queued_requests", "Waiting requests.", POOL)
POOL_QUEUED_BYTES: Final = Family("fairlead_pool_queued_bytes", "Bytes of waiting bodies.", POOL)
POOL_IN_FLIGHT: Final = Family("fairlead_pool_in_flight_requests", "Requests at backends.", POOL)
POOL_INTERRUPTIONS: Final = Family(
    "fairlead_pool_interruptions_total", "Answers cut after some tokens, to be continued, by cause.", (*POOL, "cause")
)
POOL_SENT_AGAIN: Final = Family(
    "fairlead_pool_continued_tokens_total",
    "Prompt and output tokens sent to continue them; a prefix cache may save their computation.",
    POOL,
)
SESSIONS: Final = Family(
    "fairlead_pool_sessions", "Known sessions of agents: running, idle, held or paused.", (*POOL, "state")
)
SESSIONS_HELD: Final = Family("fairlead_pool_holds_sessions", "1: turns wait where their contexts have no room.", POOL)
SESSION_DEMAND: Final = Family(
    "fairlead_pool_demand_tokens", "Tokens of working sets and of the contexts of held turns.", POOL
)
SESSION_PAUSES: Final = Family("fairlead_pool_session_pauses_total", "Idle sessions that made room for others.", POOL)
EXPECTED_CACHED: Final = Family(
    "fairlead_pool_expected_cached_tokens_total", "Prompt tokens of later turns that their backends had computed.", POOL
)
RECOMPUTED: Final = Family(
    "fairlead_pool_recomputed_prompt_tokens_total", "Those that were computed again, as far as backends report.", POOL
)
WORKING_SET: Final = Family(
    "fairlead_backend_working_set_tokens", "Contexts of sessions that it is to keep.", POOL_BACKEND
)
WORKING_SET_LIMIT: Final = Family(
    "fairlead_backend_working_set_limit_tokens",
    "Their limit, learnt; absent while the KV pool's size is unknown.",
    POOL_BACKEND,
)
POOL_TENANTS_WAITING: Final = Family(
    "fairlead_pool_tenants_waiting", "Tenants with a queued request that their limits permit.", POOL
)
POOL_GAP: Final = Family(
    "fairlead_pool_service_gap",
    "Largest difference of service over weight between tenants that waited throughout, for 1 to 300 s.",
    POOL_TIER,
)
POOL_GAP_BOUND: Final = Family(
    "fairlead_pool_service_gap_bound",
    "The policy's bound for that difference, by the size of the backends; absent without one.",
    POOL_TIER,
)
POOL_JAIN: Final = Family(
    "fairlead_pool_jain_index", "Evenness of the service of these tenants: 1 is equal, 1/n is one has all.", POOL_TIER
)
BACKEND_UP: Final = Family("fairlead_backend_available", "1: it gets requests.", POOL_BACKEND)
BACKEND_IN_FLIGHT: Final = Family(
    "fairlead_backend_in_flight_requests", "Requests of this gateway there.", POOL_BACKEND
)
BACKEND_FOREIGN: Final = Family("fairlead_backend_foreign_requests", "Requests of others there.", POOL_BACKEND)
BACKEND_LIMIT: Final = Family("fairlead_backend_limit_requests", "Sequences that it can run.", POOL_BACKEND)
BACKEND_SIZED: Final = Family(
    "fairlead_backend_size_known",
    "1: that number is given or learnt (source); 0: it is assumed.",
    (*POOL_BACKEND, "source"),
)
BACKEND_LIMIT_SEQUENCES: Final = Family(
    "fairlead_backend_limit_sequences", "Sequences that its limit allows; absent where it is no number.", POOL_BACKEND
)
BACKEND_LIMIT_BINDS: Final = Family("fairlead_backend_limit_binds", "1: requests wait for that limit.", POOL_BACKEND)
BACKEND_RESERVED: Final = Family(
    "fairlead_backend_reserved_tokens", "KV tokens reserved by this gateway.", POOL_BACKEND
)
BACKEND_RESERVE: Final = Family(
    "fairlead_backend_reserve_sequences", "Sequences kept for a tier, configured or learnt.", POOL_BACKEND_TIER
)
BACKEND_RESERVE_TOKENS: Final = Family(
    "fairlead_backend_reserve_tokens", "KV tokens kept for a tier, configured or learnt.", POOL_BACKEND_TIER
)
BACKEND_FOREIGN_TOKENS: Final = Family("fairlead_backend_foreign_tokens", "KV tokens of others.", POOL_BACKEND)
BACKEND_LIMIT_TOKENS: Final = Family(
    "fairlead_backend_limit_tokens", "KV tokens that may be reserved; absent while the size is unknown.", POOL_BACKEND
)
BACKEND_STEP: Final = Family(
    "fairlead_backend_step_seconds", "Predicted step in which all running requests decode.", POOL_BACKEND
)
BACKEND_LIMIT_STEP: Final = Family(
    "fairlead_backend_limit_step_seconds",
    "Longest permitted step: the tightest TPOT target there, or the knee.",
    POOL_BACKEND,
)
BACKEND_PREFILL: Final = Family(
    "fairlead_backend_prefill_seconds", "Predicted time for prompts that were sent and are not computed.", POOL_BACKEND
)
BACKEND_BUDGET: Final = Family(
    "fairlead_backend_prefill_budget_tokens",
    "Prompt tokens that it can take on in time, reported or calculated over a second.",
    POOL_BACKEND,
)
BACKEND_COEFFICIENT: Final = Family(
    "fairlead_backend_step_time_coefficient_seconds",
    "Of the step-time model: a step, a new token, a context token, a request.",
    (*POOL_BACKEND, "coefficient"),
)
BACKEND_STEP_ERROR: Final = Family(
    "fairlead_backend_step_time_error_ratio", "Median relative error of recent predictions.", POOL_BACKEND
)
BACKEND_STEP_SURE: Final = Family(
    "fairlead_backend_step_time_sure", "1: the model is sure enough for limits and envelopes.", POOL_BACKEND
)
TENANT_SLO: Final = _slo("tenant")
TIER_SLO: Final = _slo("tier")
TENANTS: Final = Family("fairlead_tenants", "Tenants known to the schedulers.")
TENANT_SERIES: Final = Family("fairlead_tenant_series", "Tenants with series of their own.")
REPLICAS: Final = Family("fairlead_replicas", "Gateways in the shared order, this one included.")
CUT_OFF: Final = Family(
    "fairlead_replicas_cut_off", "1: this gateway has neither leader nor Redis, and keeps to its part of limits."
)
CLUSTER_LEADS: Final = Family("fairlead_cluster_leader", "1: this gateway leads.")
CLUSTER_EPOCH: Final = Family("fairlead_cluster_epoch", "Number of the present leadership.")
CLUSTER_ELECTIONS: Final = Family("fairlead_cluster_elections_total", "How often this gateway began to lead.")
CLUSTER_FACTS: Final = Family("fairlead_cluster_facts_total", "Facts that members told this leader.")
CLUSTER_ROUND_TRIP: Final = Family(
    "fairlead_cluster_round_trip_seconds", "Last ping to the leader; absent at the leader."
)
CLIENTS_CUT: Final = Family(
    "fairlead_clients_cut_total", "Connections cut because clients read nothing, by reason.",
    ("reason",)
)  # fmt: skip
RELOAD_FAILED: Final = Family(
    "fairlead_config_reload_failed", "1: the changed configuration file is invalid; the last valid one is used."
)
SPANS_LOST: Final = Family("fairlead_trace_spans_lost_total", "Spans that no collector took.")
NOTICES: Final = Family(
    "fairlead_notices_total", "Notices of budgets: delivered, given up, and failed attempts.", ("outcome",)
)
LINES_LOST: Final = Family("fairlead_log_lines_lost_total", "Lines that could not be written, by log.", ("log",))

FAMILIES: Final = tuple(each for each in list(globals().values()) if isinstance(each, Family)) + TENANT_SLO + TIER_SLO
"""All families that are defined above."""


class Histograms:
    """All metrics that are histograms: of calls, observed at their end, and of the event loop's lag."""

    def __init__(self) -> None:
        self.wait = HistogramFamily(
            "fairlead_queue_wait_seconds", "Time in the queue, by how it ended.", ("tier", "outcome"),
            bounds=WAIT_BUCKETS_S,
        )  # fmt: skip
        self.pause = HistogramFamily(
            "fairlead_interruption_pause_seconds",
            "Pause of a continued stream until its next bytes, by cause.", ("tier", "cause"),
            bounds=WAIT_BUCKETS_S,
        )  # fmt: skip
        self.session_wait = HistogramFamily(
            "fairlead_session_wait_seconds", "Wait of turns for room for their sessions.", POOL,
            bounds=SESSION_WAIT_BOUNDS_S,
        )  # fmt: skip
        self.duration = HistogramFamily(
            genai.SERVER_REQUEST_DURATION, "From arrival to end, with the wait.",
            (*MODEL, "error_type"), bounds=genai.DURATION_BUCKETS_S,
        )  # fmt: skip
        self.first_token = HistogramFamily(
            genai.SERVER_TIME_TO_FIRST_TOKEN, "From the arrival of a streamed call to its first token, with the wait.",
            MODEL, bounds=genai.FIRST_TOKEN_BUCKETS_S,
        )  # fmt: skip
        self.per_token = HistogramFamily(
            genai.SERVER_TIME_PER_OUTPUT_TOKEN, "Per token after the first, of streamed calls.", MODEL,
            bounds=genai.PER_TOKEN_BUCKETS_S,
        )  # fmt: skip
        self.loop_lag = HistogramFamily(
            "fairlead_event_loop_lag_seconds", "Lateness of the event loop.", bounds=LAG_BUCKETS_S
        )

    def families(self) -> tuple[HistogramFamily, ...]:
        return self.wait, self.pause, self.session_wait, self.duration, self.first_token, self.per_token, self.loop_lag
