"""The findings of a run: figures for a table and for JSON, series for plots. Values only."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

NO_GROUP: Final = "(no group)"
Points = tuple[tuple[float, float], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TenantFindings:
    """The findings of one tenant. Times to first token are in seconds, rates are per second of the whole run."""

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
    """The findings of one group, or of all tenants without one: sums over its `tenants`, and its share of all service.
    The share is from 0 to 1. `weight` is None where there is no group.
    """

    tenants: int
    weight: float | None
    requests: int
    served: int
    asked_service: float
    service: float
    share: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionFindings:
    """The findings of all sessions together. A turn waits from its arrival to its dispatch, a session takes from its
    first arrival to its last end. `held_turns` waited for room, `held_mean_s` in the mean; `yields` of the `pauses` are
    those of sessions that had had their quantum. `held_max` and `paused_max` are the most sessions that were held and
    paused at once. `etas`: the part of its KV pool that each engine's sessions could have at the end.
    """

    sessions: int
    turns: int
    turn_wait_p50_s: float | None
    turn_wait_p99_s: float | None
    turn_wait_max_s: float
    session_p50_s: float | None
    session_p90_s: float | None
    held_turns: int
    held_mean_s: float | None
    held_max: int
    paused_max: int
    pauses: int
    yields: int
    etas: Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """The figures of a run. None where a figure does not exist: no two tenants waited, no bound is known.

    `throughput_tokens_per_s` counts prompt and output tokens of served requests, as the VTC paper does. Service
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
    """The curves of a run: series of (seconds, value), one per bin of `bin_s`; distributions of (seconds, part)."""

    bin_s: float
    service: Mapping[str, Points]
    difference: Points
    ttft: Mapping[str, Points]
    running: Points
    queued: Points
    kv_ratio: Points


@dataclass(frozen=True, slots=True)
class Findings:
    """The findings of one policy's run. Tenants are in order of asked service, the loudest first; there is at least
    one.
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
    """The setting of a comparison, which all of its runs have in common, in words for the reader."""

    facts: Mapping[str, str]
