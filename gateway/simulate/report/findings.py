"""The findings of a run: figures for a table and for JSON, series for plots. Values only."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

NO_GROUP: Final = "(no group)"
Points = tuple[tuple[float, float], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TenantFindings:
    """One tenant. Times to first token in seconds; rates per second of the whole run."""

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
    """One group, or all tenants without one: sums over its `tenants`, and its share of all service, from 0 to 1. Their
    `weight` is None where there is no group.
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
    """The figures of a run. None where there is nothing to say: no two tenants waited, no bound is known.

    `throughput_tokens_per_s` counts prompt and output tokens of what was served, as the VTC paper does. Service
    differences are in service units (`bound_used_ratio`: the largest over its bound), `owed_service_per_s` is per
    second (gateway/simulate/report/tally.py).
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
    """Series of (seconds, value), one point per bin of `bin_s`; distributions of (seconds, part)."""

    bin_s: float
    service: Mapping[str, Points]
    difference: Points
    ttft: Mapping[str, Points]
    running: Points
    queued: Points
    kv_ratio: Points


@dataclass(frozen=True, slots=True)
class Findings:
    """One policy's run. Tenants in order of what they asked for, the loudest first; there is at least one."""

    policy: str
    figures: Figures
    tenants: Mapping[str, TenantFindings]
    curves: Curves
    loudest: str
    quietest: str
    groups: Mapping[str, GroupFindings] = field(default_factory=dict)
    """By id, those that got most first; NO_GROUP: tenants without one. Empty where no tenant has a group."""


@dataclass(frozen=True, slots=True)
class Setting:
    """What all runs of a comparison had in common, as it is said to the reader."""

    facts: Mapping[str, str]
