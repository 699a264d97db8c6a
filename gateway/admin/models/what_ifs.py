"""Models of requests for what-ifs in the admin API; the models of answers are in steering/what_if/messages.py."""

from typing import Annotated

from pydantic import BeforeValidator, Field

from gateway.admin.models.resources import Fields, ModelName
from gateway.config.aliases import TARGETS_MAX, SplitWeight
from gateway.config.value_types import POLICY_PATTERN, Count, Name, TenantName, Weight, not_bool, whole
from gateway.steering.what_if.changes import ENGINES_MAX

MINUTES_MAX = 60
WEIGHTS_MAX = 1000


class ChangedLimits(Fields):
    """New limits of a tenant or group in a what-if (see WhatIfAsked). Null: no limit. A limit that is absent stays."""

    in_flight_max: Count | None = None
    requests_per_minute_max: Count | None = None
    tokens_per_minute_max: Count | None = None


class ChangedGroup(ChangedLimits):
    """New settings of a group in a what-if (see WhatIfAsked); null resets one to its default."""

    tier: Name | None = None
    weight: Weight | None = None


class ChangedTenant(ChangedGroup):
    """New settings of a tenant in a what-if (see WhatIfAsked); null resets one to its default."""

    group: Name | None = None


class ChangedTier(Fields):
    """New settings of a tier in a what-if (see WhatIfAsked); null resets one to its default."""

    weight: Weight | None = None
    reserve_ratio: Annotated[float, Field(ge=0, lt=1), BeforeValidator(not_bool)] | None = None


class ChangedAlias(Fields):
    """New weights of an alias in a what-if (see WhatIfAsked). By these weights, one for each model (`split`), the alias
    divides its calls among its models.
    """

    split: Annotated[dict[ModelName, SplitWeight], Field(min_length=1, max_length=TARGETS_MAX)]


class WhatIfChanges(Fields):
    """The changed settings that a what-if simulates (see WhatIfAsked). `engines` is the number of engines to add, each
    as fast as the median one; below 0: to remove. The other fields have the new settings of tenants, groups, tiers and
    aliases, by their ids. A changed `split` of an alias moves recorded calls, with unchanged sizes, to the pool of
    another model.
    """

    engines: Annotated[int, Field(ge=-ENGINES_MAX, le=ENGINES_MAX), BeforeValidator(whole)] = 0
    tenants: Annotated[dict[TenantName, ChangedTenant], Field(max_length=WEIGHTS_MAX, default_factory=dict)]
    groups: Annotated[dict[Name, ChangedGroup], Field(max_length=WEIGHTS_MAX, default_factory=dict)]
    tiers: Annotated[dict[Name, ChangedTier], Field(max_length=WEIGHTS_MAX, default_factory=dict)]
    aliases: Annotated[dict[ModelName, ChangedAlias], Field(max_length=WEIGHTS_MAX, default_factory=dict)]


class SessionsAsked(Fields):
    """The changes that a what-if makes for sessions of agents. Each call of a session is a turn, and sends the
    session's whole context again. Each engine's KV pool is made `kv_scale` times as large. `held`: whether a turn waits
    while its context does not fit into the KV pool (null: as configured). `room_ratio`: the part of the KV pool that
    contexts may take, from 0 to 1 (null: it is learnt).
    """

    kv_scale: Annotated[float, Field(ge=0.1, le=10.0), BeforeValidator(not_bool)] = 1.0
    held: bool | None = None
    room_ratio: Annotated[float, Field(ge=0.01, le=1.0), BeforeValidator(not_bool)] | None = None


class WhatIfAsked(Fields):
    """A request for a what-if: a simulation of the calls of the last `minutes`, with other settings. These are the
    fairness `policy`, the `weights` of tenants, `sessions` and `changes`. `policy` is NAME or NAME:PARAMETER=VALUE,...,
    as `fairlead simulate run` takes it. `pool` null: the pool with most calls.
    """

    policy: Annotated[str, Field(pattern=POLICY_PATTERN)] | None = None
    sessions: Annotated[SessionsAsked, Field(default_factory=SessionsAsked)]
    weights: Annotated[dict[TenantName, Weight], Field(max_length=WEIGHTS_MAX, default_factory=dict)]
    minutes: Annotated[int, Field(ge=1, le=MINUTES_MAX), BeforeValidator(whole)] = MINUTES_MAX
    pool: ModelName | None = None
    changes: Annotated[WhatIfChanges, Field(default_factory=WhatIfChanges)]
