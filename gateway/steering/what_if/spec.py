"""What the gateway tells the process that simulates a what-if. Apart from it, so that a gateway loads no simulation."""

import msgspec


class EngineSpec(msgspec.Struct, kw_only=True):
    """Engines like the pool's backends. Without step times (`base_s` None) the simulation's default engine. `paces` are
    the step times of each over those given here; empty: all are alike.
    """

    engines: int
    requests_running_max: int
    kv_tokens_max: int | None
    base_s: float | None = None
    token_s: float = 0.0
    context_token_s: float = 0.0
    request_s: float = 0.0
    paces: list[float] = []


class WhatIfSpec(msgspec.Struct, kw_only=True):
    """What to simulate: files, the pool, and what is other than it was."""

    trace: str
    config: str
    pool: str
    engine: EngineSpec
    policy: str | None
    weights: dict[str, float]
