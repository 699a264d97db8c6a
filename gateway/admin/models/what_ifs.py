"""Models of what-ifs in the admin API."""

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, JsonValue

from gateway.admin.models.resources import Fields, ModelName
from gateway.config.aliases import TARGETS_MAX, SplitWeight
from gateway.config.value_types import POLICY_PATTERN, Count, Name, TenantName, Weight, not_bool, whole
from gateway.steering.what_if.changes import ENGINES_MAX

MINUTES_MAX = 60
WEIGHTS_MAX = 1000


class ChangedLimits(Fields):
    """New limits of a tenant or group; null: no limit. A limit that is not named stays."""

    in_flight_max: Count | None = None
    requests_per_minute_max: Count | None = None
    tokens_per_minute_max: Count | None = None


class ChangedGroup(ChangedLimits):
    """New settings of a group; null resets one to its default."""

    tier: Name | None = None
    weight: Weight | None = None


class ChangedTenant(ChangedGroup):
    """New settings of a tenant; null resets one to its default."""

    group: Name | None = None


class ChangedTier(Fields):
    """New settings of a tier; null resets one to its default."""

    weight: Weight | None = None
    reserve_ratio: Annotated[float, Field(ge=0, lt=1), BeforeValidator(not_bool)] | None = None


class ChangedAlias(Fields):
    """The new split of an alias, by model."""

    split: Annotated[dict[ModelName, SplitWeight], Field(min_length=1, max_length=TARGETS_MAX)]


class WhatIfChanges(Fields):
    """The changes that a what-if simulates. `engines`: so many more engines of the median pace, or fewer (below 0). The
    other fields are settings that differ, by id. An alias's recorded calls move to the pool of another of its models,
    as large as they were.
    """

    engines: Annotated[int, Field(ge=-ENGINES_MAX, le=ENGINES_MAX), BeforeValidator(whole)] = 0
    tenants: Annotated[dict[TenantName, ChangedTenant], Field(max_length=WEIGHTS_MAX, default_factory=dict)]
    groups: Annotated[dict[Name, ChangedGroup], Field(max_length=WEIGHTS_MAX, default_factory=dict)]
    tiers: Annotated[dict[Name, ChangedTier], Field(max_length=WEIGHTS_MAX, default_factory=dict)]
    aliases: Annotated[dict[ModelName, ChangedAlias], Field(max_length=WEIGHTS_MAX, default_factory=dict)]


class SessionsAsked(Fields):
    """The changes of a what-if for sessions of agents. Each engine's KV pool is `kv_scale` times as large; their turns
    are `held` where contexts do not fit, or not (null: as configured); contexts have this part of the pool,
    `room_ratio` (null: as learnt).
    """

    kv_scale: Annotated[float, Field(ge=0.1, le=10.0), BeforeValidator(not_bool)] = 1.0
    held: bool | None = None
    room_ratio: Annotated[float, Field(ge=0.01, le=1.0), BeforeValidator(not_bool)] | None = None


class WhatIfAsked(Fields):
    """The settings of a what-if that differ from the recorded ones: the fairness `policy`, tenants' weights, `changes`.
    `policy` is NAME or NAME:PARAMETER=VALUE,..., as `fairlead simulate run` takes it. `pool` null: the pool with most
    calls.
    """

    policy: Annotated[str, Field(pattern=POLICY_PATTERN)] | None = None
    sessions: Annotated[SessionsAsked, Field(default_factory=SessionsAsked)]
    weights: Annotated[dict[TenantName, Weight], Field(max_length=WEIGHTS_MAX, default_factory=dict)]
    minutes: Annotated[int, Field(ge=1, le=MINUTES_MAX), BeforeValidator(whole)] = MINUTES_MAX
    pool: ModelName | None = None
    changes: Annotated[WhatIfChanges, Field(default_factory=WhatIfChanges)]


class FoundTenant(Fields):
    """The figures of one tenant in a run. Null: only a simulation knows it."""

    requests: int
    served: int
    refused: dict[str, int]
    weight: float
    service: float
    asked_service: float | None = None
    ttft_p50_s: float | None
    ttft_p99_s: float | None


class FoundSessions(Fields):
    """The sessions of agents in a simulation. A turn waits from its arrival to its dispatch, a session takes from its
    first arrival to its last end. `held_turns` waited for room, `held_mean_s` in the mean; `yields` of the `pauses` are
    those of sessions that had had their quantum. At most `held_max` were held and `paused_max` paused at once. `etas`:
    the part of its KV pool that each engine's contexts could have at the end.
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
    etas: dict[str, float]


class FoundFigures(Fields):
    """The figures of a run as a whole, and its loudest tenants (200). `jain` compares tenants that waited;
    `difference_max` is the largest difference of service over weight between two of them; `tpot_s` is the time per
    output token after the first, the mean of all tokens. Null: not known, or only a simulation knows it.
    """

    policy: str
    duration_s: float
    requests: int
    served: int
    refused: dict[str, int]
    throughput_tokens_per_s: float
    output_tokens_per_s: float
    jain: float | None = None
    difference_max: float | None = None
    difference_bound: float | None = None
    owed_service_per_s: float | None = None
    ttft_p50_s: float | None
    ttft_p99_s: float | None
    tpot_s: float | None
    preemptions: int | None = None
    hit_ratio: float | None = None
    sessions: FoundSessions | None = None
    tenants: dict[str, FoundTenant]


class Trust(Fields):
    """The trust in a what-if: how far `replayed` is from `happened`.

    They differ by this `factor` in the worst `figure`, tokens written per second or the median time to first token of
    the `tenant`; times below 0.1 s count as alike. Above `factor_max` the simulation is no judge of what would have
    been; nor is it with fewer than 20 calls of every tenant (`too_few_calls`).
    """

    is_trusted: bool
    factor: float
    factor_max: float
    figure: Literal["output_tokens_per_s", "ttft_p50_s", "too_few_calls"]
    tenant: str | None


class WhatIfResource(Fields):
    """A what-if and its results.

    `happened` was measured. `replayed` is a simulation of the same calls with the present settings: its difference from
    `happened` is the error of the simulation. `instead` is the simulation with the asked settings. `setting` says what
    was simulated. `closed_loop_calls` came because an earlier call of their client had ended, and come in both
    simulations as much later than its simulated end; all others come when they came. Without a limit every call is
    served in the end, so that what a tenant gets in all is what its calls ask for: compare waits, and see the preview
    for shares. `changes` are as they were asked for.
    `stopped`: by a DELETE, or because it was not read for a minute.
    """

    id: str
    pool: str
    sessions: SessionsAsked
    policy: str | None
    weights: dict[str, float]
    changes: dict[str, JsonValue]
    minutes: int
    state: Literal["running", "done", "failed", "stopped"]
    progress: float
    setting: dict[str, str]
    closed_loop_calls: int | None
    happened: FoundFigures | None
    replayed: FoundFigures | None
    instead: FoundFigures | None
    trust: Trust | None
    error: str | None
