"""What-if specification: the gateway's message to the process that simulates a what-if. It is a file of its own, so
that a gateway loads no simulation.
"""

from typing import Final

import msgspec


class SessionsChanged(msgspec.Struct, kw_only=True, frozen=True):
    """The changes for sessions: the KV pool of each engine is `kv_scale` times as large; turns are `held` or not, and
    contexts have a fixed part of the pool, `room_ratio`. None: as configured, and as learnt.
    """

    kv_scale: float = 1.0
    held: bool | None = None
    room_ratio: float | None = None


SESSIONS_AS_THEY_ARE: Final = SessionsChanged()


class EngineSpec(msgspec.Struct, kw_only=True):
    """The specification of engines like the pool's backends; without step times (`base_s` None), of the default engine.
    `paces` has the step times of each over those given here; empty: all are equal.
    """

    engines: int
    requests_running_max: int
    kv_tokens_max: int | None
    base_s: float | None = None
    token_s: float = 0.0
    context_token_s: float = 0.0
    request_s: float = 0.0
    paces: list[float] = []


class InsteadSpec(msgspec.Struct, kw_only=True):
    """The files and engines of the simulation with the asked settings; `trace` None: the same calls."""

    trace: str | None
    config: str
    engine: EngineSpec


class WhatIfSpec(msgspec.Struct, kw_only=True):
    """The specification of a simulation: its files, the pool, and the settings that differ from the recorded ones:
    the policy, weights, and what `instead` has.
    """

    trace: str
    config: str
    pool: str
    sessions: SessionsChanged = SESSIONS_AS_THEY_ARE
    engine: EngineSpec
    policy: str | None
    weights: dict[str, float]
    instead: InsteadSpec | None = None
