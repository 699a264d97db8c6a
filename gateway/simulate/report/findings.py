"""The findings of a run: figures for a table and for JSON, series for plots. Values only."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from gateway.simulate.session_findings import SessionFindings

NO_GROUP: Final = "(no group)"
Points = tuple[tuple[float, float], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TenantFindings:
    """The results of one tenant in a simulated run. Times are in seconds, service in service units."""

    requests: int
    served: int
    refused: Mapping[str, int]
    weight: float
    asked_service: float
    service: float
    ttft_p50_s: float | None
    ttft_p99_s: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupFindings:
    """The results of one group, or of all tenants without one (`weight` None): sums over its `tenants`, and its share
    of all service, from 0 to 1.
    """

    tenants: int
    weight: float | None
    requests: int
    served: int
    asked_service: float
    service: float
    share: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """The figures of a simulated run. None: the figure does not exist, because no two tenants waited or no bound is
    known.

    `throughput_tokens_per_s` counts prompt and output tokens of served requests, as the VTC paper does.
    `difference_max` is the largest difference in service between two tenants that both waited, in service units.
    `difference_bound` is the policy's bound on it, and `bound_used_ratio` is the first over the second.
    `owed_service_per_s` is the unserved demand per second (gateway/simulate/report/tally.py).
    """

    duration_s: float
    requests: int
    served: int
    refused: Mapping[str, int]
    throughput_tokens_per_s: float
    output_tokens_per_s: float
    jain: float | None
    jain_windows: int
    difference_max: float
    difference_bound: float | None
    bound_used_ratio: float | None
    owed_service_per_s: float
    ttft_p50_s: float | None
    ttft_p99_s: float | None
    tpot_s: float | None
    preemptions: int
    hit_ratio: float | None


@dataclass(frozen=True, slots=True)
class Curves:
    """The curves of a simulated run. Series are (seconds, value), one point per bin of `bin_s` seconds. Distributions
    (`ttft`) are (seconds, part): the part of latencies up to that number of seconds.
    """

    bin_s: float
    service: Mapping[str, Points]
    difference: Points
    ttft: Mapping[str, Points]
    running: Points
    queued: Points
    kv_ratio: Points


@dataclass(frozen=True, slots=True)
class Findings:
    """The results of one policy's simulated run. Tenants are in order of the service that they asked for, the largest
    demand (`loudest`) first; there is at least one.
    """

    policy: str
    figures: Figures
    tenants: Mapping[str, TenantFindings]
    curves: Curves
    loudest: str
    quietest: str
    groups: Mapping[str, GroupFindings] = field(default_factory=dict)
    """The groups by id, the one with the most service first; NO_GROUP: tenants without a group. Empty where no tenant
    has a group.
    """
    sessions: SessionFindings | None = None
    """None: no call was of a session."""
    engine_tpot_s: Mapping[str, float] = field(default_factory=dict)
    """The seconds per output token after the first, by engine."""


@dataclass(frozen=True, slots=True)
class Setting:
    """The facts that all runs of a comparison have in common, as text for the report."""

    facts: Mapping[str, str]
