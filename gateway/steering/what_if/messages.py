"""What-if messages: the request from the gateway to the process that simulates a what-if, and that process's findings.

This module loads no simulation, so that the gateway can import it. The admin API returns the findings unchanged.
"""

from typing import Any, Final, Literal

import msgspec

from gateway.simulate.session_findings import SessionFindings


class SessionsChanged(msgspec.Struct, kw_only=True, frozen=True):
    """The changes that a what-if (see WhatIf) makes for sessions of agents. Each engine's KV pool is made `kv_scale`
    times as large. `held`: whether turns (calls of a session) wait while their contexts do not fit; None: as
    configured. `room_ratio`: the part of the KV pool that contexts may take, from 0 to 1; None: it is learnt.
    """

    kv_scale: float = 1.0
    held: bool | None = None
    room_ratio: float | None = None


SESSIONS_AS_THEY_ARE: Final = SessionsChanged()


class EngineSpec(msgspec.Struct, kw_only=True):
    """The specification of the engines that are simulated in place of the pool's backends. An engine step takes
    `base_s` seconds, plus `token_s` for each new token, `context_token_s` for each token of context that is read, and
    `request_s` for each request; `base_s` None: all four are those of the default engine. `paces` multiplies the step
    times of each engine; empty: all are equal. `names` has the backend that each engine stands for; empty: not known.
    """

    engines: int
    requests_running_max: int
    kv_tokens_max: int | None
    base_s: float | None = None
    token_s: float = 0.0
    context_token_s: float = 0.0
    request_s: float = 0.0
    paces: list[float] = []
    names: list[str] = []


class InsteadSpec(msgspec.Struct, kw_only=True):
    """The specification of a what-if's second simulation (see WhatIfSpec), which has the settings to be tried: the
    paths of its files, and its number of additional engines. `trace` None: it has the same calls as the first
    simulation.
    """

    trace: str | None
    config: str
    engines: int


class WhatIfSpec(msgspec.Struct, kw_only=True):
    """The specification of a what-if (a simulation of recorded calls with other settings), for the process that runs
    it. The first simulation has the present settings: the files `trace` (the calls) and `config`, the pool and its
    engines. The second one has the changes `policy` (None: no other policy), `weights` and `sessions`, and those of
    `instead` (other files, more engines; None: no such change).
    """

    trace: str
    config: str
    pool: str
    sessions: SessionsChanged = SESSIONS_AS_THEY_ARE
    engine: EngineSpec
    policy: str | None
    weights: dict[str, float]
    instead: InsteadSpec | None = None


class FoundCalls(msgspec.Struct, kw_only=True):
    """The numbers of calls in a run (`refused` by reason), and the median and 99th percentile of their times to first
    token.
    """

    requests: int
    served: int
    refused: dict[str, int]
    ttft_p50_s: float | None
    ttft_p99_s: float | None


class FoundTenant(FoundCalls, kw_only=True):
    """The figures of one tenant's calls in one side of a what-if: what was measured, or one simulation. `service` is
    what the tenant received, in the units of the pool's price; `asked_service` is what all its calls asked for (null
    where the side was measured, because only a simulation knows it).
    """

    weight: float
    service: float
    asked_service: float | None = None


class FoundFigures(FoundCalls, kw_only=True):
    """The figures of a run as a whole, and of its largest tenants (at most 200). `jain` is Jain's fairness index over
    tenants that waited; `difference_max` is the largest difference of service over weight between two of them. `tpot_s`
    is the mean time per output token after the first. A value is null if it is not known. In the figures of calls that
    were measured, values that only a simulation can find are null too.
    """

    policy: str
    duration_s: float
    throughput_tokens_per_s: float
    output_tokens_per_s: float
    jain: float | None = None
    difference_max: float | None = None
    difference_bound: float | None = None
    owed_service_per_s: float | None = None
    tpot_s: float | None
    preemptions: int | None = None
    hit_ratio: float | None = None
    sessions: SessionFindings | None = None
    tenants: dict[str, FoundTenant]


class Trust(msgspec.Struct, kw_only=True):
    """A judgement of whether a what-if can be trusted: how far the simulation `replayed` is from the measured
    `happened`.

    `factor` is the ratio between them in the worst `figure`: output tokens per second, or the median time to first
    token of the `tenant`; times below 0.1 s count as alike. The simulation is not trusted if `factor` exceeds
    `factor_max`, or if every tenant has fewer than 20 calls (`too_few_calls`).
    """

    is_trusted: bool
    factor: float
    factor_max: float
    figure: Literal["output_tokens_per_s", "ttft_p50_s", "too_few_calls"]
    tenant: str | None


class WhatIfFound(msgspec.Struct, kw_only=True):
    """The results so far of a what-if's two simulations (see WhatIf). Empty or null: not known yet."""

    setting: dict[str, str] = {}
    closed_loop_calls: int | None = None
    happened: FoundFigures | None = None
    replayed: FoundFigures | None = None
    instead: FoundFigures | None = None
    trust: Trust | None = None


class WhatIf(WhatIfFound, kw_only=True):
    """A what-if (a simulation of recorded calls with other settings) and its results.

    `happened` was measured. `replayed` is a simulation of the same calls with the present settings: its difference from
    `happened` is the error of the simulation. `instead` is the simulation with the settings to be tried. `setting` has
    facts about `replayed` as text, such as its engines and step times. `closed_loop_calls` is the number of calls that
    came because an earlier call of their client had ended. In both simulations, such a call follows the simulated end
    of the earlier call after the recorded delay. All other calls come at their recorded times. If no limit refuses
    calls, every call is served in the end, and a tenant's total service is what its calls ask for. The effect of the
    changes is then on waits, not on shares of service. `changes` are the changes of the request. `stopped`: the what-if
    was ended by a DELETE, or because no client read it for a minute.
    """

    id: str
    pool: str
    policy: str | None
    weights: dict[str, float]
    minutes: int
    changes: dict[str, Any]
    sessions: SessionsChanged = SESSIONS_AS_THEY_ARE
    state: Literal["running", "done", "failed", "stopped"] = "running"
    progress: float = 0.0
    error: str | None = None
